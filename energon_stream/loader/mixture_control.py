"""The mixture of a loader: what each source has given so far, and other weights from a step on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from energon_stream.agreement import agree
from energon_stream.errors import ConfigError, StateError, StepPassedError, WeightsError
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.index.sample_sizes import block_bytes
from energon_stream.loader.agreements import WEIGH
from energon_stream.loader.loader_position import LoaderPosition
from energon_stream.pipeline import IterMapDataset
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.iterables import is_iterable
from energon_stream.pipeline.node import State
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers
from energon_stream.printable import counted
from energon_stream.schedule import (
    BlendPlan,
    CursorCodec,
    WeightChange,
    check_weights,
    first_batch,
    is_count,
    samples_by_leaf,
)
from energon_stream.state.mixture_weights import digest_of_changes
from energon_stream.storage.obstore_use import run_forkable
from energon_stream.tables.costs import mean_costs
from energon_stream.urls import is_local, shown_url
from energon_stream.worker import WorkerConfig

_SIZED_SHARDS = 4  # whose sizes tell the mean size of samples, where the metadata does not


@dataclass(frozen=True, slots=True)
class SourceCount:
    """Count of the samples that one source of a mixture has given to a rank.

    Attributes:
        name: The source's name for ``set_weights``: the end of its URL that no other source has.
        url: Its URL and split part.
        weight: Its weight at the loader's next step; None in mixtures without weights.
        samples: Samples that were drawn from it since the start of the training, restores included. They
            include skipped samples and samples that operators hold.
        bytes: The same in bytes, by the mean size of its samples, which indices of some shards tell; None for
            joins and JSONL.
        share: Its share of the samples of all sources; of their costs, where weights are shares of these.
        costs: The same as ``bytes`` in each of the source's costs, by name: samples times the mean cost of
            its samples. Empty without costs.

    Example:
        >>> from energon_stream import SourceCount
        >>> source = SourceCount("captions", "s3://data/captions [train]", 0.75, 6, None, 0.6)
        >>> source.name, source.samples
        ('captions', 6)
    """

    name: str
    url: str
    weight: float | None
    samples: int
    bytes: int | None
    share: float
    costs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MixtureReport:
    """Counts of all sources of a rank's mixture so far.

    Attributes:
        step: The loader's next step: the number of its next batch, counted from the start of the training.
        sources: The sources, in the order of the mixture.

    Example:
        >>> from energon_stream import WorkerConfig, get_loader, get_train_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> options = {"worker_config": config, "draws": "even"}
        >>> dataset = get_train_dataset("mix.yaml", batch_size=None, **options)
        >>> loader = get_loader(dataset)
        >>> for step, sample in zip(range(8), loader):
        ...     pass
        >>> print(loader.mixture())
        step 8
          captions: 6 samples (75.0 %, weight 75.0 %), ... kB
          texts: 2 samples (25.0 %, weight 25.0 %), ... kB
    """

    step: int
    sources: tuple[SourceCount, ...]

    def __str__(self) -> str:
        total = sum(source.weight or 0.0 for source in self.sources)
        lines = [f"step {self.step}"]
        for source in self.sources:
            weight = "" if source.weight is None else f", weight {source.weight / (total or 1.0):.1%}"
            size = "" if source.bytes is None else f", {source.bytes / 1000:,.1f} kB"
            size += "".join(f", {cost:,.0f} {name}" for name, cost in source.costs.items())
            shares = f"{source.share:.1%}{weight}".replace("%", " %")
            lines.append(f"  {source.name}: {counted(source.samples, 'sample')} ({shares}){size}")
        return "\n".join(lines)


def mixture_of(dataset: SavableDataset[Any], position: LoaderPosition) -> MixtureReport:
    """Count what each source has given to a rank. Raises WeightsError if the pipeline reads no dataset."""
    readers = list(find_readers(dataset))
    if not readers:
        raise WeightsError(
            "this pipeline reads no dataset of samples", hint="use a dataset of get_train_dataset"
        )
    if any(reader.packing is not None for _, reader in readers):
        raise WeightsError("sources are not counted with planned packing", hint="leave out packing=")
    step, batch = steps_of(dataset, position)
    found: list[tuple[ReaderDataset, int, float | None, int]] = []
    for path, reader in readers:
        samples: Counter[int] = Counter()
        for stream, at in _begun(dataset, position, path):
            schedule = reader.schedule(stream, path, changes=position.changes)
            samples.update(samples_by_leaf(schedule, CursorCodec(schedule).unpack(at["at"]), at["epoch"]))
        plan = reader.plan
        weights: tuple[float | None, ...] = (None,) * len(reader.leaves)
        if isinstance(plan, BlendPlan) and plan.is_live:
            weights = plan.with_changes(position.changes).weights_at(batch)
        found += [(reader, leaf, weights[leaf], samples[leaf]) for leaf in range(len(reader.leaves))]
    total = sum(count for *_, count in found) or 1
    units = {
        reader.plan.unit[0]
        for _, reader in readers
        if isinstance(reader.plan, BlendPlan) and reader.plan.unit
    }
    names = _names([shown_url(reader.leaves[leaf].index.spec.url) for reader, leaf, *_ in found])
    sources = [_source(name, *each, total) for name, each in zip(names, found, strict=True)]
    for unit in units:
        whole = sum(source.costs[unit] for source in sources) or 1.0
        sources = [replace(source, share=source.costs[unit] / whole) for source in sources]
    return MixtureReport(step, tuple(sources))


def changed(
    dataset: SavableDataset[Any], position: LoaderPosition, weights: Mapping[str, float], step: int | None
) -> tuple[WeightChange, ...]:
    """Return the weights that were set, with others from a step on; see ``BasicDataLoader.set_weights``."""
    config, first, mine = dataset.worker_config, 0, ""
    problem: ConfigError | None = None
    made: tuple[WeightChange, ...] = ()
    try:
        path, reader, plan = _live_reader(dataset)
        begun = () if dataset.weights_by_batch() and not plan.even else _begun(dataset, position, path)
        possible = [
            first_batch(at["at"][1], config.num_streams, stream, plan.per_batch) for stream, at in begun
        ]
        if plan.even:  # streams draw a round together, so one that some stream has begun is chosen
            possible = [-(-batch // config.num_streams) * config.num_streams for batch in possible]
        # The first step of which no sample is chosen yet.
        first = max(steps_of(dataset, position)[0], _step_from(max([0, *possible]), config, position))
        named = _in_order(reader, weights)
        if step is not None and not is_count(step):
            raise WeightsError(f"at_step is {step!r:.80}", hint=f"use a number of steps, {first} or more")
        begin = _batch_of(first if step is None else step, config, position)
        made = (*(change for change in position.changes if change.begin < begin), WeightChange(begin, named))
        for stream in config.streams:
            reader.schedule(stream, path, changes=made)  # raises if a stream has no sample of these sources
        mine = digest_of_changes(made)
    except ConfigError as error:  # the other ranks wait for this one
        problem = error
    if (firsts := agree(WEIGH, config, problem, {"the weights": f"#{mine}"}, first)) is not None:
        first = firsts[1][0]
    if step is not None and step < first:
        now, _ = steps_of(dataset, position)
        why = f"is over: the next one is {now}" if step < now else "has samples that are chosen already"
        raise StepPassedError(f"step {step} {why}", hint=f"the first step possible is {first}")
    return made


def is_live(dataset: SavableDataset[Any]) -> bool:
    """Return True if a pipeline is a blend by weights, which may change."""
    return any(isinstance(each.plan, BlendPlan) and each.plan.is_live for _, each in find_readers(dataset))


def steps_of(dataset: SavableDataset[Any], position: LoaderPosition) -> tuple[int, int]:
    """Return a loader's next step, and the batches of the job before it; the same on all ranks."""
    config = dataset.worker_config
    batches = {stream: state["batches"] if state else 0 for stream, state in position.states.items()}
    last = max((count - 1) * config.num_streams + stream for stream, count in batches.items())
    step = _step_from(last + 1, config, position)
    return step, _batch_of(step, config, position)


