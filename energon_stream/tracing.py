"""A record of what a process does, while somebody asks for it, as events of Chrome's trace format.

Nothing is recorded otherwise: each place that would record asks for the recorder, and finds none.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from energon_stream.errors import ConfigError

_MOST = 200_000  # events of a process; later ones are counted, and left out
_LONGEST_LOOK = 0.2  # seconds between two looks at a stack that are one event


class _Event(NamedTuple):
    name: str
    category: str
    thread: int
    begin: float
    end: float
    values: dict[str, Any]


class TraceRecorder:
    """Events of this process. Threads may add them at the same time.

    Example:
        >>> recorder = TraceRecorder()
        >>> recorder.add("get", "request", 1.0, 1.5, object="a.tar")
        >>> [(event["name"], event["dur"]) for event in recorder.events("worker") if event["ph"] == "X"]
        [('get', 500000.0)]
    """

    def __init__(self, most: int = _MOST, clock: Callable[[], float] = time.perf_counter) -> None:
        self._most, self._clock = most, clock
        # Why a planned request ends where it does, by the object\'s URL and first byte.
        self.reasons: dict[tuple[str, int], str] = {}
        self.dropped: int = 0
        self._events: list[_Event] = []
        self._names: dict[int, str] = {}

    def add(
        self, name: str, category: str, begin: float, end: float, *, thread: int | None = None, **values: Any
    ) -> None:
        """Add an event between two times of ``time.perf_counter``, of a thread; None for this one."""
        if len(self._events) >= self._most:
            self.dropped += 1
            return
        ident = threading.get_ident() if thread is None else thread
        if ident not in self._names:
            self._names[ident] = next((t.name for t in threading.enumerate() if t.ident == ident), "")
        self._events.append(_Event(name, category, ident, begin, end, values))

    def look(self, cause: str, function: str | None, thread: int) -> None:
        """Add a look at the stack of a thread."""
        now = self._clock()
        values = {} if function is None else {"function": function}
        self.add(cause, "look", now, now, thread=thread, **values)

    def events(self, process: str) -> list[dict[str, Any]]:
        """Return the events in Chrome's format; ``process`` is the name of this process."""
        pid = os.getpid()
        about = [("process_name", 0, process)]
        about += [("thread_name", ident, name) for ident, name in self._names.items()]
        found: list[dict[str, Any]] = [
            {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": value}}
            for name, tid, value in about
        ]
        for event in _merged(list(self._events)):
            times = {"ts": 1e6 * event.begin, "dur": 1e6 * (event.end - event.begin)}
            names = {"name": event.name, "cat": event.category, "args": event.values}
            found.append({"ph": "X", **names, **times, "pid": pid, "tid": event.thread})
        return found

    def write(self, path: str, process: str) -> None:
        """Write the events to a file, for a merge with those of other processes."""
        with open(path, "w") as file:
            json.dump({"events": self.events(process), "dropped": self.dropped}, file)


def _merged(events: list[_Event]) -> Iterator[_Event]:
    """Yield the events; looks in a row that found the same are one event."""
    looks = sorted((e for e in events if e.category == "look"), key=lambda e: (e.thread, e.begin))
    yield from (event for event in events if event.category != "look")
    for _, group in groupby(looks, lambda event: event.thread):
        last: _Event | None = None
        for look in group:
            near = last is not None and look.begin - last.end <= _LONGEST_LOOK
            if last is not None and near and (look.name, look.values) == (last.name, last.values):
                last = last._replace(end=look.end)
                continue
            if last is not None:
                yield last._replace(end=look.begin) if near else last
            last = look
        if last is not None:
            yield last


_recorder: TraceRecorder | None = None


def current_recorder() -> TraceRecorder | None:
    """Return the recorder of this process; None while nothing is recorded."""
    return _recorder


def start_recording() -> TraceRecorder:
    """Begin to record. Raises ConfigError if this process records already."""
    global _recorder
    if _recorder is not None:
        raise ConfigError("this process records a trace already", hint="end that one first")
    _recorder = TraceRecorder()
    return _recorder


def stop_recording() -> TraceRecorder | None:
    """End the record, and return it."""
    global _recorder
    found, _recorder = _recorder, None
    return found


os.register_at_fork(after_in_child=stop_recording)  # a child begins without
