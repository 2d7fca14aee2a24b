"""Pure rules of second requests, without clock or threads: lateness, and a budget of bytes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import inf

_REMEMBERED = 64  # durations per size class
_ENOUGH = 12  # durations, before any request of the class is called late
_LATE = 2.0  # times the median, for sizes of a class differ by a factor of two
_FLOOR = 0.05  # seconds more; what a busy machine can add to a fast answer
_LATE_FIRST_BYTE = 1.25  # the same for the time to the first byte, which hardly depends on the size
_FLOOR_FIRST_BYTE = 0.02
_SOONEST = 0.06  # seconds; before, no request is late: a busy machine delays any answer that long
_QUANTILE = 0.9
_BEYOND = 1.25  # times the quantile
_EARLY = 2.5  # times the longest of the first answers
_ALLOWANCE = 6 * 1024 * 1024  # bytes that even a short run may repeat: one large request
_MOST_SAVED = 64 * 1024 * 1024  # bytes of allowance that quiet hours can save up


class LatencyModel:
    """Learns the usual duration of requests by size, from answers.

    Sizes fall in classes of powers of two; a class remembers its last 64 durations. A request is late after
    ``late`` times their median and ``floor`` seconds, but not before 1.25 times their 90th percentile, nor
    before 60 ms. ("The Tail at Scale", Dean and Barroso, CACM 56(2), 2013, sends a second request at the
    95th percentile. Answers come in bursts, so a high percentile of a few answers says more of the last burst
    than of the store.) A class with fewer than 12 answers borrows from the nearest class that has them:
    unchanged from a larger size, whose requests take longer; in proportion to the size from a smaller one,
    which is too much by the time to the first byte. If a tenth of all answers is slow, slow is usual, and no
    request is late.
    """

    def __init__(self, late: float = _LATE, floor: float = _FLOOR) -> None:
        # Durations of a class, the latest ones last, and the same in ascending order.
        self.seen: dict[int, tuple[deque[float], list[float]]] = {}
        self._late_after: dict[int, float] = {}
        self._late, self._floor = late, floor
        self._longest = 0.0  # of the first answers, before any class is known

    @classmethod
    def of_first_bytes(cls) -> LatencyModel:
        """Return a model of the time to the first byte, which depends on the store, not on the line."""
        return cls(_LATE_FIRST_BYTE, _FLOOR_FIRST_BYTE)

    def observe(self, size: int, seconds: float) -> bool:
        """Learn from an answer; return True if more requests may be late than before."""
        kind = size.bit_length()
        recent, ordered = self.seen.setdefault(kind, (deque(), []))
        if len(recent) == _REMEMBERED:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(seconds)
        insort(ordered, seconds)
        if len(ordered) < _ENOUGH:
            is_first = not self._longest
            self._longest = max(self._longest, seconds)
            return is_first
        is_new = kind not in self._late_after
        usual, slow = ordered[len(ordered) // 2], ordered[int(_QUANTILE * len(ordered))]
        self._late_after[kind] = max(self._late * usual + self._floor, _BEYOND * slow, _SOONEST)
        return is_new

    @property
    def early(self) -> float:
        """Seconds after which a request is late while no class is known; infinite without any answer.

        A reader's first requests are few, and all wait for the slowest of them.
        """
        return _EARLY * self._longest + _FLOOR if self._longest and not self._late_after else inf

    @property
    def fastest(self) -> float:
        """Seconds of the fastest remembered answer of any size; 0 without any."""
        return min((ordered[0] for _, ordered in self.seen.values()), default=0.0)

    def late_after(self, size: int) -> float:
        """Return the seconds after which a request of ``size`` bytes is late; infinite while unknown."""
        if not self._late_after:
            return inf
        kind = size.bit_length()
        nearest = min(self._late_after, key=lambda other: abs(other - kind))
        return self._late_after[nearest] * 2.0 ** max(0, kind - nearest)


class HedgeBudget:
    """Keeps the bytes that are requested twice below a share of all requested bytes.

    At no time are they more than ``share`` of the bytes requested so far, or 6 MiB if that is more: a short
    run may repeat one large request, or many small ones.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.earned: float = 0.0  # bytes that may be repeated, for the bytes requested so far
        self._spent = 0
        self._allowance = _ALLOWANCE if share else 0

    def earn(self, size: int) -> None:
        """Note that ``size`` more bytes are requested; a negative number takes that back."""
        self.earned = min(self.earned + self._share * size, self._spent + _MOST_SAVED)

    def can_spend(self, size: int) -> bool:
        return self._spent + size <= max(self.earned, self._allowance)

    def spend(self, size: int) -> None:
        """Note that ``size`` bytes are requested again; a negative number takes that back."""
        self._spent += size
