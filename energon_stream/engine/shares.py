"""Shares of tasks, for array jobs that need no engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from energon_stream.errors import ConfigError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Part:
    """One of several shares of some work, which run as separate jobs.

    Raises:
        ConfigError: The numbers do not fit.

    Example:
        >>> Part.parse("1/3").of(["a", "b", "c", "d", "e"])
        ['b', 'e']
    """

    number: int  # counts from 0
    parts: int  # number of all parts

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.parts:
            raise ConfigError(
                f"part {self.number} of {self.parts} parts", hint="parts count from 0: 0/4, 1/4, 2/4, 3/4"
            )

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that a text such as ``"0/8"`` names."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if found is None:
            raise ConfigError(f"{text!r:.40} is not a part", hint="give NUMBER/PARTS, such as 0/8")
        return cls(int(found[1]), int(found[2]))

    def of(self, tasks: Sequence[_T]) -> list[_T]:
        """Return this part's share: every ``parts``-th task, so that all parts have much the same work."""
        return list(tasks[self.number :: self.parts])

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"
