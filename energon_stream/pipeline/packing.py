"""Packs, each made of several elements."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from inspect import isgenerator
from typing import Any, ClassVar, Literal, TypeAlias

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError, FatalSampleError
from energon_stream.pipeline.dataset import (
    FunctionConfig,
    SavableDataset,
    T,
    T_co,
    Wrapper,
    function_name,
    is_stateless,
)
from energon_stream.pipeline.failure_notes import FAILED_SAMPLE
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE, SKIPPED, FailureGuard, first_of
from energon_stream.pipeline.map import RunningGenerator, call_again
from energon_stream.pipeline.node import END, Context, End, Item, RestoreKey, State, WrapperNode, read_state
from energon_stream.pipeline.pack_members import MADE, PackedSamplesOutput, as_key, resolve, restore_members
from energon_stream.schedule.saved import damaged, is_count
from energon_stream.worker import WorkerConfig

_log = logging.getLogger(__name__)


BufferSize: TypeAlias = int | Literal["stream"]
"""Samples to select packs from; ``"stream"`` for a selector that takes as many as it needs."""

Selector: TypeAlias = Callable[[Any], list[list[Any]] | PackedSamplesOutput[Any]]
"""A function of a list of samples (of an iterator, for ``"stream"``) that makes packs of them."""


def check_buffer_size(size: BufferSize | None) -> None:
    """Raise ConfigError unless a size is a whole number from 1 on, ``"stream"``, or None for no packing."""
    if not isinstance(size, str) or size != "stream":
        check_whole("packing_buffer_size", size, 1, 'use 1 or more, "stream", or None for no packing')


_MOST_ROUNDS = 100  # selections in a row without a pack, where failures in a row have no limit


class PackNode(WrapperNode):
    """Base of the nodes that make packs. States have ``in``, ``open`` (a running generator) and ``end``.

    ``packs`` were made before, of as many samples as ``encodings``.
    """

    def __init__(
        self, dataset: PackMaker[Any], context: Context, saved: dict[str, Any], packs: int, encodings: int
    ) -> None:
        *_, of_packer, of_encoder = dataset.tolerances
        self._maker = dataset
        self._packer = FailureGuard(function_name(dataset.final_packer), context, of_packer, first_of)
        self._encoder = FailureGuard(
            function_name(dataset.sample_encoder or dataset.encode), context, of_encoder
        )
        self._packs, self._encodings = packs, encodings
        self._ended: bool = saved["end"]
        self._running = None if saved["open"] is None else self._reopened(context, *saved["open"])
        self._inner = dataset.dataset.make_node(context, saved["in"])

    def _reopened(self, context: Context, saved_key: RestoreKey, place: int, batch: int) -> RunningGenerator:
        """Return the generator of a packer that a saved state left open, at its place."""
        self._maker.check_keys([saved_key], several=True)
        key, pack = as_key(saved_key), self._maker.pack_again(saved_key, context)
        with context.config.activate(context.stream, key[1], batch):
            made = self._packer.active.run(self._maker.final_packer, pack, key[1], None)
            return RunningGenerator(made, self._packer, key, batch, ()).skip(place)

    def _gather(self) -> list[Item]:
        """Take the elements of the next pack; none where the pass has ended."""
        raise NotImplementedError

    def next(self) -> Item | End:
        while True:
            if self._running is not None:
                made = self._running.next()
                if made is None:
                    self._running = None
            elif items := self._gather():
                made = self._pack(items)
            else:
                self._ended = False
                return END
            if made is not None:
                return made

    def _pack(self, items: list[Item]) -> Item | None:
        maker, encoded, used = self._maker, list[Any](), list[Item]()
        keys: list[tuple[RestoreKey, int, int | None]] = []
        for item in items:
            call = self._encodings
            self._encodings += 1
            value = self._encoder.call(maker.encode, item.value, call, of=(item,))
            if value is not SKIPPED:
                encoded.append(value)
                used.append(item)
                keys.append((item.key, call, self._encoder.active.batch_index))
        if not encoded:
            return None
        call = self._packs
        self._packs += 1
        key = (maker.kind, call, tuple(keys))
        value = self._packer.call(maker.final_packer, maker.as_pack(encoded, used), call, of=used)
        if value is SKIPPED:
            return None
        batch = self._packer.active.batch_index
        if not isgenerator(value):
            return Item(value, (*key, None, batch))
        self._running = RunningGenerator(value, self._packer, key, batch, ())
        return None

    def state(self) -> State:
        running = self._running
        return {
            "in": self._inner.state(),
            "open": running and (running.key, running.place, running.batch),
            "end": self._ended,
        }


class PackMaker(Wrapper[T_co]):
    """Base of the operators that make packs. Keys: ``(kind, call, keys and counters of elements, …)``."""

    regroups: ClassVar[bool] = True
    final_packer: Callable[[list[Any]], Any]
    sample_encoder: Callable[[Any], Any] | None
    tolerances: tuple[int, ...]
    """Failures in a row that end the run: at the end, those of the final packer and of the encoder."""

    def encode(self, value: Any) -> Any:
        """Apply the sample encoder. Raises ConfigError if it is a generator."""
        encoded = value if self.sample_encoder is None else self.sample_encoder(value)
        if isgenerator(encoded):
            raise ConfigError(
                "postencode_sample is a generator, which packing cannot use",
                hint="return one sample; preencode_sample may make several, except for planned packs",
            )
        return encoded

    def as_pack(self, encoded: list[Any], items: Sequence[Item]) -> list[Any]:
        """Return the argument of the final packer: encoded elements, whose items are given, too."""
        return encoded

    def pack_again(self, key: RestoreKey, context: Context) -> list[Any]:
        """Make the elements of a pack again, and encode them with the counters in the pack's key."""
        restore = partial(self.dataset.restore_many, context=context)
        select = partial(self.select_again, context)
        items = restore_members([inner for inner, *_ in key[2]], restore, select)
        encoded = []
        for item, (_, *counters) in zip(items, key[2], strict=True):
            with context.config.activate(context.stream, *counters):
                encoded.append(self.encode(item.value))
        return self.as_pack(encoded, items)

    def select_again(self, context: Context, samples: list[Any], call: int, batch: int) -> list[Any]:
        """Return the samples of all packs that the selector makes; only selectors of lists make samples."""
        raise damaged("a sample that a selector made")

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        self.check_keys(keys, several=True)
        restored = []
        for key in keys:
            value = call_again(self, self.final_packer, self.pack_again(key, context), key, context)
            restored.append(Item(value, as_key(key)))
        return restored


