"""Explains training steps: their samples, and which bytes are read, when, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from energon_stream.arguments import check_whole
from energon_stream.cache import CachedStore
from energon_stream.config.dataset_options import CacheOption
from energon_stream.errors import ConfigError
from energon_stream.index.entries import OffsetCache
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.prewarming.amount import StreamSteps, stream_steps
from energon_stream.prewarming.job import open_reader_dataset
from energon_stream.read.locating import Locating, iterate_plans
from energon_stream.read.locator import Locator
from energon_stream.read.plan_limits import plan_limits
from energon_stream.read.read_options import LOADING
from energon_stream.read.read_plan import LargeSample, ReadPlan, Reason, Request
from energon_stream.read.request_planner import Planner
from energon_stream.schedule import PackedSchedule, Refs, skip
from energon_stream.storage import shared_fetcher
from energon_stream.worker import WorkerConfig

_MOST_BEFORE = 10**8
"""Samples of a stream before a step: in a blend, drawing them takes half a minute."""


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """One request of training, and what it is for."""

    worker: int  # worker of the rank that makes it
    stream: int  # stream of the job that needs it
    number: int  # number of the request in the stream
    object: str  # URL of the object
    start: int  # first byte
    size: int  # length in bytes
    reason: str  # name of the reason why it ends where it does; see :class:`Reason`
    deadline: int  # step of the rank that needs it first
    last_step: int  # last of the requested steps that needs it
    samples: int  # number of samples that it serves, up to the last step
    cached_bytes: int  # bytes of it in the cache, which are not requested

    @property
    def why(self) -> str:
        """The reason in words."""
        return Reason[self.reason.upper()].value

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, for JSON."""
        return asdict(self)


def explain(
    path: str | os.PathLike[str] | Mapping[str, Any],
    *,
    steps: tuple[int, int],
    batch_size: int,
    worker_config: WorkerConfig | None = None,
    cache: CacheOption = None,
    **options: Any,
) -> list[ExplainedRequest]:
    """Return the requests that serve some steps of a rank, the most urgent first. Reads indices, no samples.

    Args:
        path: The dataset or metadataset; see :func:`get_train_dataset`.
        steps: First step, counted from 0, and one past the last.
        batch_size: Samples of a step; with ``packing``, packs. Where the encoder filters or packs, the
            approximate number that a step consumes.
        worker_config: As in training: rank, number of ranks, workers and streams.
        cache: The node's cache, to see what it has; None for that of the environment, False for none.
        **options: Other arguments of :func:`get_train_dataset`, as in training.

    Raises:
        ConfigError: The steps are not a range, or an option cannot work.
        StorageError: An index could not be read.

    Example:
        >>> found = explain("s3://data/captions", steps=(0, 1), batch_size=8)
        >>> found[0].reason, found[0].deadline, sum(request.samples for request in found)
        ('first_batch', 0, 8)
    """
    hint = "Use a first step from 0 on, and a later end."
    if not (isinstance(steps, Sequence) and len(steps) == 2):
        raise ConfigError(f"steps is {steps!r:.80}", hint=hint)
    for name, number, least in (("first step", steps[0], 0), ("end", steps[1], 1)):
        check_whole(f"{name} of the steps", -1 if number is None else number, least, hint)
    check_whole("batch_size", 0 if batch_size is None else batch_size, 1, "use 1 or more")
    first, end = steps
    if not first < end:
        raise ConfigError(f"steps are {first} to {end}", hint=hint)
    config = worker_config or WorkerConfig.default_worker_config()
    dataset = open_reader_dataset(path, config, cache, {"batch_size": batch_size, **options})
    return explain_dataset(dataset, config, steps, batch_size)


def explain_dataset(
    dataset: ReaderDataset, config: WorkerConfig, steps: tuple[int, int], batch_size: int
) -> list[ExplainedRequest]:
    """Return the requests that serve some steps of a rank, of an opened dataset; see :func:`explain`."""
    first, end = steps
    found = [
        request
        for worker in range(max(1, config.num_workers))
        for request in _explain_worker(dataset, config, worker, batch_size, end)
        if request.last_step >= first and request.deadline < end
    ]
    return sorted(
        found, key=lambda request: (request.deadline, request.worker, request.stream, request.number)
    )


