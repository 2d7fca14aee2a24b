"""Sampling profiler of the main thread: computing or waiting, and in which function.

A timer's signal interrupts the main thread every few milliseconds of wall time; between two samples the
thread's CPU clock tells whether it computed or waited. No second thread takes part, so nothing else competes
for the GIL.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType

STEP = 0.002
OWN = ("energon_stream", "candidates", "candidate.py")


class Sampler:
    """Samples the main thread while the block runs."""

    def __init__(self) -> None:
        self._computing: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    def __enter__(self) -> Sampler:
        self._wall, self._main, self._all = time.time(), time.thread_time(), time.process_time()
        self._last = self._main, time.monotonic()
        signal.signal(signal.SIGALRM, self._sample)
        signal.setitimer(signal.ITIMER_REAL, STEP, STEP)
        return self

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._wall = time.time() - self._wall
        self._main = time.thread_time() - self._main
        self._all = time.process_time() - self._all

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        (cpu_before, before), (cpu, now) = self._last, (time.thread_time(), time.monotonic())
        self._last = cpu, now
        computed = cpu - cpu_before > (now - before) / 2
        (self._computing if computed else self._waiting)[_where(frame)] += 1

    def result(self) -> dict[str, object]:
        """Seconds of wall and CPU time (main thread, all threads), and the samples by function."""
        return {
            "wall": self._wall,
            "main_cpu": self._main,
            "other_cpu": self._all - self._main,
            "computing": dict(self._computing.most_common(25)),
            "waiting": dict(self._waiting.most_common(10)),
        }


def _where(frame: FrameType | None) -> str:
    """The innermost function, preceded by the innermost function of this library if that differs."""
    names = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename == __file__:
            frame = frame.f_back  # a sample that was late interrupted another
            continue
        own = any(part in code.co_filename for part in OWN)
        if own or not names:
            path = Path(code.co_filename)
            names.append(f"{path.parent.name}/{path.stem}.{code.co_name}")
        if own:
            break
        frame = frame.f_back
    return " > ".join(reversed(names))
