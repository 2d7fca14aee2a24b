"""Tasks of any engine: given out, tried again, and their results; and shares of them for array jobs."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from energon_stream.errors import ConfigError, EnergonStreamError, TransientStorageError, WorkerError

_T = TypeVar("_T")
_R = TypeVar("_R")

_AHEAD = 2  # tasks a slot that may be done or under way after the first missing result, in order


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one try of a task."""

    value: Any = None  # what the function returned
    # What it raised; None if it returned. A WorkerError if its process or machine was lost.
    error: Exception | None = None


class Runner(Protocol):
    """Runs tasks at the same time."""

    @property
    def slots(self) -> int:
        """Number of tasks that can run at the same time."""

    def submit(self, number: int, task: Any) -> None:
        """Start a task under a number. Called for at most ``slots`` tasks at the same time."""

    def wait(self) -> list[tuple[int, Outcome]]:
        """Wait until one task or more have ended; return them by number."""


class TaskEngine(ABC):
    """Maps a function over tasks."""

    def map(
        self,
        function: Callable[[_T], _R],
        tasks: Sequence[_T],
        *,
        in_order: bool = False,
        retries: int = 2,
        on_done: Callable[[int, int], None] | None = None,
    ) -> Iterator[_R]:
        """Run a function once for each task, in other processes, and yield what it returns.

        Work begins with the first ``next()``. It ends when all results were taken, when a task fails, when
        the iterator is closed, and within two seconds of Ctrl-C; tasks under way are then killed. So a
        function must leave nothing half done where somebody would take it for whole.

        A task is tried again if its process or machine was lost, or if it raised an OSError or a
        TransientStorageError. Another error would come again, so it ends the map at once.

        Args:
            function: Function of an importable module, a ``functools.partial`` of one, or another callable
                that can be pickled. It may run twice for a task, at the same time even, if a machine was
                taken for lost.
            tasks: Such as the paths of shards; they must be picklable, as the results.
            in_order: Yield results in the order of the tasks instead of as they come. No task begins that is
                far ahead of the first missing result, so few results are held.
            retries: How often a task is tried again.
            on_done: Called with the number of tasks that are done, and of all tasks.

        Yields:
            What the function returned, once for each task.

        Raises:
            WorkerError: A task lost its process or machine on each try.
            Exception: What the function raised.
        """
        if tasks:
            with self._open(function) as runner:
                yield from _TaskRun(runner, tasks, in_order, retries, on_done).results()

    @abstractmethod
    def _open(self, function: Callable[[Any], Any]) -> AbstractContextManager[Runner]:
        """Return a runner for a function. Leaving the context ends it, and the tasks under way."""


class _TaskRun:
    """One call of :meth:`TaskEngine.map`."""

    def __init__(
        self,
        runner: Runner,
        tasks: Sequence[Any],
        in_order: bool,
        retries: int,
        on_done: Callable[[int, int], None] | None,
    ) -> None:
        self._runner, self._tasks = runner, tasks
        self._in_order, self._retries, self._on_done = in_order, retries, on_done
        self._tries: dict[int, int] = {}  # of the tasks that failed
        self._again: deque[int] = deque()
        self._next = self._running = self._done = self._yielded = 0
        self._held: dict[int, Any] = {}  # results that wait for an earlier one

    def results(self) -> Iterator[Any]:
        """Yield the result of each task."""
        while self._done < len(self._tasks):
            self._submit()
            ended = [self._end(number, outcome) for number, outcome in self._runner.wait()]
            self._submit()  # the next tasks run while the caller looks at these results
            for number, value in filter(None, ended):
                if not self._in_order:
                    yield value
                    continue
                self._held[number] = value
                while self._yielded in self._held:
                    self._yielded += 1
                    yield self._held.pop(self._yielded - 1)

    def _submit(self) -> None:
        limit = len(self._tasks)
        if self._in_order:
            limit = min(limit, self._yielded + _AHEAD * self._runner.slots)
        while self._running < self._runner.slots and (self._again or self._next < limit):
            number = self._again.popleft() if self._again else self._next
            self._next = max(self._next, number + 1)
            self._runner.submit(number, self._tasks[number])
            self._running += 1

    def _end(self, number: int, outcome: Outcome) -> tuple[int, Any] | None:
        """Note the end of a try; return number and result, or None if the task is tried again."""
        self._running -= 1
        error = outcome.error
        if error is None:
            self._done += 1
            if self._on_done is not None:
                self._on_done(self._done, len(self._tasks))
            return number, outcome.value
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        if tries > self._retries or not _may_pass(error):
            raise error
        self._again.append(number)
        return None


def _may_pass(error: Exception) -> bool:
    """Return True if another try may succeed."""
    if isinstance(error, (TransientStorageError, WorkerError)):
        return True
    return isinstance(error, OSError) and not isinstance(error, EnergonStreamError)


@dataclass(frozen=True, slots=True)
class Part:
    """One of several shares of some work, which run as separate jobs.

    Raises:
        ConfigError: The numbers do not fit.

    Example:
        >>> Part.parse("1/3").of(["a", "b", "c", "d", "e"])
        ['b', 'e']
    """

    number: int  # counts from 0
    parts: int  # number of all parts

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.parts:
            raise ConfigError(
                f"part {self.number} of {self.parts} parts", hint="parts count from 0: 0/4, 1/4, 2/4, 3/4"
            )

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that a text such as ``"0/8"`` names."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if found is None:
            raise ConfigError(f"{text!r:.40} is not a part", hint="give NUMBER/PARTS, such as 0/8")
        return cls(int(found[1]), int(found[2]))

    def of(self, tasks: Sequence[_T]) -> list[_T]:
        """Return this part's share: every ``parts``-th task, so that all parts have much the same work."""
        return list(tasks[self.number :: self.parts])

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"
