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

_ANY_SIZE = 1
_MOST_REPEATS = 2  # where one answer in fifty is late, one late one in fifty has a late second one


@dataclass(slots=True)
class _Attempt:
    size: int
    urgency: tuple[int, int]
    started: float
    answers: bool = False  # its first bytes are there
    repeats: int = 0
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
        self._to_end = LatencyModel()
        # Hardly depends on the size and is short, so it tells much sooner that a request is late.
        self._to_first_byte = LatencyModel()
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
        attempt = self._under_way[request] = _Attempt(size, urgency, now)
        late_after = self._late_after(attempt)
        if late_after is not None and now + late_after < self._look_at:
            self._wake(now + late_after)

    def answers(self, request: T, seconds: float) -> None:
        """The first bytes of an answer are there."""
        if not self._active:
            return
        if request in self._under_way:
            self._under_way[request].answers = True
        if self._to_first_byte.observe(_ANY_SIZE, seconds) and self._under_way:
            self._wake(time.monotonic())  # what is under way began before the model knew enough

    def left(self, size: int) -> None:
        """Of what was asked for twice, ``size`` bytes were not sent twice."""
        self._budget.give_back(size)

    def ended(self, request: T) -> None:
        """The attempt is over, or nobody waits for it any more."""
        self._under_way.pop(request, None)

    def answered(self, size: int, seconds: float) -> None:
        """An attempt brought its bytes."""
        if not self._active:
            return
        if self._to_end.observe(size, seconds) and self._under_way:
            self._wake(time.monotonic())

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

    def _late_after(self, attempt: _Attempt) -> float | None:
        """Seconds after which an attempt is late, with its first bytes or with the last; None if not known."""
        to_end = self._to_end.late_after(attempt.size)
        to_first_byte = None if attempt.answers else self._to_first_byte.late_after(_ANY_SIZE)
        if to_end is None or to_first_byte is None:
            return to_end if to_first_byte is None else to_first_byte
        return min(to_end, to_first_byte)

    def _repeat_late(self, now: float, pause: float) -> float:
        """Repeat what is late beyond a pause of the machine, and may be; returns when to look again."""
        next_look = math.inf
        late: list[tuple[tuple[int, int], float, T]] = []
        for request, attempt in self._under_way.items():
            late_after = self._late_after(attempt)
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
                attempt.repeats += 1
                attempt.started, attempt.answers = now, False  # the second request may be late, too
                if attempt.repeats == _MOST_REPEATS:
                    del self._under_way[request]
            attempt.look_at = now + late_after
            next_look = min(next_look, attempt.look_at)
        return next_look
