"""Prewarming: fills a node's cache before training, by the plan of the training."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from energon_stream.cache import BlockCache, CacheConfig, CachedStore, CacheLayer, shared_cache
from energon_stream.config import get_train_dataset
from energon_stream.config.dataset_options import CacheOption, cache_layer
from energon_stream.errors import ConfigError
from energon_stream.index.join_index import JoinIndex
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers
from energon_stream.prewarming.amount import Amount, StreamAmount, StreamSteps, amounts_of_streams, node_ranks
from energon_stream.prewarming.fetch_planner import USUAL_BYTES, FetchPlanner, PlannedFetch
from energon_stream.prewarming.fill import Filled, fill, read_back
from energon_stream.prewarming.results import PrewarmResult
from energon_stream.prewarming.wanted import WantedBytes
from energon_stream.progress import Progress
from energon_stream.storage import Store, StoreSpec, default_counters, run_isolated, shared_fetcher
from energon_stream.task import DefaultTaskEncoder, stateless
from energon_stream.urls import is_local
from energon_stream.worker import WorkerConfig

if TYPE_CHECKING:
    from energon_stream.engine.tasks import TaskEngine

_log = logging.getLogger(__name__)

_DOUBT = 1.25  # by an early estimate, a dataset that is this much larger than the cache does not fit


def prewarm(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    cache: CacheOption = None,
    steps: int | None = None,
    epochs: int | None = None,
    fraction: float | None = None,
    ranks: Sequence[int] | None = None,
    worker_config: WorkerConfig | None = None,
    batch_size: int | None = None,
    prefetch_factor: int = 2,
    verify: bool = False,
    dry_run: bool = False,
    progress: bool | None = None,
    isolated: bool = True,
    engine: TaskEngine | None = None,
    **options: Any,
) -> PrewarmResult:
    """Fetch into a node's cache the bytes that training will read, in that order, before it does.

    Training with the same arguments then makes no request for data, metadata or indices until it has done
    these steps, whatever its processes. Cached bytes are not fetched again, so an interrupted call goes on
    where it stopped. Training and other calls may use the cache at the same time. If the cache is too small,
    a warning says so, and prewarming ends when the cache is full.

    Args:
        path: The dataset or metadataset; see :func:`get_train_dataset`.
        cache: The node's cache: a :class:`CacheConfig` or its directory. None for the cache in
            ``ENERGON_STREAM_CACHE_DIR`` and ``ENERGON_STREAM_CACHE_SIZE``.
        steps: Batches of each rank, from the first one on. A step counts as ``batch_size`` samples.
        epochs: Passes over the data instead; default 1. A blend by weights has no passes, so one pass of it
            is as many samples as its datasets have.
        fraction: Part of a pass instead, up to 1.
        ranks: Ranks that share the cache, such as all of a node; None for the rank of ``worker_config``.
        worker_config: As in training; it determines the number of streams.
        batch_size: As in training: with ``packing``, packs. Where the encoder filters or packs, the
            approximate number of samples that a step consumes.
        prefetch_factor: The loader's.
        verify: Read everything back afterwards, and compare hashes.
        dry_run: Fetch no samples; only find out what would be fetched. Metadata and indices are read, and
            kept in the cache if there is one.
        progress: Show progress on standard error. None: only on a terminal.
        isolated: Run in a short-lived child process, so that this process may fork workers later.
        engine: Warm each rank in a process of its own; the processes must share the cache's folder. On a
            cluster, the folder must be on a shared file system. None: one process warms all ranks.
        **options: Other arguments of :func:`get_train_dataset`, as in training.

    Raises:
        ConfigError: An option cannot work, there is no cache, or all paths are local, which are never cached.
        StorageError: Something could not be read. The cache keeps what was fetched.
        DatasetError: The dataset is not prepared, or its metadata is wrong.

    Example:
        >>> from energon_stream import CacheConfig, WorkerConfig, prewarm
        >>> cache = CacheConfig("cache", "1GB", min_free_bytes=0)
        >>> result = prewarm("s3://data/captions", cache=cache, worker_config=WorkerConfig(0, 1, 0), epochs=1)
        >>> result.samples, result.is_complete
        (48, True)
    """
    amount = Amount.of(steps, epochs, fraction, batch_size, prefetch_factor)
    config = worker_config or WorkerConfig.default_worker_config()
    layer = cache_layer(cache)
    if layer is None and not dry_run:
        raise ConfigError("there is no cache to fill", hint="Pass cache=, or set ENERGON_STREAM_CACHE_DIR.")
    training = {"batch_size": batch_size, **options}
    kept = None if layer is None else layer.config
    path = path if isinstance(path, Mapping) else os.fspath(path)
    job = _Job(path, training, config, node_ranks(config, ranks), amount, kept, verify, dry_run, progress)
    plan = job if engine is None else replace(job, dry_run=True)
    found = run_isolated(plan.run) if isolated else plan.run()
    return found if engine is None or dry_run else _warm_by_rank(engine, job, found)


def _warm_by_rank(engine: TaskEngine, job: _Job, planned: PrewarmResult) -> PrewarmResult:
    """Warm each rank as a task of an engine. ``planned`` is the result of a dry run for all ranks."""
    tasks = [replace(job, ranks=(rank,), progress=False) for rank in job.ranks]
    try:
        pickle.dumps(tasks)
    except Exception as error:  # whatever a value raises when it is pickled
        raise ConfigError(
            f"the options cannot be sent to other processes: {error}",
            hint="Define classes and functions in a module, or leave out engine=.",
        ) from error
    begin = time.monotonic()
    with Progress(len(tasks), unit="ranks", enabled=job.progress) as progress:
        results = list(engine.map(_Job.run, tasks, on_done=lambda done, _: progress.reach(done)))
    steps = [result.warm_steps for result in results if result.warm_steps is not None]
    return replace(
        planned,
        warm_steps=min(steps, default=None),
        warm_samples=sum(result.warm_samples for result in results),
        is_complete=all(result.is_complete for result in results),
        fetched_bytes=sum(result.fetched_bytes for result in results),
        requests=sum(result.requests for result in results),
        seconds=planned.seconds + time.monotonic() - begin,
        verified_bytes=sum(result.verified_bytes or 0 for result in results) if job.verify else None,
        damaged_bytes=sum(result.damaged_bytes for result in results),
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """Arguments of :func:`prewarm`, checked."""

    path: Any
    training: Mapping[str, Any] = field(repr=False)
    config: WorkerConfig
    ranks: tuple[int, ...]
    amount: Amount
    cache: CacheConfig | None
    verify: bool
    dry_run: bool
    progress: bool | None

    def run(self) -> PrewarmResult:
        begin, before = time.monotonic(), default_counters().snapshot()
        dataset = self._open()
        limits, amount = dataset.options, self.amount
        in_flight = max(1, min(limits.in_flight, limits.fetch_bytes // USUAL_BYTES))
        amounts = amounts_of_streams(dataset, self.ranks, amount)
        total = sum(of_stream.samples for of_stream in amounts.values())
        step_samples = self._step_samples(amounts)
        # A sample of a later pass needs no more bytes.
        distinct = min(total, sum(leaf.index.num_samples for leaf in dataset.leaves))
        wanted = WantedBytes(dataset, amounts, step_samples, shared_fetcher(), self._is_kept)
        planner = FetchPlanner(wanted, limits.max_gap)
        unit = "samples" if self.dry_run else "B"
        with Progress(total if self.dry_run else None, unit=unit, enabled=self.progress) as progress:
            windows = self._windows(planner, distinct, progress)
            if self.dry_run:
                left = (fetch.position for window in windows for fetch in window)
                filled = Filled(first_left=min(left, default=None))
            else:
                # Nobody waits for a single one of these requests, so none is worth sending twice.
                fetcher = shared_fetcher(in_flight, hedged_share=0.0)
                held, room, on_bytes = limits.byte_budget, planner.room, progress.advance
                filled = fill(windows, _caches(dataset), fetcher, in_flight, held, room, on_bytes)
        verified, damaged = None, 0
        if self.verify and not self.dry_run:
            with Progress(planner.bytes, unit="B", enabled=self.progress) as progress:
                verified, damaged = read_back(planner.all_wanted(), progress.advance)
        counted = default_counters().snapshot() - before
        plan = planner.plan(
            # Late requests are sent twice by chance, but none of those that fill the cache.
            index_requests=max(0, counted.requests.get("get", 0) - counted.hedges - filled.requests),
            index_bytes=max(0, counted.bytes_received - counted.hedged_bytes - filled.bytes),
        )
        warm = total if filled.first_left is None else min(total, filled.first_left)
        return PrewarmResult(
            plan,
            steps=amount.steps,
            samples=total,
            warm_steps=self._steps(warm, total, amounts, step_samples),
            warm_samples=warm,
            is_complete=filled.first_left is None,
            fetched_bytes=filled.bytes,
            requests=filled.requests,
            seconds=time.monotonic() - begin,
            verified_bytes=verified,
            damaged_bytes=damaged,
            expected_bytes=round(planner.bytes * _factor(planner, distinct)),
        )

    def _windows(
        self, planner: FetchPlanner, samples: int, progress: Progress
    ) -> Iterator[list[PlannedFetch]]:
        """Yield the fetches, show the progress, and warn once it is clear that the caches are too small."""
        told = False
        for window in planner.windows():
            factor = _factor(planner, samples)
            if self.dry_run:
                progress.reach(planner.samples)
            else:
                progress.total = (planner.bytes - planner.cached_bytes) * factor
            if not told and (planner.excess_bytes() or planner.excess_bytes(factor / _DOUBT)):
                told = True
                expected = planner.bytes * factor
                room = expected - planner.excess_bytes(factor)
                _log.warning(
                    "the data does not fit in the cache: training reads %s MB of %s, and the cache has room for %s MB; "
                    "the first bytes in the order of training are cached, the others are read from the store",
                    *(f"{expected / 1e6:,.1f}", self.path, f"{room / 1e6:,.1f}"),
                )
            yield window

    def _step_samples(self, amounts: Mapping[int, StreamAmount]) -> int:
        """Return the samples of a step; of planned packs, their mean."""
        ends = [amount.ends for amount in amounts.values() if amount.ends]
        if not ends:
            return self.amount.step_samples
        return -(-self.amount.step_samples * sum(own[-1] for own in ends) // sum(map(len, ends)))

    def _steps(
        self, warm: int, total: int, amounts: Mapping[int, StreamAmount], step_samples: int
    ) -> int | None:
        """Return the number of whole steps of all ranks in some samples."""
        steps, world = self.amount.steps, self.config.world_size
        if steps is None or warm == total:
            return steps
        if all(amount.ends is None for amount in amounts.values()):
            return warm // (step_samples * len(self.ranks))
        # Positions count steps of mean size, so each stream has as many whole ones of these.
        each, lanes = warm // (step_samples * len(amounts)) * step_samples, self.config.num_streams // world
        size = self.amount.step_samples
        of_stream = (StreamSteps(size, lanes, stream // world, amounts[stream].ends) for stream in amounts)
        return min(steps, *(found.of(each) for found in of_stream))

    def _open(self) -> ReaderDataset:
        """Open the dataset as training does, without workers."""
        config = replace(self.config, rank=self.ranks[0])
        cache = False if self.cache is None else self.cache
        dataset = open_reader_dataset(self.path, config, cache, self.training)
        needs_cache = self.cache is not None or all(is_local(spec.url) for spec in _specs(dataset))
        if needs_cache and not _caches(dataset):
            raise ConfigError(
                "no part of the dataset is cached: local paths never are, nor datasets with `cache: false`",
                where=str(self.path),
                hint="Name the copy in object storage, or train without a cache.",
            )
        return dataset

    def _is_kept(self, store: Store) -> bool:
        """Return True if a store's bytes should be in a cache; without one, if the store is remote."""
        return not store.is_local if self.cache is None else isinstance(store, CachedStore)


