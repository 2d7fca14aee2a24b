"""Where elements come from: source datasets in the order of a plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from energon_stream.errors import EmptyStreamError, SkipSample, StateMismatchError, StorageError
from energon_stream.index.dataset_index import DatasetIndex
from energon_stream.media import AuxStores
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.failures import FailureGuard
from energon_stream.pipeline.node import END, Context, End, Item, Node, RestoreKey, State, new_item
from energon_stream.read.allowance import Allowance
from energon_stream.read.open import open_source
from energon_stream.read.options import ReadOptions
from energon_stream.read.part_selection import PartSelection
from energon_stream.read.reader import SampleReader, fetch_samples
from energon_stream.read.source import OffsetCache, RawSample
from energon_stream.rng import derive_key
from energon_stream.samples import CrudeSample, SourceInfo
from energon_stream.schedule import (
    ConcatPlan,
    CursorCodec,
    LeafPlan,
    Plan,
    Refs,
    Schedule,
    build_schedule,
    describe_plan,
    earlier_plan,
    leaves,
    stream_shares,
)
from energon_stream.storage import shared_fetcher
from energon_stream.storage.fork import PerProcess
from energon_stream.worker import WorkerConfig

__all__ = ["Leaf", "SampleBuilder", "ReaderDataset", "DatasetLeaf"]


class SampleBuilder(Protocol):
    """Turns a sample's parts into an element; made from a ``dataset.yaml``."""

    @property
    def is_crude(self) -> bool:
        """Whether it makes crude samples."""

    @property
    def selection(self) -> PartSelection | None:
        """Parts that it looks at; None where it may look at any."""

    def build(
        self,
        key: str,
        parts: Mapping[str, memoryview],
        *,
        restore_key: RestoreKey,
        subflavors: dict[str, Any] | None,
        source: SourceInfo,
    ) -> Any:
        """Decode and assemble one sample.

        Raises:
            SampleError: The parts cannot be made into a sample.
        """


class Leaf(Protocol):
    """One source of a plan: what is read, and what is made of it; a value that travels to other processes."""

    @property
    def index(self) -> DatasetIndex:
        """What is read."""

    @property
    def subflavors(self) -> dict[str, Any] | None:
        """Put on each sample."""

    @property
    def is_crude(self) -> bool:
        """Whether all samples are crude."""

    @property
    def selection(self) -> PartSelection | None:
        """Parts that are needed; None for all."""

    @property
    def stores(self) -> AuxStores:
        """What crude samples may be completed with."""

    def make(self, raw: RawSample, restore_key: RestoreKey) -> Any:
        """Turn a raw sample into an element.

        Raises:
            SampleError: It cannot be made into one.
        """


@dataclass(frozen=True, slots=True)
class DatasetLeaf:
    """One source dataset of a plan.

    Attributes:
        index: The opened dataset.
        builder: Makes its samples.
        subflavors: Put on each sample.
        stores: What crude samples may be completed with.
    """

    index: DatasetIndex
    builder: SampleBuilder
    subflavors: dict[str, Any] | None = None
    stores: AuxStores = field(default_factory=AuxStores)

    @property
    def is_crude(self) -> bool:
        """Whether all samples are crude."""
        return self.builder.is_crude

    @property
    def selection(self) -> PartSelection | None:
        """Parts that are needed; None for all."""
        return self.builder.selection

    def make(self, raw: RawSample, restore_key: RestoreKey) -> Any:
        """Turn a raw sample into an element; see :meth:`Leaf.make`. The parts that are needed are its source."""
        selection = self.builder.selection
        parts = raw.parts if selection is None else [part for part in raw.parts if part in selection]
        begin = raw.key + "."
        source = SourceInfo(
            self.index.spec.url, raw.index, raw.shard, tuple([begin + part for part in parts])
        )
        return self.builder.build(
            raw.name, raw.parts, restore_key=restore_key, subflavors=self.subflavors, source=source
        )


def _identity(index: DatasetIndex, shards: int) -> dict[str, Any]:
    """What the data of the first shards is, wherever it lies: split part, and a hash over shard names and counts."""
    counts = np.ascontiguousarray(index.shard_counts[:shards])
    digest = hashlib.blake2b("\0".join(index.shard_paths[:shards]).encode(), digest_size=8)
    digest.update(counts.tobytes())
    samples = int(counts.sum())
    return {"split": index.split_part, "samples": samples, "shards": shards, "hash": digest.hexdigest()}


