"""The names at the root: importable, sorted, and those that clients of Megatron-Energon import."""

import importlib

import pytest

import energon_stream

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


def test_all_is_sorted_and_each_name_is_there():
    assert energon_stream.__all__ == sorted(set(energon_stream.__all__))
    for name in energon_stream.__all__:
        assert getattr(energon_stream, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = energon_stream.nothing


@pytest.mark.parametrize("name", CLIENTS)
def test_what_clients_import_is_there(name):
    assert name in energon_stream.__all__


def test_the_names_for_type_checkers_are_those_for_python():
    """The imports under TYPE_CHECKING and the lazy table must not drift apart."""
    import ast
    from pathlib import Path

    tree = ast.parse(Path(energon_stream.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    static = {alias.asname: node.module for node in block.body for alias in node.names}
    lazy = {name: module for module, names in energon_stream._EXPORTS.items() for name in names}
    assert static == lazy
    for name, module in lazy.items():
        assert name in importlib.import_module(module).__all__, f"{module}.__all__ lacks {name}"