class _Unpacked(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Makes no packs, where only the order of their samples is of interest."""

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> list[Any]:
        return samples


def open_reader_dataset(
    path: Any, config: WorkerConfig, cache: CacheOption, training: Mapping[str, Any]
) -> ReaderDataset:
    """Open the dataset at the bottom of a training pipeline, in this process.

    ``training`` has other arguments of :func:`get_train_dataset`. With ``packing``, a task encoder is not
    needed: which samples a pack has does not depend on it. ``plan_version`` is that of a recorded run.
    """
    config = replace(config, num_workers=0, num_streams=config.num_streams)
    if training.get("packing") is not None:
        training = {"task_encoder": _Unpacked(), **training}
    training = dict(training)
    plan_version = training.pop("plan_version", None)
    if (given := training.pop("cache", False)) not in (None, False):
        raise ConfigError(
            f"a plan of reads follows no cache, and cache is {given!r:.80}", hint="leave out cache="
        )
    dataset = get_train_dataset(path, worker_config=config, cache=cache, **training)
    found = [reader for _, reader in find_readers(dataset)]
    if len(found) != 1:
        raise ConfigError(
            "the task encoder composes several datasets itself, so the order of the samples is not known",
            where=str(path),
            hint="Name each dataset alone, with epochs=1.",
        )
    found[0].plan_as(plan_version)
    return found[0]


def _factor(planner: FetchPlanner, samples: int) -> float:
    """Return an estimate of the bytes of ``samples`` samples, divided by the planned bytes."""
    return max(1.0, samples / planner.samples) if planner.samples else 1.0


def _specs(dataset: ReaderDataset) -> list[StoreSpec]:
    indices = (leaf.index for leaf in dataset.leaves)
    members = (index.members if isinstance(index, JoinIndex) else (index,) for index in indices)
    return [member.spec for several in members for member in several]


def _caches(dataset: ReaderDataset) -> set[BlockCache]:
    """Return the caches of the samples; in a metadataset, a dataset may have its own."""
    layers = [spec.through for spec in _specs(dataset) if not is_local(spec.url)]
    return {shared_cache(layer.config) for layer in layers if isinstance(layer, CacheLayer)}
