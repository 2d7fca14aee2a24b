"""Compares batches with the plan, in the process that makes them; notes where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_stream.lineage.log import EntryKind, pack_numbers, pack_refs
from energon_stream.pipeline import (
    BatchDataset,
    EpochizeDataset,
    EvenDataset,
    LimitDataset,
    MapDataset,
    RepeatDataset,
)
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.failure_notes import sources_in
from energon_stream.pipeline.filters import PassThrough
from energon_stream.pipeline.node import Context, RestoreKey, State
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.pipeline.stream_runner import Note
from energon_stream.schedule import BlendPlan, Cursor, CursorCodec, Refs, Schedule, WeightChange

_IN_ORDER = (
    BatchDataset,
    EpochizeDataset,
    EvenDataset,
    LimitDataset,
    MapDataset,
    PassThrough,
    RepeatDataset,
)
_MOST_SKIPPED = 1 << 14  # references of the plan in which a batch's samples are looked for


def operators(dataset: SavableDataset[Any]) -> Iterator[SavableDataset[Any]]:
    """Yield a pipeline's datasets, from the last one to the reader, as far as each has one input."""
    yield dataset
    while len(dataset.inputs) == 1:
        (dataset,) = dataset.inputs
        yield dataset


def is_in_order(dataset: SavableDataset[Any]) -> bool:
    """Return True if batches follow the plan, except for skipped samples."""
    *above, reader = operators(dataset)
    is_plan = isinstance(reader, ReaderDataset) and reader.packing is None
    if isinstance(reader, ReaderDataset) and isinstance(reader.plan, BlendPlan):
        is_plan = is_plan and reader.plan.unit is None  # a record has no costs
    return is_plan and all(isinstance(each, _IN_ORDER) for each in above)


def reader_state(dataset: SavableDataset[Any], state: State | None) -> State | None:
    """Return the state of the reader in that of a pipeline's node; None at the start."""
    for each in operators(dataset):
        if state is None or isinstance(each, ReaderDataset):
            break
        (state,) = each.inner_states(state)
    return state


def refs_of(key: Any) -> list[tuple[int, int]]:
    """Return leaf and number of the samples that an element was made of, from its key.

    A sample that follows itself is named once where one call made several elements of it.
    """
    found: list[tuple[int, int]] = []
    last = None
    for call, ref in sources_in(key):
        if call is None or (call, ref) != last:
            found.append((ref.leaf, ref.number))
        last = call, ref
    return found


class Tracker:
    """Follows the plan beside a process's streams; ``path`` is the place of the pipeline's one reader."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        path: str,
        batch_size: int,
        states: Mapping[int, State],
        changes: tuple[WeightChange, ...] = (),
    ) -> None:
        self._dataset, self._path, self._batch_size = dataset, path, batch_size
        *_, reader = operators(dataset)
        self._reader = reader if is_in_order(dataset) and isinstance(reader, ReaderDataset) else None
        self._states, self._changes = states, changes
        self._places: dict[int, tuple[Schedule, Cursor]] = {}

    def note(self, stream: int, key: RestoreKey | None, state: State) -> Note | None:
        """Return a note on an element of a stream; None if it follows the plan. See ``TakeNote``."""
        if self._reader is None:
            return None if key is None else (EntryKind.REFS, pack_refs(refs_of(key)))
        schedule, cursor = self._places.get(stream) or self._begin(self._reader, stream)
        if key is None:
            self._places[stream] = schedule, self._cursor(schedule, stream, state)
            return None
        refs = refs_of(key)
        planned, after = schedule.take(cursor, self._batch_size)
        if _pairs(planned) == refs:
            self._places[stream] = schedule, after
            return None
        gaps = _gaps(schedule, cursor, refs)
        if gaps is None:
            self._places[stream] = schedule, self._cursor(schedule, stream, state)
            return EntryKind.REFS, pack_refs(refs)
        self._places[stream] = schedule, schedule.advance(cursor, sum(gaps) + len(gaps))
        return EntryKind.GAPS, pack_numbers(gaps)

    def _begin(self, reader: ReaderDataset, stream: int) -> tuple[Schedule, Cursor]:
        schedule = reader.schedule(stream, self._path, changes=self._changes)
        state = self._states.get(stream)
        at = schedule.begin() if state is None else self._cursor(schedule, stream, state["node"])
        return schedule, at

    def _cursor(self, schedule: Schedule, stream: int, state: State) -> Cursor:
        reader, saved = self._reader, reader_state(self._dataset, state)
        if reader is None or saved is None:
            return schedule.begin()
        context = Context(reader.worker_config, stream, path=self._path)
        return reader.read_cursor(saved, context, schedule, CursorCodec(schedule))[1]


def _pairs(refs: Refs) -> list[tuple[int, int]]:
    return list(zip(refs.leaf.tolist(), refs.index.tolist(), strict=True))


def _gaps(schedule: Schedule, cursor: Cursor, refs: Sequence[tuple[int, int]]) -> list[int] | None:
    """Return the references of the plan before each of some others; None if they do not follow it."""
    size, most = 2 * len(refs) + 64, len(refs) + _MOST_SKIPPED
    while refs:
        planned = _pairs(schedule.take(cursor, size)[0])
        gaps, place = [], 0
        for ref in refs:
            try:
                found = planned.index(ref, place)
            except ValueError:
                break
            gaps.append(found - place)
            place = found + 1
        if len(gaps) == len(refs):
            return gaps
        if len(planned) < size or size >= most:
            return None
        size = min(8 * size, most)
    return None
