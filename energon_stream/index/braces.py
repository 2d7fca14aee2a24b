"""Brace patterns such as ``s_{000..007}.tar``: counted, and only then expanded by ``braceexpand``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from braceexpand import alphabet, braceexpand

from energon_stream.errors import LimitError, MetadataError
from energon_stream.limits import Limits

_SPECIAL = re.compile(r"[{}\\]")
_TOKEN = re.compile(r"\\.|[{},]", re.DOTALL)
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_RUN = re.compile(r"([^{}\\]*)\{([0-9]+)\.\.([0-9]+)\}([^{}\\]*)")  # as names of shards are written
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?")
_LONGEST_NUMBER = 18  # digits; longer ones are no numbers of shards
_USUAL_NAME = 128  # characters of a name that counts once
_MANY = 10**18


def expand(patterns: Iterable[str], where: str, limits: Limits | None = None) -> list[str]:
    """Expand brace patterns as a shell would, in order; see :class:`Expander`.

    Example:
        >>> expand(["{08..10}.tar", "{a,b}.tar"], "split.yaml")
        ['08.tar', '09.tar', '10.tar', 'a.tar', 'b.tar']
    """
    return Expander(where, limits).expand(patterns)


class Expander:
    """Expands the brace patterns of one file, which share the limit ``names``."""

    def __init__(self, where: str, limits: Limits | None = None) -> None:
        self._where, self._limits = where, limits or Limits.from_environment()
        self._names = self._characters = 0

    def expand(self, patterns: Iterable[str]) -> list[str]:
        """Expand patterns in order. Names are counted before they are made.

        Raises MetadataError for unbalanced braces, and LimitError for too many names or too deep braces.
        """
        names: list[str] = []
        for pattern in patterns:
            has_braces = _SPECIAL.search(pattern)
            size = self._size(pattern) if has_braces else _Size(1, len(pattern))
            self._names += size.names
            self._characters += size.characters
            total = max(self._names, self._characters // _USUAL_NAME)
            if total > self._limits.names:
                raise self._exceeded("names", f"the braces of {pattern!r:.80} make {total:,} names or more")
            run = _RUN.fullmatch(pattern) if has_braces else None
            names.extend(_run(*run.groups()) if run else braceexpand(pattern) if has_braces else (pattern,))
        return names

    def _size(self, pattern: str) -> _Size:
        """Count the names of a pattern, and their characters, in one pass."""
        outer: list[tuple[_Size, _Size | None, int]] = []
        here, others = _Size(), None  # of the innermost braces: after the last comma, and before it
        begin = position = 0  # of the innermost braces, and after the last brace or comma
        for token in _TOKEN.finditer(pattern):
            sign = token[0]
            if sign[0] == "\\" or (sign == "," and not outer):
                continue
            here = here.then(_Size(1, token.start() - position))
            position = token.end()
            if sign == "{":
                outer.append((here, others, begin))
                here, others, begin = _Size(), None, position
                if len(outer) >= self._limits.document_depth:
                    problem = f"the braces of {pattern!r:.80} are nested more deeply"
                    raise self._exceeded("document_depth", problem)
            elif sign == ",":
                here, others = _Size(), here.beside(others)
                if others.names > self._limits.names:  # groups around these only multiply them
                    raise self._exceeded("names", f"the braces of {pattern!r:.80} make more names than that")
            elif not outer:
                raise self._unbalanced(pattern)
            else:
                group = here.beside(others) if others else _range_size(pattern[begin : token.start()])
                before, others, begin = outer.pop()
                here = before.then(group or here.then(_Size(1, 2)))  # braces around one name are plain text
        if outer:
            raise self._unbalanced(pattern)
        return here.then(_Size(1, len(pattern) - position))

    def _unbalanced(self, pattern: str) -> MetadataError:
        return MetadataError(f"the braces of {pattern!r:.80} are not balanced", where=self._where)

    def _exceeded(self, limit: str, problem: str) -> LimitError:
        return LimitError(**self._limits.exceeded(limit, problem), where=self._where)


def _run(before: str, first: str, last: str, after: str) -> Iterable[str]:
    """Return the names of one range of numbers, much faster than ``braceexpand``."""
    padded = any(number[0] == "0" and number != "0" for number in (first, last))
    width, begin, end = max(len(first), len(last)) if padded else 0, int(first), int(last)
    numbers = range(begin, end + 1) if begin < end else range(begin, end - 1, -1)
    template = f"{before.replace('%', '%%')}%0{width}d{after.replace('%', '%%')}"
    return map(template.__mod__, numbers)


class _Size(NamedTuple):
    """Number of names, and their characters, each up to ``_MANY``."""

    names: int = 1
    characters: int = 0

    def then(self, other: _Size) -> _Size:
        """Return the size of what is made of each name here and each name there."""
        characters = self.characters * other.names + other.characters * self.names
        return _Size(min(self.names * other.names, _MANY), min(characters, _MANY))

    def beside(self, other: _Size | None) -> _Size:
        """Return the size of both together."""
        if other is None:
            return self
        return _Size(self.names + other.names, self.characters + other.characters)


def _range_size(text: str) -> _Size | None:
    """Return the size of a range such as ``000..007``; None for other text."""
    if found := _NUMBERS.fullmatch(text):
        if max(len(number or "") for number in found.groups()) > _LONGEST_NUMBER:
            return _Size(_MANY, _MANY)
        first, last, longest = int(found[1]), int(found[2]), max(len(found[1]), len(found[2]))
    elif found := _LETTERS.fullmatch(text):
        first, last, longest = alphabet.index(found[1]), alphabet.index(found[2]), 1
    else:
        return None
    step = found[3] if found[3] and len(found[3]) < _LONGEST_NUMBER else "1"
    names = abs(last - first) // (int(step) or 1) + 1
    return _Size(names, names * longest)
