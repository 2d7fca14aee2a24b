"""Reads the records of a run: which samples were in a step, and in which steps a sample was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from energon_stream.arguments import SPLIT_CONFIG
from energon_stream.config.opening import open_all
from energon_stream.config.references import LeafRef
from energon_stream.config.view import parse_view
from energon_stream.errors import (
    EnergonStreamError,
    NotInRunError,
    ObjectNotFoundError,
    RunDamagedError,
    RunError,
    RunMismatchError,
    RunNotFoundError,
)
from energon_stream.index.shard_starts import with_starts
from energon_stream.lineage.answers import Occurrence, RankStep
from energon_stream.lineage.log import LogFile
from energon_stream.lineage.places import find_samples, locate
from energon_stream.lineage.run_description import FILE, RunDescription, Segment, make_plan, reading_run
from energon_stream.lineage.segments import RankLog, RunData, batches_with, refs_of_span
from energon_stream.schedule import stream_shares
from energon_stream.storage import StoreSpec
from energon_stream.urls import is_local
from energon_stream.worker_fields import share_of

_KEPT = 256  # logs, and schedules of streams, that are kept
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _answered(
    question: Callable[Concatenate[TrainingRun, _P], _T],
) -> Callable[Concatenate[TrainingRun, _P], _T]:
    """Raise RunDamagedError if the files of a run say what cannot be."""

    @wraps(question)
    def answer(run: TrainingRun, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with reading_run(run.url):
            return question(run, *args, **kwargs)

    return answer


class TrainingRun:
    """The records of a run when it was opened; made by :func:`open_run`.

    Attributes:
        url: Folder or URL of the run.
        description: What determines the order of the run.

    Example:
        >>> from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset, open_run
        >>> dataset = get_train_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
        >>> with get_savable_loader(dataset, run="runs/b") as loader:
        ...     first = next(iter(loader))
        >>> run = open_run("runs/b")
        >>> run.end, run.which(1000)[0].recorded
        (1, False)
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self._options = storage_options
        self._store = self._spec(url).open()
        self.url: str = self._store.url
        try:
            body = self._store.get(FILE)
        except ObjectNotFoundError as error:
            raise RunNotFoundError(
                f"there is no {FILE}", where=self.url, hint="pass the folder that the loader got as run="
            ) from error
        self.description: RunDescription = RunDescription.loads(bytes(body.data), f"{self.url}/{FILE}")
        self._opened: dict[int, RunData] = {}
        self._files = lru_cache(_KEPT)(self._list_files)
        self._log = lru_cache(_KEPT)(self._read_log)
        self._schedule = lru_cache(_KEPT)(
            lambda segment, stream: self._data(segment).schedule(segment, stream)
        )

    @_answered
    def which(self, step: int, *, rank: int | None = None, keys: bool = True) -> list[RankStep]:
        """Return the samples of a step. No sample is read; keys are looked up in the indices, by range.

        Args:
            step: The step, counted from 0 at the beginning of the run.
            rank: The rank; None for all.
            keys: Whether keys are looked up, which takes a few requests for each shard.

        Raises:
            NotInRunError: There is no such step or rank, or no record of it.
            RunMismatchError: A dataset has changed since.
            RunDamagedError: A file of the run is damaged.
            StorageError: Something could not be read.
        """
        segment, _ = self._segment(step)
        if rank is not None and not 0 <= rank < segment.world_size:
            raise NotInRunError(
                f"there is no rank {rank} in step {step}",
                where=self.url,
                hint=f"ranks count from 0 to {segment.world_size - 1}",
            )
        ranks = range(segment.world_size) if rank is None else [rank]
        data = self._data(segment)
        found = [(each, *self._refs(segment, data, step, each)) for each in ranks]
        samples = locate(data, [refs for *_, refs in found], keys)
        return [
            RankStep(step, each, stream, batch, recorded, those)
            for (each, stream, batch, recorded, _), those in zip(found, samples, strict=True)
        ]

    @_answered
    def when(self, key: str, *, until: int | None = None) -> list[Occurrence]:
        """Return the steps in which a sample was, or will be.

        Args:
            key: The sample's key, or ``shard.tar/key``; for a JSONL file, the number of the record.
            until: One past the last step; None for the steps that the run has recorded.

        Raises what :meth:`which` does; NotInRunError if no dataset of the run has such a sample.
        """
        segments = self.description.segments
        found: list[tuple[int, int, int, int, bool]] = []
        is_known = False
        for number, segment in enumerate(segments):
            stop = segments[number + 1].step if number + 1 < len(segments) else until
            if until is not None:
                stop = until if stop is None else min(stop, until)
            data = self._data(segment)
            for leaf, sample in find_samples(data, key):
                is_known = True
                for stream in self._streams(data, segment, leaf, sample):
                    found += self._occurrences(segment, data, (leaf, sample), stream, stop)
        if not is_known:
            raise NotInRunError(
                f"no dataset of the run has a sample {key!r:.120}",
                where=self.url,
                hint="give a sample's whole key, such as 00000017 or data-000000.tar/00000017",
            )
        found.sort()
        return [
            Occurrence(step, rank, stream, batch, time, done)
            for time, (step, rank, stream, batch, done) in enumerate(found)
        ]

    def _spec(self, url: str) -> StoreSpec:
        return StoreSpec(url, None if is_local(url) else self._options)

    def _segment(self, step: int) -> tuple[Segment, int | None]:
        segments = self.description.segments
        found = [number for number, each in enumerate(segments) if each.step <= step]
        if step < 0 or not found:
            raise NotInRunError(
                f"step {step} is before the first step of the run, {segments[0].step}",
                where=self.url,
                hint="count steps from 0 at the beginning of the run",
            )
        after = segments[found[-1] + 1 :]
        return segments[found[-1]], after[0].step if after else None

    def _data(self, segment: Segment) -> RunData:
        if segment.dataset not in self._opened:
            described = self.description.datasets[segment.dataset]
            refs = [
                LeafRef(
                    spec=self._spec(leaf.url),
                    split_part=leaf.split,
                    split_config=leaf.split_config or SPLIT_CONFIG,
                    view=None if leaf.view is None else parse_view(leaf.view["keys"], leaf.url, self._spec),
                )
                for leaf in described.leaves
            ]
            try:
                indices = with_starts(open_all(refs), forks=False)
            except EnergonStreamError as error:
                hint = f"{error.hint or 'give back the dataset'}; the run {self.url} names it"
                raise type(error)(error.what, where=error.where, hint=hint) from error
            for leaf, index in zip(described.leaves, indices, strict=True):
                if not leaf.is_of(index):
                    raise RunMismatchError(
                        f"the split part {leaf.split!r} has other shards or samples than in the run",
                        where=leaf.url,
                        hint="use the dataset as it was; only shards behind the existing ones may be new",
                    )
            selections, starts = [index.selection for index in indices], []
            for leaf, index in zip(described.leaves, indices, strict=True):
                first, chosen = index.shard_starts[: leaf.shards + 1], index.selection
                starts.append(first if chosen is None else chosen.shard_starts(first))
            if "draws" in described.plan and not described.per_batch:
                raise RunError(
                    "the run has even draws of an earlier version, which this one does not make",
                    where=f"{self.url}/{FILE}",
                    hint="ask with the version that recorded it",
                )
            with reading_run(f"{self.url}/{FILE}"):
                per_batch = described.per_batch or described.batch_size
                plan = make_plan(described.plan, starts, selections, per_batch)
            self._opened[segment.dataset] = RunData(described, indices, plan)
        return self._opened[segment.dataset]

    def _list_files(self, segment: Segment, rank: int) -> dict[int, str]:
        """Return the files of a rank's log by their first steps."""
        entries = list(self._store.list(f"steps-{segment.step:012d}/rank-{rank:05d}"))
        names = [(entry.path.rpartition("/")[2].removesuffix(".log"), entry.path) for entry in entries]
        files = {int(name): path for name, path in names if name.isdecimal()}
        if not files and segment.step:
            raise NotInRunError(
                f"rank {rank} has no log of the steps from {segment.step} on",
                where=self.url,
                hint="copy the logs of all ranks to the run's folder",
            )
        return dict(sorted(files.items()))

    def _read_log(self, segment: Segment, rank: int, path: str | None) -> RankLog:
        streams = range(rank, segment.num_streams, segment.world_size)
        if path is None:  # nothing was written yet, and nothing is known but the plan
            zeros = dict.fromkeys(streams, 0)
            of_rank = rank, segment.world_size, segment.num_streams
            file = LogFile(*of_rank, 0, 0, 0, (), 0, segment.pass_length, zeros, {})
        else:
            where = f"{self.url}/{path}"
            file = LogFile.loads(bytes(self._store.get(path).data), where)
            of_log = file.rank, file.world_size, file.num_streams
            if of_log != (rank, segment.world_size, segment.num_streams) or set(file.batches) != {*streams}:
                raise RunDamagedError(
                    f"it is a log of rank {file.rank} of {file.world_size}, where rank {rank} of "
                    f"{segment.world_size} is expected",
                    where=where,
                    hint="give each run a folder of its own",
                )
        return RankLog(file, self.description.datasets[segment.dataset].batch_size)

    def _refs(
        self, segment: Segment, data: RunData, step: int, rank: int
    ) -> tuple[int, int, bool, list[tuple[int, int]]]:
        """Return stream, batch, whether it was recorded, and the samples of a rank's step."""
        files = self._files(segment, rank)
        first = max((first for first in files if first <= step), default=None)
        log = self._log(segment, rank, None if first is None else files[first])
        recorded = step < log.file.end
        stream, before = log.turns.before(step)
        batch = before[stream]
        if not data.described.in_order and not recorded:
            raise self._beyond(step, rank, log.file.end, "its batches depend on data, as packs do")
        schedule = self._schedule(segment, stream)
        refs: list[tuple[int, int]] = []
        with reading_run(self.url):
            span = log.span_of(stream, batch, schedule, data.described.in_order)
            if span is not None:
                refs = refs_of_span(span, schedule, data.described.batch_size, batch)
        if not refs:
            why = "the data of its stream ends before" if data.described.in_order else "it has no samples"
            raise self._beyond(step, rank, log.file.end, why)
        return stream, batch, recorded, refs

    def _beyond(self, step: int, rank: int, end: int, why: str) -> NotInRunError:
        return NotInRunError(
            f"step {step} of rank {rank} is not known: {why}",
            where=self.url,
            hint=f"the log of the rank has the steps before {end}; it is written when states are saved",
        )

    def _streams(self, data: RunData, segment: Segment, leaf: int, sample: int) -> list[int]:
        """Return the streams that may have a sample: its owner, and more where that changes."""
        is_stable = all(each.dataset == segment.dataset for each in self.description.segments)
        if not is_stable or data.described.packing is not None:
            return list(range(segment.num_streams))
        chosen = data.indices[leaf].selection
        places = range(sample, sample + 1) if chosen is None else chosen.places(sample)
        return [
            stream
            for stream in range(segment.num_streams)
            for plan, first, last in stream_shares(
                data.plan, segment.num_streams, share_of(stream, segment.num_streams, segment.dealt_to)
            )
            if plan.leaf == leaf and max(first, places.start) < min(last, places.stop)
        ]

    def _occurrences(
        self, segment: Segment, data: RunData, ref: tuple[int, int], stream: int, stop: int | None
    ) -> Iterator[tuple[int, int, int, int, bool]]:
        """Yield step, rank, stream, batch, and whether it was recorded."""
        rank = stream % segment.world_size
        files: Mapping[int, str | None] = self._files(segment, rank) or {0: None}
        firsts = list(files)
        schedule = self._schedule(segment, stream)
        for number, first in enumerate(firsts):
            after = firsts[number + 1] if number + 1 < len(firsts) else None
            log = self._log(segment, rank, files[first])
            end = log.file.end if stop is None else stop
            end = end if after is None else min(end, after)
            if not data.described.in_order:
                end = min(end, log.file.end)
            if end <= first:
                continue
            most = log.turns.before(end)[1][stream]
            for batch in batches_with(log, data, schedule, stream, ref, most):
                step = log.turns.step_of(stream, batch, end)
                yield step, rank, stream, batch, step < log.file.end

    @cached_property
    @_answered
    def end(self) -> int:
        """One past the last step that any rank has recorded."""
        segment = self.description.segments[-1]
        ends = [segment.step]
        for rank in range(segment.world_size):
            files = list(self._files(segment, rank).values())
            ends += [self._log(segment, rank, files[-1]).file.end] if files else []
        return max(ends)


def open_run(url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> TrainingRun:
    """Open the records of a run, which a loader with ``run=`` wrote.

    Args:
        url: Folder or URL of the run.
        storage_options: Options of the file system, for the run and its datasets.

    Raises:
        RunNotFoundError: There is no run.
        RunDamagedError: Its description is damaged.
        StorageError: It could not be read.

    Example:
        >>> from energon_stream import get_savable_loader, get_train_dataset, open_run
        >>> dataset = get_train_dataset("captions", batch_size=4)
        >>> with get_savable_loader(dataset, run="runs/a") as loader:
        ...     first = next(iter(loader))
        >>> (step,) = open_run("runs/a").which(0)
        >>> [f"{sample.shard}/{sample.key}" for sample in step.samples] == first.__key__
        True
        >>> open_run("runs/a").when(step.samples[0].key)[0].step
        0
    """
    return TrainingRun(os.fspath(url), storage_options)
