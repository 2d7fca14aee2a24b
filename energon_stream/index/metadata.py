"""``.info.json``, ``split.yaml`` and their older forms: bytes to values and back, byte for byte.

The writers produce what Megatron-Energon 7.4.1 produces for the same values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_stream.errors import MetadataError
from energon_stream.index.shard_names import collapse, expand
from energon_stream.index.yaml_io import check_keys, dump_yaml, load_yaml

__all__ = [
    "DATASET_CONFIG",
    "INFO_JSON",
    "INFO_YAML",
    "META_FOLDER",
    "SPLIT_CONFIG",
    "SplitConfig",
    "encode_info",
    "encode_split",
    "load_document",
    "parse_info",
    "parse_split",
]

META_FOLDER = ".nv-meta"
INFO_JSON, INFO_YAML = f"{META_FOLDER}/.info.json", f"{META_FOLDER}/.info.yaml"
SPLIT_CONFIG, DATASET_CONFIG = "split.yaml", "dataset.yaml"

_FORMAT_VERSION = "7.4.1"  # of Megatron-Energon; it refuses files with keys of our own


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """Which shards belong to which split part.

    Attributes:
        parts: Split part to shard paths, in order, braces expanded.
        exclude: ``shard.tar`` or ``shard.tar/sample key``, braces expanded.
    """

    parts: Mapping[str, tuple[str, ...]]
    exclude: tuple[str, ...] = ()


def load_document(data: bytes | memoryview, where: str) -> dict[str, Any]:
    """Read a JSON or YAML file that must hold a mapping, by the suffix of its name."""
    value: Any
    if where.endswith(".json"):
        try:
            value = json.loads(bytes(data))
        except ValueError as error:
            raise MetadataError(f"this is no JSON: {error}", where=where) from error
    else:
        value = load_yaml(data, where)
    if not isinstance(value, dict):
        raise MetadataError("the file must hold a mapping of keys to values", where=where)
    return value


def parse_info(data: bytes | memoryview, where: str) -> dict[str, int]:
    """Read ``.info.json`` or ``.info.yaml``.

    Returns:
        Shard path to number of samples, in the order of the shards' ids.

    Raises:
        MetadataError: Not of the right form.
    """
    document = load_document(data, where)
    check_keys(document, ("energon_version", "shard_counts"), where)
    counts = document.get("shard_counts")
    if not isinstance(counts, dict):
        raise MetadataError("'shard_counts' must map shard paths to numbers of samples", where=where)
    for path, count in counts.items():
        if type(count) is not int or count < 0:
            raise MetadataError(f"the sample count of {path!r} is {count!r}", where=where)
    return counts


def encode_info(shard_counts: Mapping[str, int], *, as_yaml: bool = False) -> bytes:
    """Content of ``.info.json``, or of ``.info.yaml``."""
    document = {"energon_version": _FORMAT_VERSION, "shard_counts": dict(shard_counts)}
    return dump_yaml(document) if as_yaml else json.dumps(document, indent=2).encode()


def parse_split(data: bytes | memoryview, where: str) -> SplitConfig:
    """Read ``split.yaml`` or ``split.json``.

    Raises:
        MetadataError: Not of the right form.
    """
    document = load_document(data, where)
    check_keys(document, ("split_parts", "exclude"), where)
    parts = document.get("split_parts")
    if not isinstance(parts, dict):
        raise MetadataError("'split_parts' must map names to lists of shards", where=where)
    return SplitConfig(
        {name: tuple(expand(_strings(name, shards, where), where)) for name, shards in parts.items()},
        tuple(expand(_strings("exclude", document.get("exclude"), where), where)),
    )


def _strings(key: str, value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise MetadataError(f"{key!r} must be a list of texts, and is {value!r:.80}", where=where)
    return value


def encode_split(parts: Mapping[str, Sequence[str]], exclude: Sequence[str] = ()) -> bytes:
    """Content of ``split.yaml``; shard names are collapsed to brace patterns."""
    collapsed = {name: collapse(shards) for name, shards in parts.items()}
    return dump_yaml({"split_parts": collapsed, "exclude": list(exclude)})
