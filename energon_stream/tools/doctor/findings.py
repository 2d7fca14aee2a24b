"""Findings of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from energon_stream.printable import as_sentence

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        name: What was looked at, such as ``clock``.
        level: ``ok``, ``warning`` (it works, but not well) or ``error`` (training cannot work).
        text: What was found.
        hint: What to do about it; empty if nothing is to be done.
    """

    name: str
    level: Level
    text: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f". {as_sentence(self.hint)}" if self.hint else ""
        return f"{self.level:8}{self.name}: {self.text}{hint}"


@dataclass(frozen=True, slots=True)
class SpeedOf:
    """Speed of a store with so many requests at one time.

    Attributes:
        in_flight: Requests at one time.
        requests: Requests that were answered.
        bytes_per_second: Bytes a second of all of them together.
        seconds_a_request: Median time of one.
    """

    in_flight: int
    requests: int
    bytes_per_second: float
    seconds_a_request: float
