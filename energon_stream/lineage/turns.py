"""The streams of a rank take turns: which batch of which stream a step is. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turns:
    """The rotation of a rank's streams from a step on, and the ends of streams after it."""

    first: int  # the step
    streams: tuple[int, ...]  # of the rank, ascending
    batches: tuple[int, ...]  # batches of each stream before the step
    next_stream: int  # stream of the job that comes next; it may be another rank's
    ended: frozenset[int] = frozenset()  # streams that have ended in the pass
    ends: Sequence[tuple[int, int]] = ()  # step before which a stream ended, and the stream; ascending

    def before(self, step: int) -> tuple[int, dict[int, int]]:
        """Return the stream of a step, and the batches of each stream before that step."""
        batches = dict(zip(self.streams, self.batches, strict=True))
        at, next_stream, ended = self.first, self.next_stream, set(self.ended)

        def forward(steps: int) -> int:
            active = [stream for stream in self.streams if stream not in ended]
            place = bisect_left(active, next_stream) % len(active)
            order = active[place:] + active[:place]
            rounds, rest = divmod(steps, len(order))
            for number, stream in enumerate(order):
                batches[stream] += rounds + (number < rest)
            return order[rest]

        for end, stream in self.ends:
            if end > step:
                break
            next_stream, at = forward(end - at), end
            ended.add(stream)
            if len(ended) == len(self.streams):  # the next pass begins with the first stream
                ended, next_stream = set(), 0
        return forward(step - at), batches

    def step_of(self, stream: int, batch: int, stop: int) -> int:
        """Return the step of a stream's batch, which is one before the step ``stop``."""
        steps = range(self.first, stop + 1)
        return steps[bisect_right(steps, batch, key=lambda step: self.before(step)[1][stream]) - 1]
