"""Codecs of ``.info.json``, ``split.yaml`` and their older forms.

For the same values, the writers produce the bytes that Megatron-Energon 7.4.1 produces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from energon_stream.errors import LimitError, MetadataError, ObjectNotFoundError
from energon_stream.index.braces import Expander
from energon_stream.index.shard_names import collapse, is_inside
from energon_stream.index.yaml_io import (
    check_keys,
    check_size,
    dump_yaml,
    load_yaml,
    parse_int,
    read_document,
)
from energon_stream.limits import Limits
from energon_stream.storage import Store

META_FOLDER = ".nv-meta"
STAGING = ".nv-staging"  # what an unfinished preparation has found
INFO_JSON, INFO_YAML = f"{META_FOLDER}/.info.json", f"{META_FOLDER}/.info.yaml"

_FORMAT_VERSION = "7.4.1"  # of Megatron-Energon, which refuses unknown keys: there is no room for our version
_SPECIAL = re.compile(r"[{}\\]")  # what brace patterns give a meaning
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_MAY_LEAVE = re.compile(r"^[/~]|\.\.|::|://|\0", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """Content of a split file."""

    split_parts: Mapping[str, tuple[str, ...]]  # shard paths of each split part, in order, braces expanded
    exclude: tuple[str, ...] = ()  # ``shard.tar`` or ``shard.tar/sample key``, braces expanded


def load_document(data: bytes | memoryview, where: str, limits: Limits | None = None) -> dict[str, Any]:
    """Parse a file that must hold a mapping: JSON if ``where`` ends in ``.json``, else YAML.

    Raises MetadataError for other content, and LimitError if it is too large, or nested too deeply.
    """
    limits = limits or Limits.from_environment()
    load = _load_json if where.endswith(".json") else load_yaml
    value = load(bytes(data), where, limits)
    if not isinstance(value, dict):
        raise MetadataError("the file must hold a mapping of keys to values", where=where)
    return value


def _load_json(data: bytes, where: str, limits: Limits) -> Any:
    check_size(len(data), where, limits)
    # Each value but the first follows a comma or an opening bracket.
    values = 1 + sum(data.count(sign) for sign in (b",", b"[", b"{"))
    if values > limits.document_values:
        problem = f"the file may have {values:,} values"
        raise LimitError(**limits.exceeded("document_values", problem), where=where)
    try:
        # The check of each integer doubles the time, and only long runs of digits need it.
        value = json.loads(data, parse_int=parse_int if _LONG_NUMBER.search(data) else None)
        too_deep = _is_deeper(value, limits.document_depth)
    except MetadataError as error:
        raise MetadataError(error.what, where=where, hint=error.hint) from None
    except ValueError as error:
        raise MetadataError(f"the file is not valid JSON: {error}", where=where) from error
    except RecursionError:
        too_deep = True
    if too_deep:
        problem = "the file is nested more deeply"
        raise LimitError(**limits.exceeded("document_depth", problem), where=where)
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    """Return whether more than ``depth`` lists and dicts of a parsed value are inside each other."""
    level = [value] if isinstance(value, (list, dict)) else []
    for _ in range(depth):
        inner = [item for each in level for item in (each.values() if type(each) is dict else each)]
        level = [item for item in inner if type(item) in (list, dict)]
        if not level:
            return False
    return bool(level)


def parse_info(data: bytes | memoryview, where: str, limits: Limits | None = None) -> dict[str, int]:
    """Return the number of samples by shard path of an info file, in the order of the file."""
    limits = limits or Limits.from_environment()
    document = load_document(data, where, limits)
    check_keys(document, ("energon_version", "shard_counts"), where)
    counts = document.get("shard_counts")
    if not isinstance(counts, dict):
        raise MetadataError("'shard_counts' must map shard paths to numbers of samples", where=where)
    for path, count in counts.items():
        if type(count) is not int or count < 0:
            raise MetadataError(
                f"the number of samples of {path!r:.80} must be an integer ≥ 0, not {count!r:.80}",
                where=where,
            )
        if count > limits.shard_samples:
            problem = f"the shard {path!r:.80} is said to have {count:,} samples"
            raise LimitError(**limits.exceeded("shard_samples", problem), where=where)
    check_inside(counts, where)
    return counts


def check_inside(paths: Iterable[str], where: str) -> None:
    """Raise MetadataError if a path of a shard is absolute, a URL, or has ``..``."""
    names = list(paths)
    # Most files have no name that could leave: one search tells, in a tenth of the time.
    for path in names if _MAY_LEAVE.search("\n".join(names)) else ():
        if not is_inside(path):
            raise MetadataError(
                f"the path {path!r:.80} leaves the dataset",
                where=where,
                hint="shards lie below the dataset's folder; to mix several folders, use a metadataset",
            )


def read_info(store: Store, limits: Limits | None = None) -> dict[str, int]:
    """Read ``.info.json``, or else ``.info.yaml``; see :func:`parse_info`."""
    try:
        path, body = INFO_JSON, read_document(INFO_JSON, store, limits)
    except ObjectNotFoundError:
        path, body = INFO_YAML, read_document(INFO_YAML, store, limits)
    return parse_info(body.data, f"{store.url}/{path}", limits)


def encode_info(shard_counts: Mapping[str, int], *, as_yaml: bool = False) -> bytes:
    """Return the content of ``.info.json``, or of ``.info.yaml``."""
    document = {"energon_version": _FORMAT_VERSION, "shard_counts": dict(shard_counts)}
    return dump_yaml(document) if as_yaml else json.dumps(document, indent=2).encode()


def parse_split(data: bytes | memoryview, where: str, limits: Limits | None = None) -> SplitConfig:
    """Parse ``split.yaml`` or ``split.json``.

    Raises MetadataError if the file has a wrong form, and LimitError if the file is too large, or its braces
    expand to too many names.
    """
    document = load_document(data, where, limits)
    check_keys(document, ("split_parts", "exclude"), where)
    parts = document.get("split_parts")
    if not isinstance(parts, dict):
        raise MetadataError("'split_parts' must map names to lists of shards", where=where)
    expand = Expander(where, limits).expand
    return SplitConfig(
        {name: tuple(expand(_strings(name, shards, where))) for name, shards in parts.items()},
        tuple(expand(_strings("exclude", document.get("exclude"), where))),
    )


def _strings(key: str, value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise MetadataError(f"{key!r:.80} must be a list of strings, not {value!r:.80}", where=where)
    return value


def encode_split(split_parts: Mapping[str, Sequence[str]], exclude: Sequence[str] = ()) -> bytes:
    """Return the content of ``split.yaml``, with shard names collapsed to brace patterns.

    Braces and backslashes of names are escaped.

    Example:
        >>> print(encode_split({"train": ["0.tar", "1.tar"], "val": ["2.tar"]}).decode())
        split_parts:
          train:
          - '{0..1}.tar'
          val:
          - 2.tar
        exclude: []
    """
    escape = partial(_SPECIAL.sub, r"\\\g<0>")
    collapsed = {name: collapse([*map(escape, shards)]) for name, shards in split_parts.items()}
    return dump_yaml({"split_parts": collapsed, "exclude": [*map(escape, exclude)]})
