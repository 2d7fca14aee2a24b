"""Filling a node's cache before training, by the plan of the training."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from energon_stream.cache import BlockCache, CacheConfig, CachedStore, CacheLayer, shared_cache
from energon_stream.errors import ConfigError
from energon_stream.index.join_index import JoinIndex
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers
from energon_stream.prewarming.amount import Amount, node_ranks, samples_of_streams
from energon_stream.prewarming.fill import Verified, fill, look, read_back
from energon_stream.prewarming.planner import USUAL_BYTES, FetchPlanner
from energon_stream.prewarming.progress import estimated, shown
from energon_stream.prewarming.report import PrewarmPlan, PrewarmResult
from energon_stream.prewarming.wanted import WantedBytes
from energon_stream.progress import Progress
from energon_stream.recipe import get_train_dataset
from energon_stream.recipe.options import CacheOption, cache_layer
from energon_stream.storage import (
    Store,
    StoreSpec,
    default_counters,
    is_local,
    run_isolated,
    shared_fetcher,
)
from energon_stream.worker import WorkerConfig

__all__ = ["prewarm"]


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
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    prefetch_factor: int = 2,
    verify: bool = False,
    dry_run: bool = False,
    progress: bool | None = None,
    isolated: bool = True,
    **options: Any,
) -> PrewarmResult:
    """Fetch into a node's cache what training will read, in that order, before it does.

    Training with the same arguments then makes no request for data until it has done these steps, in whatever processes,
    metadata and indices included. What is there already is not fetched again, so an interrupted call goes on
    where it was. Training and other calls may use the cache at the same time. Where the cache is too small, this
    ends when it is full.

    Args:
        path: What is trained on; see :func:`get_train_dataset`.
        cache: The node's cache: a :class:`CacheConfig` or its directory. None: what ``ENERGON_STREAM_CACHE_DIR`` and
            ``ENERGON_STREAM_CACHE_SIZE`` say.
        steps: Batches of each rank, from the first one on. Samples are counted: a step has ``batch_size`` of them.
        epochs: Passes over the data instead; 1 if nothing is said. A blend by weights has no passes: one is then as many
            samples as its datasets have.
        fraction: A part of a pass instead, up to 1.
        ranks: Ranks that share the cache, as those of a node; None for that of ``worker_config``.
        worker_config: As in training; how many streams the job has follows from it.
        batch_size: As in training. Where samples are packed or filtered, about as many as a step takes.
        shuffle_buffer_size: As in training.
        max_samples_per_sequence: As in training.
        prefetch_factor: As the loader's.
        verify: Read everything back afterwards, and compare hashes.
        dry_run: Fetch no samples; find out what would be fetched. Metadata and indices are read, and kept in the cache
            if there is one.
        progress: Whether to show a progress bar on standard error; None: where that is a terminal.
        isolated: Whether a short-lived child process does it, so that this one may fork workers later.
        **options: Other arguments of :func:`get_train_dataset`, as in training.

    Raises:
        ConfigError: Some option cannot work, there is no cache, or all paths are local, which are never cached.
        StorageError: Something could not be read. What came is kept.
        DatasetError: The dataset is not prepared, or its metadata is wrong.
    """
    amount = Amount.of(steps, epochs, fraction, batch_size, prefetch_factor)
    config = worker_config or WorkerConfig.default_worker_config()
    layer = cache_layer(cache)
    if layer is None and not dry_run:
        raise ConfigError("there is no cache to fill", hint="pass cache=, or set ENERGON_STREAM_CACHE_DIR")
    training = {
        "batch_size": batch_size,
        "shuffle_buffer_size": shuffle_buffer_size,
        "max_samples_per_sequence": max_samples_per_sequence,
        **options,
    }
    job = _Job(
        path,
        training,
        config,
        node_ranks(config, ranks),
        amount,
        None if layer is None else layer.config,
        verify,
        dry_run,
        progress,
    )
    return run_isolated(job.run) if isolated else job.run()


@dataclass(frozen=True, slots=True)
class _Job:
    """What was asked for."""

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
        """Do it in this process."""
        begin, before = time.monotonic(), default_counters().snapshot()
        dataset = self._open()
        limits = dataset.options
        in_flight = max(1, min(limits.in_flight, limits.fetch_bytes // USUAL_BYTES))
        samples = samples_of_streams(dataset, self.ranks, self.amount)
        amount = self.amount
        wanted = WantedBytes(
            dataset, samples, amount.step_samples, amount.prefetch, shared_fetcher(), self._is_kept
        )
        requests = FetchPlanner(wanted, limits.max_gap)
        total = sum(samples.values())
        verified: Verified | None = None
        if self.dry_run:
            filled = look(shown(requests, total, self.progress))
        else:
            with Progress(unit="B", enabled=self.progress) as progress:
                windows = estimated(requests, total, progress)
                filled = fill(
                    windows,
                    _caches(dataset),
                    # Nobody waits for a single one of them, so none is worth asking for twice.
                    shared_fetcher(in_flight, hedged_share=0.0),
                    in_flight,
                    limits.byte_budget,
                    requests.room,
                    progress.advance,
                )
            if self.verify:
                with Progress(requests.bytes, unit="B", enabled=self.progress) as progress:
                    verified = read_back(requests.pieces(), progress.advance)
        counted = default_counters().snapshot() - before
        plan = PrewarmPlan(
            requests.samples,
            requests.ahead,
            requests.objects,
            requests.bytes,
            requests.cached_bytes,
            requests.count,
            max(0, counted.requests.get("get", 0) - filled.requests),
            max(0, counted.bytes_received - filled.bytes),
        )
        warm = total if filled.first_left is None else min(total, filled.first_left)
        return PrewarmResult(
            plan,
            steps=self.amount.steps,
            samples=total,
            warm_steps=self._steps(warm, total),
            warm_samples=warm,
            is_complete=filled.first_left is None,
            fetched_bytes=filled.bytes,
            requests=filled.requests,
            seconds=time.monotonic() - begin,
            verified_bytes=None if verified is None else verified.right,
            damaged_bytes=0 if verified is None else verified.wrong,
        )

    def _steps(self, warm: int, total: int) -> int | None:
        """Whole steps of all ranks in a number of samples."""
        if self.amount.steps is None or warm == total:
            return self.amount.steps
        return warm // (self.amount.step_samples * len(self.ranks))

    def _open(self) -> ReaderDataset:
        """Open the dataset as training does, but without workers."""
        config = replace(self.config, num_workers=0, rank=self.ranks[0])
        cache = False if self.cache is None else self.cache
        dataset = get_train_dataset(self.path, worker_config=config, cache=cache, **self.training)
        found = [reader for _, reader in find_readers(dataset)]
        if len(found) != 1:
            raise ConfigError(
                "the task encoder composes several datasets itself, so the order of the samples is not known",
                where=str(self.path),
                hint="prewarm each of them alone, with epochs=1",
            )
        if not _caches(found[0]) and (
            self.cache is not None or all(is_local(spec.url) for spec in _specs(found[0]))
        ):
            raise ConfigError(
                "nothing of it is cached: local paths never are, nor what says `cache: false`",
                where=str(self.path),
                hint="name the copy in object storage, or train without a cache",
            )
        return found[0]

    def _is_kept(self, store: Store) -> bool:
        """Whether a store's bytes are to be in a cache; all that are remote, where none is named."""
        return not store.is_local if self.cache is None else isinstance(store, CachedStore)


def _specs(dataset: ReaderDataset) -> list[StoreSpec]:
    """Places of the samples."""
    indices = [leaf.index for leaf in dataset.leaves]
    members = [index.members if isinstance(index, JoinIndex) else (index,) for index in indices]
    return [member.spec for several in members for member in several]


def _caches(dataset: ReaderDataset) -> set[BlockCache]:
    """The caches through which samples are read: in a metadataset, datasets may have one of their own."""
    layers = [spec.through for spec in _specs(dataset) if not is_local(spec.url)]
    return {shared_cache(layer.config) for layer in layers if isinstance(layer, CacheLayer)}
