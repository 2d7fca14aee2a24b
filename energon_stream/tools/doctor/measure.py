"""A measurement of training's reading on the user's own data, with several settings, and its report."""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from energon_stream.config import get_train_dataset
from energon_stream.engine.processes import cpus
from energon_stream.errors import ConfigError
from energon_stream.loader.factories import get_loader
from energon_stream.loader.observe.profile import COLLATE, CONSUMER, DECODE, ENCODE, LOADER, STORE
from energon_stream.printable import counted, printable_line, strip_credentials
from energon_stream.read.read_options import ReadOptions
from energon_stream.storage import run_isolated
from energon_stream.tools.plots import PALE, STRONG, save_plot
from energon_stream.worker import WorkerConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from energon_stream.loader.observe.stats import LoaderStats

_BETTER = 1.03
"""A setting must be so many times as fast as the default one to be recommended."""
_LEAST_BATCHES = 3
_LONGEST = 5.0
"""A run ends after so many times its seconds, even without enough batches."""
_DEFAULTS = ReadOptions()
_MADE = (DECODE, ENCODE, COLLATE, LOADER)
"""What more workers share."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of one run."""

    num_workers: int = 0  # worker processes
    max_in_flight: int = _DEFAULTS.max_in_flight  # requests of a process at one time
    max_request: int = _DEFAULTS.max_request  # largest request, in bytes

    def __str__(self) -> str:
        return f"{counted(self.num_workers, 'worker')}, {self.max_in_flight} in flight, {self.max_request / 2**20:g} MiB"


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run."""

    setting: Setting  # its settings
    batches: int  # batches that were read
    samples_per_second: float  # samples a second after the first batch
    bytes_per_second: float  # received bytes a second, with samples that are read ahead
    first_batch_seconds: float  # seconds until the first batch
    requests: int  # requests, metadata included
    verdict: str  # what limits this run, in words
    cause: str = "unknown"  # the same as a cause of :class:`Verdict`


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The runs of a measurement."""

    url: str  # the dataset, without credentials
    runs: tuple[BenchRun, ...]  # all runs, in their order; the first one has the defaults

    @property
    def best(self) -> BenchRun:
        """The recommended run: the fastest, or that of the defaults if no other is clearly faster."""
        return best_of(self.runs)

    @property
    def verdict(self) -> str:
        """The result in words: how much faster the recommended settings are, and what limits them."""
        best, usual = self.best, self.runs[0]
        found = f"Best of {counted(len(self.runs), 'run')}: {best.setting}, {best.samples_per_second:,.0f} samples/s"
        if best is not usual:
            times = best.samples_per_second / (usual.samples_per_second or 1.0)
            found += f", {times:,.{1 if times < 10 else 0}f} times as fast as {usual.setting}"
        found += f". Its limit: {best.verdict}."
        if _no_requests(self.runs):
            found += " Local files take no requests, so only workers were tried."
        if best.cause in _MADE:
            most = max(run.setting.num_workers for run in self.runs)
            found += (
                f" More workers were not {'tried' if best.setting.num_workers == most else 'clearly faster'}."
            )
        return found

    @property
    def code(self) -> str:
        """The recommended settings, as arguments of ``get_train_dataset``."""
        setting = self.best.setting
        given = {name: getattr(setting, name) for name in ("max_in_flight", "max_request")}
        changed = ", ".join(f"{k}={v}" for k, v in given.items() if v != getattr(_DEFAULTS, k))
        options = f", read_options=ReadOptions({changed})" if changed else ""
        return f"worker_config=WorkerConfig(rank, world_size, num_workers={setting.num_workers}){options}"

    def as_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        best = self.runs.index(self.best)
        return {"url": self.url, "runs": [asdict(run) for run in self.runs], "best": best, "code": self.code}


def _no_requests(runs: Sequence[BenchRun]) -> bool:
    return any(run.batches for run in runs) and not any(run.requests for run in runs)


def best_of(runs: Sequence[BenchRun]) -> BenchRun:
    """Return the fastest run; the first one if no other is clearly faster."""
    fastest = max(runs, key=lambda run: run.samples_per_second)
    return fastest if fastest.samples_per_second > _BETTER * runs[0].samples_per_second else runs[0]


def bench(
    url: str,
    *,
    batch_size: int,
    seconds: float = 60.0,
    num_workers: Sequence[int] | None = None,
    max_in_flight: Sequence[int] = (16, 64, 128),
    max_request: Sequence[int] = (1 << 20, 6 << 20, 16 << 20),
    on_run: Callable[[BenchRun], None] | None = None,
    **options: Any,
) -> BenchReport:
    """Measure how fast training reads its data, with several settings, and recommend some.

    One setting is changed at a time: first the workers, then the requests at one time, then their size, each
    with the best values of those before. Local files take no requests: workers alone are tried. A run is a
    process of its own, reads without a cache, and ends with its share of the seconds or with one pass over
    the data.

    Args:
        url: The dataset or metadataset; see :func:`get_train_dataset`.
        batch_size: Samples of a batch.
        seconds: Time of all runs together, without that until their first batches.
        num_workers: Numbers of workers to try. None: 0, 1, 2, 4, … up to the processors.
        max_in_flight: Numbers of requests at one time to try.
        max_request: Largest requests to try, in bytes.
        on_run: Called after each run.
        **options: Other arguments of :func:`get_train_dataset`, as in training; with a ``task_encoder``, its
            work is measured, too.

    Raises:
        ConfigError: There is nothing to try, or an option cannot work.
        DatasetError: The dataset is not prepared, or its metadata is wrong.
        StorageError: Something could not be read.

    Example:
        >>> found = bench("s3://data/captions", batch_size=4, seconds=0.3, num_workers=[0],
        ...     max_in_flight=[64], max_request=[6 << 20])
        >>> len(found.runs), found.code
        (1, 'worker_config=WorkerConfig(rank, world_size, num_workers=0)')
    """
    workers = tuple(processors() if num_workers is None else num_workers)
    values = {
        "num_workers": workers,
        "max_in_flight": tuple(max_in_flight),
        "max_request": tuple(max_request),
    }
    if not all(values.values()) or not seconds > 0:
        raise ConfigError(f"nothing to try: {values} in {seconds} s", hint="give one value of each or more")
    number = sum(1 for _ in try_settings(values, lambda setting: 0.0))
    runs: list[BenchRun] = []

    def measure(setting: Setting) -> float:
        each = seconds / (len(workers) if _no_requests(runs) else number)
        run = run_isolated(lambda: _run(url, setting, each, batch_size, options))
        runs.append(run)
        if on_run is not None:
            on_run(run)
        return run.samples_per_second

    for _ in try_settings(values, measure):
        if _no_requests(runs) and len(runs) == len(workers):
            break
    return BenchReport(strip_credentials(url), tuple(runs))


