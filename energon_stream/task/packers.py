"""Packers: pure functions that deal the sizes of samples into groups, for ``select_samples_to_pack``."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any, Literal, TypeVar, get_args

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError, SkipSample
from energon_stream.pipeline.dataset import function_label
from energon_stream.pipeline.failure_notes import FAILED_SAMPLE
from energon_stream.pipeline.failures import field_of
from energon_stream.pipeline.pack_members import PackedSamplesOutput, PartialSample
from energon_stream.schedule.pack_spec import Overlong

T = TypeVar("T")

Packer = Callable[[Sequence[int], int], list[list[int]]]
"""``packer(sizes, capacity)`` returns groups of places in ``sizes``; each place is in exactly one group."""


class LengthPacker:
    """Selects packs of samples by their lengths, as the ``packer`` of a task encoder.

    Samples of packs that others may still fill wait for the next selection, but never for long: the pack of
    the first sample is always made. No sample is dropped, except as below, and none is repeated.

    Args:
        length: Function that returns the length of a sample, such as its number of tokens.
        capacity: Largest sum of a pack's lengths.
        method: ``"best_fit"`` puts the longest samples first, each into the fullest pack that has room;
            ``"first_fit"`` takes them as they come, into the first pack that has room; ``"greedy"`` fills one
            pack after the other, and needs no buffer (``packing_buffer_size="stream"``). Or one of this
            module's packers, or your own.
        overlong: What becomes of a sample that is longer than the capacity: ``"error"``, ``"drop"`` leaves it
            out, ``"split"`` cuts it into parts (``PartialSample``), all but the last of them full packs.

    A sample of length 0, or for which ``length`` raises ``SkipSample``, is left out, too. The log says how
    many samples were left out.

    Raises:
        ConfigError: An option is impossible, or, while it packs, a length is: the error has the sample's key.

    Example:
        >>> from energon_stream import DefaultTaskEncoder, LengthPacker
        >>> class Packs(DefaultTaskEncoder):
        ...     packer = LengthPacker(lambda sample: len(sample.text), capacity=100, overlong="split")
        ...
        ...     def pack_selected_samples(self, samples):
        ...         return samples
        >>> LengthPacker(len, capacity=4).select_samples_to_pack(["a", "bb", "ccc", "ddd"])
        PackedSamplesOutput(packs=[['ccc', 'a'], ['ddd']], pushback=['bb'])
    """

    def __init__(
        self,
        length: Callable[[Any], int],
        capacity: int,
        method: Literal["best_fit", "first_fit", "greedy"] | Packer = "best_fit",
        overlong: Overlong = "error",
    ) -> None:
        methods = {"best_fit": best_fit_decreasing, "first_fit": first_fit, "greedy": _greedy}
        check_whole("capacity", capacity, 1, "use 1 or more")
        for name, value, known in (("method", method, methods), ("overlong", overlong, get_args(Overlong))):
            if value not in known and not (name == "method" and callable(value)):
                raise ConfigError(f"{name} is {value!r:.80}", hint=f"use one of {', '.join(known)}")
        self.length: Callable[[Any], int] = length
        self.capacity: int = int(capacity)
        self.overlong = overlong
        self._pack: Packer = method if callable(method) else methods[method]

    def describe(self) -> dict[str, Any]:
        """Return the options in plain values: a state of other ones is refused."""
        return {"capacity": self.capacity, "method": function_label(self._pack), "overlong": self.overlong}

    def select_samples_to_pack(self, samples: list[Any]) -> PackedSamplesOutput[Any]:
        """Make at least half of the packs of a buffer, the fullest ones; the other samples wait."""
        pieces = [piece for sample in samples for piece in self._pieces(sample)]
        groups = self._pack([length for _, length in pieces], self.capacity)
        numbers, count = list(range(len(groups))), max(1, len(groups) - 1)
        if self._pack is not _greedy:
            filled = [sum(pieces[place][1] for place in group) for group in groups]
            if max(filled, default=0) > self.capacity:
                raise ConfigError(
                    f"{function_label(self._pack)} made a pack of {max(filled)}, and capacity is {self.capacity}",
                    hint="let it return groups whose sizes add up to the capacity at most",
                )
            numbers.sort(key=lambda number: (0 not in groups[number], -filled[number]))
            count = (len(groups) + 1) // 2
        packs = [groups[number] for number in sorted(numbers[:count])]
        used = {place for pack in packs for place in pack}
        rest = [piece for place, (piece, _) in enumerate(pieces) if place not in used]
        return PackedSamplesOutput([[pieces[place][0] for place in pack] for pack in packs], rest)

    def select_next_pack(self, samples: Iterator[Any]) -> PackedSamplesOutput[Any]:
        """Take samples until one does not fit, which waits."""
        if self._pack is not _greedy:
            raise ConfigError(
                f"{function_label(self._pack)} chooses among samples, and packing_buffer_size is 'stream'",
                hint='set a number of samples, or LengthPacker(method="greedy")',
            )
        pack: list[Any] = []
        room = self.capacity
        for sample in samples:
            pieces = self._pieces(sample)
            for place, (piece, length) in enumerate(pieces):
                if length > room:
                    return PackedSamplesOutput([pack], [piece for piece, _ in pieces[place:]])
                pack.append(piece)
                room -= length
        return PackedSamplesOutput([pack])

    def _pieces(self, sample: Any) -> list[tuple[Any, int]]:
        """Return a sample, or its parts, with their lengths; nothing if it is left out."""
        if isinstance(sample, PartialSample):
            return [(sample, sample.slice.stop - sample.slice.start)]
        try:
            length: Any = self.length(sample)
        except SkipSample:
            return []
        except Exception as error:
            error.__dict__[FAILED_SAMPLE] = sample
            raise
        where = f"sample {field_of(sample, '__key__')}"
        try:
            size = index(length)  # also of a tensor
        except TypeError:
            size = -1
        if size < 0:
            hint = "return a whole number from 0 on"
            raise ConfigError(f"the length of a sample is {length!r:.80}", where=where, hint=hint)
        if size > self.capacity and self.overlong == "error":
            raise ConfigError(
                f"a sample of length {size} does not fit a pack of {self.capacity}",
                where=where,
                hint='set overlong="split" or "drop", or a larger capacity',
            )
        if size <= self.capacity:
            return [(sample, size)] if size else []
        starts = range(0, size, self.capacity) if self.overlong == "split" else ()
        parts = [slice(start, min(start + self.capacity, size)) for start in starts]
        return [(PartialSample(sample, part), part.stop - part.start) for part in parts]


def _greedy(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Fill one group after the other, in order."""
    groups: list[list[int]] = []
    room = 0
    for place, size in enumerate(sizes):
        if size > room or not groups:
            groups.append([])
            room = capacity
        groups[-1].append(place)
        room -= size
    return groups


