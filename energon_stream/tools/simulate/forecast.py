"""Forecasts of what a rank reads in its first steps: requests, bytes, their price, and the shuffle."""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError
from energon_stream.logs import renamed
from energon_stream.prewarming.amount import stream_steps
from energon_stream.prewarming.job import open_reader_dataset
from energon_stream.printable import counted, printable_line, strip_credentials
from energon_stream.schedule import PackedSchedule, Schedule
from energon_stream.schedule.balance import loads_of_ranks, loads_of_steps
from energon_stream.tools.plots import INK, STRONG, save_plot
from energon_stream.tools.simulate.explain import explain_dataset
from energon_stream.worker import WorkerConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from energon_stream.arrays import Float64Array, Int64Array
    from energon_stream.config.dataset_options import CacheOption
    from energon_stream.pipeline.reader_dataset import ReaderDataset

_BINS = 200
"""Most rows and columns of a heat map."""
_LINES = 50
"""Most lines between shards in a picture."""
_OF_CAPTION = ("shuffle_buffer_size", "max_samples_per_sequence", "parallel_shard_iters", "packing")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a store, in any currency.

    Example:
        >>> Prices(per_1000_get=0.0004, per_gb=0.09).of(requests=1_000_000, size=10**12)
        90.4
    """

    per_1000_get: float = 0.0  # price of 1,000 GET requests
    per_gb: float = 0.0  # price of 10⁹ bytes that leave the store

    def __post_init__(self) -> None:
        if not (0 <= self.per_1000_get < np.inf and 0 <= self.per_gb < np.inf):
            raise ConfigError(
                f"prices are {self.per_1000_get} and {self.per_gb}", hint="use 0 or positive numbers"
            )

    def of(self, requests: int, size: int) -> float:
        """Return the price of some requests, and of the bytes of their answers."""
        return requests / 1000 * self.per_1000_get + size / 1e9 * self.per_gb


Prices.__init__ = renamed(per_1000_requests="per_1000_get")(Prices.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, eq=False)
class OrderMap:
    """Positions of the samples of each step.

    The position of a sample is its number in the data, one dataset of a mixture after another.
    """

    counts: Int64Array  # ``int64 [rows, columns]``, number of samples by position (rows) and step (columns)
    # mean distance of two samples of a step, divided by that of two samples drawn at random: 1 for a shuffle
    # of all data, near 0 for data that is read in order
    spread: float
    shards: float  # mean number of shards from which a step's samples come
    neighbours: float  # share of a step's samples whose next one is also the next one in the data

    # with the numbers of steps and samples, the positions of the shards' first samples, and a caption
    steps: int = 0
    samples: int = 0
    shard_starts: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    caption: str = ""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draw the map into an ``.svg`` or ``.png`` file: steps to the right, positions down."""
        save_plot(path, (7, 5.5), self._fill)

    def _fill(self, axes: Axes) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        shades = LinearSegmentedColormap.from_list("shades", [f"{STRONG}00", STRONG])
        extent = (0, self.steps, self.samples, 0)
        axes.imshow(np.sqrt(self.counts), shades, aspect="auto", interpolation="nearest", extent=extent)
        every = -(-len(self.shard_starts) // _LINES) or 1
        axes.hlines(self.shard_starts[::every], 0, self.steps, INK, linewidth=0.4, alpha=0.4)
        lines = f"a line every {every} shards" if every > 1 else "a line a shard"
        axes.set_xlabel("\n".join(["step\n", *textwrap.wrap(self.caption, 90)]))
        axes.set_ylabel(f"position in the data ({lines})")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,.0f}")
        axes.set_title(self.summary, fontsize="medium")

    @property
    def summary(self) -> str:
        """The three figures in words."""
        return (
            f"spread {self.spread:.2f} (1 is a shuffle of all data), {self.shards:.1f} shards a step, "
            f"{self.neighbours:.0%} next to their neighbour"
        )