def _explain_worker(
    dataset: ReaderDataset, config: WorkerConfig, worker: int, batch_size: int, end: int
) -> Iterator[ExplainedRequest]:
    """Yield the requests of the streams that one worker serves, for the steps before ``end``."""
    streams = config.worker_streams(worker)
    options = dataset.reader_options(len(streams))
    locators = dataset.open_locators(OffsetCache())
    lanes = list(config.streams)
    for place, stream in enumerate(streams):
        schedule = dataset.schedule(stream)
        planner = Planner(plan_limits(options, locators, len(streams)))
        locating = Locating(schedule, schedule.begin(), locators, shared_fetcher())
        if place:
            planner = planner.without_exact()
        else:
            locating.begin(planner.limits.opening_take)
        steps = stream_steps(schedule, batch_size, len(lanes), lanes.index(stream), end)
        plans = iterate_plans(locating, planner, chunk=options.chunk, chunks=LOADING)
        yield from _explain_stream(plans, steps, end, worker, stream, locators)


def _explain_stream(
    plans: Iterator[ReadPlan], steps: StreamSteps, end: int, worker: int, stream: int, locators: list[Locator]
) -> Iterator[ExplainedRequest]:
    """Yield the requests of one stream for the steps before ``end``."""
    requests: dict[int, Request] = {}
    served: dict[int, list[int]] = {}  # samples of each request, counted from the stream's first one
    place = 0
    for plan in plans:
        if steps.of(place) >= end:
            break
        requests.update((each.number, locators[each.leaf].with_neighbours(each)) for each in plan.requests)
        for planned in plan.samples:
            if isinstance(planned, LargeSample):
                step = steps.of(place)
                for number, start, stop in planned.ranges:
                    where = _describe(locators[planned.leaf], number, start, stop - start)
                    yield ExplainedRequest(worker, stream, -1, *where[:3], "large", step, step, 1, where[3])
            else:
                for number in {planned.request, *(number for number, _ in planned.more)}:
                    if number not in served or steps.of(place) < end:
                        served.setdefault(number, []).append(place)
            place += 1
    for number, places in served.items():
        request = requests[number]
        where = _describe(locators[request.leaf], request.object, request.start, request.size)
        reason, needed, last = request.reason.name.lower(), steps.of(places[0]), steps.of(places[-1])
        count = len(places)
        yield ExplainedRequest(worker, stream, number, *where[:3], reason, needed, last, count, where[3])


def _describe(locator: Locator, number: int, start: int, size: int) -> tuple[str, int, int, int]:
    """Return an object's URL, the range, and how many of its bytes the cache has."""
    shard = locator.object(number)
    store, cached = shard.store, 0
    if isinstance(store, CachedStore) and (identity := store.known(shard.path)) is not None:
        cached = size - sum(map(len, store.cache.missing(identity, start, start + size)))
    return f"{store.url}/{shard.path}".rstrip("/"), start, size, cached


def samples_of_step(dataset: ReaderDataset, step: int, batch_size: int) -> Refs:
    """Return the samples of one step of a rank, in order; no sample is read.

    ``dataset`` is the one at the bottom of the training, whose configuration names rank and streams;
    ``batch_size`` counts samples of a step, in planned packing packs.

    Example:
        >>> from energon_stream import WorkerConfig
        >>> from energon_stream.prewarming.job import open_reader_dataset
        >>> config = WorkerConfig(0, 1, 0)
        >>> len(samples_of_step(open_reader_dataset("captions", config, False, {"batch_size": 4}), 1, 4))
        4
    """
    if step < 0 or batch_size < 1:
        raise ConfigError(f"there is no step {step} of {batch_size} samples", hint="count steps from 0")
    streams = list(dataset.worker_config.streams)
    rounds, lane = divmod(step, len(streams))
    left = rounds * batch_size
    if left > _MOST_BEFORE:
        raise ConfigError(
            f"{left:,} samples of the stream come before step {step}",
            hint=f"{_MOST_BEFORE:,} are passed over",
        )
    schedule = dataset.schedule(streams[lane])
    if isinstance(schedule, PackedSchedule):
        steps = stream_steps(schedule, batch_size, len(streams), lane, step + 1)
        first, end = steps.before(step), steps.before(step + 1)
        return schedule.take(schedule.advance(schedule.begin(), first), end - first)[0]
    return schedule.take(skip(schedule, schedule.begin(), left), batch_size)[0]
