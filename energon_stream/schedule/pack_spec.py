"""The options of planned packing, and the versions of the plans that they make. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from energon_stream.schedule.chapters import CHAPTER
from energon_stream.schedule.pack_planning import Load, pack_loads
from energon_stream.schedule.several_costs import PackKind

if TYPE_CHECKING:
    from energon_stream.arrays import Float64Array, Int64Array

Overlong = Literal["error", "drop", "split"]

PACKING = 4
"""Version of the plan, two more for several costs. Raise it when other packs come out: states have it."""
CHAPTERS = 9
"""The same where packs are planned a chapter at a time, one more for several costs that exchange samples."""
IN_PASSES = 7
"""What is added to these where a window has no sample twice, if it can: those of new runs."""
EARLIER = (PACKING, PACKING + 2, CHAPTERS, CHAPTERS + 1)
"""Versions whose states go on with the packs that these had."""
_UNTOLD = ("name", "more", "chapter", "in_passes")  # options that the others and the version tell
SMALL = 6  # pieces of a pack, in the mean, from which on samples are small
CHOICE = 8  # packs of a stream in a window from which on its own ones can make even steps


@dataclass(frozen=True, slots=True)
class PackSpec:
    """Options of planned packing."""

    capacity: int  # largest sum of a pack's lengths
    step: int  # packs of a global step, a multiple of the streams
    window: int  # global steps that are planned together
    load: Load  # work of a pack
    overlong: Overlong  # what becomes of a sample that is longer than the capacity
    name: str = ""  # of the cost, if there are several
    more: tuple[PackKind, ...] = ()  # further costs
    chapter: int = 0  # windows that are planned together, one of several costs; 0 for packs of windows
    in_passes: bool = False  # whether windows end with passes; cursors count steps then, and not windows

    def of_version(self, version: int | None) -> PackSpec:
        """Return the options as a version planned; None for those of new runs."""
        if version not in EARLIER:
            return self
        return replace(self, in_passes=False, chapter=self.chapter if version >= CHAPTERS else 0)

    def of_steps(self, steps: int) -> PackSpec:
        """Return the options of a single window of some steps."""
        return replace(self, window=steps, chapter=min(self.chapter, 1))

    def in_chapters(self, samples: float, streams: int) -> PackSpec:
        """Return the options of new runs: chapters of small samples. A full pack has about ``samples``."""
        chapter = int(bool(self.more))
        if not self.more and samples >= SMALL and self.packs >= CHOICE * streams:
            chapter = max(1, int(CHAPTER / (samples * self.packs)))
        return replace(self, chapter=chapter, in_passes=True)

    @property
    def version(self) -> int:
        """Version of the plan."""
        windows = CHAPTERS + bool(self.more) if self.chapter else EARLIER[bool(self.more)]
        return windows + IN_PASSES * self.in_passes

    @property
    def packs(self) -> int:
        """Packs that are planned together."""
        return self.step * self.window * max(1, self.chapter)

    @property
    def kinds(self) -> tuple[PackKind, ...]:
        """All costs, the length of samples first."""
        return (PackKind(self.name, self.capacity, self.load), *self.more)

    def describe(self) -> dict[str, Any]:
        """Return the options as plain values."""
        several = {"kinds": [each.describe() for each in self.kinds]} if self.more else {}
        names = [option.name for option in fields(self) if option.name not in _UNTOLD]
        return {
            **{name: getattr(self, name) for name in names},
            "load": self.kinds[0].describe()[2],
            **several,
            "algorithm": self.version,  # the first version had no number
        }

    def loads(self, costs: Int64Array, pack: Int64Array, packs: int) -> Float64Array:
        """Return the loads of packs, given the costs and the pack of each piece, a column for each cost."""
        columns = zip(costs.T, self.kinds, strict=True)
        return np.stack([pack_loads(own, pack, packs, kind.load) for own, kind in columns], axis=1)