def pack_by_size(
    samples: Sequence[T], sizes: Sequence[int], *, capacity: int, method: Packer
) -> list[list[T]]:
    """Deal samples into groups whose sizes add up to at most ``capacity``.

    Args:
        samples: The samples to pack.
        sizes: Size of each sample, for example its number of tokens.
        capacity: Largest sum of a group's sizes.
        method: One of this module's packers, or your own.

    Raises:
        ConfigError: A sample is larger than the capacity, or has no positive size.

    Example:
        >>> from energon_stream import DefaultTaskEncoder, best_fit_decreasing, pack_by_size
        >>> class Packs(DefaultTaskEncoder):
        ...     def select_samples_to_pack(self, samples):
        ...         sizes = [len(sample) for sample in samples]
        ...         return pack_by_size(samples, sizes, capacity=8, method=best_fit_decreasing)
        >>> Packs().select_samples_to_pack(["aaaaa", "bbbb", "ccc", "dd"])
        [['aaaaa', 'ccc'], ['bbbb', 'dd']]
    """
    if len(sizes) != len(samples):
        raise ConfigError(
            f"{len(samples)} samples but {len(sizes)} sizes", hint="pass one size for each sample"
        )
    for sample, size in zip(samples, sizes, strict=True):
        if not 0 < size <= capacity:
            raise ConfigError(
                f"a sample of size {size} does not fit a pack of {capacity}",
                where=str(getattr(sample, "__key__", None)),
                hint="truncate or skip it in encode_sample, or raise the capacity",
            )
    return [[samples[place] for place in group] for group in method(sizes, capacity)]