class _Resources:
    """What one process shares between the nodes of a source dataset: open stores and the fetcher."""

    def __init__(self, dataset: ReaderDataset) -> None:
        self.fetcher = shared_fetcher(dataset.options.in_flight)  # one, however many datasets are mixed
        offsets = OffsetCache()
        self.sources = [
            open_source(number, leaf.index, offsets, leaf.selection, dataset.options.max_gap)
            for number, leaf in enumerate(dataset.leaves)
        ]


class _ReaderNode:
    """State: ``epoch`` (passes that ended) and ``at`` (the schedule's cursor, packed)."""

    def __init__(self, dataset: ReaderDataset, context: Context, state: State | None) -> None:
        self._dataset = dataset
        self._resources = dataset.resources()
        self._options = dataset.options.share(context.readers)
        self._allowance = context.allowances.setdefault(
            id(dataset), Allowance(self._options, self._resources.fetcher)
        )
        self._schedule: Schedule = dataset.schedule(context.stream, context.path)
        self._epoch: int = 0 if state is None else state["epoch"]
        self._cursors = CursorCodec(self._schedule)
        cursor = self._schedule.begin() if state is None else self._cursors.unpack(state["at"])
        self._guard = FailureGuard("reading samples", context.config, dataset.failure_tolerance)
        self._reader = self._open(cursor)

    def _open(self, cursor: Any) -> SampleReader:
        resources = self._resources
        return SampleReader(
            self._schedule, cursor, resources.sources, resources.fetcher, self._options, self._allowance
        )

    def next(self) -> Item | End:
        while True:
            try:
                raw = self._reader.next()
            except StorageError as error:
                self._guard.failed(error, None)
                continue
            if raw is None:
                self._reader.close()
                self._epoch += 1
                self._reader = self._open(self._schedule.begin(self._epoch))
                return END
            try:
                item = self._dataset.make(raw)
            except SkipSample:
                continue
            except Exception as error:
                self._guard.failed(error, _describe(raw))
                continue
            if self._guard.in_a_row:
                self._guard.succeeded()
            return item

    def state(self) -> State:
        return {"epoch": self._epoch, "at": self._cursors.pack(self._reader.cursor())}

    def close(self) -> None:
        self._reader.close()


def _describe(raw: RawSample) -> dict[str, Any]:
    """A failed sample for handlers: its key, source and the names of its parts, without the bytes."""
    return {
        "__key__": raw.name,
        "__sources__": (raw.shard, raw.index),
        "parts": list(raw.parts),
    }


def _is_one_pass(plan: Plan) -> bool:
    if isinstance(plan, LeafPlan):
        return plan.order.shuffle_over_epochs in (None, 1)
    return isinstance(plan, ConcatPlan) and all(_is_one_pass(child) for child in plan.children)


