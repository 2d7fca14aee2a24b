"""YAML of metadata files: plain trees of YAML 1.2 scalars. Nothing is executed or dropped.

Parsing differs from PyYAML's safe loader as Megatron-Energon's does: keys are always strings; ``on``,
``0x10`` and dates stay strings; ``1e3`` is a float and ``012`` the integer 12; ``yes`` and ``no`` are
booleans; tags mean nothing. Aliases and empty files, which Megatron-Energon misreads silently, are errors
here. So are duplicate keys, except by Megatron-Energon's conventions: there the last value counts.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml

from energon_stream.conventions import conventions
from energon_stream.errors import LimitError, MetadataError
from energon_stream.limits import Limits
from energon_stream.printable import nearest
from energon_stream.storage import Body, Store

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
_MOST_DIGITS = 40  # of an integer, with its sign and leading zeros
_NUMERIC = frozenset("+-.0123456789")  # first characters of numbers
_DOTTED_WORD = re.compile(r"\.(?=[iIN]|nan)")


def load_yaml(data: bytes | memoryview, where: str, limits: Limits | None = None) -> Any:
    """Parse a document; ``limits`` None stands for those of the environment.

    Raises MetadataError if the data is not YAML, is empty, or has a duplicate key or an alias, and LimitError
    if it is too large, or nested too deeply.

    Example:
        >>> load_yaml(b"{weight: 1e3, train: [a.tar], on: yes}", "mix.yaml")
        {'weight': 1000.0, 'train': ['a.tar'], 'on': True}
    """
    limits = limits or Limits.from_environment()
    check_size(len(data), where, limits)
    try:
        # Events, not nodes: for a split file of 10^5 shards, a tree of nodes takes ten times the memory.
        events = _bounded(yaml.parse(bytes(data), _LOADER), where, limits)
        if not any(isinstance(event, yaml.DocumentStartEvent) for event in events):
            raise MetadataError("the file is empty", where=where)
        value = _value(next(events), events, where)
        next(events)  # the end of the document
        if not isinstance(next(events), yaml.StreamEndEvent):
            raise MetadataError("the file holds more than one document", where=where)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        if "nesting" in reason:  # libyaml has a limit of its own, and looks ahead
            raise _too_deep(where, limits) from None
        raise MetadataError(f"the file is not valid YAML: {reason:.300}", where=where) from error
    except MetadataError as error:
        if error.where is not None:
            raise
        raise MetadataError(error.what, where=where, hint=error.hint) from None
    except RecursionError:
        raise _too_deep(where, limits) from None
    return value


def _too_deep(where: str, limits: Limits) -> LimitError:
    problem = "the file is nested more deeply than its parser can follow"
    return LimitError(**limits.exceeded("document_depth", problem), where=where)


def check_size(size: int, where: str, limits: Limits) -> None:
    """Raise LimitError if a document is larger than the limit ``document_bytes``."""
    if size > limits.document_bytes:
        raise LimitError(**limits.exceeded("document_bytes", f"the file has {size:,} bytes"), where=where)


def read_document(path: str, store: Store, limits: Limits | None = None) -> Body:
    """Read a file of metadata by one request. Raises LimitError if it is larger than ``document_bytes``."""
    limits = limits or Limits.from_environment()
    body = store.get_suffix(path, limits.document_bytes + 1)
    check_size(body.total_size or len(body.data), f"{store.url}/{path}".rstrip("/"), limits)
    return body


def read_text(path: str, store: Store, limits: Limits | None = None) -> str:
    """Read a text of metadata; see :func:`read_document`. Raises MetadataError if it is not UTF-8."""
    try:
        return bytes(read_document(path, store, limits).data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{store.url}/{path}".rstrip("/")
        raise MetadataError(
            f"the file is not UTF-8: {error}", where=where, hint="save it as UTF-8"
        ) from error


def _bounded(events: Iterator[yaml.Event], where: str, limits: Limits) -> Iterator[yaml.Event]:
    """Yield events. Raises LimitError at the value that is one too many, or too deep."""
    values = depth = 0
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
            if values > limits.document_values or depth > limits.document_depth:
                name, problem = "document_values", "has more than the last value"
                if depth > limits.document_depth:
                    name, problem = "document_depth", "is nested more deeply"
                raise LimitError(**limits.exceeded(name, f"line {_line(event)} {problem}"), where=where)
        yield event


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
            _refuse_duplicate(f"the key {key!r:.80} appears twice, again in line {_line(event)}", where)
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
        return parse_int(text)
    if _FLOAT.fullmatch(text):
        return float(_DOTTED_WORD.sub("", text))
    return text


def parse_int(text: str) -> int:
    """Return an integer of at most 64 bits. Raises MetadataError for a larger one, without a place."""
    if len(text) <= _MOST_DIGITS and -(1 << 63) <= (number := int(text)) < 1 << 64:
        return number
    raise MetadataError(
        f"the number {text:.30}{'…' if len(text) > 30 else ''} has more than 64 bits",
        hint="write it in quotes if it is a text",
    )


def dump_yaml(value: Any) -> bytes:
    """Return a document in block style, with the keys in the order of the dicts."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=False)
    return text.encode()


def check_keys(mapping: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raise MetadataError for an unknown key, with the most similar known one."""
    for key in mapping:
        if key not in known:
            raise MetadataError(f"unknown key {key!r:.80}", where=where, hint=nearest(key, known))
