"""Packs that were planned before their samples were read: gathers the samples of each pack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import isgenerator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset, Wrapper, function_name, is_stateless
from energon_stream.pipeline.failures import SKIPPED, FailureGuard, first_of
from energon_stream.pipeline.map import RunningGenerator, call_again
from energon_stream.pipeline.node import END, Context, End, Item, RestoreKey, State, WrapperNode, read_state
from energon_stream.pipeline.pack_keys import piece_of
from energon_stream.pipeline.packing import as_key, open_generator
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers
from energon_stream.schedule import PackedSchedule
from energon_stream.schedule.saved import damaged

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.schedule import Piece
    from energon_stream.worker import WorkerConfig


class PlannedPack(list[Any]):
    """The samples of a planned pack, which ``pack_selected_samples`` gets, with their places in it.

    Attributes:
        parts: What the pack has of each sample, in units of its length: ``slice(0, length)``, or a part of a
            sample that is longer than the capacity.
        capacity: Largest sum of a pack's lengths.

    Example:
        >>> pack = PlannedPack(["a", "b"], [slice(0, 3), slice(4, 8)], 8)
        >>> pack.lengths.tolist(), pack.cu_seqlens.tolist(), pack.max_seqlen
        ([3, 4], [0, 3, 7], 4)
    """

    def __init__(self, samples: Iterable[Any], parts: Sequence[slice], capacity: int) -> None:
        super().__init__(samples)
        self.parts: tuple[slice, ...] = tuple(parts)
        self.capacity = capacity

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Length of each sequence, ``int32``."""
        return np.array([part.stop - part.start for part in self.parts], dtype=np.int32)

    @property
    def cu_seqlens(self) -> npt.NDArray[np.int32]:
        """First place of each sequence in the pack, and the total, as Megatron-Core's ``PackedSeqParams``."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence."""
        return int(self.lengths.max(initial=0))


class _PlannedPackingNode(WrapperNode):
    """State: ``in``, ``n`` (packs, encodings made), ``held`` (key), ``open``, ``end``.

    Between two packs no sample is held, unless the last one of a pack was left out: then the first of the
    next pack told so.
    """

    def __init__(self, dataset: PlannedPackingDataset, context: Context, state: State | None) -> None:
        start = {"in": None, "n": [0, 0], "held": [], "open": None, "end": False}
        saved = read_state(state, start, dataset, context)
        self._dataset = dataset
        of_packer, of_encoder = dataset.tolerances
        self._packer = FailureGuard(function_name(dataset.final_packer), context, of_packer, first_of)
        encoder = dataset.sample_encoder or dataset.encode
        self._encoder = FailureGuard(function_name(encoder), context, of_encoder)
        self._packs, self._encodings = saved["n"]
        self._ended: bool = saved["end"]
        keys = list(saved["held"])
        if len(keys) > 1:
            raise damaged(f"{len(keys)} samples are held")
        self._held: Item | None = dataset.dataset.restore_many(keys, context)[0] if keys else None
        self._running = open_generator(
            dataset, saved["open"], dataset.pack_again, dataset.final_packer, self._packer, context
        )
        self._inner = dataset.dataset.make_node(context, saved["in"])

    def next(self) -> Item | End:
        while True:
            if self._running is not None:
                made = self._running.next()
                if made is not None:
                    return made
                self._running = None
            elif self._ended:
                self._ended = False
                return END
            else:
                items = self._gather()
                made = self._pack(items) if items else None  # none are left: the pass has ended
                if made is not None:
                    return made

    def _gather(self) -> list[tuple[Item, Piece]]:
        """Take the samples of the next pack."""
        found: list[tuple[Item, Piece]] = []
        held, self._held = self._held, None
        while True:
            item: Item | End = self._inner.next() if held is None else held
            held = None
            if isinstance(item, End):
                self._ended = True
                return found
            piece = piece_of(item.key)
            if piece is None:
                raise ConfigError(
                    "an element comes from no planned pack", hint="read one dataset, opened with packing="
                )
            last = found[-1][1] if found else None
            if last is not None and piece.pack != last.pack:
                self._held = item
                return found
            if last is not None and piece.place <= last.place:
                raise ConfigError(
                    "a hook made several elements of one sample, which planned packs have no room for",
                    hint="return one sample, or use packing_buffer_size",
                )
            found.append((item, piece))
            if piece.place == piece.count - 1:
                return found

    def _pack(self, items: list[tuple[Item, Piece]]) -> Item | None:
        encoded, parts = list[Any](), list[slice]()
        keys: list[tuple[RestoreKey, int, int | None]] = []
        for item, piece in items:
            call = self._encodings
            self._encodings += 1
            value = self._encoder.call(self._dataset.encode, item.value, call)
            if value is not SKIPPED:
                encoded.append(value)
                parts.append(slice(piece.start, piece.stop))
                keys.append((item.key, call, self._encoder.active.batch_index))
        if not encoded:
            return None
        call = self._packs
        self._packs += 1
        key = (PlannedPackingDataset.kind, call, tuple(keys))
        pack = PlannedPack(encoded, parts, self._dataset.capacity)
        value = self._packer.call(self._dataset.final_packer, pack, call)
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
            "n": [self._packs, self._encodings],
            "held": [] if self._held is None else [self._held.key],
            "open": running and (running.key, running.place, running.batch),
            "end": self._ended,
        }


