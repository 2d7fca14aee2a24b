"""Packs, each made of several elements."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from inspect import isgenerator
from typing import TYPE_CHECKING, Any, ClassVar

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import (
    FunctionConfig,
    SavableDataset,
    T,
    T_co,
    Wrapper,
    function_name,
    is_stateless,
)
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE, SKIPPED, FailureGuard, first_of
from energon_stream.pipeline.map import RunningGenerator, call_again
from energon_stream.pipeline.node import END, Context, End, Item, RestoreKey, State, WrapperNode, read_state
from energon_stream.schedule.saved import damaged

if TYPE_CHECKING:
    from energon_stream.worker import WorkerConfig

_log = logging.getLogger(__name__)


def as_key(value: Any) -> Any:
    """Convert the lists of a deserialised key back to tuples."""
    return tuple(as_key(part) for part in value) if isinstance(value, (list, tuple)) else value


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
            return RunningGenerator(self._maker.final_packer(pack), self._packer, key, batch, ()).skip(place)

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
        items = self.dataset.restore_many([inner for inner, *_ in key[2]], context)
        encoded = []
        for item, (_, *counters) in zip(items, key[2], strict=True):
            with context.config.activate(context.stream, *counters):
                encoded.append(self.encode(item.value))
        return self.as_pack(encoded, items)

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        self.check_keys(keys, several=True)
        restored = []
        for key in keys:
            value = call_again(self, self.final_packer, self.pack_again(key, context), key, context)
            restored.append(Item(value, as_key(key)))
        return restored


class _PackingNode(PackNode):
    """State: ``in``, ``n`` (packs, selections, encodings made), ``groups`` (keys), ``open``, ``end``.

    The buffer is filled only when no group is left, so that only groups are held between two packs.
    """

    def __init__(self, dataset: PackingDataset[Any], context: Context, state: State | None) -> None:
        start = {"in": None, "n": [0, 0, 0], "groups": [], "open": None, "end": False}
        saved = read_state(state, start, dataset, context)
        self._dataset = dataset
        self._selector = FailureGuard(
            function_name(dataset.pre_packer), context, dataset.tolerances[0], lambda items: items[0].value
        )
        packs, self._selections, encodings = saved["n"]
        self._left_out = 0  # samples that no group has, since this node was built
        sizes = [len(keys) for keys in saved["groups"]]
        if sum(sizes) > dataset.buffer_size or 0 in sizes:
            raise damaged(f"groups of {sum(sizes)} elements, from a buffer of {dataset.buffer_size}")
        keys = [key for group in saved["groups"] for key in group]
        items = iter(dataset.dataset.restore_many(keys, context) if keys else [])
        self._groups = deque([next(items) for _ in range(size)] for size in sizes)
        super().__init__(dataset, context, saved, packs, encodings)

    def _gather(self) -> list[Item]:
        while not self._groups:
            if self._ended:
                return []
            self._fill()
        return self._groups.popleft()

    def _fill(self) -> None:
        """Fill the buffer and select its elements into groups."""
        items: list[Item] = []
        while len(items) < self._dataset.buffer_size:
            item = self._inner.next()
            if isinstance(item, End):
                self._ended = True
                break
            items.append(item)
        if not items:
            return
        call = self._selections
        self._selections += 1
        groups = self._selector.call(self._dataset.select, items, call, of=items)
        if groups is not SKIPPED:
            self._groups.extend(groups)
            left_out = len(items) - sum(map(len, groups))
            if left_out and not self._left_out:
                _log.warning(
                    "%s left out %d of %d samples; samples in no group are dropped",
                    self._selector.name,
                    left_out,
                    len(items),
                )
            self._left_out += left_out

    def state(self) -> State:
        return {
            **super().state(),
            "n": [self._packs, self._selections, self._encodings],
            "groups": [[item.key for item in group] for group in self._groups],
        }

    def close(self) -> None:
        if self._left_out:
            _log.info("%s left out %d samples", self._selector.name, self._left_out)
        self._groups.clear()
        super().close()


class PackingDataset(PackMaker[T_co]):
    """Fills a buffer, selects its elements into groups, and makes one element (a pack) of each group.

    Args:
        dataset: The inner dataset.
        buffer_size: Elements to select from at a time; the last buffer of a pass may be smaller.
        pre_packer: Deals a list of elements into lists. An element may be in one of them at most; one that is
            in none is left out of the pass. The first time is logged as a warning.
        final_packer: Makes an element (or, as a generator, several) of a group.
        final_packer_stateless: True if its result depends on its argument (and the seeds) only.
        sample_encoder: Applied to each element of a group before ``final_packer``; None for nothing.
        sample_encoder_stateless: True if its result depends on its argument (and the seeds) only.
        stateless: True for both of the functions.
        packer_config: A dict that describes it, or a function that returns one; states must match it.
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
    option_names: ClassVar[tuple[str, ...]] = ("buffer_size", "pre_packer", "final_packer")

    def __init__(
        self,
        dataset: SavableDataset[T],
        buffer_size: int,
        pre_packer: Callable[[list[T]], list[list[T]]],
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
        check_whole("packing_buffer_size", buffer_size, 1, "use 1 or more, or None for no packing")
        self.buffer_size = buffer_size
        self.pre_packer: Callable[[list[Any]], list[list[Any]]] = pre_packer
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
        self.tolerances = tuple(failure_tolerance if own is None else own for own in of_each)

    def select(self, items: list[Item]) -> list[list[Item]]:
        """Call ``pre_packer``. Raises ConfigError if it repeated or made up elements."""
        groups = self.pre_packer([item.value for item in items])
        found = Counter(id(value) for group in groups for value in group)
        wanted = {id(item.value): item for item in items}
        wrong = [value for value, count in found.items() if count > 1 or value not in wanted]
        if wrong:
            raise ConfigError(
                f"{function_name(self.pre_packer)} repeated or made up {len(wrong)} samples",
                where=f"its groups of a buffer of {len(items)} samples",
                hint="put a sample of the buffer into one group at most; a group may hold one sample",
            )
        return [[wanted[id(value)] for value in group] for group in groups if group]