class _PackingNode(PackNode):
    """State: ``in``, ``n`` (packs, selections, encodings), ``groups`` and ``kept`` (keys), ``open``, ``end``.

    ``made`` has keys, call and batch of the selection that made the samples for which groups have places.
    The buffer is filled only when no group is left, so that only groups and what selections gave back are
    held between two packs.
    """

    def __init__(self, dataset: PackingDataset[Any], context: Context, state: State | None) -> None:
        start = {
            "in": None, "n": [0, 0, 0], "groups": [], "kept": [], "open": None, "end": False, "made": None
        }  # fmt: skip
        if isinstance(state, dict):
            state = {"kept": [], "made": None, **state}  # earlier versions kept and made nothing
        saved = read_state(state, start, dataset, context)
        self._dataset = dataset
        self._selector = FailureGuard(
            function_name(dataset.pre_packer),
            context,
            dataset.tolerances[0],
            lambda items: items[0].value if items else None,
        )
        packs, self._selections, encodings = saved["n"]
        self._left_out = 0  # samples that no group has, since this node was built
        sizes = [len(keys) for keys in saved["groups"]]

        def restore(wholes: list[RestoreKey]) -> list[Item]:
            size = dataset.buffer_size
            if (size != "stream" and len(wholes) > size) or 0 in sizes:
                raise damaged(f"groups of {len(wholes)} elements, from a buffer of {size}")
            return dataset.dataset.restore_many(wholes, context) if wholes else []

        keys = [key for group in [*saved["groups"], saved["kept"]] for key in group]
        if saved["made"] is not None:
            of_all, *call = saved["made"]
            keys = [(MADE, 0, of_all, (*call, key)) if is_count(key) else key for key in keys]
        items = iter(restore_members(keys, restore, partial(dataset.select_again, context)))
        self._groups = deque([next(items) for _ in range(size)] for size in sizes)
        self._kept = deque(items)
        super().__init__(dataset, context, saved, packs, encodings)

    def _gather(self) -> list[Item]:
        rounds, most, size = 0, self._dataset.tolerances[0] or _MOST_ROUNDS, self._dataset.buffer_size
        while not self._groups:
            call = self._selections
            taken = self._take(1 if size == "stream" else size)
            if not taken:
                return []
            if size == "stream":  # the selector may take none, at the end as well
                self._kept.extendleft(taken)
                taken = []
            self._selections += 1
            selected = self._selector.call(self._select, taken, call, of=taken)
            if isinstance(selected, Exception):
                raise selected  # of the inner node, and not of the selector
            if selected is SKIPPED:
                continue
            groups, kept, left_out = selected
            self._groups.extend(groups)
            self._kept.extendleft(reversed(kept))
            self._count(left_out, len(taken))
            rounds += not groups
            if rounds > most:
                raise self._stuck(rounds)
        return self._groups.popleft()

    def _take(self, most: int) -> list[Item]:
        """Take elements: first what was given back, then of the inner node; fewer at the end of a pass."""
        taken = [self._kept.popleft() for _ in range(min(most, len(self._kept)))]
        while len(taken) < most and not self._ended:
            item = self._inner.next()
            if isinstance(item, End):
                self._ended = True
            else:
                taken.append(item)
        return taken

    def _select(self, taken: list[Item]) -> Any:
        """Call the selector; return an error of the inner node. ``taken`` gets what the selector takes."""
        dataset, is_stream = self._dataset, self._dataset.buffer_size == "stream"
        failed: list[Exception] = []

        def values() -> Generator[Any, None, None]:
            while True:
                try:
                    found = self._selector.unlimited(self._take, 1)
                except Exception as error:
                    failed.append(error)
                    raise
                if not found:
                    return
                taken.extend(found)
                yield found[0].value

        while True:
            stream = values()
            try:
                returned = dataset.pre_packer(stream if is_stream else [item.value for item in taken])
                config = dataset.worker_config
                call = config.stream_sample_index, config.stream_batch_index
                may_make = config.conventions == "energon" and not is_stream
                selected = resolve(taken, returned, self._selector.name, call if may_make else None)
                break
            except Exception as error:
                if failed:
                    return failed[0]
                self._leave_out(error, taken)
            finally:
                stream.close()
        if failed:
            return failed[0]
        if is_stream and len(selected[0]) > 1:
            raise ConfigError(
                f"{self._selector.name} returned {len(selected[0])} packs",
                hint="return one pack, and push back the samples of the others",
            )
        return selected

    def _leave_out(self, error: Exception, taken: list[Item]) -> None:
        """Note the sample that an error is of, and leave it out; the others are selected again."""
        sample = error.__dict__.pop(FAILED_SAMPLE, None)
        values = [id(item.value) for item in taken]
        if sample is None or id(sample) not in values:
            raise error
        failed = taken.pop(values.index(id(sample)))
        self._selector.failed(
            error, sample, (failed,), self._selector.in_a_row if self._selections == 1 else -1
        )
        if self._dataset.buffer_size == "stream":
            self._kept.extendleft(reversed(taken))
            taken.clear()

    def _count(self, left_out: int, taken: int) -> None:
        if left_out and not self._left_out:
            message = "%s left out %d of %d samples; samples in no group are dropped, if not pushed back"
            _log.warning(message, self._selector.name, left_out, taken)
        self._left_out += left_out

    def _stuck(self, rounds: int) -> FatalSampleError:
        what = f"{self._selector.name} made no pack {rounds} times in a row, and pushed back {len(self._kept)} samples"
        return FatalSampleError(
            f"{what}, at the end of a pass" if self._ended else what,
            hint="make a pack of what there is, at least where no other samples come: a list is then shorter "
            "than packing_buffer_size, and an iterator ends",
        )

    def state(self) -> State:
        made = None  # the one selection that the groups are of

        def key_of(item: Item) -> Any:
            nonlocal made
            if item.key[0] != MADE:
                return item.key
            *call, place = item.key[3]
            made = [item.key[2], *call]
            return place

        return {
            **super().state(),
            "n": [self._packs, self._selections, self._encodings],
            "groups": [[key_of(item) for item in group] for group in self._groups],
            "kept": [item.key for item in self._kept],
            "made": made,
        }

    def close(self) -> None:
        if self._left_out:
            _log.info("%s left out %d samples", self._selector.name, self._left_out)
        self._groups.clear()
        self._kept.clear()
        super().close()