def first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Put each sample, in order, into the first group that has room.

    It keeps the order of arrival better than the others; O(n * groups).

    Example:
        >>> from energon_stream import first_fit
        >>> first_fit([5, 4, 3, 2], capacity=8)
        [[0, 2], [1, 3]]
    """
    groups: list[list[int]] = []
    room: list[int] = []
    for place, size in enumerate(sizes):
        number = next((number for number, left in enumerate(room) if left >= size), None)
        if number is None:
            groups.append([place])
            room.append(capacity - size)
        else:
            groups[number].append(place)
            room[number] -= size
    return groups


def best_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Put the largest samples first, each into the fullest group that has room; O(n log n).

    It makes at most 11/9 of the best possible number of groups, plus one (Johnson et al., "Worst-Case
    Performance Bounds for Simple One-Dimensional Packing Algorithms", SIAM J. Comput. 3, 1974).

    Example:
        >>> from energon_stream import best_fit_decreasing
        >>> best_fit_decreasing([2, 3, 4, 7], capacity=9)
        [[3, 0], [2, 1]]
    """
    groups: list[list[int]] = []
    by_room: list[tuple[int, int]] = []  # (room left, group), sorted
    for place in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        size = sizes[place]
        found = bisect.bisect_left(by_room, (size, -1))
        if found == len(by_room):
            number = len(groups)
            groups.append([])
            left = capacity
        else:
            left, number = by_room.pop(found)
        groups[number].append(place)
        bisect.insort(by_room, (left - size, number))
    return groups


def histogram_pack(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack by the histogram of sizes: longest-pack-first histogram packing (LPFHP).

    Sizes are taken from the largest down. All samples of a size go into the groups whose room they fill best.
    The cost depends on the number of *different* sizes, not on the number of samples (Krell et al.,
    "Efficient Sequence Packing without Cross-contamination", arXiv 2107.02027).

    Example:
        >>> from energon_stream import histogram_pack
        >>> sorted(map(sorted, histogram_pack([5, 4, 3, 2], capacity=8)))
        [[0, 2], [1, 3]]
    """
    places: dict[int, list[int]] = {}
    for place, size in enumerate(sizes):
        places.setdefault(size, []).append(place)
    shapes: dict[int, list[tuple[int, tuple[int, ...]]]] = {}  # room -> (how many groups, their sizes)
    for size in sorted(places, reverse=True):
        left = len(places[size])
        while left:
            room = min((room for room in shapes if room >= size), default=None)
            if room is None:
                together = capacity // size
                full, rest = divmod(left, together)
                for count, number in ((full, together), (1, rest)):
                    if count and number:
                        shapes.setdefault(capacity - number * size, []).append((count, (size,) * number))
                break
            count, shape = shapes[room].pop()
            if not shapes[room]:
                del shapes[room]
            used = min(count, left)
            if count > used:
                shapes.setdefault(room, []).append((count - used, shape))
            shapes.setdefault(room - size, []).append((used, (*shape, size)))
            left -= used
    return [
        [places[size].pop() for size in shape]
        for found in shapes.values()
        for count, shape in found
        for _ in range(count)
    ]
