"""Virtual time: what passes while a program works, and while it waits for answers."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from energon_stream.tools.simulate.model import Costs

_TICK = 1e-10  # seconds, less than which is nothing


class Line:
    """The virtual clock, and what is done at the same time: the program, and its requests.

    The program and the sending of requests are Python's, which takes turns. Requests are sent one after
    another. Answers share the line equally, so one number, the work that each answer on the line has got
    since the beginning, says when each is received.
    """

    def __init__(self, costs: Costs, begin: float = 0.0) -> None:
        self.now: float = begin  # seconds since the beginning
        self.waited: float = 0.0  # seconds of these that the program waited
        self._is_one_core = costs.is_one_core
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sending: deque[tuple[float, Callable[[], None]]] = deque()
        self._sent = 0.0  # work done for the first of these
        self._receiving: list[tuple[float, int, Callable[[], None]]] = []
        self._shared = 0.0  # work that each answer on the line has got
        self._count = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Run an action at a time."""
        self._count += 1
        heapq.heappush(self._events, (time, self._count, action))

    def send(self, work: float, action: Callable[[], None]) -> None:
        """Run an action after some seconds of work, which begins when earlier requests are sent."""
        self._sending.append((work, action))

    def receive(self, work: float, action: Callable[[], None]) -> None:
        """Run an action when the line has done some seconds of work for an answer."""
        self._count += 1
        heapq.heappush(self._receiving, (self._shared + work, self._count, action))

    def step(self) -> None:
        """Go on to the next event, while the program waits."""
        python, line = self._shares(is_working=False)
        time = self._next(python, line)
        if time == math.inf:
            raise RuntimeError("the simulation waits for nothing; please report this bug")
        self.waited += time - self.now
        self._go(time, python, line)

    def work(self, seconds: float) -> None:
        """Let the program work for some seconds of CPU time."""
        while seconds > _TICK:
            python, line = self._shares(is_working=True)
            time = min(self._next(python, line), self.now + seconds / python)
            seconds -= (time - self.now) * python
            self._go(time, python, line)

    def _shares(self, is_working: bool) -> tuple[float, float]:
        """Return the speed of the program and of sending, and that of the line."""
        python = max(1, is_working + bool(self._sending))
        if self._is_one_core and self._receiving:
            both = is_working + bool(self._sending) + 1
            return 1 / both, 1 / both
        return 1 / python, 1.0

    def _next(self, python: float, line: float) -> float:
        """Return the time of the next event."""
        times = [self._events[0][0]] if self._events else []
        if self._sending:
            times.append(self.now + max(0.0, self._sending[0][0] - self._sent) / python)
        if self._receiving:
            left = max(0.0, self._receiving[0][0] - self._shared)
            times.append(self.now + left * len(self._receiving) / line)
        return min(times, default=math.inf)

    def _go(self, time: float, python: float, line: float) -> None:
        """Let time pass, and run the actions that are due then."""
        passed, self.now = time - self.now, time
        if self._sending:
            self._sent += passed * python
        if self._receiving:
            self._shared += passed * line / len(self._receiving)
        while self._sending and self._sending[0][0] <= self._sent + _TICK:
            self._sent = 0.0
            self._sending.popleft()[1]()
        while self._receiving and self._receiving[0][0] <= self._shared + _TICK:
            heapq.heappop(self._receiving)[2]()
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
