"""The names at the root: importable, sorted, and those that clients of Megatron-Energon import."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import energon_stream

ROOT = Path(energon_stream.__file__).parent

CLIENTS = [
    "VQASample",
    "DefaultTaskEncoder",
    "WorkerConfig",
    "stateless",
    "get_train_dataset",
    "Sample",
    "SimilarityInterleavedSample",
    "SkipSample",
    "Batch",
    "get_savable_loader",
    "Cooker",
    "basic_sample_keys",
    "get_loader",
    "InterleavedSample",
    "batch_list",
    "batch_pad_stack",
    "CaptioningSample",
    "get_val_dataset",
    "LimitDataset",
    "RepeatDataset",
    "OCRSample",
    "MultiChoiceVQASample",
    "ImageSample",
    "generic_batch",
    "BatchDataset",
    "MapDataset",
    "FilterDataset",
    "CrudeSample",
    "edataclass",
    "TaskEncoder",
    "cooker",
]


def listed(stub: Path) -> dict[str, str]:
    """The names of a stub, with the module that each comes from."""
    package = ".".join(stub.relative_to(ROOT.parent).parent.parts)
    tree = ast.parse(stub.read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    for node in imports:
        assert all(alias.asname == alias.name for alias in node.names), "type checkers export `x as x` only"
    return {alias.name: f"{package}.{node.module}" for node in imports for alias in node.names}


@pytest.mark.parametrize("stub", sorted(ROOT.rglob("__init__.pyi")), ids=lambda stub: stub.parent.name)
def test_the_stub_is_the_list_of_names(stub):
    package = importlib.import_module(".".join(stub.relative_to(ROOT.parent).parent.parts))
    names = listed(stub)
    assert package.__all__ == sorted(names)
    for name, module in names.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


def test_all_files_of_the_package_are_shipped():
    """Stubs, too; `make release-check` looks into the wheel."""
    settings = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["energon_stream"]}


def test_importing_the_package_imports_nothing_heavy():
    program = "import sys, energon_stream, energon_stream.config; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert not {"torch", "numpy", "fsspec", "obstore", "yaml"} & set(modules)
    assert [name for name in modules if name.startswith("energon_stream.")] == ["energon_stream.config"]


@pytest.mark.parametrize("name", CLIENTS)
def test_what_clients_import_is_there(name):
    assert name in energon_stream.__all__


def test_a_star_import_of_the_errors_brings_errors_alone():
    names: dict[str, object] = {}
    exec("from energon_stream.errors import *", names)
    del names["__builtins__"]
    assert {"ConfigError", "SkipSample", "IgnoreSample"} <= names.keys()
    assert all(
        issubclass(kind, Exception) and kind.__module__ == "energon_stream.errors" for kind in names.values()
    )
