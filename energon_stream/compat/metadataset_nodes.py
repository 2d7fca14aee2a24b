"""Nodes of metadatasets that programs write in Python, under Megatron-Energon's names.

``MetadatasetV2(path, {"train": MetadatasetBlend(blend=[BlendDatasetReference(path="a", weight=2)])})`` means
what a file at ``path`` with these splits means: nodes are the mappings of the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, make_dataclass
from typing import Any


@dataclass(kw_only=True, eq=False)
class _Node(Mapping[str, Any]):
    """A mapping of the attributes that have other values than their defaults."""

    def __iter__(self) -> Iterator[str]:
        defaults = {each.name: each.default for each in fields(self)}
        given = (
            name for name, value in vars(self).items() if name not in defaults or value != defaults[name]
        )
        return (name for name in given if not name.startswith("_"))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, key: str) -> Any:
        if key not in list(self):
            raise KeyError(key)
        value = getattr(self, key)
        if key == "joiner" and callable(value):
            kind = "__class__" if isinstance(value, type) else "__function__"
            return {"__module__": value.__module__, kind: value.__qualname__}
        return os.fspath(value) if isinstance(value, os.PathLike) else value


def _node(name: str, *bases: Any, by_name: bool = True, needed: str = "", **optional: Any) -> Any:
    """Make the class of a node with some keys, of which some are needed."""
    keys: list[Any] = [(key, Any) for key in needed.split()]
    keys += [(key, Any, value) for key, value in optional.items()]
    names = {"__module__": __name__, "__doc__": "A node of a metadataset."}
    return make_dataclass(name, keys, bases=bases or (_Node,), namespace=names, kw_only=by_name, eq=False)


Subset = _node("Subset", needed="range")
AuxDatasetReference = _node("AuxDatasetReference", needed="path")
AuxFilesystemReference = _node("AuxFilesystemReference", needed="fs_path")
SubsetRatioMixin = _node("SubsetRatioMixin", subset=None)
BlendWeightMixin = _node("BlendWeightMixin", by_name=False, weight=1.0)
BlendRepetitionsMixin = _node("BlendRepetitionsMixin", by_name=False, repetitions=1)
_SHARED: Any = {
    **dict.fromkeys(("split_part", "subflavors", "dataset_config", "split_config", "_dataset")),
    "shuffle_over_epochs_multiplier": 1,
}
DatasetReference = _node("DatasetReference", SubsetRatioMixin, needed="path", aux=None, **_SHARED)
JoinDatasetReference = _node("JoinDatasetReference", DatasetReference, nonmatch="error")
MetadatasetJoin = _node("MetadatasetJoin", SubsetRatioMixin, needed="join joiner", **_SHARED)
MetadatasetBlend = _node("MetadatasetBlend", SubsetRatioMixin, needed="blend")
MetadatasetBlendEpochized = _node("MetadatasetBlendEpochized", SubsetRatioMixin, needed="blend_epochized")
BlendDatasetReference = _node("BlendDatasetReference", BlendWeightMixin, DatasetReference)
BlendJoinDatasetReference = _node("BlendJoinDatasetReference", BlendWeightMixin, MetadatasetJoin)
BlendEpochizedDatasetReference = _node(
    "BlendEpochizedDatasetReference", BlendRepetitionsMixin, DatasetReference
)
BlendEpochizedJoinDatasetReference = _node(
    "BlendEpochizedJoinDatasetReference", BlendRepetitionsMixin, MetadatasetJoin
)
# Of version 1:
FirstDatasetReference = _node("DatasetReference", needed="path", subflavor=None, weight=1.0, **_SHARED)
MetadatasetBlender = _node("MetadatasetBlender", needed="datasets")


def read_splits(content: Mapping[str, Any], path_of: Callable[[str], Any]) -> dict[str, _Node]:
    """Return the splits of a parsed file as nodes; ``path_of`` makes a path of what the file has.

    Joiners stay as they are written. Keys that Megatron-Energon does not have are attributes as well.
    """
    return {name: _read(node, path_of) for name, node in content["splits"].items()}


def _read(node: Mapping[str, Any], path_of: Callable[[str], Any], of: str = "") -> Any:
    kind = next(key for key in _CLASSES if key in node)
    made = _CLASSES[kind].get(of, _CLASSES[kind][""])
    keys = dict(node)
    inner: Any = keys[kind]
    if kind == "path":
        keys["path"] = path_of(inner)
    elif isinstance(inner, Mapping):
        keys[kind] = {name: _read(each, path_of, kind) for name, each in inner.items()}
    else:
        keys[kind] = [_read(each, path_of, kind) for each in inner]
    if isinstance(keys.get("subset"), Mapping):
        keys["subset"] = Subset(**keys["subset"])
    if "aux" in keys:
        keys["aux"] = {name: _read_aux(each, path_of) for name, each in keys["aux"].items()}
    known = {each.name for each in fields(made)}
    read = made(**{key: value for key, value in keys.items() if key in known})
    vars(read).update(keys)
    return read


def _read_aux(value: Any, path_of: Callable[[str], Any]) -> Any:
    if isinstance(value, Mapping):
        value = value.get("path") or f"filesystem://{value['fs_path']}"
    scheme, _, rest = value.partition("://")
    if scheme.split("+")[0] != "filesystem":
        return AuxDatasetReference(path=path_of(value))
    return AuxFilesystemReference(fs_path=path_of(f"{scheme[11:]}://{rest}" if "+" in scheme else rest))


# By the key that tells the kind of a node, and the key of the node around it.
_CLASSES: dict[str, dict[str, Any]] = {
    "path": {
        "": DatasetReference,
        "blend": BlendDatasetReference,
        "blend_epochized": BlendEpochizedDatasetReference,
        "join": JoinDatasetReference,
        "datasets": FirstDatasetReference,
    },
    "join": {
        "": MetadatasetJoin,
        "blend": BlendJoinDatasetReference,
        "blend_epochized": BlendEpochizedJoinDatasetReference,
    },
    "blend": {"": MetadatasetBlend},
    "blend_epochized": {"": MetadatasetBlendEpochized},
    "datasets": {"": MetadatasetBlender},
}
