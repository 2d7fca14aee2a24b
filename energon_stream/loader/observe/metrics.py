"""Statistics as metrics: for exporters, as scalars of a step, as lines of a log, and in a file."""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakMethod

from energon_stream.atomic_files import write_whole
from energon_stream.errors import ConfigError
from energon_stream.threads import Repeater

if TYPE_CHECKING:
    from energon_stream.loader.observe.stats import LoaderStats

T = TypeVar("T")

STATS_DIR = "ENERGON_STREAM_STATS_DIR"
"""Environment variable with the folder that loaders write their statistics to."""
SUFFIX = ".stats.json"

log: logging.Logger = logging.getLogger("energon_stream.stats")
_log = logging.getLogger(__name__)

_BAR_SECONDS = 1.0  # that a bar's rate and share of waiting stand for, at least
FILE_SECONDS = 1.0  # between two writes of statistics
HISTORY = 20  # last rates in a file of statistics


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a loader, for exporters."""

    name: str  # without the prefix
    kind: Literal["counter", "gauge"]  # a counter grows; a gauge may take any value
    unit: str  # in UCUM, as OpenTelemetry has it
    text: str  # what it is
    # Returns its values by the value of ``label``; by ``""`` if it has no label.
    read: Callable[[LoaderStats], Mapping[str, float]]
    label: str = ""  # name of what tells the values apart


def _one(read: Callable[[LoaderStats], float]) -> Callable[[LoaderStats], Mapping[str, float]]:
    return lambda stats: {"": read(stats)}


METRICS = (
    Metric("batches", "counter", "{batch}", "Batches that the loop received.", _one(lambda s: s.batches)),
    Metric("samples", "counter", "{sample}", "Samples in these batches.", _one(lambda s: s.samples)),
    Metric("time", "counter", "s", "Time from the first batch to the last.", _one(lambda s: s.seconds)),
    Metric("wait", "counter", "s", "Time in which the loop waited.", _one(lambda s: s.wait_seconds)),
    Metric("first_batch", "gauge", "s", "Time until the first batch.", _one(lambda s: s.first_batch_seconds)),
    Metric("looks", "counter", "{look}", "Looks at stacks.", lambda s: s.profile.causes, "cause"),
    Metric("requests", "counter", "{request}", "Requests to stores.", lambda s: s.io.requests, "kind"),
    Metric("errors", "counter", "{request}", "Requests that failed.", lambda s: s.io.errors, "error"),
    Metric("retries", "counter", "{request}", "Requests after a fault.", _one(lambda s: s.io.retries)),
    Metric("hedges", "counter", "{request}", "Requests beside late ones.", _one(lambda s: s.io.hedges)),
    Metric("received", "counter", "By", "Bytes from stores.", _one(lambda s: s.io.bytes_received)),
    Metric("cache_hit", "counter", "By", "Bytes that the cache had.", _one(lambda s: s.cache.hit_bytes)),
    Metric("cache_miss", "counter", "By", "Bytes that it had not.", _one(lambda s: s.cache.missed_bytes)),
    Metric("restarts", "counter", "{worker}", "Workers that were replaced.", _one(lambda s: s.restarts)),
)
"""What exporters tell, each with the prefix ``energon_stream``."""


class Recent:
    """Statistics since they were taken last, at first since ``before`` or since the iteration began."""

    def __init__(self, before: LoaderStats | None = None) -> None:
        self._before = before

    def take(self, now: LoaderStats) -> LoaderStats:
        """Return what happened since the last call."""
        before, self._before = self._before, now
        return now if before is None else now.since(before)


def write_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Write scalars of a step with a writer of TensorBoard, Weights & Biases, or one that is like it."""
    if hasattr(writer, "add_scalar"):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        return
    write = getattr(writer, "log_metrics", None) or getattr(writer, "log", None)
    if write is None or isinstance(writer, logging.Logger):
        raise ConfigError(
            f"a {type(writer).__name__} takes no scalars",
            hint="pass a SummaryWriter, a run of wandb, or an object with log_metrics(values, step=)",
        )
    write(dict(values), step=step)