def processors() -> list[int]:
    """Return 0, 1, 2, 4, … up to the number of processors of this process."""
    most = cpus()
    return [0, *itertools.takewhile(lambda count: count <= most, (1 << power for power in range(10)))]


def try_settings(
    values: Mapping[str, tuple[int, ...]], measure: Callable[[Setting], float]
) -> Iterator[Setting]:
    """Measure settings, one value changed at a time; yield each that was measured."""
    start = {name: _usual(name, tried) for name, tried in values.items()}
    best = Setting(**start)
    speeds = {best: measure(best)}
    yield best
    for name, tried in values.items():
        base = best
        for value in tried:
            setting = replace(base, **{name: value})
            if setting in speeds:
                continue
            speeds[setting] = measure(setting)
            yield setting
            if speeds[setting] > _BETTER * speeds[best]:
                best = setting


def _usual(name: str, tried: tuple[int, ...]) -> int:
    """Return the default of a setting, or the first value to try if that has no default or is not tried."""
    usual = getattr(_DEFAULTS, name, min(2, max(tried)))
    return usual if usual in tried else tried[0]


def _run(url: str, setting: Setting, seconds: float, batch_size: int, options: Mapping[str, Any]) -> BenchRun:
    reading = ReadOptions(max_in_flight=setting.max_in_flight, max_request=setting.max_request)
    dataset = get_train_dataset(
        url,
        **{"cache": False, **options},
        batch_size=batch_size,
        worker_config=WorkerConfig(0, 1, setting.num_workers),
        read_options=reading,
    )
    begin, first = time.monotonic(), 0.0
    with get_loader(dataset) as loader:
        most = len(loader)
        for number, _ in enumerate(loader, 1):
            now = time.monotonic()
            first = first or now
            is_enough = now - first >= seconds and number >= _LEAST_BATCHES
            if is_enough or number >= most or now - first > _LONGEST * seconds:
                return _result(setting, loader.stats(), now - begin)
    raise ConfigError("the dataset has no batch", hint="use a smaller batch_size, or another split part")


def _result(setting: Setting, stats: LoaderStats, seconds: float) -> BenchRun:
    return BenchRun(
        setting,
        stats.batches,
        stats.samples_per_second,
        stats.io.bytes_received / seconds,
        stats.first_batch_seconds,
        stats.io.total_requests,
        _limit(stats),
        stats.verdict.cause,
    )


def _limit(stats: LoaderStats) -> str:
    """Name the cause, and its share: a loop that only reads waits all the time."""
    cause = stats.verdict.cause
    if cause in (CONSUMER, "unknown"):
        return "not seen, as the run was too short"
    share, of = stats.shares.get(cause, stats.shares[STORE]), "workers' " if stats.num_workers else ""
    return f"{cause}, {share:.0%} of the {of}time"


def save_picture(report: BenchReport, path: str) -> None:
    """Draw a bar for each run into an ``.svg`` or ``.png`` file; that of the recommended one is dark."""

    def fill(axes: Axes) -> None:
        runs = report.runs
        colours = [STRONG if run is report.best else PALE for run in runs]
        bars = axes.barh(range(len(runs)), [run.samples_per_second for run in runs], color=colours)
        axes.bar_label(bars, fmt="{:,.0f}", padding=3)
        axes.set_yticks(range(len(runs)), [str(run.setting) for run in runs])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("samples a second")
        axes.set_title("\n".join(textwrap.wrap(printable_line(report.url), 90)), fontsize="medium")

    save_plot(path, (7, 1.2 + 0.25 * len(report.runs)), fill)


def page(report: BenchReport) -> str:
    """Return a page in HTML, which needs no other file, for screens of any size, light or dark."""
    most = max(run.samples_per_second for run in report.runs) or 1.0
    rows = []
    for run in report.runs:
        speed = run.samples_per_second
        rows.append(
            f"<tr{' class=best' if run is report.best else ''}><td>{run.setting}</td><td data-name='samples/s'>"
            f"{speed:,.0f}<meter max='{most}' value='{speed}'></meter></td><td data-name='MB/s received'>"
            f"{run.bytes_per_second / 1e6:,.1f}</td><td data-name='first batch'>{run.first_batch_seconds:.2f} s</td>"
            f"<td data-name='requests'>{run.requests:,}</td><td data-name='its limit'>{escape(run.verdict)}</td></tr>"
        )
    texts = {name: escape(printable_line(getattr(report, name))) for name in ("url", "verdict", "code")}
    return Template((Path(__file__).parent / "bench.html").read_text("utf-8")).substitute(
        texts, rows="\n".join(rows)
    )