class ReaderDataset(SavableDataset[Any]):
    """Samples of one or more prepared datasets, in the order of a plan.

    Args:
        leaves: Source datasets; a plan names them by their place.
        plan: Which sample comes next.
        worker_config: The job's configuration.
        options: Limits of the look-ahead.
        failure_tolerance: Undecodable samples in a row that end the run.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        plan: Plan,
        *,
        worker_config: WorkerConfig,
        options: ReadOptions | None = None,
        failure_tolerance: int = 100,
    ) -> None:
        self.leaves = tuple(leaves)
        self.plan = plan
        self.worker_config = worker_config
        self.options = options or ReadOptions()
        self.failure_tolerance = failure_tolerance
        self._resources: PerProcess[_Resources] = PerProcess(drop_inherited=True)

    def resources(self) -> _Resources:
        """Stores and fetcher of this process; made at first use, never carried over a fork."""
        return self._resources.map(None, lambda: _Resources(self))

    @property
    def shards(self) -> tuple[int, ...]:
        """How many shards each source has."""
        return tuple(len(leaf.index.shard_paths) for leaf in self.leaves)

    def plan_of(self, shards: Sequence[int]) -> Plan:
        """The plan when the sources had so many of their first shards; it may have been fewer sources, too.

        Raises:
            TypeError: What that plan was is not known.
        """
        return self.plan if tuple(shards) == self.shards else earlier_plan(self.plan, shards)

    def schedule(self, stream: int, path: str = "", shards: Sequence[int] | None = None) -> Schedule:
        """The schedule of one stream.

        Args:
            stream: The stream.
            path: The node's place in a larger pipeline.
            shards: How many shards each source has; None for those of now. See :meth:`plan_of`.
        """
        config = self.worker_config
        plan = self.plan if shards is None else self.plan_of(shards)
        key = derive_key(config.seed_offset, stream, path, "source")
        return build_schedule(plan, num_streams=config.num_streams, stream=stream, key=key)

    def count_readers(self) -> int:
        """One: the look-ahead spans all leaves."""
        return 1

    def require_samples_in_every_stream(self) -> None:
        """Check that no stream is empty.

        Raises:
            EmptyStreamError: There are more streams than samples.
        """
        samples = sum(leaf.num_samples for leaf in leaves(self.plan))
        streams = self.worker_config.num_streams
        largest = max((leaf.num_samples for leaf in leaves(self.plan)), default=0)
        if largest < streams and any(self.schedule(stream).length == 0 for stream in range(streams)):
            raise EmptyStreamError(
                f"{samples} samples cannot be dealt to {streams} streams (ranks times workers)",
                where=", ".join(f"{leaf.index.spec.url} [{leaf.index.split_part}]" for leaf in self.leaves),
                hint="use fewer workers or ranks, or a larger split part",
            )

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _ReaderNode(self, context, state)

    def make(self, raw: RawSample) -> Item:
        """Turn a raw sample into an item."""
        restore_key = ("Source", raw.leaf, raw.index)
        leaf = self.leaves[raw.leaf]
        value = leaf.make(raw, restore_key)
        if isinstance(value, CrudeSample):
            value.stores = leaf.stores
        return new_item((value, restore_key))

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Read samples by their keys, with as few requests as possible."""
        for key in keys:
            if key[0] != "Source" or not 0 <= key[1] < len(self.leaves):
                raise StateMismatchError(
                    f"no source has the sample {key!r}", hint="was it saved with other data?"
                )
        refs = Refs(
            np.array([key[1] for key in keys], dtype=np.int32),
            np.array([key[2] for key in keys], dtype=np.int64),
        )
        resources = self.resources()
        raws = fetch_samples(resources.sources, refs, resources.fetcher, self.options.share(context.readers))
        items = []
        for key, raw in zip(keys, raws, strict=True):
            if raw is None:
                raise StateMismatchError(
                    f"sample {key!r} is excluded now", hint="restore with the split of then"
                )
            items.append(self.make(raw))
        return items

    def len_stream(self, stream: int) -> int | None:
        """Samples of one pass of a stream.

        Excluded samples are left out where that can be known without reading: in shards that belong to
        the stream as a whole, of datasets that are passed over once.
        """
        length = self.schedule(stream).length
        if length is None or not _is_one_pass(self.plan):
            return length
        return length - self._excluded(stream)

    def _excluded(self, stream: int) -> int:
        count = 0
        for plan, first, last in stream_shares(self.plan, self.worker_config.num_streams, stream):
            index = self.leaves[plan.leaf].index
            for shard, path in enumerate(index.shard_paths if index.excluded else ()):
                whole = first <= index.shard_starts[shard] and index.shard_starts[shard + 1] <= last
                count += len(index.excluded.get(path, ())) if whole else 0
        return count

    def nominal_length(self) -> int:
        """Samples of this rank in one pass over all sources."""
        return max(1, sum(leaf.num_samples for leaf in leaves(self.plan)) // self.worker_config.world_size)

    def config(self, shards: Sequence[int] | None = None) -> dict[str, Any]:
        """Plan and identities of the data.

        Args:
            shards: How many shards each source has; None for those of now. See :meth:`plan_of`.
        """
        counted = self.shards if shards is None else shards
        described = zip(self.leaves, counted, strict=False)  # the last ones may be new
        return {
            "type": "SourceDataset",  # its name when the first states were saved
            "plan": describe_plan(self.plan_of(counted)),
            "leaves": [_identity(leaf.index, number) for leaf, number in described],
        }
