"""The ``field_map`` of ``dataset.yaml``: for each field a part, or a place within it: ``part[key][0]``.

Of several places, separated by commas, the first one that a sample has is taken. Part names may have dots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from energon_stream.errors import ConfigError, FieldError, MetadataError
from energon_stream.read.part_ranges import find_part

_ACCESS = re.compile(r"\s*([^\[\],\s]+)((?:\[[^\[\]]+\])*)\s*")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_MISSING = object()
Parts: TypeAlias = frozenset[str] | Callable[[str], bool]
"""Names of parts, or a function of a name."""


@dataclass(frozen=True, slots=True)
class Access:
    """A place of a value: a part, and keys within it."""

    part: str
    keys: tuple[str, ...] = ()

    def follow(self, value: Any) -> Any:
        """Follow the keys into a decoded part, to ``_MISSING`` if one does not exist."""
        for key in self.keys:
            if isinstance(value, Mapping):
                value = value.get(key, _MISSING)
            elif isinstance(value, (list, tuple)) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return _MISSING
        return value

    def __str__(self) -> str:
        return self.part + "".join(f"[{key}]" for key in self.keys)


@dataclass(frozen=True, slots=True)
class FieldAccess:
    """The places of a field's value."""

    field: str
    alternatives: tuple[Access, ...]  # the first one that exists is taken

    def within(self, parts: frozenset[str], where: str) -> FieldAccess:
        """Return the same field with places in these parts only. Raises ConfigError if none is left."""
        left = tuple(access for access in self.alternatives if access.part in parts)
        if not left:
            wanted = " or ".join(sorted({access.part for access in self.alternatives}))
            raise ConfigError(
                f"field {self.field!r} comes from {wanted}, but parts={sorted(parts)} leaves that out",
                where=where,
                hint="add the part, or leave out `parts`: parts that no field needs are not read anyway",
            )
        return replace(self, alternatives=left)

    def read(self, parts: Collection[str], decode: Callable[[str], Any]) -> Any:
        """Return the field's value; ``jpg`` takes ``JPG`` too. Raises FieldError if no place exists."""
        for access in self.alternatives:
            part = access.part if access.part in parts else find_part(access.part, parts)
            if part is not None:
                value = decode(part)
                if access.keys:
                    value = access.follow(value)
                if value is not _MISSING:
                    return value
        wanted = " or ".join(repr(str(access)) for access in self.alternatives)
        error = FieldError(
            f"field {self.field!r} comes from {wanted}, which the sample lacks"
            f" (it has the parts {', '.join(sorted(parts))})",
            hint="correct the field map, or leave such samples out with exclude=",
        )
        error.part = self.alternatives[0].part
        raise error


def parse_field_map(document: Any, where: str) -> tuple[FieldAccess, ...]:
    """Parse a ``field_map``. Raises MetadataError if it is not a mapping of names to places.

    Example:
        >>> (access,) = parse_field_map({"caption": "json[caption],txt"}, "dataset.yaml")
        >>> access.read({"txt"}, {"txt": "a cat"}.get)
        'a cat'
    """
    if not isinstance(document, Mapping) or not document:
        raise MetadataError("'field_map' must map fields to parts, as `image: jpg`", where=where)
    return tuple(FieldAccess(field, _parse(field, text, where)) for field, text in document.items())


def _parse(field: str, text: Any, where: str) -> tuple[Access, ...]:
    texts = _COMMA_OUTSIDE_BRACKETS.split(text) if isinstance(text, str) else [""]
    matches = [match for place in texts if (match := _ACCESS.fullmatch(place))]
    if len(matches) != len(texts):
        raise MetadataError(
            f"the place of field {field!r} is {text!r}",
            where=where,
            hint="use a part (jpg), a place within a part (json[caption]), or several with commas (jpg,png)",
        )
    return tuple(Access(match[1], tuple(re.findall(r"\[([^\[\]]+)\]", match[2]))) for match in matches)


def parse_parts(value: Any, where: str) -> Parts | None:
    """Parse a list of part names such as ``[json, txt]``; None means all. Raises ConfigError otherwise."""
    if value is None:
        return None
    if callable(value):
        return cast("Parts", value)
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(part, str) for part in value):
        return frozenset(value)
    raise ConfigError(
        f"parts is {value!r:.80}", where=where, hint='use a list of names such as ["json", "txt"]'
    )


def parts_of(fields: Collection[FieldAccess]) -> frozenset[str]:
    """Return all parts that the fields may come from."""
    return frozenset(access.part for field in fields for access in field.alternatives)
