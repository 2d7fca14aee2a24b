"""The part of a loader that tells what it does: statistics, traces, progress."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, overload

from energon_stream.loader.observe.meter import Meter
from energon_stream.loader.observe.metrics import (
    STATS_DIR,
    Publisher,
    Recent,
    log_every,
    progress,
    write_scalars,
)
from energon_stream.loader.observe.stats import LoaderStats, ProcessReport
from energon_stream.loader.observe.trace import Observed, Trace
from energon_stream.storage import CounterSnapshot
from energon_stream.worker import WorkerConfig

T = TypeVar("T")
T_other = TypeVar("T_other")


class ObservedLoader(Generic[T]):
    """Base of a loader, which tells it of its batches and of the sessions that it opens and closes."""

    worker_config: WorkerConfig
    _session: Observed | None = None

    def __init__(self) -> None:
        self._restarts = 0  # those of the sessions that are closed
        self._report = ProcessReport()  # that of these sessions
        self._meter, self._recent = Meter(), Recent()
        self._lock = threading.RLock()  # exporters look at it from threads of their own
        self._trace: Trace | None = None
        self._publisher: Publisher | None = None

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def _publish(self) -> None:
        """Write statistics to the folder of the environment, if it names one."""
        if folder := os.environ.get(STATS_DIR):
            self._publisher = Publisher(self.stats, folder)

    def _unpublish(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def _count(self, session: Observed) -> None:
        """Keep the counts of a session that ends."""
        self._restarts += session.restarts
        self._report += session.report()

    def io_counters(self) -> CounterSnapshot:
        """Return the requests, bytes, retries and errors of this loader's readers since iteration began.

        A worker's counts are as old as the last batch that was taken from it.
        """
        return CounterSnapshot() if self._session is None else self._session.report().io

    def stats(self) -> LoaderStats:
        """Return statistics of this rank, and a verdict on what limits it.

        A worker's counts are as old as the last batch that was taken from it.

        Example:
            >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
            >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
            >>> loader = get_loader(dataset)
            >>> stats = [loader.stats() for batch in loader][-1]
            >>> stats.batches, stats.samples, stats.io.total_requests
            (2, 8, 0)
        """
        with self._lock:
            report = self._report if self._session is None else self._report + self._session.report()
            restarts = self.worker_restarts
        config = self.worker_config
        emptied = self._emptied_packs()
        return self._meter.stats(config.rank, config.num_workers, report, restarts, emptied)

    def _emptied_packs(self) -> int:
        return 0

    @overload
    def progress(self, batches: None = None, *, total: int | None = None, **options: Any) -> Iterator[T]: ...

    @overload
    def progress(
        self, batches: Iterable[T_other], *, total: int | None = None, **options: Any
    ) -> Iterator[T_other]: ...

    def progress(
        self, batches: Iterable[Any] | None = None, *, total: int | None = None, **options: Any
    ) -> Iterator[Any]:
        """Iterate beside a line of ``tqdm`` with the rate in samples and the share of waiting.

        Args:
            batches: What to iterate, such as ``prefetch_to_device(loader, "cuda")``; None for the loader.
            total: Number of batches; None for those of a pass.
            **options: Further arguments of ``tqdm``. By default, the line is shown on a terminal only.

        Example:
            >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
            >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
            >>> sum(len(batch.caption) for batch in get_loader(dataset).progress())
            8
        """
        length = len(self) if total is None else total
        return progress(self.stats, self if batches is None else batches, length, options)

    def log_stats(self, writer: Any, step: int) -> None:
        """Write statistics since the last call as scalars of a step; see :meth:`LoaderStats.scalars`.

        Args:
            writer: A ``SummaryWriter`` of TensorBoard, a run of Weights & Biases or the module ``wandb``, or
                any object with ``log_metrics(values, step=)``.
            step: The training step.

        Raises:
            ConfigError: The writer takes no scalars.

        Example:
            >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
            >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
            >>> class Writer:
            ...     def log_metrics(self, values, step):
            ...         print(step, values["energon_stream/retries"])
            >>> loader = get_loader(dataset)
            >>> for step, batch in enumerate(loader):
            ...     loader.log_stats(Writer(), step)
            0 0.0
            1 0.0
        """
        write_scalars(writer, self._recent.take(self.stats()).scalars(), step)

    def log_every(self, seconds: float = 60.0) -> AbstractContextManager[None]:
        """Log a line of statistics periodically within a block, and one at its end.

        The logger is ``energon_stream.stats``, the level ``INFO``. Records have the attributes ``rank``,
        ``samples_per_second``, ``waiting`` and ``verdict``, and ``stats`` with everything as plain values. A
        line is about the time since the one before.

        Raises:
            ConfigError: ``seconds`` is not positive.

        Example:
            >>> import logging, sys
            >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
            >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
            >>> loader = get_loader(dataset)
            >>> with loader.log_every(60):
            ...     batches = list(loader)
        """
        return log_every(self.stats, seconds)

    def trace(self, path: str | os.PathLike[str], *, seconds: float | None = None) -> Trace:
        """Record requests, looks at stacks, and the loop's waits, for Perfetto or ``chrome://tracing``.

        The record begins with this call. It ends with the ``with`` block, with ``close()``, or after some
        seconds, and the file is written then. It has the events of this process and of the loader's workers.

        Args:
            path: Local file to write.
            seconds: Seconds after which the record ends by itself; None for no such end.

        Raises:
            ConfigError: ``seconds`` is not positive, or this process records another trace.
            StorageError: The file cannot be written.

        Example:
            >>> import json
            >>> from energon_stream import WorkerConfig, get_loader, get_val_dataset
            >>> dataset = get_val_dataset("captions", batch_size=4, worker_config=WorkerConfig(0, 1, 0))
            >>> loader = get_loader(dataset)
            >>> with loader.trace("trace.json"):
            ...     batches = list(loader)
            >>> events = json.load(open("trace.json"))["traceEvents"]
            >>> [event["args"]["samples"] for event in events if event.get("cat") == "batch"]
            [4, 4]
        """
        self._trace = Trace(path, seconds, lambda: self._session)
        return self._trace

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the running workers."""
        return () if self._session is None else self._session.pids

    @property
    def worker_restarts(self) -> int:
        """Workers that took the place of one that died or hung, since the loader was made."""
        return self._restarts + (0 if self._session is None else self._session.restarts)
