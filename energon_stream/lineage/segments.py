"""The batches of a stream in a rank's log, as pieces that follow the plan, and single ones that do not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from energon_stream.lineage.log import Kind, LogFile, unpack_numbers, unpack_refs
from energon_stream.lineage.turns import Turns
from energon_stream.rng import derive_key
from energon_stream.schedule import BlendPlan, Cursor, CursorCodec, Plan, Schedule, build_schedule, skip
from energon_stream.state.mixture_weights import WEIGHTS, read_changes

if TYPE_CHECKING:
    from energon_stream.index.dataset import DatasetIndex
    from energon_stream.lineage.run_description import DataDescription, Segment

_CHUNK = 1 << 16


class Piece(NamedTuple):
    """Neighbouring batches of a stream: some that follow the plan, or one with its samples."""

    batch: int
    number: int | None  # None for all that follow
    base: Cursor
    passed: int  # references from the cursor to the first sample
    refs: Sequence[tuple[int, int]] | None = None
    gaps: Sequence[int] | None = None


@dataclass(slots=True)
class Data:
    """The opened datasets of a description."""

    described: DataDescription
    indices: list[DatasetIndex]
    plan: Plan

    def schedule(self, segment: Segment, stream: int) -> Schedule:
        """Return the schedule of a stream in a segment."""
        key = derive_key(segment.seed_offset, stream, self.described.path, "source")
        plan = self.plan
        if segment.weights and isinstance(plan, BlendPlan):
            plan = plan.with_changes(read_changes({WEIGHTS: segment.weights}))
        return build_schedule(plan, num_streams=segment.num_streams, stream=stream, key=key)


@dataclass(slots=True)
class RankLog:
    """One file of a rank's log."""

    file: LogFile
    batch_size: int
    turns: Turns = field(init=False)
    _pieces: dict[int, list[Piece]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        file = self.file
        streams = tuple(range(file.rank, file.num_streams, file.world_size))
        ends = [(entry.step, entry.stream) for entry in file.entries if entry.kind is Kind.END]
        batches = tuple(file.batches[stream] for stream in streams)
        self.turns = Turns(file.first, streams, batches, file.next_stream, frozenset(file.ended), ends)

    def pieces(self, stream: int, schedule: Schedule, in_order: bool) -> list[Piece]:
        """Return the batches of a stream from the file's first step on; the last piece has no end."""
        if stream not in self._pieces:
            self._pieces[stream] = list(self._read(stream, schedule, in_order))
        return self._pieces[stream]

    def piece_of(self, stream: int, batch: int, schedule: Schedule, in_order: bool) -> Piece | None:
        """Return the piece that has a batch of a stream."""
        pieces = self.pieces(stream, schedule, in_order)
        place = bisect_right(pieces, batch, key=lambda piece: piece.batch) - 1
        if place < 0:
            return None
        found = pieces[place]
        return found if found.number is None or batch < found.batch + found.number else None

    def _read(self, stream: int, schedule: Schedule, in_order: bool) -> Iterator[Piece]:
        codec, batch, passed = CursorCodec(schedule), self.file.batches[stream], 0
        base = _cursor(schedule, codec, self.file.readers.get(stream))
        for entry in self.file.entries:
            if entry.stream != stream:
                continue
            if entry.batch > batch and in_order:
                yield Piece(batch, entry.batch - batch, base, passed)
                passed += (entry.batch - batch) * self.batch_size
            batch = entry.batch
            if entry.kind is Kind.GAPS:
                gaps = unpack_numbers(entry.payload)
                yield Piece(batch, 1, base, passed, gaps=gaps)
                passed, batch = passed + sum(gaps) + len(gaps), batch + 1
            elif entry.kind is Kind.REFS:
                yield Piece(batch, 1, base, 0, refs=unpack_refs(entry.payload))
                batch += 1
            elif in_order:
                base, passed = _cursor(schedule, codec, entry.payload), 0
        if in_order:
            yield Piece(batch, None, base, passed)


def _cursor(schedule: Schedule, codec: CursorCodec, state: Any) -> Cursor:
    return schedule.begin() if state is None else codec.unpack(state["at"])


def refs_of_piece(piece: Piece, schedule: Schedule, size: int, batch: int) -> list[tuple[int, int]]:
    """Return leaf and number of the samples of a batch in a piece."""
    if piece.refs is not None:
        return list(piece.refs)
    passed = piece.passed + (batch - piece.batch) * size
    cursor = skip(schedule, piece.base, passed)
    if piece.gaps is None:
        found = schedule.take(cursor, size)[0]
    else:
        found = schedule.take(cursor, sum(piece.gaps) + len(piece.gaps))[0]
    pairs = list(zip(found.leaf.tolist(), found.index.tolist(), strict=True))
    if piece.gaps is None:
        return pairs
    places = np.cumsum(np.array(piece.gaps) + 1) - 1
    return [pairs[place] for place in places.tolist()]


def batches_with(
    log: RankLog, data: Data, schedule: Schedule, stream: int, ref: tuple[int, int], most: int
) -> Iterator[int]:
    """Yield the batches of a stream that have a sample, of those before batch ``most``."""
    size = data.described.batch_size
    for piece in log.pieces(stream, schedule, data.described.in_order):
        if piece.batch >= most:
            break
        if piece.refs is not None or piece.gaps is not None:
            if ref in refs_of_piece(piece, schedule, size, piece.batch):
                yield piece.batch
            continue
        count = most - piece.batch if piece.number is None else min(piece.number, most - piece.batch)
        cursor, left, passed = skip(schedule, piece.base, piece.passed), count * size, 0
        while left:
            refs, cursor = schedule.take(cursor, min(left, _CHUNK))
            if not len(refs):
                break
            places = np.flatnonzero((refs.leaf == ref[0]) & (refs.index == ref[1])) + passed
            yield from (piece.batch + place // size for place in places.tolist())
            left, passed = left - len(refs), passed + len(refs)
