"""YAML as the metadata files use it: plain trees of YAML 1.2 scalars, nothing executed, nothing dropped.

Reading differs from PyYAML's safe loader where Megatron-Energon does: keys are always strings; ``on``,
``0x10`` and dates stay strings; ``1e3`` is a float and ``012`` the integer 12; ``yes`` and ``no`` are
booleans; tags mean nothing. Duplicate keys, aliases and empty files, which it gets wrong silently, are
errors here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml

from energon_stream.errors import MetadataError

__all__ = ["check_keys", "dump_yaml", "load_yaml"]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_TRUE = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES"})
_FALSE = frozenset({"false", "False", "FALSE", "no", "No", "NO"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_QUOTED = ("'", '"', "|", ">")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_DOTTED_WORD = re.compile(r"\.(?=[iIN]|nan)")


def load_yaml(data: bytes | memoryview, where: str) -> Any:
    """Read a document.

    Args:
        data: UTF-8 text.
        where: URL of the file, for messages.

    Returns:
        Dicts with string keys, lists, and scalars.

    Raises:
        MetadataError: No YAML, an empty file, a duplicate key or an alias.
    """
    try:
        root = yaml.compose(bytes(data), _LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise MetadataError(f"this is no YAML: {reason}", where=where) from error
    if root is None:
        raise MetadataError("the file is empty", where=where)
    return _value(root, where, set())


def _value(node: yaml.Node, where: str, seen: set[int]) -> Any:
    if id(node) in seen:
        raise MetadataError(
            f"line {_line(node)} is used through an alias (*name)",
            where=where,
            hint="Write the value out; Megatron-Energon reads aliases as plain text.",
        )
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, where, seen)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, where, seen) for item in node.value]
    style, text = getattr(node, "style", None), str(node.value)
    return text if style in _QUOTED else _scalar(text)


def _mapping(node: yaml.MappingNode, where: str, seen: set[int]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise MetadataError(f"the key in line {_line(key_node)} is no text", where=where)
        key = key_node.value
        if key in result:
            raise MetadataError(
                f"the key {key!r} appears twice, again in line {_line(key_node)}", where=where
            )
        result[key] = _value(value_node, where, seen)
    return result


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(_DOTTED_WORD.sub("", text))
    return text


def dump_yaml(value: Any) -> bytes:
    """Write a document in block style, keys in the order of the dicts."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=False)
    return text.encode()


def check_keys(mapping: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse keys that mean nothing.

    Raises:
        MetadataError: For the first unknown key; the message has the nearest valid one.
    """
    for key in mapping:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Valid keys: {', '.join(sorted(known))}."
            raise MetadataError(f"unknown key {key!r}", where=where, hint=hint)
