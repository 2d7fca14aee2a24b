"""Writes the description of a run, and the log of a rank, beside the training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from energon_stream.errors import ConfigError, EnergonStreamError, ObjectNotFoundError, RunMismatchError
from energon_stream.index.bad_samples import (
    BAD_FOLDER,
    BadList,
    dataset_name,
    is_list,
    rank_file,
    read_bad_list,
)
from energon_stream.index.dataset import WebDatasetIndex, identity
from energon_stream.index.files_index import FilesIndex
from energon_stream.lineage.log import EntryKind, LogFile, StepEntry
from energon_stream.lineage.run_description import (
    FILE,
    MOST_SAMPLES,
    DataDescription,
    LeafDescription,
    RunDescription,
    Segment,
)
from energon_stream.lineage.tracker import is_in_order, operators, reader_state
from energon_stream.pipeline import BatchDataset
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.node import State
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.pipeline.stream_runner import Rotation, Step
from energon_stream.schedule import BlendPlan, WeightChange, damaged, describe_plan, is_count, reading
from energon_stream.state.mixture_weights import write_changes
from energon_stream.storage import Store, StoreSpec
from energon_stream.storage.claims import Claim

_log = logging.getLogger(__name__)

_ANCHOR_EVERY = 4096
"""Batches of a stream between two anchors, from which its place in the plan is found fast."""
_MOST_BYTES, _MOST_ENTRIES = 1 << 20, 1 << 15


def describe_data(dataset: SavableDataset[Any]) -> DataDescription:
    """Describe the order of a pipeline's samples and batches. Raises ConfigError if that cannot be done."""
    found = list(find_readers(dataset))
    if len(found) != 1:
        raise ConfigError(
            f"run= describes pipelines with one order of all samples; this one has {len(found)}",
            hint="leave out run=, or let a metadataset blend the datasets, by computed costs, where sizes are measured",
        )
    ((path, reader),) = found
    reader.read_starts()
    leaves = []
    for leaf, shards in zip(reader.leaves, reader.shards, strict=True):
        index = leaf.index
        plain = isinstance(index, WebDatasetIndex) and index.plain is not None
        if plain or not isinstance(index, (WebDatasetIndex, FilesIndex)):
            raise ConfigError(
                "run= describes prepared folders and single files only, no joins and no plain tars",
                where=index.spec.url,
                hint="prepare the dataset, or leave out run=",
            )
        config = index.split_config if isinstance(index, WebDatasetIndex) else ""
        found_by = identity(index, shards)
        view = None if index.view is None else {"keys": _view_keys(index.view), "hash": found_by["view"]}
        content = index.content(shards)
        known = {"view": view, "content": None if content is None else list(content)}
        leaves.append(LeafDescription(dataset_name(index.spec.url), config, **{**found_by, **known}))
    sizes = [each.batch_size for each in operators(dataset) if isinstance(each, BatchDataset)]
    batch_size, plan, packing = sizes[0] if sizes else 1, reader.plan, reader.packing
    if batch_size > MOST_SAMPLES:
        hint = f"records have batches of up to {MOST_SAMPLES:,} samples: use smaller ones, or leave out run="
        raise ConfigError(f"batch_size is {batch_size}", hint=hint)
    per_batch = plan.per_batch if isinstance(plan, BlendPlan) and plan.is_live else batch_size
    is_even = isinstance(plan, BlendPlan) and plan.even
    return DataDescription(
        describe_plan(plan),
        path,
        batch_size,
        is_in_order(dataset),
        tuple(leaves),
        # Records of versions that made even draws in each stream alone have 0.
        0 if per_batch == batch_size and not is_even else per_batch,
        None if packing is None else packing.describe(),
    )


