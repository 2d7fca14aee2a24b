"""The ``field_map`` of ``dataset.yaml``: which part, or what within a part, becomes which field.

Grammar of a value: ``part[key][0]``, and several of these separated by commas, of which the first that
exists in a sample wins. A part name may contain dots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from energon_stream.errors import ConfigError, FieldError, MetadataError

__all__ = ["Access", "FieldAccess", "parse_field_map", "parse_parts", "parts_of"]

_ACCESS = re.compile(r"\s*([^\[\],\s]+)((?:\[[^\[\]]+\])*)\s*")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Access:
    """One place of a value: a part, and the keys that lead into it."""

    part: str
    keys: tuple[str, ...] = ()

    def follow(self, value: Any) -> Any:
        """Go along the keys: names for dicts, positions for lists; ``_MISSING`` where one does not exist."""
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
    """Where a field's value comes from.

    Attributes:
        field: Field of the sample type.
        alternatives: Places, of which the first that exists is taken.
    """

    field: str
    alternatives: tuple[Access, ...]

    def within(self, parts: frozenset[str], where: str) -> FieldAccess:
        """The same field from these parts only; ``where`` is for messages.

        Raises:
            ConfigError: It comes from others.
        """
        left = tuple(access for access in self.alternatives if access.part in parts)
        if not left:
            wanted = " or ".join(sorted({access.part for access in self.alternatives}))
            raise ConfigError(
                f"field {self.field!r} is to come from {wanted}, but parts={sorted(parts)} leaves that out",
                where=where,
                hint="name the part as well, or leave `parts` out: what no field needs is not read anyway",
            )
        return replace(self, alternatives=left)

    def read(self, parts: Collection[str], decode: Callable[[str], Any]) -> Any:
        """Get the field's value.

        Args:
            parts: Names of the parts of the sample.
            decode: Gives the decoded part of a name.

        Raises:
            FieldError: None of the alternatives exists.
        """
        for access in self.alternatives:
            if access.part in parts:
                value = decode(access.part)
                if access.keys:
                    value = access.follow(value)
                if value is not _MISSING:
                    return value
        wanted = " or ".join(repr(str(access)) for access in self.alternatives)
        raise FieldError(
            f"field {self.field!r} is to come from {wanted}, which the sample does not have"
            f" (its parts: {', '.join(sorted(parts))})",
            hint="correct field_map in dataset.yaml, or exclude the sample in split.yaml",
        )


def parse_field_map(document: Any, where: str) -> tuple[FieldAccess, ...]:
    """Read a ``field_map``.

    Raises:
        MetadataError: It is no mapping of names to texts, or a text does not follow the grammar.
    """
    if not isinstance(document, Mapping) or not document:
        raise MetadataError("'field_map' must map fields to parts, as `image: jpg`", where=where)
    return tuple(FieldAccess(field, _parse(field, text, where)) for field, text in document.items())


def _parse(field: str, text: Any, where: str) -> tuple[Access, ...]:
    pieces = _COMMA_OUTSIDE_BRACKETS.split(text) if isinstance(text, str) else []
    matches = [_ACCESS.fullmatch(piece) for piece in pieces]
    alternatives = tuple(
        Access(match[1], tuple(re.findall(r"\[([^\[\]]+)\]", match[2]))) for match in matches if match
    )
    if not alternatives or len(alternatives) != len(pieces):
        raise MetadataError(
            f"field_map says that {field!r} is {text!r}",
            where=where,
            hint="write a part (jpg), a place within one (json[caption]), or several with commas (jpg,png)",
        )
    return alternatives


def parse_parts(value: Any, where: str) -> frozenset[str] | None:
    """Read a list of part names, ``[json, txt]``; None for all parts.

    Raises:
        ConfigError: It is something else.
    """
    if value is None:
        return None
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(part, str) for part in value):
        return frozenset(value)
    raise ConfigError(f"parts is {value!r:.80}", where=where, hint='use a list of names, as ["json", "txt"]')


def parts_of(fields: Collection[FieldAccess]) -> frozenset[str]:
    """All parts that the fields may be read from."""
    return frozenset(access.part for field in fields for access in field.alternatives)