@dataclass(frozen=True, slots=True)
class PackBalance:
    """Balance of planned packs over the ranks: the slowest rank's load, divided by the mean."""

    mean: float  # of the global steps
    worst: float  # of the global steps
    # a step's heaviest pack, divided by the mean load of a rank: where it is near the slowest rank's, that
    # pack binds, and only smaller packs or more of them a step help
    heaviest: float

    @property
    def summary(self) -> str:
        """The figures in words, and what binds."""
        binds = "; the heaviest pack binds" if self.mean > 1.04 and self.heaviest > self.mean - 0.02 else ""
        return f"slowest rank ÷ mean {self.mean:.3f}, in the worst step {self.worst:.3f}{binds}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """Samples, requests and bytes of the first steps of a rank, without metadata and indices."""

    steps: int  # number of steps
    samples: int  # samples of these steps
    requests: int  # Range requests for them, without retries. Some serve later steps, too.
    size: int  # bytes of these requests
    cached_bytes: int  # bytes of these in the node's cache, which are not requested
    objects: int  # number of objects that are read
    reasons: Mapping[str, int]  # number of requests by the reason why each ends where it does
    order: OrderMap  # where in the data the samples lie
    balance: Mapping[str, PackBalance] = field(default_factory=dict)  # of planned packs, for each cost

    def price(self, prices: Prices) -> float:
        """Return the price of what is not in the cache."""
        return prices.of(self.requests, self.size - self.cached_bytes)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, for JSON; of the order its figures, without the map."""
        order = {name: getattr(self.order, name) for name in ("spread", "shards", "neighbours")}
        names = ("steps", "samples", "requests", "size", "cached_bytes", "objects")
        balance = {name: asdict(each) for name, each in self.balance.items()}
        found = {name: getattr(self, name) for name in names}
        return {**found, "reasons": dict(self.reasons), "order": order, "balance": balance}


def forecast(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    steps: int,
    batch_size: int,
    worker_config: WorkerConfig | None = None,
    cache: CacheOption = None,
    **options: Any,
) -> Forecast:
    """Return what a rank will read in its first steps. Reads indices, no samples.

    Args:
        path: The dataset or metadataset; see :func:`get_train_dataset`.
        steps: Number of steps, from the first one on.
        batch_size: Samples of a step; with ``packing``, packs. Where the encoder filters or packs, the
            approximate number that a step consumes.
        worker_config: As in training: rank, number of ranks, workers and streams.
        cache: The node's cache, to see what it has; None for that of the environment, False for none.
        **options: Other arguments of :func:`get_train_dataset`, as in training.

    Raises:
        ConfigError: There are no steps, or an option cannot work.
        StorageError: An index could not be read.

    Example:
        >>> found = forecast("s3://data/captions", steps=2, batch_size=8)
        >>> found.samples, int(found.order.counts.sum())
        (16, 16)
        >>> round(found.price(Prices(per_1000_get=0.4)) / found.requests, 6)
        0.0004
    """
    for name, number in (("steps", steps), ("batch_size", batch_size)):
        check_whole(name, number or 0, 0, "use 1 or more")
    if not steps or not batch_size:
        raise ConfigError(f"{steps} steps of {batch_size} samples", hint="use 1 or more of both")
    config = worker_config or WorkerConfig.default_worker_config()
    dataset = open_reader_dataset(path, config, cache, {"batch_size": batch_size, **options})
    requests = explain_dataset(dataset, config, (0, steps), batch_size)
    positions = positions_of_steps(dataset, steps, batch_size)
    starts, total = _shard_starts(dataset)
    return Forecast(
        steps=steps,
        samples=sum(map(len, positions)),
        requests=sum(request.cached_bytes < request.size for request in requests),
        size=sum(request.size for request in requests),
        cached_bytes=sum(request.cached_bytes for request in requests),
        objects=len({request.object for request in requests}),
        reasons=Counter(request.reason for request in requests),
        order=replace(
            map_order(positions, starts, total), caption=_caption(path, config, batch_size, options)
        ),
        balance=_balance(dataset.schedule(config.rank), config, steps * batch_size),
    )