@contextmanager
def log_every(read: Callable[[], LoaderStats], seconds: float) -> Iterator[None]:
    """Log a line at intervals; see :meth:`BasicDataLoader.log_every`."""
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds}", hint="use a positive number")
    tell = partial(_log_line, read, Recent(read()))
    repeater = Repeater(tell, seconds, "log of the loader's statistics")
    try:
        yield
    finally:
        repeater.close()
        tell()


def progress(
    read: Callable[[], LoaderStats], batches: Iterable[T], total: int | None, options: Mapping[str, Any]
) -> Iterator[T]:
    """Yield batches beside a bar; see :meth:`BasicDataLoader.progress`."""
    from tqdm import tqdm

    recent, taken_at, iterator = Recent(read()), time.monotonic(), iter(batches)
    with tqdm(total=total, **{"unit": "batch", "disable": None, "dynamic_ncols": True, **options}) as bar:
        while True:
            try:
                batch = [next(iterator)]
            except StopIteration:
                return
            if not bar.disable and (now := time.monotonic()) - taken_at >= _BAR_SECONDS:
                stats, taken_at = recent.take(read()), now
                text = f"{stats.samples_per_second:,.0f} samples/s, waiting {stats.waiting:.0%}"
                bar.set_postfix_str(text, refresh=False)
            bar.update()
            yield batch.pop()  # keeps no reference, so the batch is freed as soon as the loop drops it


def _log_line(read: Callable[[], LoaderStats], recent: Recent) -> None:
    stats = recent.take(read())
    if not stats.batches:  # the watchdog says what is late
        return
    verdict = stats.verdict
    log.info(
        "rank %d: %.0f samples/s, waiting %.0f%% of the time; %s",
        stats.rank,
        stats.samples_per_second,
        100 * stats.waiting,
        verdict,
        extra={
            "rank": stats.rank,
            "samples_per_second": stats.samples_per_second,
            "waiting": stats.waiting,
            "verdict": verdict.cause,
            "stats": stats.as_json(),
        },
    )


class Publisher:
    """Writes a loader's statistics to a file of its own every second, until it is closed, the loader is gone,
    or the program ends."""

    def __init__(self, read: Callable[[], LoaderStats], folder: str | os.PathLike[str]) -> None:
        self._read = WeakMethod(read)
        host, pid = socket.gethostname(), os.getpid()
        self._about = {"host": host, "pid": pid}
        self._path = Path(folder) / f"{host}-{pid}-{uuid.uuid4().hex[:8]}{SUFFIX}"
        self._recent, self._rates = Recent(), deque[float](maxlen=HISTORY)
        self._has_failed = False
        self._repeater = Repeater(self._publish, FILE_SECONDS, "publisher of the loader's statistics")
        atexit.register(self.close)

    def close(self) -> None:
        """End the thread, and remove the file."""
        self._repeater.close()
        self._remove()

    def _remove(self) -> None:
        atexit.unregister(self.close)
        if os.getpid() == self._about["pid"]:  # a fork of the program may close the loader, too
            with suppress(OSError):
                self._path.unlink()

    def _publish(self) -> bool:
        """Write the file; return False if the loader is gone."""
        read = self._read()
        if read is None:
            self._remove()
            return False
        stats = read()
        del read  # it keeps the loader alive
        recent = self._recent.take(stats)
        self._rates.append(recent.samples_per_second)
        found = {"recent": recent.as_json(), "whole": stats.as_json(), "history": list(self._rates)}
        content = {**self._about, "time": time.time(), **found}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(content).encode(), 0o600)
        except OSError as error:
            if not self._has_failed:
                _log.warning("no statistics for energon-stream top: %s", error)
            self._has_failed = True
        return True
