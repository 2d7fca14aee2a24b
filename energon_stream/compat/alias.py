"""``megatron.energon`` as another name of this library, in this process and in processes that it starts.

A finder, first in ``sys.meta_path``, answers imports at the addresses of
:mod:`energon_stream.compat.addresses`. The folder ``on_path`` in ``sys.path`` does the rest:

* It makes ``megatron`` a namespace package, or adds to it if another Megatron is installed.
* It has the metadata of a distribution ``megatron-energon``, for programs that ask for its version.
* It brings the alias to processes that start with an empty interpreter and get only the path, such as those
  of multiprocessing's ``spawn``: its ``megatron/energon/__init__.py`` installs the alias.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from energon_stream import conventions
from energon_stream.compat.addresses import (
    ADDRESSES,
    ENERGON_VERSION,
    ROOT,
    children,
    find,
    missing_reason,
    offered,
)
from energon_stream.errors import AliasError, ConfigError, MissingNameError
from energon_stream.urls import DATASETS_VARIABLE

ALIAS_VARIABLE = "ENERGON_STREAM_ALIAS"
"""Environment variable: with 1, ``import energon_stream`` installs the alias; with ``shadow``, also over an
installed Megatron-Energon."""

ON_PATH = str(Path(__file__).parent / "on_path")
"""Folder for ``sys.path`` or ``PYTHONPATH``."""


def install_alias(*, shadow: bool = False) -> None:
    """Make ``megatron.energon`` and its submodules resolve to this library. A second call does nothing.

    Call it before anything imports ``megatron.energon``. It applies to this process, to processes forked from
    it, and to processes that multiprocessing spawns; not to other programs that this one starts.

    Datasets follow the conventions of Megatron-Energon from then on, unless the environment variable
    ``ENERGON_STREAM_CONVENTIONS`` or ``WorkerConfig(conventions=…)`` says otherwise: a sample's key has no
    shard, for example.

    Args:
        shadow: Whether the alias may hide an installed Megatron-Energon.

    Raises:
        AliasError: Megatron-Energon was imported already, or is installed and ``shadow`` is False.

    Example:
        >>> from energon_stream.integrations.megatron import install_alias, uninstall_alias
        >>> install_alias()
        >>> from megatron.energon import WorkerConfig
        >>> WorkerConfig.__module__
        'energon_stream.worker'
        >>> uninstall_alias()
    """
    if _finder() is not None:
        return
    loaded = sys.modules.get(ROOT)
    if loaded is not None and not _is_ours(getattr(loaded, "__file__", None)):
        raise AliasError(
            "megatron.energon was imported already",
            where=getattr(loaded, "__file__", None),
            hint="call install_alias() before anything imports it, or run the program with "
            "`python -m energon_stream.run_megatron`",
        )
    installed = None if shadow else _installed()
    if installed is not None:
        raise AliasError(
            "Megatron-Energon is installed, and the alias would hide it",
            where=installed,
            hint="uninstall it, or hide it by install_alias(shadow=True), `run_megatron --shadow` or "
            f"{ALIAS_VARIABLE}=shadow",
        )
    _install()


def _install() -> None:
    conventions.set_default("energon")
    sys.meta_path.insert(0, _AliasFinder())
    if ON_PATH not in sys.path:
        sys.path.insert(1, ON_PATH)  # after the program's own folder, before what is installed
    importlib.invalidate_caches()


def install_from_environment() -> None:
    """Install the alias if the environment variable :data:`ALIAS_VARIABLE` is 1 or ``shadow``.

    Raises ConfigError if it is neither of these nor 0, and AliasError as :func:`install_alias`.
    """
    value = os.environ.get(ALIAS_VARIABLE) or "0"
    if value not in ("0", "1", "shadow"):
        raise ConfigError(f"{ALIAS_VARIABLE} is {value!r}", hint="use 1, 0, or shadow")
    if value != "0":
        install_alias(shadow=value == "shadow")


def uninstall_alias() -> None:
    """Undo :func:`install_alias`. Objects that were imported by the alias stay usable."""
    finder = _finder()
    if finder is None:
        return
    sys.meta_path.remove(finder)
    conventions.set_default("own")
    if ON_PATH in sys.path:
        sys.path.remove(ON_PATH)
    for name in [name for name in sys.modules if name == ROOT or name.startswith(f"{ROOT}.")]:
        del sys.modules[name]
    parent = sys.modules.get("megatron")
    if parent is not None:
        vars(parent).pop("energon", None)
        if all(place.startswith(ON_PATH) for place in getattr(parent, "__path__", ["other"])):
            del sys.modules["megatron"]
    importlib.invalidate_caches()


def adopt(module: ModuleType) -> None:
    """Make the package in :data:`ON_PATH`, or its copy in a distribution, the root, and install the alias.

    Raises AliasError if Megatron-Energon is installed beside the distribution.
    """
    if not str(module.__file__).startswith(ON_PATH):
        for other in distributions(name="megatron-energon"):
            if other.read_text("RECORD") is not None:  # that of the distribution has none
                raise AliasError(
                    "megatron-energon and energon-stream-megatron are installed, which exclude each other",
                    where=str(module.__file__),
                    hint="uninstall both, and install the one that programs shall use",
                )
    if _finder() is None:
        _install()
    _fill(module, "")


def _finder() -> _AliasFinder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _AliasFinder)), None)


def _is_ours(file: str | None) -> bool:
    """Return True for a file that calls :func:`adopt`, in :data:`ON_PATH` or a distribution."""
    return file is not None and f"{__name__} import adopt" in Path(file).read_text(errors="replace")


def _installed() -> str | None:
    """Return the place of an installed Megatron-Energon, or None. Runs no code of Megatron."""
    if "megatron" in sys.modules:
        places = getattr(sys.modules["megatron"], "__path__", ())
    else:
        parent = importlib.util.find_spec("megatron")
        places = (parent and parent.submodule_search_locations) or ()
    path = [place for place in places if not place.startswith(ON_PATH)]
    for finder in sys.meta_path:
        spec = finder.find_spec(ROOT, path) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return None if _is_ours(spec.origin) else spec.origin or str(path)
    return None


class _AliasFinder(MetaPathFinder):
    """Finds the modules at the addresses."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        address = fullname[len(ROOT) + 1 :]
        if address not in ADDRESSES:
            module, _, name = address.rpartition(".")
            if module in ADDRESSES and missing_reason(module, name) is not None:
                find(module, name)  # raises an ImportError that says why
            return None
        # As all modules are packages, ``from module import name`` asks here for a name that the module lacks.
        return ModuleSpec(fullname, _AliasLoader(address), origin="energon_stream", is_package=True)


