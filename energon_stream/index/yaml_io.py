"""YAML of metadata files: plain trees of YAML 1.2 scalars. Nothing is executed or dropped.

Parsing differs from PyYAML's safe loader as Megatron-Energon's does: keys are always strings; ``on``,
``0x10`` and dates stay strings; ``1e3`` is a float and ``012`` the integer 12; ``yes`` and ``no`` are
booleans; tags mean nothing. Aliases and empty files, which Megatron-Energon misreads silently, are errors
here. So are duplicate keys, except by Megatron-Energon's conventions: there the last value counts.
"""

from __future__ import annotations

import difflib
import itertools
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml

from energon_stream.conventions import conventions
from energon_stream.errors import MetadataError

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # leaves scalars as strings; _scalar resolves them
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_WORDS = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_QUOTED = ("'", '"', "|", ">")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_NUMERIC = frozenset("+-.0123456789")  # first characters of numbers
_DOTTED_WORD = re.compile(r"\.(?=[iIN]|nan)")


def load_yaml(data: bytes | memoryview, where: str) -> Any:
    """Parse a document.

    Raises:
        MetadataError: The data is not YAML, is empty, or has a duplicate key or an alias.

    Example:
        >>> load_yaml(b"{weight: 1e3, train: [a.tar], on: yes}", "mix.yaml")
        {'weight': 1000.0, 'train': ['a.tar'], 'on': True}
    """
    try:
        # Events, not nodes: for a split file of 10^5 shards, a tree of nodes takes ten times the memory.
        events = yaml.parse(bytes(data), _LOADER)
        if not any(isinstance(event, yaml.DocumentStartEvent) for event in events):
            raise MetadataError("the file is empty", where=where)
        value = _value(next(events), events, where)
        next(events)  # the end of the document
        if not isinstance(next(events), yaml.StreamEndEvent):
            raise MetadataError("the file holds more than one document", where=where)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise MetadataError(f"the file is not valid YAML: {reason}", where=where) from error
    return value


def _value(event: yaml.Event, events: Iterator[yaml.Event], where: str) -> Any:
    """Return the value that begins with an event; take its other events."""
    if isinstance(event, yaml.ScalarEvent):
        return event.value if event.style in _QUOTED else _scalar(event.value)
    if isinstance(event, yaml.SequenceStartEvent):
        return [_value(item, events, where) for item in _until(yaml.SequenceEndEvent, events)]
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(events, where)
    raise MetadataError(
        f"line {_line(event)} uses a value through an alias (*name)",
        where=where,
        hint="write the value out; Megatron-Energon reads aliases as plain text",
    )


def _until(end: type[yaml.Event], events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
    return itertools.takewhile(lambda event: not isinstance(event, end), events)


def _mapping(events: Iterator[yaml.Event], where: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for event in _until(yaml.MappingEndEvent, events):
        if not isinstance(event, yaml.ScalarEvent):
            raise MetadataError(f"the key in line {_line(event)} is not a string", where=where)
        key = event.value
        if key in result:
            _refuse_duplicate(f"the key {key!r} appears twice, again in line {_line(event)}", where)
        result[key] = _value(next(events), events, where)
    return result


def _refuse_duplicate(problem: str, where: str) -> None:
    """Raise MetadataError; by Megatron-Energon's conventions, warn that the last value counts."""
    hint = "remove one of the two: Megatron-Energon takes the last one, which a reader may not see"
    if conventions() == "own":
        raise MetadataError(problem, where=where, hint=hint)
    warnings.warn(f"{where}: {problem}; the last one counts", UserWarning, stacklevel=2)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(_DOTTED_WORD.sub("", text))
    return text


def dump_yaml(value: Any) -> bytes:
    """Return a document in block style, with the keys in the order of the dicts."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=False)
    return text.encode()


def check_keys(mapping: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Check that all keys are known.

    Raises MetadataError if a key is unknown; the message has the most similar known one.
    """
    for key in mapping:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"valid keys are {', '.join(sorted(known))}"
            raise MetadataError(f"unknown key {key!r}", where=where, hint=hint)
