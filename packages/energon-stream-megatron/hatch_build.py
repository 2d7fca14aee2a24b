"""Builds the wheel: the root of ``energon_stream.compat.on_path``, type stubs of all modules, and metadata.

It asks an installed energon-stream for its names: build it with ``--no-isolation``, in the repository.
The metadata of ``megatron-energon`` is an ``.egg-info``, because pip refuses a wheel with two ``.dist-info``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

from energon_stream import __version__
from energon_stream.compat import dataset_classes
from energon_stream.compat.addresses import ADDRESSES, ENERGON_VERSION, ROOT, home, missing_reason, offered
from energon_stream.compat.alias import ON_PATH

CLASSES = Path(dataset_classes.__file__).read_text()
FOLDER = ROOT.replace(".", "/")


def stub(address: str) -> str:
    """Return the type stub of a module: its names, imported from their places."""
    lines = ["import logging"] if "logger" in offered(address) else []
    for name in offered(address):
        place = home(address, name)
        if place is None:
            lines.append(f"{name}: logging.Logger")
            continue
        module, there = place
        if module == dataset_classes.__name__ and f"class {name}(" not in CLASSES:  # made by a loop there
            there = "BaseCoreDatasetFactory"
        given = name if there == name else f"_{name}"  # checkers take no other name for an export
        lines.append(f"from {module} import {there} as {given}")
        if given != name:
            lines.append(f"{name} = {given}")
    if not address:
        lines.append("__version__: str")
    return "\n".join([*lines, ""])


def contents() -> dict[str, str]:
    """Return the text of each file of the wheel, by its path."""
    found = {
        f"{FOLDER}/__init__.py": Path(ON_PATH, FOLDER, "__init__.py").read_text(),
        f"{FOLDER}/py.typed": "",
        f"megatron_energon-{ENERGON_VERSION}.egg-info/PKG-INFO": next(
            Path(ON_PATH).glob("*.dist-info/METADATA")
        ).read_text(),
    }
    for address in ADDRESSES:
        if missing_reason(address) is None:
            place = f"{FOLDER}/{address.replace('.', '/')}".rstrip("/")
            below = any(other.startswith(f"{address}.") for other in ADDRESSES) or not address
            found[f"{place}/__init__.pyi" if below else f"{place}.pyi"] = stub(address)
    return found


class Contents(BuildHookInterface[Any]):
    """Puts the files into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files to a temporary folder, from which they are included."""
        self._folder = tempfile.TemporaryDirectory()
        for path, text in contents().items():
            file = Path(self._folder.name, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            build_data["force_include"][str(file)] = path

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        self._folder.cleanup()


class Dependency(MetadataHookInterface):
    """Pins the library to the version of this repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the dependency."""
        metadata["dependencies"] = [f"energon-stream=={__version__}"]
