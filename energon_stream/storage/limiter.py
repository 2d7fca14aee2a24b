"""Pure rule for how many requests may be in flight at a store that rejects some, without clock or threads."""

from __future__ import annotations

_WINDOW = 64  # attempts per decision
_SHORT_WINDOW = 24  # attempts per decision when few are in flight, and 64 would take long
_TOLERATED = 0.25  # share of rejections; 2/7 would be 1.4 attempts per success
_KEPT = 0.8  # rejections of a fifth must not shrink the limit, see below


class ConcurrencyLimit:
    """Additive increase, multiplicative decrease, on the share of rejections in a window of attempts.

    After a window with at most a quarter of rejections, the limit grows by a sixteenth of the largest (or by
    a quarter of itself if that is less). A worse window ends at the rejection that makes it certain, and
    shrinks the limit to what the store accepted plus a fifth: ``limit * accepted share / 0.8``, at least one
    less and at most half. So rejections that depend on the load keep the limit near what the store accepts.
    Random rejections of a fifth, which a lower limit would not reduce, leave it near the largest.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self.limit: int = largest  # requests that may be in flight now, 1 or more
        self._attempts = self._rejections = 0
        self._before = 0  # rejections of the window before
        self._ignored = 0

    @property
    def has_rejected(self) -> bool:
        """True if the store rejected some of the latest attempts."""
        return self._rejections + self._before > 0

    @property
    def is_wide(self) -> bool:
        """True if rejections have hardly shrunk the limit, so that they do not depend on the load."""
        return self.limit > self._largest // 2

    def observe(self, *, rejected: bool, in_flight: int) -> None:
        """Learn from an answer to one of ``in_flight`` requests: whether the store rejected it."""
        if self._ignored:  # it was in flight before the limit shrank, and says nothing about the new limit
            self._ignored -= 1
            return
        self._attempts += 1
        self._rejections += rejected
        window = min(_WINDOW, max(_SHORT_WINDOW, 4 * self.limit))
        if self._rejections > _TOLERATED * window:
            accepted = 1 - self._rejections / self._attempts
            kept = int(self.limit * max(0.5, accepted / _KEPT))
            self.limit = max(1, min(self.limit - 1, kept))
            self._ignored = max(0, in_flight - 1)
        elif self._attempts >= window:
            step = max(1, min(self._largest // 16, self.limit // 4))
            self.limit = min(self._largest, self.limit + step)
        else:
            return
        self._before = self._rejections
        self._attempts = self._rejections = 0
