"""The position of replica groups that share a job's batches, pure: which come next, what groups tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, count, islice
from typing import Any, NamedTuple

import msgpack

from energon_stream.errors import StateMismatchError
from energon_stream.integrations.batch_puller import merged


class ReplicaPosition(NamedTuple):
    """The place of the job between two steps."""

    step: int = 0  # committed steps, as the trainer counts them
    at: int = 0  # all batches before this one were trained on
    taken: tuple[int, ...] = ()  # and these after it
    state: Mapping[str, Any] | None = None  # the state dict of all streams at ``at``; None for the start

    def wanted(self, groups: int) -> list[int]:
        """Return the batches of the next step, one for each group."""
        return list(islice((batch for batch in count(self.at) if batch not in self.taken), groups))

    def dealt(
        self, wanted: Sequence[int], place: int, group: tuple[int, int], streams: int
    ) -> tuple[int, int]:
        """Return the rank and number of ranks that read a group's batch; ``group``, which reads all."""
        (rank, size), groups = group, len(wanted)
        if self.taken or streams % (groups * size):
            return group
        return wanted[place] % groups * size + rank, groups * size

    def after(self, wanted: Sequence[int], state: Mapping[str, Any]) -> ReplicaPosition:
        """Return the position after a step in which all of its batches counted."""
        at = wanted[-1] + 1
        return ReplicaPosition(
            self.step + 1, at, tuple(number for number in self.taken if number >= at), state
        )

    def with_some(self, counted: Iterable[int], step: int) -> ReplicaPosition:
        """Return the position after a step in which only some of its batches counted."""
        return self._replace(step=step, taken=tuple(sorted({*self.taken, *counted})))

    def told(self, batch: int) -> bytes:
        """Return what a group tells the others of its batch, and of its streams after the step."""
        return bytes(msgpack.packb([batch, *self]))


def end_of(lengths: Sequence[int | None], group_size: int) -> int | None:
    """Return the batches of a pass for a process of each group, by those of streams; None for no end."""
    known = [length for length in lengths if length is not None]
    return min(known) * len(known) // group_size if len(known) == len(lengths) else None


def side_by_side(message: bytes, sizes: Sequence[int], place: int) -> bytearray:
    """Return the part of a group, zeros elsewhere: the sum over all groups has all messages."""
    data, begin = bytearray(sum(sizes)), sum(sizes[:place])
    if data and sizes[place] == len(message):
        data[begin : begin + len(message)] = message
    return data


def understood(content: bytes, sizes: Sequence[int]) -> tuple[list[int], ReplicaPosition]:
    """Return the batches of the groups that told, and the position after all of the step.

    Raises StateMismatchError if groups stand elsewhere.
    """
    ends = zip(sizes, accumulate(sizes), strict=True)
    told = [msgpack.unpackb(content[end - size : end]) for size, end in ends if size]
    if any(each[1:4] != told[0][1:4] for each in told):
        raise StateMismatchError(
            f"the replica groups are at other steps and batches: {[each[1:3] for each in told]}",
            hint="restore all of them from one checkpoint",
        )
    _, step, at, taken, _ = told[0]
    state = merged(each[4] for each in told)
    return [number for number, *_ in told], ReplicaPosition(step, at, tuple(taken), state)
