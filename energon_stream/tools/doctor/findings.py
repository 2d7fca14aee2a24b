"""Findings of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from energon_stream.printable import as_sentence

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    name: str  # what was looked at, such as ``clock``
    level: Level  # ``ok``, ``warning`` (it works, but not well) or ``error`` (training cannot work)
    text: str  # what was found
    hint: str = ""  # what to do about it; empty if nothing is to be done

    def __str__(self) -> str:
        hint = f". {as_sentence(self.hint)}" if self.hint else ""
        return f"{self.level:8}{self.name}: {self.text}{hint}"


@dataclass(frozen=True, slots=True)
class SpeedOf:
    """Speed of a store with so many requests at one time."""

    in_flight: int  # requests at one time
    requests: int  # requests that were answered
    bytes_per_second: float  # bytes a second of all of them together
    seconds_a_request: float  # median time of one
