"""Counts and times of a running loader, for its statistics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.cache import cache_counters
from energon_stream.loader.observe.pack_balance import PackStep
from energon_stream.loader.observe.profile import Profiler
from energon_stream.loader.observe.stats import LoaderStats, ProcessReport
from energon_stream.pipeline.failures import field_of
from energon_stream.storage import default_counters
from energon_stream.tracing import current_recorder

if TYPE_CHECKING:
    from energon_stream.pipeline.stream_runner import StepLoads

_LAST_WAITS = 1000
_LAST_STEPS = 64
_NEWS_SECONDS = 0.1  # between two reports of a worker: one costs as much as a hundred batches of the meter
_PERCENTILES = (50, 90, 99)


class Reporter:
    """Makes the reports of this process, which begin at zero, and looks at the calling thread."""

    def __init__(self) -> None:
        self._before = ProcessReport(default_counters().snapshot(), cache_counters())
        self._told, self._told_at = (-1, -1), 0.0
        self.profiler: Profiler = Profiler(threading.get_ident())

    def report(self) -> ProcessReport:
        """Return counters and profile until now."""
        io, cache = default_counters().snapshot() - self._before.io, cache_counters() - self._before.cache
        return ProcessReport(io, cache, self.profiler.snapshot())

    def news(self, must: bool = False) -> ProcessReport | None:
        """Return a report if there must be one, or there is something new and the last was not just now."""
        now = time.monotonic()
        if not must and now - self._told_at < _NEWS_SECONDS:
            return None
        seen = (default_counters().changes, self.profiler.looks)
        if seen == self._told and not must:
            return None
        self._told, self._told_at = seen, now
        return self.report()

    def close(self) -> None:
        """End the profiler's thread."""
        self.profiler.close()


class Meter:
    """Measures how long the training loop waits for each batch."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._first = self._waited = 0.0
        self._first_at = self._last_at = 0.0
        self._batches = self._samples = self._first_samples = 0
        self._waits: deque[float] = deque(maxlen=_LAST_WAITS)
        self._steps: dict[int, PackStep] = {}  # the last global steps of planned packs
        self._costs: tuple[str, ...] = ()

    def ask(self) -> float:
        """Return the time at which a batch is asked for."""
        now = time.perf_counter()
        if self._begun is None:
            self._begun = now
        return now

    def received(self, asked: float, value: Any, loads: StepLoads | None = None) -> None:
        """Count a batch, and the loads of its planned packs."""
        now = time.perf_counter()
        samples = samples_in(value)
        if (record := current_recorder()) is not None:
            record.add("wait", "batch", asked, now, batch=self._batches, samples=samples)
        self._samples += samples
        if not self._batches:
            self._first, self._first_at = now - (self._begun or now), now
            self._first_samples = samples
        else:
            self._waited += now - asked
            self._waits.append(now - asked)
        self._batches += 1
        self._last_at = now
        if loads is not None:
            self._weigh(loads)

    def _weigh(self, loads: StepLoads) -> None:
        self._costs = loads.costs
        before = self._steps.get(loads.step, PackStep(0, (0.0,) * len(loads.own), ()))
        own = tuple(map(add, before.own, loads.own))
        self._steps[loads.step] = PackStep(before.batches + 1, own, before.planned or loads.planned)
        if len(self._steps) > _LAST_STEPS:
            del self._steps[min(self._steps)]

    def stats(
        self, rank: int, num_workers: int, report: ProcessReport, restarts: int, emptied: int = 0
    ) -> LoaderStats:
        """Return the statistics until now."""
        waits = sorted(self._waits)
        return LoaderStats(
            rank,
            num_workers,
            self._batches,
            self._samples,
            self._first,
            self._last_at - self._first_at,
            self._waited,
            {number: percentile(waits, number) for number in _PERCENTILES},
            report.io,
            report.cache,
            report.profile,
            restarts,
            self._first_samples,
            emptied,
            dict(self._steps),
            self._costs,
        )


def percentile(ascending: Sequence[float], number: float) -> float:
    """Return a percentile of sorted values; 0 if there are none.

    Example:
        >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
        2.0
    """
    return float(np.percentile(ascending, number, method="inverted_cdf")) if ascending else 0.0


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch, by its keys."""
    keys = field_of(batch, "__key__")
    return len(keys) if isinstance(keys, (list, tuple)) else 1
