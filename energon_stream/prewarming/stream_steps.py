"""The samples of a stream that each step of its rank takes. The streams of a rank take turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_stream.schedule import PackedSchedule

if TYPE_CHECKING:
    from energon_stream.schedule import Schedule


@dataclass(frozen=True, slots=True)
class StreamSteps:
    """The steps of a rank that one of its streams serves, as the streams rotate.

    Example:
        >>> StreamSteps(8, lanes=2, lane=1).of(16)
        5
        >>> StreamSteps(1, lanes=2, lane=1, ends=[3, 5, 9]).of(8)
        5
    """

    batch_size: int  # samples of a batch; in planned packing, packs
    lanes: int  # streams of the rank
    lane: int  # place of the stream in the rotation
    ends: Sequence[int] | None = None  # samples up to the end of each pack, in planned packing

    def of(self, sample: int) -> int:
        """Return the step of a sample of the stream."""
        done = sample if self.ends is None else bisect_right(self.ends, sample)
        return done // self.batch_size * self.lanes + self.lane

    def before(self, step: int) -> int:
        """Return the number of samples of the stream before a step."""
        count = len(range(self.lane, step, self.lanes)) * self.batch_size
        return count if self.ends is None else samples_of_packs(self.ends, count)


def samples_of_packs(ends: Sequence[int], packs: int) -> int:
    """Return the samples of ``packs`` packs, or of all if there are fewer."""
    return ends[min(packs, len(ends)) - 1] if packs > 0 and len(ends) else 0


def stream_steps(schedule: Schedule, batch_size: int, lanes: int, lane: int, end: int) -> StreamSteps:
    """Return the steps that a stream serves; of planned packs, only those before ``end``."""
    if not isinstance(schedule, PackedSchedule):
        return StreamSteps(batch_size, lanes, lane)
    packs = len(range(lane, end, lanes)) * batch_size
    return StreamSteps(batch_size, lanes, lane, schedule.pack_ends(packs))
