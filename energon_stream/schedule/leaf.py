"""The order of one source dataset in one stream."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import ConfigError
from energon_stream.rng import derive_key, hash_uint64, permute_indices, uniform
from energon_stream.schedule.base import Cursor, Refs
from energon_stream.schedule.slices import SliceTable

__all__ = ["LeafSchedule", "OrderSpec"]

_JITTER_SPREAD = 1.5
"""Half-width of the shuffle window, in window sizes. A buffer of n samples moves a sample by n places on
average with an exponential tail; a uniform jitter of +-1.5 n moves it as far for most samples."""

_EARLIER = slice(4, 6)
"""Where a cursor has the share of an earlier, smaller dataset."""

_LEAST_GROUPS, _MOST_SAMPLES = 3, 8192
"""Merged groups that are kept: those that a reader is ahead of its consumer, as a rule, in 64 KiB a source."""


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """How a source is shuffled.

    Attributes:
        max_samples_per_sequence: Wanted length of a slice; None takes each shard's share whole.
        shuffle_window: Samples among which a sample is moved (``shuffle_buffer_size``); 0 or 1 for none.
        parallel_slices: Slices that are read side by side (``parallel_shard_iters``).
        shuffle_over_epochs: k permutes the slices of k passes together, -1 draws slices with
            replacement, None keeps the order of the dataset.
    """

    max_samples_per_sequence: int | None = None
    shuffle_window: int = 0
    parallel_slices: int = 1
    shuffle_over_epochs: int | None = None

    def __post_init__(self) -> None:
        if self.max_samples_per_sequence is not None and self.max_samples_per_sequence < 1:
            raise ConfigError(
                f"max_samples_per_sequence is {self.max_samples_per_sequence}",
                hint="use a positive number, or None to keep the shards whole",
            )
        if self.shuffle_window < 0:
            raise ConfigError(f"shuffle_buffer_size is {self.shuffle_window}", hint="use None for no shuffle")
        if self.parallel_slices < 1:
            raise ConfigError(f"parallel_shard_iters is {self.parallel_slices}", hint="use 1 or more")
        if self.shuffle_over_epochs is not None and not (
            self.shuffle_over_epochs == -1 or self.shuffle_over_epochs > 0
        ):
            raise ConfigError(
                f"shuffle_over_epochs_multiplier is {self.shuffle_over_epochs}",
                hint="use None, -1, or a positive number of passes",
            )
        if self.shuffle_over_epochs is None and self.parallel_slices > 1:
            raise ConfigError(
                f"parallel_shard_iters is {self.parallel_slices} but shuffle_over_epochs_multiplier is None",
                hint="slices that keep their order are read one by one: use parallel_shard_iters=1",
            )


@dataclass(slots=True)
class LeafSchedule:
    """One source, one stream: permuted slices, merged a group at a time.

    The slices are permuted by a bijection that is evaluated where it is needed. As many consecutive
    slices as are read side by side (or as the shuffle window needs) form a group. Inside a group the samples
    of each slice change places among themselves, as far as the shuffle window reaches; then the slices are
    merged in rounds, each of which takes from all slices alike, in an order of its own. So a batch has
    samples of as many slices as there can be, and the order is a function of
    (key, epoch, group, offset), its state is these integers, and neighbours of a slice are wanted at
    about the same time, which lets the reader fetch them together.

    The cursor is ``(epoch, given_out, group, offset)``. In a pass that began before the dataset grew, the first
    sample and one past the last of the share of then follow; the pass ends in that share.

    Args:
        leaf: Number of this source in the references.
        table: Slices of this stream.
        order: How to shuffle.
        key: Key of all random draws; different for each source and stream.

    Attributes:
        mean_group: Samples of a group, on average; 1 or more.
    """

    leaf: int
    table: SliceTable
    order: OrderSpec
    key: int
    mean_group: float = field(init=False)
    _per_group: int = field(init=False)
    _length: int = field(init=False)
    _groups: OrderedDict[tuple[int, int], Int64Array] = field(init=False, default_factory=OrderedDict)
    _kept: int = field(init=False, default=0)
    _earlier: dict[tuple[int, int], LeafSchedule] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        mean = max(1.0, self.table.num_samples / max(1, len(self.table)))
        window = self.order.shuffle_window if self.order.shuffle_window > 1 else 0
        self._length = self.table.num_samples * self._copies
        self._per_group = max(self.order.parallel_slices, int(np.ceil(window / mean)))
        self.mean_group = self._per_group * mean

    @property
    def _copies(self) -> int:
        return max(1, self.order.shuffle_over_epochs or 1)

    @property
    def _slots(self) -> int:
        return len(self.table) * self._copies

    @property
    def length(self) -> int:
        """References in one pass. With replacement, what one pass holds depends on the draws; the
        pass ends after as many references as the source has samples."""
        return self._length

    def begin(self, epoch: int = 0) -> Cursor:
        """Cursor at the start of a pass."""
        return (epoch, 0, 0, 0)

    def at(self, cursor: Cursor) -> LeafSchedule:
        """The schedule of the pass that a cursor is in: this one, or that of an earlier share."""
        share = cast("tuple[int, ...]", cursor)[_EARLIER]
        if not share:
            return self
        start, stop = share
        found = self._earlier.get((start, stop))
        if found is None:
            found = LeafSchedule(self.leaf, self.table.of(start, stop), self.order, self.key)
            self._earlier = {(start, stop): found}  # a stream has no more than one pass under way
        return found

    def _slices(self, epoch: int, group: int) -> Int64Array:
        slots = np.arange(group * self._per_group, (group + 1) * self._per_group, dtype=np.int64)
        if self.order.shuffle_over_epochs == -1:
            drawn = hash_uint64(derive_key(self.key, "draw", epoch), slots)
            return (drawn % np.uint64(len(self.table))).astype(np.int64)
        slots = slots[slots < self._slots]
        if self.order.shuffle_over_epochs is None:
            return slots
        return permute_indices(derive_key(self.key, "slices", epoch), self._slots, slots) % len(self.table)

    def _group(self, epoch: int, number: int) -> Int64Array:
        """Samples of a group in the order they are given out. A cursor follows the reader's: both need them."""
        samples = self._groups.get((epoch, number))
        if samples is None:
            self._groups[epoch, number] = samples = self._merge(epoch, number)
            self._kept += len(samples)
            while len(self._groups) > _LEAST_GROUPS and self._kept > _MOST_SAMPLES:
                self._kept -= len(self._groups.popitem(last=False)[1])
        return samples

    def _merge(self, epoch: int, number: int) -> Int64Array:
        starts, stops = self.table.bounds(self._slices(epoch, number))
        lengths = stops - starts
        total = int(lengths.sum())
        slot = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        samples: Int64Array = starts[slot] + place
        draw_key = derive_key(self.key, "merge", epoch, number)
        numbers = np.arange(total, dtype=np.int64)
        merged = self.order.shuffle_over_epochs is not None
        if self.order.shuffle_window > 1:
            # Of the samples that are given out within a window, each slice has its share.
            share = lengths[slot] / total if merged else 1.0
            jitter = uniform(derive_key(draw_key, "jitter"), numbers) - 0.5
            moved = place + jitter * (2 * _JITTER_SPREAD * self.order.shuffle_window) * share
            samples = samples[np.lexsort((moved, slot)) if merged else np.argsort(numbers + moved - place)]
        if merged:
            order_key = (place + uniform(draw_key, numbers)) / lengths[slot]
            samples = samples[np.argsort(order_key, kind="stable")]
        return samples

    def _step(self, cursor: Cursor, count: int) -> tuple[list[Int64Array], Cursor]:
        numbers = cast("tuple[int, ...]", cursor)
        epoch, given, number, offset = numbers[:4]
        schedule = self.at(cursor)
        left = min(count, schedule._length - given)
        given += left
        parts: list[Int64Array] = []
        while left > 0:
            samples = schedule._group(epoch, number)
            part = samples[offset : offset + left]
            parts.append(part)
            left -= len(part)
            offset += len(part)
            if offset == len(samples):
                number, offset = number + 1, 0
        return parts, (epoch, given, number, offset, *numbers[_EARLIER])

    def take(self, cursor: Cursor, count: int) -> tuple[Refs, Cursor]:
        """The next references and the cursor after them."""
        parts, after = self._step(cursor, count)
        index = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        return Refs(np.full(len(index), self.leaf, dtype=np.int32), index), after

    def advance(self, cursor: Cursor, count: int) -> Cursor:
        """The cursor after some more references."""
        return self._step(cursor, count)[1]

    def remaining(self, cursor: Cursor) -> int:
        """References left in this pass."""
        return self.length_at(cursor) - cast("tuple[int, ...]", cursor)[1]

    def length_at(self, cursor: Cursor) -> int:
        """References in the whole of the pass that a cursor is in."""
        return self.at(cursor)._length