def _balance(schedule: Schedule, config: WorkerConfig, packs: int) -> dict[str, PackBalance]:
    """Compare the loads of the ranks in the global steps that have the first packs of each."""
    if not isinstance(schedule, PackedSchedule):
        return {}
    job = schedule.packs
    wanted = -(-packs * config.world_size // job.spec.step)
    found: list[Float64Array] = []  # of a window: [stream, step, pack, cost]
    windows = job.windows()
    while sum(loads.shape[1] for loads in found) < wanted and (window := next(windows, None)) is not None:
        found.append(loads_of_steps(job, window))
    loads = np.concatenate(found, axis=1)[:, :wanted]
    if not loads.shape[1]:
        return {}
    ranks = loads_of_ranks(loads, config.world_size)
    mean = np.maximum(ranks.mean(axis=0), np.finfo(float).tiny)  # [step, cost]
    slowest, heaviest = ranks.max(axis=0) / mean, (loads.max(axis=(0, 2)) / mean).mean(axis=0)
    names = [kind.name or "load" for kind in job.spec.kinds]
    figures = zip(names, slowest.mean(axis=0), slowest.max(axis=0), heaviest, strict=True)
    return {name: PackBalance(*map(float, values)) for name, *values in figures}


def _caption(path: Any, config: WorkerConfig, batch_size: int, options: Mapping[str, Any]) -> str:
    name = "a mixture" if isinstance(path, Mapping) else printable_line(strip_credentials(os.fspath(path)))
    job = (
        f"rank {config.rank} of {config.world_size}, {counted(config.num_workers, 'worker')}, "
        f"seed {config.seed_offset}, batch size {batch_size}"
    )
    given = [f"{name} {options[name]}" for name in _OF_CAPTION if options.get(name) is not None]
    return f"{name}: {job}, {', '.join(given) or 'shuffle as by default'}"


def positions_of_steps(dataset: ReaderDataset, steps: int, batch_size: int) -> list[Int64Array]:
    """Return the positions of the samples of a rank's steps, ``int64`` each."""
    sizes = [leaf.index.num_samples for leaf in dataset.leaves]
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    lanes = list(dataset.worker_config.streams)
    found: list[Int64Array] = [first[:0]] * steps
    for lane, stream in enumerate(lanes):
        schedule = dataset.schedule(stream)
        of_stream = stream_steps(schedule, batch_size, len(lanes), lane, steps)
        refs, _ = schedule.take(schedule.begin(), of_stream.before(steps))
        whole = of_stream.of(len(refs))
        if whole < steps:
            raise ConfigError(f"training has no more than {whole} whole steps", hint="ask for fewer steps")
        own = range(lane, steps, len(lanes))
        ends = [of_stream.before(step) for step in own[1:]]
        found[lane :: len(lanes)] = np.split(first[refs.leaf] + refs.index, ends)[: len(own)]
    return found


def _shard_starts(dataset: ReaderDataset) -> tuple[Int64Array, int]:
    """Return the position of the first sample of each shard, ``int64``, and the number of samples."""
    starts, total = [], 0
    for leaf in dataset.leaves:
        starts.append(leaf.index.shard_starts[:-1] + total)
        total += leaf.index.num_samples
    return np.concatenate(starts), total


def map_order(positions: Sequence[Int64Array] | Int64Array, shard_starts: Int64Array, total: int) -> OrderMap:
    """Count samples by position and step, and rate the shuffle.

    ``shard_starts`` are the positions of each shard's first sample, ascending, ``int64 [shards]``.
    """
    steps = len(positions)
    sizes = np.array([len(step) for step in positions])
    every, ends = np.concatenate(list(positions)), np.cumsum(sizes)
    rows, columns = min(total, _BINS), min(steps, _BINS)
    counts = np.zeros((rows, columns), np.int64)
    np.add.at(counts, (every * rows // total, np.repeat(np.arange(steps) * columns // steps, sizes)), 1)
    spread = distinct = follows = 0.0
    for size in np.unique(sizes).tolist():  # steps of planned packs have unequal numbers of samples
        same = every[ends[sizes == size][:, None] - size + np.arange(size)]
        shards = np.sort(np.searchsorted(shard_starts, same, side="right"), axis=1)
        distinct += (1 + (np.diff(shards, axis=1) != 0).sum(axis=1)).sum()
        follows += (np.diff(same, axis=1) == 1).sum()
        spread += _spread(same, total) * len(same)
    pairs = max(1, int(np.maximum(0, sizes - 1).sum()))
    figures = spread / steps, float(distinct / steps), float(follows / pairs)
    return OrderMap(counts, *figures, steps, total, shard_starts)


def _spread(positions: npt.NDArray[np.int64], total: int) -> float:
    batch = positions.shape[1]
    if batch < 2 or total < 2:
        return 0.0
    ordered = np.sort(positions, axis=1).astype(np.float64)
    # how often each is the larger one of a pair, less the smaller
    weights = 2 * np.arange(batch) - (batch - 1)
    distance = (ordered @ weights).mean() * 2 / (batch * (batch - 1))
    return float(distance / ((total + 1) / 3))
