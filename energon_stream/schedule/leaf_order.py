"""The order of one leaf in one stream."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError
from energon_stream.rng import derive_key, hash_uint64, permute_indices, uniform
from energon_stream.schedule.saved import damaged
from energon_stream.schedule.schedule import LeafCursor, Refs

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.schedule.slices import SliceTable
    from energon_stream.selection import Selection

_JITTER_SPREAD = 1.5
"""Half-width of the shuffle window, in window sizes: it moves most samples as far as a buffer would."""

_LEAST_GROUPS, _MOST_SAMPLES = 3, 16384
"""Merged groups that are kept: as a rule all groups between a reader and its consumer, in 128 KiB a leaf."""
_COUNTED = 1 << 16  # slices that are counted at a time, in a few megabytes
_PERMUTED = 256  # slices that are permuted at a time: as many take hardly longer than a few


def check_multiplier(value: object) -> None:
    """Raise ConfigError for what is no number of passes to shuffle together."""
    hint = "use None, -1, or a positive number of passes, below 2**31"
    check_whole("shuffle_over_epochs_multiplier", value, -1, hint)
    if value is not None and not (value == -1 or 0 < int(value) < 1 << 31):  # type: ignore[call-overload]
        raise ConfigError(f"shuffle_over_epochs_multiplier is {value!r:.80}", hint=hint)


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """Options of a leaf's order."""

    # Wanted length of a slice; None takes each shard's share whole.
    max_samples_per_sequence: int | None = None
    # Number of samples among which a sample is moved (``shuffle_buffer_size``); 0 or 1 for none.
    shuffle_window: int = 0
    parallel_slices: int = 1  # number of slices that are read side by side (``parallel_shard_iters``)
    # k permutes the slices of k passes together, -1 draws slices with replacement, None keeps the order of
    # the dataset.
    shuffle_over_epochs: int | None = None

    def __post_init__(self) -> None:
        hint = "use a positive number, or None to keep the shards whole"
        check_whole("max_samples_per_sequence", self.max_samples_per_sequence, 1, hint)
        check_whole("shuffle_buffer_size", self.shuffle_window, 0, "use None for no shuffle")
        check_whole("parallel_shard_iters", self.parallel_slices, 1, "use 1 or more")
        check_multiplier(self.shuffle_over_epochs)
        for each in fields(self):  # numbers of numpy are no JSON, which states and digests are of
            value = getattr(self, each.name)
            object.__setattr__(self, each.name, None if value is None else int(value))
        if self.shuffle_over_epochs is None and self.parallel_slices > 1:
            raise ConfigError(
                f"parallel_shard_iters is {self.parallel_slices} but shuffle_over_epochs_multiplier is None",
                hint="slices that keep their order are read one by one: use parallel_shard_iters=1",
            )

    def describe(self) -> dict[str, int | None]:
        """Return plain values; ``asdict`` would copy each deeply, for each of a thousand leaves."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class LeafSchedule:
    """One leaf in one stream: permuted slices, merged a group at a time.

    A bijection, evaluated where it is needed, permutes the slices. A group is as many consecutive slices as
    are read side by side, or as the shuffle window needs. Inside a group, the samples of each slice change
    places among themselves, as far as the shuffle window reaches. Then rounds merge the slices; each round
    takes one share of every slice, in an order of its own. So a batch has samples of many slices, and
    neighbours of a slice are consumed at about the same time and can be fetched together.
    """

    leaf: int
    table: SliceTable
    order: OrderSpec
    key: int
    selection: Selection | None = None  # samples of a view, which the table numbers; None for all
    # The key of the plan, and the leaf's path in it with the number of its place in a blend between the ends:
    # the key at other places. None outside blends.
    place: tuple[int, str, int, str] | None = None
    mixed: int = 0  # samples that are mixed later, among which neighbours stay together; 0 for none
    # References in one pass. With replacement, the draws decide which samples these are.
    length: int = field(init=False)
    slots: int = field(init=False)  # slices in one pass, with repetitions
    slots_per_group: int = field(init=False)  # slices of one group; the last group may have fewer
    _groups: OrderedDict[tuple[int, int], Int64Array] = field(init=False, default_factory=OrderedDict)
    _kept: int = field(init=False, default=0)
    # Epoch, number of the first slot, and the slices of the slots from it on.
    _permuted: tuple[int, int, Int64Array] = field(init=False, default=(-1, 0, np.zeros(0, dtype=np.int64)))
    _earlier: LeafSchedule | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        mean = max(1.0, self.table.num_samples / max(1, len(self.table)))
        window = self.order.shuffle_window if self.order.shuffle_window > 1 else 0
        copies = max(1, self.order.shuffle_over_epochs or 1)
        self.length = self.table.num_samples * copies
        self.slots = len(self.table) * copies
        self.slots_per_group = max(self.order.parallel_slices, int(np.ceil(window / mean)))

    def begin(self, epoch: int = 0) -> LeafCursor:
        return LeafCursor(epoch, 0, 0, 0)

    def next_pass(self, cursor: LeafCursor, epoch: int) -> LeafCursor:
        return LeafCursor(epoch, 0, 0, 0, None, cursor.place)

    @property
    def is_gone(self) -> bool:
        """True if it stands for a dataset that a mixture had, of which no more than the size is known."""
        return self.leaf < 0

    @property
    def facts(self) -> tuple[int, int, int]:
        """``(length, slots, slots_per_group)``: what tells the size of groups."""
        return self.length, self.slots, self.slots_per_group

    def of_pass(self, cursor: LeafCursor) -> LeafSchedule:
        """Return the schedule of a cursor's pass, which may have a share and a place of its own."""
        share, place = cursor.share, cursor.place
        if share is None and place is None:
            return self
        begin, end = (self.table.start, self.table.stop) if share is None else share
        key = self.key
        if place is not None:
            if self.place is None:
                raise damaged(f"dataset {self.leaf} was at place {place} of a blend, and is in none")
            root, before, _, after = self.place
            key = derive_key(root, f"{before}/{place}{after}")
        found = self._earlier  # of at most one share and place: a stream has one pass under way
        if found is None or (found.table.start, found.table.stop, found.key) != (begin, end, key):
            if not 0 <= begin <= end <= self.table.shard_starts[-1]:
                raise damaged(f"samples {begin} to {end} of dataset {self.leaf} of the mixture")
            self._earlier = found = LeafSchedule(
                self.leaf, self.table.of(begin, end), self.order, key, self.selection
            )
        return found

    def count(self, epoch: int, slots: int) -> tuple[int, int]:
        """Count the samples of the first slices of a pass, and those of the group after them."""
        before, size, last = 0, 0, slots + self.slots_per_group
        for begin in range(0, last, _COUNTED):
            starts, stops = self.table.bounds(self._slices(epoch, begin, min(last, begin + _COUNTED)))
            lengths, cut = stops - starts, max(0, slots - begin)
            before += int(lengths[:cut].sum())
            size += int(lengths[cut:].sum())
        return before, size

    def find(self, epoch: int, group: int, samples: int) -> tuple[int, int]:
        """Return group and offset of the sample that is ``samples`` behind the first of a group."""
        per_group, repeats = self.slots_per_group, self.order.shuffle_over_epochs == -1
        shortest, longest = self.table.slice_lengths
        if shortest == longest:
            passed, offset = divmod(samples, per_group * longest)
            is_end = not repeats and (group * per_group) * longest + samples == self.length
            return (-(-self.slots // per_group), 0) if is_end else (group + passed, offset)
        step = max(1, _COUNTED // per_group)
        while True:
            slots = self._slices(epoch, group * per_group, (group + step) * per_group)
            if not len(slots):
                return group, samples
            starts, stops = self.table.bounds(slots)
            ends = np.cumsum(np.add.reduceat(stops - starts, np.arange(0, len(slots), per_group)))
            passed = int(np.searchsorted(ends, samples, side="right"))
            if passed < len(ends):
                return group + passed, samples - (int(ends[passed - 1]) if passed else 0)
            group, samples = group + len(ends), samples - int(ends[-1])

    def _slices(self, epoch: int, first: int, last: int) -> Int64Array:
        if self.order.shuffle_over_epochs == -1:
            drawn = hash_uint64(derive_key(self.key, "draw", epoch), np.arange(first, last, dtype=np.int64))
            return (drawn % np.uint64(len(self.table))).astype(np.int64)
        last = max(first, min(last, self.slots))
        if self.order.shuffle_over_epochs is None:
            return np.arange(first, last, dtype=np.int64)
        of, begin, slices = self._permuted
        if epoch != of or not begin <= first <= last <= begin + len(slices):
            begin, end = first, max(last, min(first + _PERMUTED, self.slots))
            slots = np.arange(begin, end, dtype=np.int64)
            key = derive_key(self.key, "slices", epoch)
            slices = permute_indices(key, self.slots, slots) % max(1, len(self.table))
            if len(slices) <= _PERMUTED:
                self._permuted = epoch, begin, slices
        return slices[first - begin : last - begin]

    def _group(self, epoch: int, number: int) -> Int64Array:
        """Samples of a group in their order. The reader's cursor and the consumer's use the same ones."""
        samples = self._groups.get((epoch, number))
        if samples is None:
            self._groups[epoch, number] = samples = self._merge(epoch, number)
            self._kept += len(samples)
            while len(self._groups) > _LEAST_GROUPS and self._kept > _MOST_SAMPLES:
                self._kept -= len(self._groups.popitem(last=False)[1])
        return samples

    def _merge(self, epoch: int, number: int) -> Int64Array:
        first = number * self.slots_per_group
        starts, stops = self.table.bounds(self._slices(epoch, first, first + self.slots_per_group))
        lengths = stops - starts
        total = int(lengths.sum())
        window: float = self.order.shuffle_window
        step = np.ones_like(lengths)
        if self.mixed:  # runs of a slice take the places of its samples
            step = np.maximum(1, lengths * min(self.mixed, total) // max(1, total))
            lengths = -(-lengths // step)
            window, total = window / max(1, total) * int(lengths.sum()), int(lengths.sum())
        slot = np.repeat(np.arange(len(lengths)), lengths)
        numbers = np.arange(total, dtype=np.int64)
        place = numbers - np.repeat(np.cumsum(lengths) - lengths, lengths)
        samples: Int64Array = starts[slot] + place * step[slot]
        draw_key, order = derive_key(self.key, "merge", epoch, number), numbers
        merged = self.order.shuffle_over_epochs is not None
        if window > 1:
            # Each slice has its share of the samples that are consumed within a window.
            share = lengths[slot] / total if merged else 1.0
            jitter = uniform(derive_key(draw_key, "jitter"), numbers) - 0.5
            moved = place + jitter * (2 * _JITTER_SPREAD * window) * share
            order = np.lexsort((moved, slot)) if merged else np.argsort(numbers + moved - place)
        if merged:
            order_key = (place + uniform(draw_key, numbers)) / lengths[slot]
            order = order[np.argsort(order_key, kind="stable")]
        if self.mixed:
            sizes = np.minimum(step[slot], stops[slot] - samples)[order]
            ends = np.cumsum(sizes)
            samples = np.repeat(samples[order] - ends + sizes, sizes) + np.arange(ends[-1:].sum())
        else:
            samples = samples[order]
        return samples if self.selection is None else self.selection.samples(samples, epoch)

    def _step(self, cursor: LeafCursor, count: int) -> tuple[list[Int64Array], LeafCursor]:
        epoch, position, number, offset, share, place = cursor
        schedule = self.of_pass(cursor)
        left = min(count, schedule.length - position)
        position += left
        parts: list[Int64Array] = []
        while left > 0:
            samples = schedule._group(epoch, number)
            part = samples[offset : offset + left]
            if not len(part):
                raise damaged(f"{tuple(cursor)} is no place in dataset {self.leaf} of the mixture")
            parts.append(part)
            left -= len(part)
            offset += len(part)
            if offset == len(samples):
                number, offset = number + 1, 0
        return parts, LeafCursor(epoch, position, number, offset, share, place)

    def take(self, cursor: LeafCursor, count: int) -> tuple[Refs, LeafCursor]:
        parts, after = self._step(cursor, count)
        index = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        return Refs(np.full(len(index), self.leaf, dtype=np.int32), index), after

    def advance(self, cursor: LeafCursor, count: int) -> LeafCursor:
        return self._step(cursor, count)[1]

    def remaining(self, cursor: LeafCursor) -> int:
        return self.length_at(cursor) - cursor.position

    def length_at(self, cursor: LeafCursor) -> int:
        return self.of_pass(cursor).length
