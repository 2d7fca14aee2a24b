"""Which parts of its samples a dataset needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PartSelection"]

_MOST_RANGES = 4


@dataclass(frozen=True, slots=True)
class PartSelection:
    """Which parts of its samples a dataset needs.

    Attributes:
        wanted: Names, or a function of a name.
        declared: Whether the user said so, and did not just name the parts of fields.
    """

    wanted: frozenset[str] | Callable[[str], bool]
    declared: bool = True

    def __contains__(self, part: str) -> bool:
        return part in self.wanted if isinstance(self.wanted, frozenset) else bool(self.wanted(part))

    @property
    def most_ranges(self) -> int:
        """Byte ranges of a sample, at most; where there are more, the last one takes the rest."""
        return (
            max(1, min(_MOST_RANGES, len(self.wanted)))
            if isinstance(self.wanted, frozenset)
            else _MOST_RANGES
        )
