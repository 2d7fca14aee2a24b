"""The line on which the main process asks a worker about its activity, and each notices the other's end.

A thread of the worker answers. It needs the interpreter, which a hung C function may hold. The main process
then sends SIGUSR1, and ``faulthandler`` writes the stacks to the line without the interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from energon_stream.pipeline.failures import field_of, running_call
from energon_stream.threads import steady_stacks
from energon_stream.tracing import start_recording, stop_recording

if TYPE_CHECKING:
    import socket

_READY, _ASK, _TRACE, _TRACED, _END = b"!", b"?", b"+", b"-", b"\0"

# Seconds between checks that the main process lives. The end of the line shows it at once in most cases:
# not where another child of the main process has inherited it.
_PARENT_SECONDS = 5.0
_GRACE_SECONDS = 5.0  # for a worker to end by itself once the main process is gone
ANSWER_SECONDS = 2.0
_TRACED_SECONDS = 30.0
_DUMP_SECONDS = 1.0
_QUIET_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Activity:
    """The work of one thread, and the stacks of all threads of its process."""

    function: str | None = None  # name of the user's function that it is in; None if it is in none
    sample: str | None = None  # key of the sample that the function works on; None if it has no key
    stacks: str = ""

    @classmethod
    def of_thread(cls, ident: int | None) -> Activity:
        """Describe a thread of this process."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        with steady_stacks() as frames:
            call = running_call(frames.get(ident or 0))
            own_first = sorted(frames, key=lambda number: number != ident)
            stacks = "\n".join(
                f"Thread {names.get(number, 'unknown to threading')} (most recent call last):\n"
                + "".join(traceback.format_stack(frames[number]))
                for number in own_first
            )
        return cls(None, None, stacks) if call is None else cls(call[0], _key(call[1]), stacks)

    @classmethod
    def from_text(cls, text: str) -> Activity:
        """Read what :meth:`to_text` made. Text of another form is taken for stacks."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return cls(stacks=text)

    def to_text(self) -> str:
        """Write as text, without a NUL character."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if self.function is None:
            return "no function of the user is running"
        of_sample = "" if self.sample is None else f" on sample {self.sample}"
        return f"it is in {self.function}{of_sample}"


def _key(sample: Any) -> str | None:
    if isinstance(sample, (int, str)):  # elements of other datasets
        return f"{sample!r:.100}"
    key = field_of(sample, "__key__")
    if isinstance(key, (list, tuple)):
        key = key[0] if key else None
    return None if key is None else str(key)


class Monitor:
    """The main process's end of the line to a worker."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line = line
        self._pid = pid
        self._is_ready = False
        self._lock = threading.RLock()  # one question at a time

    def start_trace(self) -> None:
        """Have the worker record its events from now on."""
        with contextlib.suppress(OSError):
            self._line.setblocking(True)
            self._line.sendall(_TRACE)

    def stop_trace(self, path: str) -> bool:
        """Have the worker write its events to a file; return whether it has done so, within some seconds."""
        is_done = False
        with self._lock, contextlib.suppress(OSError):
            self._line.setblocking(True)
            self._line.sendall(_TRACED + os.fsencode(path) + _END)
            is_done = self._read(_TRACED_SECONDS, until=_END).endswith(_END)
            self._is_ready = self._is_ready or is_done
        return is_done

    def ask(self) -> Activity:
        """Return what the worker is doing. It takes a few seconds at most."""
        if not self.has_started():
            # It has no handler of SIGUSR1 yet, and the signal might end it.
            return Activity(stacks="the worker is still starting")
        try:
            with self._lock:
                self._line.setblocking(True)
                self._line.sendall(_ASK)
                answer = self._read(ANSWER_SECONDS, until=_END)
                if not answer.endswith(_END) and hasattr(signal, "SIGUSR1"):
                    os.kill(self._pid, signal.SIGUSR1)
                    answer += self._read(_DUMP_SECONDS, quiet=_QUIET_SECONDS)
        except OSError:
            return Activity(stacks="the worker is gone")
        return Activity.from_text(answer.rstrip(_END).decode(errors="replace"))

    def has_started(self) -> bool:
        """Return True if the worker has begun its work; it may be gone since."""
        with self._lock, contextlib.suppress(OSError):
            self._is_ready = _READY in self._read(seconds=0) or self._is_ready
        return self._is_ready

    def _read(self, seconds: float, until: bytes | None = None, quiet: float | None = None) -> bytes:
        """Read what comes within some seconds: up to an end, or until nothing more comes."""
        read = b""
        deadline = time.monotonic() + seconds
        while until is None or not read.endswith(until):
            left = max(0.0, deadline - time.monotonic())
            self._line.settimeout(min(left, quiet) if quiet is not None and read else left)
            try:
                more = self._line.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                break
            if not more:
                break
            read += more
        return read

    def close(self) -> None:
        """Close the line; the worker ends."""
        self._line.close()


def answer_monitor(line: socket.socket) -> None:
    """Start a thread that answers questions about the calling thread until the main process is gone."""
    line.settimeout(_PARENT_SECONDS)  # also makes it non-blocking for faulthandler, which must not wait
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=line.fileno(), all_threads=True)
    with contextlib.suppress(OSError):
        line.sendall(_READY)
    arguments = (line, threading.get_ident(), os.getppid())
    threading.Thread(target=_answer, args=arguments, name="energon_stream monitor", daemon=True).start()


def _answer(line: socket.socket, ident: int, parent: int) -> None:
    while True:
        try:
            asked = line.recv(1)
        except TimeoutError:
            if _is_orphan(parent):
                break
            continue
        except OSError:
            break
        if not asked:
            break
        with contextlib.suppress(OSError):
            line.sendall(_answer_to(asked, line, ident) + (b"" if asked == _TRACE else _END))
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def _answer_to(asked: bytes, line: socket.socket, ident: int) -> bytes:
    """Do what the main process asks for, and return the answer."""
    if asked == _TRACE:
        start_recording()
    elif asked == _TRACED:
        path = b""
        while not path.endswith(_END) and (more := line.recv(1)):
            path += more
        recorder = stop_recording()
        if recorder is not None:
            recorder.write(os.fsdecode(path.rstrip(_END)), f"worker {os.getpid()}")
    else:
        return Activity.of_thread(ident).to_text().encode()
    return b""


def _is_orphan(parent: int) -> bool:
    """Return True if the main process is gone; ``parent`` began this one: it, or a fork server."""
    if os.getppid() == parent:
        return False
    main = multiprocessing.parent_process()
    if main is None or main.pid is None or main.pid == parent:
        return True
    with contextlib.suppress(PermissionError):
        try:
            os.kill(main.pid, 0)
        except ProcessLookupError:
            return True
    return False