def check_changes(dataset: SavableDataset[Any], changes: tuple[WeightChange, ...]) -> None:
    """Raise StateError unless a saved state's weights are some for this dataset."""
    if not changes:
        return
    try:
        reader = _live_reader(dataset)[1]
    except ConfigError as error:
        raise StateError(f"the state has weights, but {error.what}", hint=error.hint) from error
    if len(changes[0].weights) != len(reader.leaves):
        raise StateError(
            f"the state has weights of {len(changes[0].weights)} datasets, and there are {len(reader.leaves)}",
            hint="restore an earlier checkpoint",
        )


def _step_from(batch: int, config: WorkerConfig, position: LoaderPosition) -> int:
    """Return the first step without a batch of the job before a given one."""
    step, begin = position.begun
    return step + max(0, -(-(batch - begin) // config.world_size))


def _batch_of(step: int, config: WorkerConfig, position: LoaderPosition) -> int:
    """Return the first batch of the job of a step: each step since the loader began has one of each rank."""
    first, begin = position.begun
    return begin + max(0, step - first) * config.world_size


def _live_reader(dataset: SavableDataset[Any]) -> tuple[str, ReaderDataset, BlendPlan]:
    """Return the one reader of a pipeline, with its place, if it is a blend by weights."""
    readers = list(find_readers(dataset))
    plan = readers[0][1].plan if len(readers) == 1 else None
    if any(reader.packing is not None for _, reader in readers):
        raise WeightsError(
            "weights cannot change with planned packing, whose packs are formed ahead",
            hint="leave out packing=",
        )
    if not isinstance(plan, BlendPlan) or not plan.is_live:
        raise WeightsError(
            "this pipeline is no blend by weights whose datasets share one order",
            hint="open a metadataset with blend: of two or more datasets by get_train_dataset, with a task "
            "encoder that overrides neither build_train_datasets nor build_cook_crude_sample",
        )
    replaying = _replaying(dataset)
    if replaying is not None:
        raise WeightsError(
            f"{replaying} makes a pass again from its start, which other weights would change",
            hint="use MapDataset in its place",
        )
    return *readers[0], plan


def _replaying(dataset: SavableDataset[Any]) -> str | None:
    if isinstance(dataset, IterMapDataset) or is_iterable(dataset):
        return type(dataset).__name__
    return next(filter(None, map(_replaying, dataset.inputs)), None)


def _in_order(reader: ReaderDataset, weights: Mapping[str, float]) -> tuple[float, ...]:
    """Return weights by name in the order of the sources."""
    urls = [shown_url(leaf.index.spec.url) for leaf in reader.leaves]
    names = _names(urls)
    known = {name: number for number, name in enumerate(names)}
    known.update({url: number for number, url in enumerate(urls) if urls.count(url) == 1})
    found: dict[int, float] = {}
    shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
    if not isinstance(weights, Mapping):
        raise WeightsError(f"weights is a {type(weights).__name__}", hint=f"pass a dict of {shown}")
    for name, weight in weights.items():
        if name not in known:
            raise WeightsError(f"{name!r:.80} is no source of the mixture", hint=f"the sources are {shown}")
        if known[name] in found:
            raise WeightsError(f"{name!r:.80} has two weights", hint="name each source once")
        if not isinstance(weight, (int, float)) or isinstance(weight, bool):
            raise WeightsError(f"the weight of {name!r:.80} is {weight!r:.80}", hint="use a number from 0 on")
        found[known[name]] = float(weight)
    missing = [name for number, name in enumerate(names) if number not in found]
    if missing:
        raise WeightsError(
            f"the weights have no {', '.join(missing[:5])}",
            hint="pass a weight for every source: 0 leaves one out",
        )
    in_order = tuple(found[number] for number in range(len(names)))
    try:
        check_weights(in_order)
    except ConfigError as error:
        raise WeightsError(error.what, hint=error.hint) from error
    return in_order


def _names(urls: list[str]) -> list[str]:
    """Return the shortest end of each URL that no other has; equal URLs are numbered."""
    parts = [url.rstrip("/").split("/") for url in urls]
    tails = [["/".join(path[-size:]) for size in range(1, len(path) + 1)] for path in parts]
    ends = Counter(tail for own in {tuple(own) for own in tails} for tail in own)
    seen: Counter[str] = Counter()
    names = []
    for own in tails:
        name = next((tail for tail in own if ends[tail] == 1), own[-1])
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _source(
    name: str, reader: ReaderDataset, leaf: int, weight: float | None, samples: int, total: int
) -> SourceCount:
    index = reader.leaves[leaf].index
    url, share = f"{shown_url(index.spec.url)} [{index.split_part}]", samples / total
    if not isinstance(index, WebDatasetIndex):
        return SourceCount(name, url, weight, samples, None, share)
    size, costs = _mean(index) if is_local(index.spec.url) else run_forkable(_mean, index)
    of_samples = {cost: mean * samples for cost, mean in costs.items()}
    return SourceCount(name, url, weight, samples, round(size * samples), share, of_samples)


def _mean(index: WebDatasetIndex) -> tuple[float, dict[str, float]]:
    """Return the mean size of a dataset's samples, of all or of those in some shards, and the mean costs."""
    store = index.spec.open()
    costs = {} if index.plain is not None else mean_costs(store)
    if index.sizes is not None:
        return block_bytes(index.sizes) / max(1, len(index.sizes)), costs
    counts = index.shard_counts
    shards = range(0, len(counts), -(-len(counts) // _SIZED_SHARDS))
    ends = [int(index.read_offsets(store, n, int(counts[n]), int(counts[n]))[-1]) for n in shards]
    return sum(ends) / max(1, sum(int(counts[shard]) for shard in shards)), costs


def _begun(dataset: SavableDataset[Any], position: LoaderPosition, path: str) -> Iterator[tuple[int, State]]:
    """Yield each stream in which the reader at a path has begun, and the state of its node."""
    for stream, state in position.states.items():
        for place, at in _reader_states(dataset, state and state["node"], ""):
            if place == path:
                yield stream, at


def _reader_states(dataset: SavableDataset[Any], state: State, path: str) -> Iterator[tuple[str, State]]:
    """Yield the place of each reader that has begun, and the state of its node."""
    if state is None:
        return
    if isinstance(dataset, ReaderDataset):
        yield path, state
        return
    for number, (inner, at) in enumerate(zip(dataset.inputs, dataset.inner_states(state), strict=True)):
        yield from _reader_states(inner, at, dataset.input_path(path, number))
