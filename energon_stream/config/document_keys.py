"""Keys of the documents that describe datasets: what a value may be, and what an error says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from energon_stream.errors import EnergonStreamError, MetadataError
from energon_stream.index.yaml_io import check_keys


@dataclass(frozen=True, slots=True)
class Key:
    """The values that a key of a document may have."""

    accepts: Callable[[Any], object] = lambda value: True  # is true for a value that may stand there
    hint: str | None = None  # of the error for other values
    default: Any = None  # value of a document without the key
    optional: bool = True  # True if null stands for the default


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def one_of(choices: Collection[str], default: str | None = None, *, optional: bool = True) -> Key:
    """Return a key whose value is one of some names."""
    return Key(lambda value: value in tuple(choices), f"use one of {', '.join(choices)}", default, optional)


def of_type(*types: type) -> Key:
    """Return a key whose value is of one of these types, and no truth value."""
    return Key(lambda value: isinstance(value, types) and not isinstance(value, bool), optional=False)


ANY = Key()
TEXT = Key(lambda value: isinstance(value, str) and value, "use a string that is not empty")
MAPPING = Key(lambda value: not value or isinstance(value, Mapping), "map names to values", {})
CLASS_KEYS = {"__module__": ANY, "__class__": ANY}
"""Keys that name a class, whose values ``read_class`` checks."""


def check_mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return a value that is a mapping of names; raise MetadataError if it is none."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise MetadataError(f"a mapping is needed here, not {value!r:.80}", where=where)
    return value


def read_keys(
    document: Mapping[str, Any],
    keys: Mapping[str, Key],
    where: str,
    *,
    extra: Collection[str] = (),
    error: type[EnergonStreamError] = MetadataError,
) -> dict[str, Any]:
    """Return the value of each key, or its default. The document may have the keys ``extra`` as well.

    Raises MetadataError if a key is unknown, and ``error`` if a value is wrong.
    """
    check_keys(check_mapping(document, where), {*keys, *extra}, where)
    found: dict[str, Any] = {}
    for name, key in keys.items():
        value = document.get(name, key.default)
        if value is None and key.optional:
            value = key.default
        elif name in document and not key.accepts(value):
            raise error(f"{name!r} is {value!r:.80}", where=where, hint=key.hint)
        found[name] = value
    return found