class PackingDataset(PackMaker[T_co]):
    """Fills a buffer, selects its elements into groups, and makes one element (a pack) of each group.

    Args:
        dataset: The inner dataset.
        buffer_size: Elements to select from at a time; the last buffers of a pass may be smaller. With
            ``"stream"`` the selector takes what it needs.
        pre_packer: Selects packs: deals a list of elements into lists, or makes one list of an iterator's
            next elements (``"stream"``). It returns the lists, or :class:`PackedSamplesOutput` if elements
            are to wait for others. An element may be in one list at most, unless :class:`PartialSample` cuts
            it; one that is in none is left out of the pass. The first time is logged as a warning.
        final_packer: Makes an element (or, as a generator, several) of a group.
        final_packer_stateless: True if its result depends on its argument (and the seeds) only.
        sample_encoder: Applied to each element of a group before ``final_packer``; None for nothing.
        sample_encoder_stateless: True if its result depends on its argument (and the seeds) only.
        stateless: True for both of the functions.
        packer_config: Describes ``pre_packer``: a dict, or a function that returns one. States must match it.
        pre_packer_failure_tolerance: Failures of ``pre_packer`` in a row that end the run; 0 tolerates any
            number. None takes ``failure_tolerance``.
        final_packer_failure_tolerance: The same for ``final_packer``.
        sample_encoder_failure_tolerance: The same for ``sample_encoder``.
        failure_tolerance: Default of the three tolerances.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import PackingDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(PackingDataset(NumbersDataset(5), 4, lambda buffer: [buffer[::2], buffer[1::2]], tuple))
        [(0, 2), (1, 3), (4,)]
    """

    kind = "Pack"
    node_type = _PackingNode
    counts_samples: bool = True
    option_names: ClassVar[tuple[str, ...]] = ("buffer_size", "pre_packer", "final_packer")

    def __init__(
        self,
        dataset: SavableDataset[T],
        buffer_size: BufferSize,
        pre_packer: Selector,
        final_packer: Callable[[list[Any]], T_co],
        *,
        final_packer_stateless: bool = False,
        sample_encoder: Callable[[T], Any] | None = None,
        sample_encoder_stateless: bool = False,
        stateless: bool = False,
        packer_config: FunctionConfig = None,
        pre_packer_failure_tolerance: int | None = None,
        final_packer_failure_tolerance: int | None = None,
        sample_encoder_failure_tolerance: int | None = None,
        failure_tolerance: int = DEFAULT_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        check_buffer_size(buffer_size)
        self.buffer_size = buffer_size
        self.pre_packer: Selector = pre_packer
        self.final_packer = final_packer
        self.sample_encoder = sample_encoder
        self.function_config = packer_config
        pure_packer = final_packer_stateless or is_stateless(final_packer)
        pure_encoder = sample_encoder is None or sample_encoder_stateless or is_stateless(sample_encoder)
        self.stateless: bool = stateless or (pure_packer and pure_encoder)
        of_each = (
            pre_packer_failure_tolerance,
            final_packer_failure_tolerance,
            sample_encoder_failure_tolerance,
        )
        self.tolerances: tuple[int, ...] = tuple(failure_tolerance if own is None else own for own in of_each)

    def select_again(self, context: Context, samples: list[Any], call: int, batch: int) -> list[Any]:
        with context.config.activate(context.stream, call, batch):
            returned = self.pre_packer(samples)
        packs = returned.packs if isinstance(returned, PackedSamplesOutput) else returned
        return [sample for pack in packs for sample in pack]
