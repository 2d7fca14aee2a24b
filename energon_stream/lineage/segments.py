"""A rank's log: which batch of which stream a step is, and which samples the batch has."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from energon_stream.index.dataset import DatasetIndex
from energon_stream.lineage.log import EntryKind, LogFile, unpack_numbers, unpack_refs
from energon_stream.lineage.run_description import DataDescription, Segment
from energon_stream.rng import derive_key
from energon_stream.schedule import BlendPlan, Cursor, CursorCodec, Plan, Schedule, build_schedule, skip
from energon_stream.state.mixture_weights import WEIGHTS, read_changes
from energon_stream.worker_fields import share_of

_CHUNK = 1 << 16


class BatchSpan(NamedTuple):
    """Neighbouring batches of a stream: some that follow the plan, or one with its samples."""

    batch: int
    number: int | None  # None for all that follow
    base: Cursor
    passed: int  # references from the cursor to the first sample
    refs: Sequence[tuple[int, int]] | None = None
    gaps: Sequence[int] | None = None


@dataclass(slots=True)
class RunData:
    """The opened datasets of a description."""

    described: DataDescription
    indices: list[DatasetIndex]
    plan: Plan

    def schedule(self, segment: Segment, stream: int) -> Schedule:
        streams, dealt_to = segment.num_streams, segment.dealt_to
        share = share_of(stream, streams, dealt_to)
        key = derive_key(segment.seed_offset, share, self.described.path, "source")
        plan = self.plan
        if segment.weights and isinstance(plan, BlendPlan):
            plan = plan.with_changes(read_changes({WEIGHTS: segment.weights}))
        return build_schedule(plan, num_streams=streams, stream=stream, key=key, dealt_to=dealt_to)


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


@dataclass(slots=True)
class RankLog:
    """One file of a rank's log."""

    file: LogFile
    batch_size: int
    turns: Turns = field(init=False)
    _spans: dict[int, list[BatchSpan]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        file = self.file
        streams = tuple(range(file.rank, file.num_streams, file.world_size))
        ends = [(entry.step, entry.stream) for entry in file.entries if entry.kind is EntryKind.END]
        batches = tuple(file.batches[stream] for stream in streams)
        self.turns = Turns(file.first, streams, batches, file.next_stream, frozenset(file.ended), ends)

    def spans(self, stream: int, schedule: Schedule, in_order: bool) -> list[BatchSpan]:
        """Return the batches of a stream from the file's first step on; the last span has no end."""
        if stream not in self._spans:
            self._spans[stream] = list(self._read(stream, schedule, in_order))
        return self._spans[stream]

    def span_of(self, stream: int, batch: int, schedule: Schedule, in_order: bool) -> BatchSpan | None:
        """Return the span that has a batch of a stream."""
        spans = self.spans(stream, schedule, in_order)
        place = bisect_right(spans, batch, key=lambda span: span.batch) - 1
        if place < 0:
            return None
        found = spans[place]
        return found if found.number is None or batch < found.batch + found.number else None

    def _read(self, stream: int, schedule: Schedule, in_order: bool) -> Iterator[BatchSpan]:
        codec, batch, passed = CursorCodec(schedule), self.file.batches[stream], 0
        base = _cursor(schedule, codec, self.file.readers.get(stream))
        for entry in self.file.entries:
            if entry.stream != stream:
                continue
            if entry.batch > batch and in_order:
                yield BatchSpan(batch, entry.batch - batch, base, passed)
                passed += (entry.batch - batch) * self.batch_size
            batch = entry.batch
            if entry.kind is EntryKind.GAPS:
                gaps = unpack_numbers(entry.payload)
                yield BatchSpan(batch, 1, base, passed, gaps=gaps)
                passed, batch = passed + sum(gaps) + len(gaps), batch + 1
            elif entry.kind is EntryKind.REFS:
                yield BatchSpan(batch, 1, base, 0, refs=unpack_refs(entry.payload))
                batch += 1
            elif in_order:
                base, passed = _cursor(schedule, codec, entry.payload), 0
        if in_order:
            yield BatchSpan(batch, None, base, passed)


def _cursor(schedule: Schedule, codec: CursorCodec, state: Any) -> Cursor:
    return schedule.begin() if state is None else codec.unpack(state["at"])


def refs_of_span(span: BatchSpan, schedule: Schedule, size: int, batch: int) -> list[tuple[int, int]]:
    """Return leaf and number of the samples of a batch in a span."""
    if span.refs is not None:
        return list(span.refs)
    passed = span.passed + (batch - span.batch) * size
    cursor = skip(schedule, span.base, passed)
    found = schedule.take(cursor, size if span.gaps is None else sum(span.gaps) + len(span.gaps))[0]
    pairs = list(zip(found.leaf.tolist(), found.index.tolist(), strict=True))
    if span.gaps is None:
        return pairs
    places = np.cumsum(np.array(span.gaps) + 1) - 1
    return [pairs[place] for place in places.tolist()]


def batches_with(
    log: RankLog, data: RunData, schedule: Schedule, stream: int, ref: tuple[int, int], most: int
) -> Iterator[int]:
    """Yield the batches of a stream that have a sample, of those before batch ``most``."""
    size = data.described.batch_size
    for span in log.spans(stream, schedule, data.described.in_order):
        if span.batch >= most:
            break
        if span.refs is not None or span.gaps is not None:
            if ref in refs_of_span(span, schedule, size, span.batch):
                yield span.batch
            continue
        count = most - span.batch if span.number is None else min(span.number, most - span.batch)
        cursor, left, passed = skip(schedule, span.base, span.passed), count * size, 0
        while left:
            refs, cursor = schedule.take(cursor, min(left, _CHUNK))
            if not len(refs):
                break
            places = np.flatnonzero((refs.leaf == ref[0]) & (refs.index == ref[1])) + passed
            yield from (span.batch + place // size for place in places.tolist())
            left, passed = left - len(refs), passed + len(refs)
