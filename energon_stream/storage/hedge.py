"""Which requests are late, and how many bytes may be asked for twice. Pure: no clock, no threads."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

__all__ = ["HedgeBudget", "LatencyModel"]

_REMEMBERED = 64  # durations a size class
_ENOUGH = 12  # of them, before anything is called late
_LATE = 2.0  # times the median
_FLOOR = 0.05  # seconds more; what a busy machine can add to a fast answer
_QUANTILE = 0.9
_BEYOND = 1.25  # times the quantile
_ALLOWANCE = 256 * 1024  # bytes that even a short run may hedge
_MOST_SAVED = 64 * 1024 * 1024  # bytes of allowance that quiet hours can save up


class LatencyModel:
    """The usual duration of a request by its size, learnt from answers.

    Sizes fall in classes of powers of two; a class knows its last 64 durations. A request is late after twice
    their median and 50 ms, and not before a quarter more than their 90th percentile. ("The Tail at Scale",
    Dean and Barroso, CACM 56(2), 2013, sends a second request at the 95th percentile; answers come in bursts, so
    a high percentile of a few of them says more of the last burst than of the store.) A class that has seen fewer
    than 12 answers borrows from the nearest that has seen them: as it is from a larger one, whose
    requests take longer, and in proportion to the size from a smaller one, which is too much by the
    time to the first byte. Where a tenth of all answers is slow, slow is usual, and nothing is late.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._sorted: dict[int, list[float]] = {}
        self._late_after: dict[int, float] = {}

    def observe(self, size: int, seconds: float) -> bool:
        """Learn from the answer to a request of ``size`` bytes; tells when its class becomes known by it."""
        kind = size.bit_length()
        recent = self._recent.setdefault(kind, deque())
        ordered = self._sorted.setdefault(kind, [])
        if len(recent) == _REMEMBERED:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(seconds)
        insort(ordered, seconds)
        if len(ordered) < _ENOUGH:
            return False
        is_new = kind not in self._late_after
        usual, slow = ordered[len(ordered) // 2], ordered[int(_QUANTILE * len(ordered))]
        self._late_after[kind] = max(_LATE * usual + _FLOOR, _BEYOND * slow)
        return is_new

    def late_after(self, size: int) -> float | None:
        """Seconds after which a request of ``size`` bytes is late; None while that is not known."""
        kind = size.bit_length()
        known = self._late_after.get(kind)
        if known is not None or not self._late_after:
            return known
        nearest = min(self._late_after, key=lambda other: abs(other - kind))
        return self._late_after[nearest] * 2.0 ** max(0, kind - nearest)


class HedgeBudget:
    """Keeps the bytes asked for twice below a share of all bytes asked for.

    They are at no time more than ``share`` of what was asked for so far, or 256 KiB where that is
    more: a short run may repeat a handful of small requests, and no large one.

    Args:
        share: Bytes asked for twice, as a share of the bytes asked for; 0 allows none.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._earned = 0.0
        self._spent = 0
        self._allowance = _ALLOWANCE if share else 0

    def earn(self, size: int) -> None:
        """Note that a request of ``size`` bytes is asked for."""
        self._earned = min(self._earned + self._share * size, self._spent + _MOST_SAVED)

    def can_spend(self, size: int) -> bool:
        """Whether ``size`` bytes may be asked for again."""
        return self._spent + size <= max(self._earned, self._allowance)

    def spend(self, size: int) -> None:
        """Note that ``size`` bytes are asked for again."""
        self._spent += size

    def give_back(self, size: int) -> None:
        """Note that ``size`` bytes that were asked for again are not sent."""
        self._spent -= size
