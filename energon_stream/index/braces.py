"""Brace patterns such as ``s_{000..007}.tar``: parsed, counted, and only then expanded."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from energon_stream.errors import LimitError, MetadataError
from energon_stream.limits import Limits

_SPECIAL = re.compile(r"[{}\\]")
_TOKEN = re.compile(r"\\.|[{},]", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)")
_NUMBERS = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.-?([0-9]+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?([0-9]+))?")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase
_LONGEST_NUMBER = 18  # digits; longer ones are no numbers of shards
_USUAL_NAME = 128
"""Characters of a name that counts once."""
_MANY = 10**18


@dataclass(frozen=True, slots=True)
class _Range:
    """Numbers, or letters by their place in the alphabet."""

    values: range
    width: int = 0  # numbers are padded with zeros to so many characters
    letters: bool = False

    def texts(self) -> list[str]:
        if self.letters:
            return [_ALPHABET[place] for place in self.values]
        return [f"{number:0{self.width}d}" for number in self.values]

    def size(self) -> tuple[int, int]:
        count = len(self.values)
        ends = (self.values[0], self.values[-1])
        longest = 1 if self.letters else max(self.width, *(len(str(number)) for number in ends))
        return count, count * longest


_Choice: TypeAlias = list["_Pattern"]
_Pattern: TypeAlias = list["str | _Range | _Choice"]
"""Texts, ranges and choices that follow each other."""


def expand(patterns: Iterable[str], where: str, limits: Limits | None = None) -> list[str]:
    """Expand brace patterns as a shell would, in order; see :class:`Expander`.

    Example:
        >>> expand(["{08..10}.tar", "{a,b}.tar"], "split.yaml")
        ['08.tar', '09.tar', '10.tar', 'a.tar', 'b.tar']
    """
    return Expander(where, limits).expand(patterns)


class Expander:
    """Expands the brace patterns of one file, which share the limit ``names``.

    Args:
        where: The file, for messages.
        limits: None for those of the environment.
    """

    def __init__(self, where: str, limits: Limits | None = None) -> None:
        self._where, self._limits = where, limits or Limits.from_environment()
        self._names = self._characters = 0

    def expand(self, patterns: Iterable[str]) -> list[str]:
        """Expand patterns in order. Names are counted before they are made.

        Raises:
            MetadataError: The braces are not balanced.
            LimitError: The patterns expand to too many names.
        """
        names: list[str] = []
        for pattern in patterns:
            if not _SPECIAL.search(pattern):
                self._count(pattern, 1, len(pattern))
                names.append(pattern)
            else:
                parsed = self._parse(pattern)
                self._count(pattern, *_size(parsed))
                names.extend(_names(parsed))
        return names

    def _count(self, pattern: str, names: int, characters: int) -> None:
        self._names += names
        self._characters += characters
        total = max(self._names, self._characters // _USUAL_NAME)
        if total > self._limits.names:
            problem = f"the braces of {pattern!r:.80} make {total:,} names or more"
            raise LimitError(**self._limits.exceeded("names", problem), where=self._where)

    def _parse(self, pattern: str) -> _Pattern:
        """Parse a pattern in one pass. Groups without a comma and without a range are plain text."""
        pieces = pattern.count("{") + pattern.count(",")
        if pieces > self._limits.names:
            self._count(pattern, pieces, 0)  # raises
        stack: list[_Choice] = [[[]]]
        position = 0  # after the last brace or comma
        for token in _TOKEN.finditer(pattern):
            sign = token[0]
            if sign[0] == "\\" or (sign == "," and len(stack) == 1):
                continue
            if token.start() > position:
                stack[-1][-1].append(pattern[position : token.start()])
            position = token.end()
            if sign == "{":
                stack.append([[]])
                if len(stack) > self._limits.document_depth:
                    problem = f"the braces of {pattern!r:.80} are nested more deeply"
                    raise LimitError(**self._limits.exceeded("document_depth", problem), where=self._where)
            elif sign == ",":
                stack[-1].append([])
            elif len(stack) == 1:
                raise self._unbalanced(pattern)
            else:
                group = stack.pop()
                stack[-1][-1].extend(self._group(group))
        if len(stack) > 1:
            raise self._unbalanced(pattern)
        if position < len(pattern):
            stack[0][0].append(pattern[position:])
        return stack[0][0]

    def _group(self, choice: _Choice) -> _Pattern:
        """Return what a pair of braces means: a choice, a range, or plain text."""
        if len(choice) > 1:
            return [choice]
        only = choice[0]
        text = only[0] if len(only) == 1 else None
        if isinstance(text, str):
            if found := _NUMBERS.fullmatch(text):
                if max(len(number or "") for number in found.groups()) > _LONGEST_NUMBER:
                    problem = f"the range {text!r:.80} has a number of more than {_LONGEST_NUMBER} digits"
                    raise LimitError(**self._limits.exceeded("names", problem), where=self._where)
                return [_number_range(*found.groups())]
            if found := _LETTERS.fullmatch(text):
                first, last = map(_ALPHABET.index, found.group(1, 2))
                return [_Range(_span(first, last, found[3]), letters=True)]
        return ["{", *only, "}"]

    def _unbalanced(self, pattern: str) -> MetadataError:
        return MetadataError(f"the braces of {pattern!r:.80} are not balanced", where=self._where)


def _number_range(first: str, last: str, step: str | None) -> _Range:
    """Return the numbers of a range. As in a shell, a leading zero pads all of them."""
    padded = any(end.lstrip("-").startswith("0") and end not in ("0", "-0") for end in (first, last))
    return _Range(_span(int(first), int(last), step), max(len(first), len(last)) if padded else 0)


def _span(first: int, last: int, step: str | None) -> range:
    by = int(step or 1) or 1
    return range(first, last + 1, by) if first < last else range(first, last - 1, -by)


def _size(pattern: _Pattern) -> tuple[int, int]:
    """Return the number of names of a pattern, and their characters, each up to ``_MANY``."""
    names, characters = 1, 0
    for item in pattern:
        if isinstance(item, str):
            count, length = 1, len(item)
        elif isinstance(item, _Range):
            count, length = item.size()
        else:
            sizes = [_size(choice) for choice in item]
            count, length = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        names, characters = min(names * count, _MANY), min(characters * count + names * length, _MANY)
    return names, characters


def _names(pattern: _Pattern) -> list[str]:
    found = [""]
    for item in pattern:
        if isinstance(item, str):
            ends = [_ESCAPED.sub(r"\1", item)]
        elif isinstance(item, _Range):
            ends = item.texts()
        else:
            ends = [name for choice in item for name in _names(choice)]
        found = [name + end for name in found for end in ends]
    return found