def _view_keys(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a view as a description has them: with whole local paths, without credentials."""
    exclude = view.get("exclude")
    if isinstance(exclude, list):
        return {**view, "exclude": [_view_keys({"exclude": each})["exclude"] for each in exclude]}
    if exclude is None or not (exclude.endswith(".txt") or is_list(exclude)):  # a column
        return dict(view)
    return {**view, "exclude": dataset_name(exclude)}


class RunRecorder:
    """Writes to the folder ``run`` what a rank does. Where a log cannot be written, a warning says so."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        run: str,
        storage_options: Mapping[str, Any] | None = None,
        bad: BadList | None = None,
    ) -> None:
        self._dataset, self._spec = dataset, StoreSpec(run, storage_options)
        self._bad = BadList() if bad is None else bad  # the rank's
        self._data = describe_data(dataset)
        self._first, self._batches = 0, 0  # steps and batches when this loader began
        self._history: list[list[int]] = []
        self._log: LogFile | None = None
        self._description: RunDescription | None = None  # rank 0 writes it
        self._is_described = True  # whether it was written as it is
        self._entries: list[StepEntry] = []
        self._bytes = 0
        self._claim: Claim | None = None
        self._resumes = False  # whether it goes on from a saved state

    @property
    def plan(self) -> tuple[str, int]:
        """Place of the reader in the pipeline, and samples of a batch: arguments of a tracker."""
        return self._data.path, self._data.batch_size

    def restore(self, saved: Any, states: Mapping[int, State]) -> None:
        """Go on from what :meth:`saved` returned, or from a state without it: then each batch was a step."""
        self._data = describe_data(self._dataset)  # a state may have packs of an earlier version
        self._log, self._resumes = None, bool(states)
        self._batches = self._first = _count(states)
        self._history = []
        if saved is not None:
            with reading("the record of the run"):
                self._first = saved["step"]
                self._history = [list(segment) for segment in saved["segments"]]
                if not all(map(is_count, [self._first, *(n for each in self._history for n in each)])):
                    raise damaged("a step that is no counter")
        own = self._spec.join(rank_file(self._dataset.worker_config.rank))
        self._bad.begin([])
        with suppress(ObjectNotFoundError):  # none failed, or the run began without this folder
            self._bad.begin(read_bad_list(own).samples if self._first else [])

    def step(self, states: Mapping[int, State]) -> int:
        """Return the number of steps that the rank has done since the beginning of the run."""
        return self._first + _count(states) - self._batches

    def saved(self, states: Mapping[int, State]) -> dict[str, Any]:
        """Return what a saved state keeps: the step, and first step, ranks and streams of each segment."""
        config = self._dataset.worker_config
        here = [self._first, config.world_size, config.num_streams]
        earlier = [segment for segment in self._history if segment[0] < self._first]
        return {"step": self.step(states), "segments": [*earlier, here]}

    def begin(
        self, rotation: Rotation, states: Mapping[int, State], changes: Sequence[WeightChange] = ()
    ) -> None:
        """Write the description (rank 0), and begin the log. Raises RunMismatchError for another run."""
        config, store = self._dataset.worker_config, self._spec.open()
        if self._claim is None:
            self._claim = Claim(store, f"writers/rank-{config.rank:05d}")
        other = self._claim.take(resumes=self._resumes or self._log is not None)
        if other is not None:
            raise RunMismatchError(
                f"process {other['pid']} on {other['host']} records another job to the folder",
                where=store.url,
                hint=f"give each job a folder of its own; if that job has ended, remove {other['path']}",
            )
        if self._log is not None:  # the loader was closed, and is iterated again
            return
        job = config.world_size, config.num_streams, config.seed_offset
        segment = Segment(self._first, 0, *job, rotation.pass_length, _weights(changes), config.dealt_to)
        if config.rank == 0:
            try:
                known = RunDescription.loads(bytes(store.get(FILE).data), f"{store.url}/{FILE}")
            except ObjectNotFoundError:
                known = RunDescription()
            self._check(known, segment, store.url)
            self._description = known.with_segment(segment, self._data)
            store.put(FILE, self._description.dumps())
        self._begin_bad(store)
        prefix = self._prefix()
        for entry in list(store.list(prefix)):  # of a run that began at this step before, and was given up
            store.delete(entry.path)
        store.put(*self._content(self._next_file(self._first, rotation, states)))

    def _begin_bad(self, store: Store) -> None:
        """At the first step, remove the lists of another attempt."""
        if self._first:
            return
        config = self._dataset.worker_config
        known, own = {entry.path for entry in store.list(BAD_FOLDER)}, rank_file(config.rank)
        of_others = {path for path in known if path >= rank_file(config.world_size)}
        for path in known & ({own} | (of_others if config.rank == 0 else set())):
            store.delete(path)

    def weigh(self, changes: Sequence[WeightChange]) -> None:
        """Describe weights that the program has set; before :meth:`begin`, that does it."""
        if self._description is not None:
            self._description, self._is_described = self._description.with_weights(_weights(changes)), False
            self._describe()

    def _describe(self) -> bool:
        """Write the description if it changed; return whether that worked."""
        if self._description is not None and not self._is_described:
            self._is_described = self._put("the description of the run", FILE, self._description.dumps())
        return self._is_described

    def _put(self, what: str, path: str, content: bytes) -> bool:
        """Write a file of the run; return whether that worked."""
        try:
            if self._claim is not None and self._claim.is_held and not self._claim.renew():
                _log.error(
                    "another job records to %s now: the steps of this one are no longer recorded",
                    self._spec.open().url,
                )
                self._log = self._description = None
                return False
            self._spec.open().put(path, content)
        except (EnergonStreamError, OSError) as error:
            _log.warning("%s cannot be written now, and is kept for later: %s", what, error)
            return False
        return True

    def _check(self, known: RunDescription, segment: Segment, where: str) -> None:
        hint = "give each run a folder of its own"
        for each in known.segments:
            if (each.num_streams, each.seed_offset) != (segment.num_streams, segment.seed_offset):
                raise RunMismatchError(
                    f"the folder has a run with {each.num_streams} streams and seed offset "
                    f"{each.seed_offset}; this one has {segment.num_streams} and {segment.seed_offset}",
                    where=where,
                    hint=hint,
                )
        first = known.datasets[known.segments[0].dataset] if known.segments else None
        if first is not None and not segment.step and not first.may_be(self._data):
            raise RunMismatchError(
                "the folder has a run that began with other data or options", where=where, hint=hint
            )

    def add(self, rotation: Rotation, states: Mapping[int, State], step: Step) -> None:
        """Record a step, after which the rank is at the given position."""
        log, stream = self._log, step.stream
        if log is None:
            return
        at, batches, in_order = self.step(states), step.state["batches"], self._data.in_order
        if step.ended:
            if not log.pass_length:
                reader = reader_state(self._dataset, step.state["node"]) if in_order else None
                self._append(StepEntry(at, stream, batches, EntryKind.END, reader))
            return
        is_lost = False
        if step.note is not None:
            kind, payload = step.note
            self._append(StepEntry(at - 1, stream, batches - 1, EntryKind(kind), payload))
            is_lost = kind == EntryKind.REFS
        if in_order and (is_lost or not batches % _ANCHOR_EVERY):
            reader = reader_state(self._dataset, step.state["node"])
            self._append(StepEntry(at, stream, batches, EntryKind.ANCHOR, reader))
        is_full = self._bytes >= _MOST_BYTES or len(self._entries) >= _MOST_ENTRIES
        if not is_full and self._claim is not None and self._claim.is_due:
            self.flush(states)
        if is_full and self.flush(states):
            self._next_file(at, rotation, states)

    def _append(self, entry: StepEntry) -> None:
        self._entries.append(entry)
        self._bytes += 8 + (len(entry.payload) if isinstance(entry.payload, bytes) else 64)

    def flush(self, states: Mapping[int, State]) -> bool:
        """Write what was recorded; return whether that worked."""
        log = self._log
        if log is None:
            return True
        content = self._content(replace(log, end=self.step(states)))
        if self._bad.is_new:
            path = rank_file(self._dataset.worker_config.rank)
            self._bad.is_new = not self._put("the list of bad samples", path, self._bad.dumps())
        return self._put("the log of the run", *content) and self._describe()

    def close(self, states: Mapping[int, State]) -> None:
        """Write what was recorded, and let other jobs use the folder."""
        self.flush(states)
        if self._claim is not None:
            self._claim.release()

    def _prefix(self) -> str:
        return f"steps-{self._first:012d}/rank-{self._dataset.worker_config.rank:05d}"

    def _content(self, log: LogFile) -> tuple[str, bytes]:
        return f"{self._prefix()}/{log.first:012d}.log", replace(log, entries=self._entries).dumps()

    def _next_file(self, step: int, rotation: Rotation, states: Mapping[int, State]) -> LogFile:
        config, at = self._dataset.worker_config, rotation.copy()
        next_stream, ended = at.current(), sorted(at.ended)
        if at.pass_length:  # one rotation over all passes
            first = at.first_stream
            index = at.passes * at.pass_length + (config.rank - first) % config.world_size
            next_stream, ended = (index + at.consumed * config.world_size) % at.num_streams, []
        in_order = self._data.in_order
        nodes = {stream: None if state is None else state["node"] for stream, state in states.items()}
        self._entries, self._bytes = [], 0
        self._log = LogFile(
            config.rank,
            config.world_size,
            config.num_streams,
            step,
            step,
            next_stream,
            tuple(ended),
            at.passes,
            at.pass_length,
            {stream: 0 if state is None else state["batches"] for stream, state in states.items()},
            {stream: reader_state(self._dataset, node) for stream, node in nodes.items()} if in_order else {},
        )
        return self._log


def _weights(changes: Sequence[WeightChange]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, write_changes(changes)))


def _count(states: Mapping[int, State]) -> int:
    return sum(state["batches"] for state in states.values() if state is not None)