class _Module(ModuleType):
    """A module in which programs assign the folder of ``dss://``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == DATASETS_VARIABLE and value is not None:
            os.environ[name] = os.fspath(value)
        super().__setattr__(name, value)


class _AliasLoader(Loader):
    def __init__(self, address: str) -> None:
        self._address = address

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        reason = missing_reason(self._address)
        if reason is not None:
            raise MissingNameError("the module is not offered here", where=module.__name__, hint=reason)
        module.__file__ = str(Path(ON_PATH, *ROOT.split("."), "__init__.py"))  # programs ask where it is
        _fill(module, self._address)


def _fill(module: ModuleType, address: str) -> None:
    """Have a module import the names of an address, and the submodules, when they are first used."""
    names, below = offered(address), {child.rpartition(".")[2]: child for child in children(address)}

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        if name in below and name not in names:
            return importlib.import_module(f"{ROOT}.{below[name]}")
        try:
            found = find(address, name)
        except MissingNameError as error:
            raise AttributeError(str(error)) from None  # so that hasattr() answers
        vars(module)[name] = found
        return found

    vars(module).update(
        __all__=names,
        __doc__=f"Names of energon_stream, as {module.__name__}.",
        __getattr__=load,
        __dir__=lambda: sorted({*vars(module), *names, *below}),
    )
    if not address:
        vars(module)["__version__"] = ENERGON_VERSION
    for name in set(names) & set(below):
        # Importing a submodule binds it in its package. A class of the same name must win: edataclass.
        importlib.import_module(f"{ROOT}.{below[name]}")
        setattr(module, name, find(address, name))
