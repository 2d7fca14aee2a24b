"""Runs the look-ahead of training against a model of a store, and predicts its speed and requests."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import methodcaller
from typing import Any

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError
from energon_stream.index.entries import OffsetCache
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.prewarming.amount import Amount, amounts_of_streams
from energon_stream.prewarming.job import open_reader_dataset
from energon_stream.read.consume import ReaderGroup, SampleReader
from energon_stream.read.locator import Locator
from energon_stream.schedule import Schedule
from energon_stream.storage import ByteRange
from energon_stream.tools.simulate.clock import Line
from energon_stream.tools.simulate.model import Costs, StoreModel
from energon_stream.tools.simulate.recording import RequestLog, recorded
from energon_stream.tools.simulate.virtual_fetcher import VirtualFetcher, VirtualLocator, VirtualStore
from energon_stream.worker import WorkerConfig


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted training of a rank, from opening its dataset on."""

    samples_per_second: float  # samples of the rank a second, with opening
    first_batch: float  # seconds until the first batch is there
    seconds: float  # seconds until the last sample is there
    waiting: float  # seconds of these that the last worker to end waits for the store
    samples: int  # number of samples
    requests: int  # requests of all workers, with those for metadata and indices, retries and second requests
    opening_requests: int  # requests that open the dataset; each worker inherits what they brought
    rejected: int  # requests that the store rejected
    repeated: int  # second requests beside late ones
    bytes: int  # bytes received

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, for JSON."""
        return asdict(self)


def simulate(
    path: str | os.PathLike[str],
    store: StoreModel,
    *,
    costs: Costs | None = None,
    batch_size: int,
    samples: int | None = None,
    seed: int = 0,
    worker_config: WorkerConfig | None = None,
    **options: Any,
) -> Prediction:
    """Predict the speed and the requests of training from a store. Indices are read, samples are not.

    Training's own readers run, with their plan and budget; a model answers their requests in virtual
    time. Each worker of the rank runs alone, with an equal share of the line.

    Args:
        path: The dataset or metadataset, in a store or a local copy of it.
        store: The store to predict for.
        costs: CPU time of the process; None for that of this library alone.
        batch_size: Samples of a step. For packed or filtered samples, the approximate number it consumes.
        samples: Samples of the rank, rounded up to steps; None for one pass.
        seed: Chooses which requests are late or rejected.
        worker_config: As in training: rank, number of ranks, workers and streams.
        **options: Other arguments of :func:`get_train_dataset`, as in training.

    Raises:
        ConfigError: An option cannot work.
        StorageError: An index could not be read, or the modelled store rejects too many requests.

    Example:
        >>> from energon_stream.tools.simulate import StoreModel, simulate
        >>> far = simulate("captions", StoreModel(latency=0.2), batch_size=8)
        >>> far.samples, far.first_batch > 0.4
        (48, True)
    """
    check_whole("samples", samples, 1, "use 1 or more, or None for one pass")
    check_whole("batch_size", 0 if batch_size is None else batch_size, 1, "use 1 or more")
    check_whole("seed", -1 if seed is None else seed, 0, "use 0 or more")
    if not isinstance(store, StoreModel):
        raise ConfigError(f"store is {store!r:.80}", hint="pass StoreModel(latency=…)")
    if not isinstance(costs, Costs | None):
        raise ConfigError(f"costs is {costs!r:.80}", hint="pass Costs(…), or None")
    if options.get("packing") is not None:
        raise ConfigError(
            "simulate does not know how planned packs take turns", hint="use forecast, or leave out packing="
        )
    costs = costs or Costs()
    config = worker_config or WorkerConfig.default_worker_config()
    log = RequestLog()
    store_options = options.pop("storage_options", None), options.pop("transport", "auto")
    url, storage_options = recorded(path, *store_options, log)
    training = {"batch_size": batch_size, **options, "storage_options": storage_options}
    dataset = open_reader_dataset(url, config, False, training)
    steps = None if samples is None else -(-samples // batch_size)
    epochs = 1 if samples is None else None
    amounts = amounts_of_streams(dataset, (config.rank,), Amount.of(steps, epochs, None, batch_size, 0))
    amount = {stream: each.samples for stream, each in amounts.items()}
    workers = max(1, config.num_workers)
    opening = _Process(store, costs, dataset.options.in_flight, seed)
    opening.open(log)
    opened, processes = replace(opening.fetcher.counts), []
    for worker in range(workers):
        process = opening  # without workers, it goes on
        if config.num_workers:
            share = replace(store, rate_total=store.rate_total / workers)
            process = _Process(share, costs, dataset.options.in_flight, seed + worker, opening.line.now)
        log.listener = process.fetcher.read
        process.train(dataset, {each: amount[each] for each in config.worker_streams(worker)}, batch_size)
        processes.append(process)
    last = max(processes, key=lambda process: process.line.now)
    counts = [process.fetcher.counts for process in dict.fromkeys((opening, *processes))]
    total = sum(amount.values())
    return Prediction(
        total / last.line.now,
        min(process.first_batch for process in processes),
        last.line.now,
        sum(process.line.waited for process in dict.fromkeys((opening, last))),
        total,
        sum(count.requests for count in counts),
        opened.requests,
        sum(count.rejected for count in counts),
        sum(count.repeated for count in counts),
        sum(count.bytes for count in counts),
    )


class _Process:
    """A process in virtual time."""

    def __init__(
        self, store: StoreModel, costs: Costs, in_flight: int, seed: int, begin: float = 0.0
    ) -> None:
        self.line = Line(costs, begin)
        self.fetcher = VirtualFetcher(self.line, store, costs, in_flight, seed)
        self.first_batch = math.inf  # when it had its first batch
        self._costs = costs

    def open(self, log: RequestLog) -> None:
        """Open the dataset, with the requests that really opened it."""
        self.line.work(self._costs.opening)
        store = VirtualStore(self.fetcher)
        for sizes in log.rounds:
            asked = [(size, methodcaller("get_range", "", ByteRange(0, size))) for size in sizes]
            for answer in [self.fetcher.ask(store, ask, repeatable_bytes=size) for size, ask in asked]:
                answer.result()

    def train(self, dataset: ReaderDataset, samples: Mapping[int, int], batch_size: int) -> None:
        """Read the samples of some streams, batch after batch, as the streams rotate."""
        options = dataset.reader_options(len(samples))
        group = ReaderGroup(
            options, self.fetcher, len(samples), clock=self.fetcher.clock, wait=self.fetcher.wait_for_first
        )
        locators = [
            VirtualLocator(locator, number, self.fetcher, self._costs.planning)
            for number, locator in enumerate(dataset.open_locators(OffsetCache()))
        ]
        left = {
            _Stream(dataset.schedule(stream), locators, group): count for stream, count in samples.items()
        }
        while left:
            for stream, count in list(left.items()):
                for _ in range(min(batch_size, count)):
                    stream.next()
                    self.line.work(self._costs.sample)
                self.first_batch = min(self.first_batch, self.line.now)
                left[stream] = count - batch_size
                if left[stream] <= 0:
                    del left[stream]


class _Stream:
    """One stream's samples, pass after pass."""

    def __init__(self, schedule: Schedule, locators: Sequence[Locator], group: ReaderGroup) -> None:
        self._schedule, self._passes = schedule, 0
        self._reader = SampleReader(schedule, schedule.begin(), locators, group)

    def next(self) -> None:
        """Consume a sample."""
        while self._reader.next() is None:
            self._passes += 1
            self._reader.restart(self._schedule.begin(self._passes))
