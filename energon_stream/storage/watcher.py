"""Looks after requests under way, and has the late ones asked a second time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from energon_stream.storage.hedge import HedgeBudget, LatencyModel

__all__ = ["LateWatcher"]

T = TypeVar("T")


@dataclass(slots=True)
class _Attempt:
    size: int
    urgency: tuple[int, int]
    started: float
    look_at: float = 0.0  # not to be looked at before, though it may be late


class LateWatcher(Generic[T]):
    """Knows which requests are under way, and calls ``repeat`` for those that are late.

    Its thread sleeps until the first moment at which one of them can be late, for ever while there
    is none. All methods but :meth:`run` are called with the lock held, and so is ``repeat``.

    Args:
        lock: The owner's lock.
        share: Bytes that may be asked for twice, as a share of all bytes asked for; 0 watches nothing.
        repeat: Starts a second request, or says that there is no room for one now.
        start: Starts the thread, whose work is :meth:`run`.
    """

    def __init__(
        self, lock: threading.Lock, share: float, repeat: Callable[[T], bool], start: Callable[[], None]
    ) -> None:
        self._lock = lock
        self._active = share > 0
        self._budget = HedgeBudget(share)
        self._model = LatencyModel()
        self._repeat = repeat
        self._start = start
        self._under_way: dict[T, _Attempt] = {}
        self._look_at = math.inf
        self._signals: SimpleQueue[bool] | None = None

    def asked(self, size: int) -> None:
        """``size`` more bytes are asked for."""
        self._budget.earn(size)

    def began(self, request: T, size: int, urgency: tuple[int, int]) -> None:
        """An attempt begins that may be repeated; of several late ones the most urgent is repeated first."""
        if not self._active:
            return
        now = time.monotonic()
        self._under_way[request] = _Attempt(size, urgency, now)
        late_after = self._model.late_after(size)
        if late_after is not None and now + late_after < self._look_at:
            self._wake(now + late_after)

    def ended(self, request: T) -> None:
        """The attempt is over, and says nothing of how long answers take."""
        self._under_way.pop(request, None)

    def answered(self, size: int, seconds: float) -> None:
        """An attempt brought its bytes."""
        if not self._active:
            return
        if self._model.observe(size, seconds) and self._under_way:
            self._wake(time.monotonic())  # what is under way began before the model knew enough

    def stop(self) -> None:
        """End the thread."""
        if self._signals is not None:
            self._signals.put(False)

    def run(self) -> None:
        """The work of the thread."""
        signals, goes_on = self._signals, True
        while signals is not None and goes_on:
            with self._lock:
                now = time.monotonic()
                overslept = max(0.0, now - self._look_at)  # what the machine adds to answers now, too
                self._look_at = self._repeat_late(now, overslept)
                wait = None if self._look_at == math.inf else max(0.0, self._look_at - now)
            try:
                goes_on = signals.get(timeout=wait)
            except Empty:
                continue

    def _wake(self, look_at: float) -> None:
        self._look_at = look_at
        if self._signals is None:
            self._signals = SimpleQueue()
            self._start()
        else:
            self._signals.put(True)

    def _repeat_late(self, now: float, pause: float) -> float:
        """Repeat what is late beyond a pause of the machine, and may be; returns when to look again."""
        next_look = math.inf
        late: list[tuple[tuple[int, int], float, T]] = []
        for request, attempt in self._under_way.items():
            late_after = self._model.late_after(attempt.size)
            if late_after is None:
                continue
            look_at = max(attempt.started + late_after + pause, attempt.look_at)
            if look_at <= now:
                late.append((attempt.urgency, late_after, request))
            else:
                next_look = min(next_look, look_at)
        for _, late_after, request in sorted(late, key=lambda entry: entry[0]):
            attempt = self._under_way[request]
            if self._budget.can_spend(attempt.size) and self._repeat(request):
                self._budget.spend(attempt.size)
                del self._under_way[request]
            else:
                attempt.look_at = now + late_after
                next_look = min(next_look, attempt.look_at)
        return next_look
