"""Deals samples to split parts: by their number, at random, and in fair shares."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import gcd, lcm

from energon_stream.errors import ConfigError
from energon_stream.index.shard_names import named_shares

_TRIES = 100
_PERIOD = 100
_DENOMINATOR = 1_000_000  # a share such as 0.3333333333333333 is the fraction 1/3


def parse_dealing(ratio: Sequence[float] | Mapping[str, float] | None) -> str:
    """Return shares as a text, the same for equal ratios; empty if all samples are in one split part.

    Raises ConfigError as :func:`~energon_stream.index.shard_names.split_by_ratio`.
    """
    shares = {} if ratio is None else named_shares(ratio)
    return json.dumps(shares) if sum(share > 0 for share in shares.values()) > 1 else ""


class Dealer:
    """Says which split part a sample belongs to, given its number among all samples.

    Of any number of first samples, each split part has its share, give or take one. Within short blocks,
    which have one or a few samples of the smallest share, chance decides: the parts show no order of the
    samples, sorted or periodic. It is the same chance in each run.

    Example:
        >>> dealer = Dealer('{"train": 8, "val": 1, "test": 1}')
        >>> found = [dealer.part(number) for number in range(3000)]
        >>> found.count("train"), found.count("val"), found.count("test")
        (2400, 300, 300)
    """

    def __init__(self, dealing: str) -> None:
        shares = {
            name: Fraction(share).limit_denominator(_DENOMINATOR)
            for name, share in json.loads(dealing).items()
        }
        common = lcm(*(share.denominator for share in shares.values()))
        self.names: tuple[str, ...] = tuple(shares)
        self._asked: tuple[str, ...] = tuple(name for name, share in shares.items() if share > 0)
        weights = [int(shares[name] * common) for name in self._asked]
        self._weights = tuple(weight // gcd(*weights) for weight in weights)
        period = sum(self._weights)  # after which each part has its exact share
        self._block = period if period <= _PERIOD else -(-2 * period // min(self._weights))

    def part(self, number: int) -> str:
        """Return the split part of the sample with a number, counted from 0."""
        block, place = divmod(number, self._block)
        return self._asked[_deal(self._weights, block * self._block, self._block)[place]]

    def check_number(self, number: int, where: str) -> None:
        """Raise ConfigError as :meth:`check`, if ``number`` samples are too few."""
        if number < self._block:
            self.check(Counter(map(self.part, range(number))), where)

    def check(self, counts: Mapping[str, int], where: str) -> None:
        """Raise ConfigError if a split part with a share has no samples."""
        check_filled({name: counts.get(name, 0) for name in self._asked}, where)


def check_filled(counts: Mapping[str, int], where: str) -> None:
    """Raise ConfigError if a split part with a share would have no samples."""
    if empty := [name for name, count in counts.items() if not count]:
        raise ConfigError(
            f"{' and '.join(empty)} would be empty: {sum(counts.values())} samples are too few for these shares",
            where=where,
            hint="give a larger share, or the share 0, for example 8,1,1 or 9,1,0",
        )


def _bounds(weights: Sequence[int], number: int) -> list[int]:
    """Return how many of the first samples each part has: shares rounded so that their sum is exact."""
    total, reached, counts = sum(weights), 0, [0]
    for weight in weights:
        reached += weight
        counts.append((2 * number * reached + total) // (2 * total))
    return [after - before for before, after in pairwise(counts)]


@lru_cache(maxsize=8)
def _deal(weights: tuple[int, ...], first: int, size: int) -> Sequence[int]:
    """Return the part of each sample of a block: a random order in which no part is off by more than one.

    Shuffles are tried first; then parts that are ahead wait, and one that is late is next.
    """
    total, before, after = sum(weights), _bounds(weights, first), _bounds(weights, first + size)
    draw = random.Random(f"{weights}/{first}")
    for attempt in range(2 * _TRIES):
        counts, order = [*before], list[int]()
        for number in range(first, first + size):
            left = [end - count for end, count in zip(after, counts, strict=True)]
            if attempt >= _TRIES:
                ahead = [n * total - weight * number for n, weight in zip(counts, weights, strict=True)]
                late = [weight - lead > total for weight, lead in zip(weights, ahead, strict=True)]
                may = (
                    late
                    if any(late)
                    else [lead <= weight for weight, lead in zip(weights, ahead, strict=True)]
                )
                left = [n * allowed for n, allowed in zip(left, may, strict=True)]
            if not any(left):
                break
            chosen = draw.choices(range(len(left)), left)[0]
            counts[chosen] += 1
            off = max(abs(n * total - w * (number + 1)) for n, w in zip(counts, weights, strict=True))
            if off > total or (off == total and attempt < _TRIES):  # else the midst of blocks is likelier
                break
            order.append(chosen)
        if len(order) == size:
            return order
    order = [part for part, (a, b) in enumerate(zip(before, after, strict=True)) for _ in range(b - a)]
    draw.shuffle(order)
    return order
