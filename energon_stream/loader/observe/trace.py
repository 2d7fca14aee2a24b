"""A trace of some seconds of a loader: its process and its workers, in one file for Perfetto."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self

from energon_stream.errors import ConfigError, StorageError
from energon_stream.temporary_folders import temporary_folder
from energon_stream.threads import thread_errors
from energon_stream.tracing import start_recording, stop_recording

if TYPE_CHECKING:
    from energon_stream.loader.observe.stats import ProcessReport

_log = logging.getLogger(__name__)


class Observed(Protocol):
    """Running streams of a loader."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""

    @property
    def restarts(self) -> int:
        """Workers that took the place of others."""

    def report(self) -> ProcessReport:
        """Return the counters and the profile so far."""

    def start_trace(self) -> None:
        """Have workers record their events."""

    def stop_trace(self, folder: str) -> None:
        """Have workers write their events to files of a folder, and record no more."""


class Trace:
    """Records what a loader does, and writes it when it is closed; see ``BasicDataLoader.trace``.

    When the trace ends, workers write their events to files of a temporary folder, and this process merges
    them. ``session`` returns the loader's running workers, or None before they start.
    """

    def __init__(
        self, path: str | os.PathLike[str], seconds: float | None, session: Callable[[], Observed | None]
    ) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"seconds is {seconds}", hint="use a positive number")
        self.path: str = os.fspath(path)
        start_recording()
        try:
            open(self.path, "w").close()  # now, and not after the trace
        except OSError as error:
            stop_recording()
            raise StorageError(f"the trace cannot be written: {error.strerror}", where=self.path) from error
        self._begin, self._begin_unix = time.perf_counter(), time.time()
        self._temporary = contextlib.ExitStack()
        self._folder = self._temporary.enter_context(temporary_folder(use="trace"))
        self._session, self._lock, self._is_over = session, threading.RLock(), False
        self._timer: threading.Timer | None = None
        running = session()
        if running is not None:
            running.start_trace()
        if seconds is not None:
            self._timer = threading.Timer(seconds, self._end_by_itself)
            self._timer.daemon = True
            with thread_errors("the end of the trace"):
                self._timer.start()

    @property
    def is_running(self) -> bool:
        """True until the trace ends. Workers that start meanwhile record from their start."""
        with self._lock:
            return not self._is_over

    def closing(self, session: Observed) -> None:
        """Take the events of workers that are about to end, unless that was done."""
        with self._lock:
            if not self._is_over:
                session.stop_trace(self._folder)

    def close(self) -> None:
        """End the trace, and write the file, unless that was done. Raises StorageError if it cannot be."""
        with self._lock:
            if self._is_over:
                return
            if self._timer is not None:
                self._timer.cancel()
            running = self._session()
            if running is not None:
                running.stop_trace(self._folder)
            self._is_over = True
            recorder = stop_recording()
            try:
                if recorder is not None:
                    recorder.write(os.path.join(self._folder, "main.json"), "training loop")
                self._merge()
            except OSError as error:
                what = f"the trace cannot be written: {error.strerror}"
                raise StorageError(what, where=self.path) from error
            finally:
                self._temporary.close()

    def _merge(self) -> None:
        events: list[dict[str, Any]] = []
        dropped = 0
        for name in sorted(name for name in os.listdir(self._folder) if name.endswith(".json")):
            with open(os.path.join(self._folder, name)) as file:
                found = json.load(file)
            events += found["events"]
            dropped += found["dropped"]
        for event in events:
            if "ts" in event:
                event["ts"] -= 1e6 * self._begin
        about = {"begin_unix_seconds": self._begin_unix, "dropped_events": dropped}
        with open(self.path, "w") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, file)

    def _end_by_itself(self) -> None:
        try:
            self.close()
        except StorageError as error:
            _log.error("%s", error)  # the message says all

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
