"""Packers: pure functions that deal the sizes of samples into groups, for ``select_samples_to_pack``."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TypeVar

from energon_stream.errors import ConfigError

T = TypeVar("T")

Packer = Callable[[Sequence[int], int], list[list[int]]]
"""``packer(sizes, capacity)`` returns groups of places in ``sizes``; each place is in exactly one group."""


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
