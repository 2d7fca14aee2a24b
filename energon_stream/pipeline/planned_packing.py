"""Packs that were planned before their samples were read: gathers the samples of each pack."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from inspect import isgeneratorfunction, unwrap
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset, is_stateless
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE
from energon_stream.pipeline.node import Context, End, Item, State, read_state
from energon_stream.pipeline.pack_keys import PLANNED_PACK, piece_of
from energon_stream.pipeline.packing import PackMaker, PackNode
from energon_stream.pipeline.reader_dataset import ReaderDataset, find_readers
from energon_stream.schedule import PackedSchedule, PackPiece
from energon_stream.schedule.saved import damaged

if TYPE_CHECKING:
    import numpy.typing as npt

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


class _PlannedPackingNode(PackNode):
    """State: ``in``, ``n`` (packs, encodings made, slots filled, slots behind), ``held``, ``open``, ``end``.

    Samples are held where the last one of a pack was left out, which the first of the next pack told, and
    where a pack has lent a sample. A pack without samples keeps its slot, so that the stream stays in step
    with the others: the next pack of several samples lends it the shortest.
    """

    def __init__(self, dataset: PlannedPackingDataset, context: Context, state: State | None) -> None:
        start = {"in": None, "n": [0, 0, 0, 0], "held": [], "open": None, "end": False}
        saved = read_state(state, start, dataset, context)
        keys = list(saved["held"])
        self._held: deque[Item] = deque(dataset.dataset.restore_many(keys, context) if keys else ())
        packs, encodings, self._slot, self._behind = saved["n"]
        self._counts = context.failures
        context.failures.packing = dataset._reader.packing
        super().__init__(dataset, context, saved, packs, encodings)

    def next(self) -> Item | End:
        item = super().next()
        self._slot, self._behind = (0, 0) if isinstance(item, End) else (self._slot + 1, self._behind)
        return item

    def _gather(self) -> list[Item]:
        found: list[Item] = []
        last: PackPiece | None = None
        while self._held or not self._ended:
            item: Item | End = self._held.popleft() if self._held else self._inner.next()
            if isinstance(item, End):
                self._ended = True
                break
            piece = piece_of(item.key)
            if piece is None:
                raise ConfigError(
                    "an element comes from no planned pack", hint="read one dataset, opened with packing="
                )
            if last is not None and piece.pack != last.pack:
                self._held.appendleft(item)
                break
            if last is not None and piece.place <= last.place:
                raise ConfigError(
                    "a hook made several elements of one sample, which planned packs have no room for",
                    hint="return one sample, or use packing_buffer_size",
                )
            found.append(item)
            if piece.place == piece.count - 1:
                break
            last = piece
        return self._lent(found) if found else found

    def _lent(self, items: list[Item]) -> list[Item]:
        """Return the samples of the next slot: of a pack, or one that it lends to an emptied one."""
        pieces = [piece for item in items if (piece := piece_of(item.key)) is not None]
        behind = max(0, pieces[0].pack - self._slot)
        self._counts.notes.counts[3] += max(0, behind - self._behind)
        self._behind = behind
        if not behind or len(items) < 2 or isgeneratorfunction(unwrap(self._maker.final_packer)):
            return items
        shortest = min(range(len(items)), key=lambda number: pieces[number].stop - pieces[number].start)
        lent = items.pop(shortest)
        self._held.extendleft(reversed(items))
        return [lent]

    def state(self) -> State:
        counts = [self._packs, self._encodings, self._slot, self._behind]
        return {**super().state(), "n": counts, "held": [item.key for item in self._held]}


class PlannedPackingDataset(PackMaker[Any]):
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

    kind = PLANNED_PACK
    node_type = _PlannedPackingNode
    option_names: ClassVar[tuple[str, ...]] = ("final_packer",)

    def __init__(
        self,
        dataset: SavableDataset[Any],
        final_packer: Callable[[list[Any]], Any],
        *,
        sample_encoder: Callable[[Any], Any] | None = None,
        final_packer_failure_tolerance: int = DEFAULT_TOLERANCE,
        sample_encoder_failure_tolerance: int = DEFAULT_TOLERANCE,
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
        self.tolerances: tuple[int, ...] = final_packer_failure_tolerance, sample_encoder_failure_tolerance

    def len_stream(self, stream: int) -> int | None:
        """Return the packs of one pass; None if it never ends. The whole pass is planned to count them."""
        schedule = self._reader.schedule(stream)
        counted = schedule.count(schedule.begin()) if isinstance(schedule, PackedSchedule) else None
        return None if counted is None else counted[0]

    def as_pack(self, encoded: list[Any], items: Sequence[Item]) -> PlannedPack:
        """Return the samples with their places in the pack, which their keys have."""
        pieces = [piece_of(item.key) for item in items]
        if None in pieces:
            raise damaged("a sample of a pack is of no planned pack")
        parts = [slice(piece.start, piece.stop) for piece in pieces if piece is not None]
        return PlannedPack(encoded, parts, self.capacity)