class PlannedPackingDataset(Wrapper[Any]):
    """Makes one element of the samples of each planned pack. ``get_train_dataset(packing=…)`` makes it.

    Example:
        >>> from energon_stream import DefaultTaskEncoder, PlannedPacking, get_train_dataset
        >>> from energon_stream import PlannedPackingDataset, WorkerConfig, stateless
        >>> class Packs(DefaultTaskEncoder):
        ...     @stateless
        ...     def pack_selected_samples(self, samples):
        ...         return samples.cu_seqlens.tolist()
        >>> dataset = get_train_dataset(
        ...     "texts",
        ...     batch_size=None,
        ...     shuffle_buffer_size=None,
        ...     max_samples_per_sequence=None,
        ...     worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        ...     task_encoder=Packs(),
        ...     packing=PlannedPacking(cost=[3] * 48, capacity=8),
        ... )
        >>> isinstance(dataset, PlannedPackingDataset), next(iter(dataset))
        (True, [0, 3, 6])

    Args:
        dataset: A pipeline on one reader dataset that has planned packs. Its operators return one element of
            a sample, or none.
        final_packer: Makes an element (or, as a generator, several) of a :class:`PlannedPack`.
        sample_encoder: Applied to each sample before; None for nothing.
        final_packer_failure_tolerance: Failures of it in a row that end the run; 0 tolerates any number.
        sample_encoder_failure_tolerance: The same for ``sample_encoder``.
        worker_config: Must agree with the inner dataset's, if given.
    """

    kind = "PlannedPack"
    node_type = _PlannedPackingNode
    option_names: ClassVar[tuple[str, ...]] = ("final_packer",)

    def __init__(
        self,
        dataset: SavableDataset[Any],
        final_packer: Callable[[list[Any]], Any],
        *,
        sample_encoder: Callable[[Any], Any] | None = None,
        final_packer_failure_tolerance: int = 100,
        sample_encoder_failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        readers = [reader for _, reader in find_readers(dataset)]
        if len(readers) != 1 or readers[0].packing is None:
            raise ConfigError("planned packs need one dataset that was opened with packing=")
        self._reader: ReaderDataset = readers[0]
        self.capacity: int = readers[0].packing.spec.capacity
        self.final_packer = final_packer
        self.sample_encoder = sample_encoder
        self.stateless: bool = is_stateless(final_packer) and (
            sample_encoder is None or is_stateless(sample_encoder)
        )
        self.tolerances: tuple[int, int] = final_packer_failure_tolerance, sample_encoder_failure_tolerance

    def len_stream(self, stream: int) -> int | None:
        """Return the packs of one pass; None if it never ends. The whole pass is planned to count them."""
        schedule = self._reader.schedule(stream)
        counted = schedule.count(schedule.begin()) if isinstance(schedule, PackedSchedule) else None
        return None if counted is None else counted[0]

    def encode(self, value: Any) -> Any:
        """Apply the sample encoder. Raises ConfigError if it is a generator."""
        encoded = value if self.sample_encoder is None else self.sample_encoder(value)
        if isgenerator(encoded):
            raise ConfigError("postencode_sample is a generator, which packing cannot use")
        return encoded

    def pack_again(self, key: RestoreKey, context: Context) -> PlannedPack:
        """Make the samples of a pack again, and encode them with the counters in the pack's key."""
        items = self.dataset.restore_many([inner for inner, *_ in key[2]], context)
        encoded, parts = [], []
        for item, (_, *counters) in zip(items, key[2], strict=True):
            piece = piece_of(item.key)
            if piece is None:
                raise damaged("a sample of a pack is of no planned pack")
            parts.append(slice(piece.start, piece.stop))
            with context.config.activate(context.stream, *counters):
                encoded.append(self.encode(item.value))
        return PlannedPack(encoded, parts, self.capacity)

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Make packs again."""
        self.check_keys(keys, several=True)
        return [
            Item(
                call_again(self, self.final_packer, self.pack_again(key, context), key, context), as_key(key)
            )
            for key in keys
        ]
