"""The dataset at the bottom of each pipeline: reads samples of prepared datasets in the order of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypedDict, TypeGuard

import numpy as np

from energon_stream.drawing import Drawing
from energon_stream.errors import (
    EmptyStreamError,
    EnergonStreamError,
    SkipSample,
    StateMismatchError,
    StorageError,
)
from energon_stream.fork import PerProcess
from energon_stream.index.bad_samples import BadSample
from energon_stream.index.dataset import identity
from energon_stream.index.entries import OffsetCache
from energon_stream.index.shard_starts import with_starts
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.decode_ahead import open_reader
from energon_stream.pipeline.failure_notes import Named
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE, FailureGuard
from energon_stream.pipeline.leaf import Leaf, draw_plan, key_of, place_of, tell_shares
from energon_stream.pipeline.node import (
    END,
    Context,
    End,
    Item,
    Node,
    RestoreKey,
    State,
    foreign_key,
    new_item,
    read_state,
)
from energon_stream.pipeline.pack_keys import PackPlan, piece_key, piece_of
from energon_stream.plugins import debug_log
from energon_stream.read.at_once import fetch_samples
from energon_stream.read.consume import ReaderGroup
from energon_stream.read.locator import Locator, RawSample
from energon_stream.read.open_locator import open_locator
from energon_stream.read.read_options import ReadOptions
from energon_stream.rng import derive_key
from energon_stream.samples import CrudeSample
from energon_stream.schedule import (
    BlendPlan,
    ConcatPlan,
    Cursor,
    CursorCodec,
    EarlierLeaf,
    JobPacks,
    LeafPlan,
    PackedSchedule,
    Plan,
    Refs,
    Schedule,
    WeightChange,
    build_schedule,
    check_cursor,
    describe_plan,
    earlier_plan,
    first_reference,
    in_place,
    is_count,
    leaves,
    reading,
    stream_shares,
)
from energon_stream.storage import Fetcher, shared_fetcher
from energon_stream.worker import WorkerConfig


class _Resources:
    """Open stores and the fetcher, which the nodes of a reader dataset share in one process."""

    def __init__(self, dataset: ReaderDataset) -> None:
        self.fetcher: Fetcher = shared_fetcher(dataset.options.in_flight)  # one for all datasets of a mixture
        self.locators: list[Locator] = dataset.open_locators(OffsetCache())


class _ReaderNode:
    """State: ``epoch`` (passes that ended) and ``at`` (the schedule's cursor, packed)."""

    def __init__(self, dataset: ReaderDataset, context: Context, state: State | None) -> None:
        self._dataset = dataset
        resources = dataset.resources()
        group = context.reader_groups.setdefault(
            id(dataset),
            ReaderGroup(dataset.reader_options(context.readers), resources.fetcher, context.streams),
        )
        self._schedule: Schedule = dataset.schedule(
            context.stream, context.path, changes=context.changes, batches=context.batches
        )
        self._cursors = CursorCodec(self._schedule)
        self._epoch, cursor = 0, self._schedule.begin()
        if state is not None:
            self._epoch, cursor = dataset.read_cursor(state, context, self._schedule, self._cursors)
        self._guard = FailureGuard("reading samples", context, dataset.failure_tolerance)
        self._make = self._guard.limited(dataset.make)
        self._failures = context.failures
        place = self._schedule, cursor, resources.locators, group
        self._reader = open_reader(*place, leaves=dataset.leaves, threads=context.decode_threads)

    def next(self) -> Item | End:
        while True:
            try:
                raw = self._reader.next()
            except StorageError as error:
                self._guard.failed(error, None)
                continue
            if raw is None:
                self._epoch += 1
                self._reader.restart(self._schedule.next_pass(self._reader.cursor(), self._epoch))
                return END
            self._failures.notes.counts[0] += 1
            try:
                item = self._make(raw)
            except SkipSample:
                continue
            except Exception as error:
                sample = self._dataset.describe(raw)
                self._guard.failed(error, sample, [Item(sample, ("Source", raw.leaf, raw.index))])
                continue
            self._guard.in_a_row = 0
            return item

    def state(self) -> State:
        return {"epoch": self._epoch, "at": self._cursors.pack(self._reader.cursor())}

    def close(self) -> None:
        self._reader.close()


class _PackedReaderNode(_ReaderNode):
    """A reader of planned packs. Its keys have the pack and the piece of each sample."""

    _schedule: PackedSchedule

    def next(self) -> Item | End:
        before = self._reader.cursor()
        item = super().next()
        if isinstance(item, End):
            return item
        # Samples that failed or are excluded may have been passed over.
        at = self._schedule.advance(before, self._reader.since - 1)
        if not (planned := self._failures.notes.planned):  # once for each batch
            planned[:] = self._schedule.loads(at, self._dataset.worker_config.world_size)
        return new_item((item.value, piece_key(item.key, self._schedule.piece(at))))


def _is_one_pass(plan: Plan) -> bool:
    if isinstance(plan, LeafPlan):
        return plan.order.shuffle_over_epochs in (None, 1)
    return isinstance(plan, ConcatPlan) and all(_is_one_pass(child) for child in plan.children)


class ReaderDataset(SavableDataset[Any]):
    """Reads samples of one or more prepared datasets, in the order of a plan, which names them by place.

    ``failure_tolerance`` samples in a row that cannot be decoded end the run; 0 tolerates any number.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        plan: Plan,
        *,
        worker_config: WorkerConfig,
        options: ReadOptions | None = None,
        packing: PackPlan | None = None,
        failure_tolerance: int = DEFAULT_TOLERANCE,
    ) -> None:
        self.packing, self.plan = self._newest = packing, plan
        self._packs: PerProcess[JobPacks] = PerProcess(drop_inherited=True)
        self.leaves: tuple[Leaf, ...] = tuple(leaves)
        self.worker_config = worker_config
        worker_config.hold()
        self.options: ReadOptions = options or ReadOptions()
        self.failure_tolerance = failure_tolerance
        self._resources: PerProcess[_Resources] = PerProcess(drop_inherited=True)
        tell_shares(plan, self.leaves, worker_config.num_streams)

    def resources(self) -> _Resources:
        """Return the stores and the fetcher of this process; made at first use, never carried over a fork."""
        return self._resources.map(None, lambda: _Resources(self))

    def open_locators(self, offsets: OffsetCache) -> list[Locator]:
        """Open the locators of all leaves, which share a cache of index entries."""
        options = self.options
        return [
            open_locator(number, leaf.index, offsets, leaf.selection, options.max_gap, options.verify)
            for number, leaf in enumerate(self.leaves)
        ]

    def reader_options(self, readers: int) -> ReadOptions:
        """Return the limits of one of several readers in a process; each reads one stream."""
        samples = sum(leaf.num_samples for leaf in leaves(self.plan))
        return self.options.share(readers).within(-(-samples // self.worker_config.num_streams))

    @property
    def shards(self) -> tuple[int, ...]:
        """Number of shards of each leaf."""
        return tuple(len(leaf.index.shard_paths) for leaf in self.leaves)

    def read_starts(self, *, again: bool = False) -> None:
        """Read what tells the leaves from others of equal names and counts; see ``with_starts``."""
        indices, forks = [leaf.index for leaf in self.leaves], self.worker_config.num_workers > 0
        found = zip(self.leaves, with_starts(indices, forks=forks, again=again), strict=True)
        self.leaves = tuple(replace(leaf, index=index) for leaf, index in found)

    def plan_of(self, then: Sequence[EarlierLeaf]) -> Plan:
        """Return the plan of when the leaves were these; TypeError if it does not follow from this one."""
        return earlier_plan(self.plan, then) if self.differs(then) else self.plan

    def differs(self, then: Sequence[EarlierLeaf]) -> bool:
        """Return whether the leaves were others than now."""
        places = [(leaf.now, leaf.shards) for leaf in then]
        return places != list(enumerate(self.shards))

    def schedule(
        self,
        stream: int,
        path: str = "",
        then: Sequence[EarlierLeaf] | None = None,
        changes: Sequence[WeightChange] = (),
        batches: int | None = None,
    ) -> Schedule:
        """Return one stream's schedule, for the node at ``path`` (see ``Context``) and ``plan_of(then)``.

        ``changes`` are weights that were set under way, if the plan is a blend by weights. ``batches`` of the
        stream before, if given, choose the weights that hold from there on.
        """
        config = self.worker_config
        if (given := self.packing) is not None:
            packs = self._packs.map((path, given.spec.version), lambda: given.of_job(self.plan, config, path))
            return PackedSchedule(packs, stream)
        plan = self.plan if then is None else self.plan_of(then)
        if changes and isinstance(plan, BlendPlan):
            plan = plan.with_changes(changes)
        if batches is not None and isinstance(plan, BlendPlan):
            plan = replace(plan, weights=plan.weights_at(batches * config.num_streams + stream), changes=())
        key = derive_key(config.seed_offset, config.share(stream), path, "source")
        return build_schedule(
            plan, num_streams=config.num_streams, stream=stream, key=key, dealt_to=config.dealt_to
        )

    def batches_of_changes(self, stream: int, changes: Sequence[WeightChange]) -> Iterator[int]:
        plan = self.plan
        if isinstance(plan, BlendPlan) and not plan.even and self.packing is None:
            for change in plan.with_changes(changes).changes:
                yield first_reference(change.begin, self.worker_config.num_streams, stream, 1)

    def plan_as(self, version: int | None) -> None:
        """Plan packs and draws as a version did, which a state or a run's record has; None: the newest."""
        packing, plan = self._newest
        self.packing = packing and packing.of_version(version)
        self.plan = plan.of_version(version) if isinstance(plan, BlendPlan) else plan

    def read_cursor(
        self, state: State, context: Context, schedule: Schedule, cursors: CursorCodec
    ) -> tuple[int, Cursor]:
        """Return the passes that ended, and the cursor, of a node's state. Raises StateError if damaged."""
        saved = read_state(state, {"epoch": 0, "at": ()}, self, context)
        with reading(f"{type(self).__name__} in stream {context.stream}"):
            cursor = cursors.unpack(saved["at"])
            check_cursor(schedule, cursor, saved["epoch"])
        return saved["epoch"], cursor

    def count_readers(self) -> int:
        """Return 1: one look-ahead spans all leaves."""
        return 1

    def require_samples_in_every_stream(self) -> None:
        """Check that no stream is empty. Raises EmptyStreamError if there are more streams than samples."""
        if self.packing is not None:
            return  # packs are dealt, and no share of the samples
        sizes = [leaf.num_samples for leaf in leaves(self.plan)]
        streams, samples, most = self.worker_config.num_streams, sum(sizes), max(sizes, default=0)
        if isinstance(self.plan, BlendPlan) and self.plan.changes and min(sizes) < streams:
            for stream in range(streams):
                self.schedule(stream)  # raises if the datasets with a weight have no sample in it
        if most < streams and any(self.schedule(stream).length == 0 for stream in range(streams)):
            raise EmptyStreamError(
                f"{samples} sample{'s'[: samples != 1]} cannot be dealt to {streams} streams (ranks times workers)",
                where=", ".join(leaf.index.name for leaf in self.leaves),
                hint="use fewer workers or ranks, such as worker_config=WorkerConfig(rank=0, world_size=1, "
                "num_workers=0), a smaller num_streams, or a larger split part",
            )

    def make_node(self, context: Context, state: State | None) -> Node:
        made = _ReaderNode if self.packing is None else _PackedReaderNode
        node = made(self, context, state)
        log = debug_log(self.worker_config.worker_log_level)
        return node if log is None else log.LoggedReader(node, context)

    def make(self, raw: RawSample) -> Item:
        """Convert a raw sample into an item."""
        restore_key = ("Source", raw.leaf, raw.index)
        leaf = self.leaves[raw.leaf]
        value = leaf.make(raw, restore_key)
        if isinstance(value, CrudeSample):
            value.stores = leaf.stores
        return new_item((value, restore_key))

    def describe(self, raw: RawSample) -> dict[str, Any]:
        """Describe a failed sample for handlers: its key, source and part names."""
        return {
            "__key__": key_of(raw, self.leaves[raw.leaf]),
            "__sources__": (raw.shard, raw.index),
            "parts": list(raw.parts),
        }

    def places(self, named: Named, path: str, member: int) -> list[BadSample]:
        found = {
            ref: place_of(self.leaves[ref.leaf], ref.number, key, None, 0)
            for ref, key in named.items()
            if ref.path == path
        }
        unknown = [ref for ref, place in found.items() if place.key is None]
        leaves, numbers = [ref.leaf for ref in unknown], [ref.number for ref in unknown]
        refs, resources = Refs(np.array(leaves, np.int32), np.array(numbers, np.int64)), self.resources()
        with suppress(EnergonStreamError):  # without a key, the shard and the number are known at least
            raws = fetch_samples(resources.locators, refs, resources.fetcher, self.options) if unknown else []
            for ref, raw in zip(unknown, raws, strict=True):
                found[ref] = place_of(self.leaves[ref.leaf], ref.number, None, raw, member)
        return list(found.values())

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Read samples by their keys, with as few requests as possible."""
        pieces = [None if self.packing is None else piece_of(key) for key in keys]
        keys = [key if piece is None else key[2] for key, piece in zip(keys, pieces, strict=True)]
        for key in keys:
            if not self._is_key(key):
                raise foreign_key(self, key)
        refs = Refs(
            np.array([key[1] for key in keys], dtype=np.int32),
            np.array([key[2] for key in keys], dtype=np.int64),
        )
        resources = self.resources()
        raws = fetch_samples(resources.locators, refs, resources.fetcher, self.options.share(context.readers))
        items = []
        for key, piece, raw in zip(keys, pieces, raws, strict=True):
            if raw is None:
                raise StateMismatchError(
                    f"the dataset excludes sample {key!r}",
                    hint="restore with the split.yaml that it was saved with",
                )
            item = self.make(raw)
            items.append(item if piece is None else new_item((item.value, piece_key(item.key, piece))))
        return items

    def _is_key(self, key: Any) -> bool:
        if not isinstance(key, (list, tuple)) or len(key) != 3 or not all(map(is_count, key[1:])):
            return False
        kind, leaf, sample = key
        if kind != "Source" or leaf >= len(self.leaves):
            return False
        return int(sample) < int(self.leaves[leaf].index.shard_starts[-1])

    def len_stream(self, stream: int) -> int | None:
        """Return the samples of one pass, without samples that are known to be excluded.

        These are in shards that belong to the stream as a whole, of datasets with one pass.
        """
        length = self.schedule(stream).length
        if self.packing is not None or length is None or not _is_one_pass(self.plan):
            return length
        return length - self._excluded(stream)

    def _excluded(self, stream: int) -> int:
        count = 0
        config = self.worker_config
        for plan, first, last in stream_shares(self.plan, config.num_streams, config.share(stream)):
            index = self.leaves[plan.leaf].index
            if index.selection is not None:  # it is not known which of them the view has
                continue
            for shard, path in enumerate(index.shard_paths if index.excluded else ()):
                whole = first <= index.shard_starts[shard] and index.shard_starts[shard + 1] <= last
                count += len(index.excluded.get(path, ())) if whole else 0
        return count

    def nominal_length(self) -> int:
        return max(1, sum(leaf.num_samples for leaf in leaves(self.plan)) // self.worker_config.world_size)

    def config(self, then: Sequence[EarlierLeaf] | None = None) -> dict[str, Any]:
        """Describe the plan and identify the data; as of when the leaves were ``then``, if given."""
        then = in_place(self.shards) if then is None else then
        plan = describe_plan(self.plan_of(then))
        config: ReaderConfig = {
            "type": "ReaderDataset",
            "plan": plan if self.packing is None else {"packing": self.packing.describe(), "packed": plan},
            "leaves": [
                identity(self.leaves[leaf.now].index, leaf.shards) for leaf in then if leaf.now is not None
            ],
        }
        return {**config}

    def drawing(self) -> Drawing:
        """Return the mixture as boxes: ``0.75: captions [train], 0.25: texts [train]``."""
        box = draw_plan(self.plan, self.leaves)
        name = type(self).__name__
        return replace(box, title=name) if box.inner and not box.title else Drawing(name, inner=(box,))


def find_readers(dataset: SavableDataset[Any], path: str = "") -> Iterator[tuple[str, ReaderDataset]]:
    """Yield the reader datasets of a pipeline, in the order of ``config()``, with their ``Context.path``."""
    if isinstance(dataset, ReaderDataset):
        yield path, dataset
    for number, inner in enumerate(dataset.inputs):
        yield from find_readers(inner, dataset.input_path(path, number))


class ReaderConfig(TypedDict):
    """``config()`` of a :class:`ReaderDataset`. States hold hashes of it, to recognize grown datasets."""

    type: str  # always "ReaderDataset"
    plan: dict[str, Any]  # the order, see ``schedule.describe_plan``
    leaves: list[dict[str, Any]]  # the identity of each leaf's data; ``"shards"`` is the number of its shards


def is_reader_config(config: Any) -> TypeGuard[ReaderConfig]:
    """Return True if a part of a pipeline's ``config()`` is that of a :class:`ReaderDataset`."""
    return isinstance(config, Mapping) and config.get("type") == "ReaderDataset"
