"""Fork safety: values that each process makes for itself, work done before a fork, and helper processes."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator
from types import FrameType
from typing import Any, Generic, TypeVar

from energon_stream.errors import WorkerError

T = TypeVar("T")

_inherited: list[object] = []
"""Values of the parent that a child must not free: an obstore client would wait for threads that the child
does not have, an asyncio client take the parent's sockets out of an epoll set that both processes share."""


class PerProcess(Generic[T]):
    """Values that each process makes for itself, on first use.

    A forked child starts without any. Threads that ask for the same key get the same object: it is made once,
    under a lock of its own. A pickled copy is empty.

    ``make`` makes the value of :meth:`get`. :meth:`map` remembers the last ``keep`` values. A child frees its
    copy of the parent's values if ``drop_inherited``: files and memory maps should be freed, clients, event
    loops and pools of threads must not be.
    """

    def __init__(
        self, make: Callable[[], T] | None = None, *, keep: int | None = None, drop_inherited: bool = False
    ) -> None:
        self._make = make
        self._keep = keep
        self._drop_inherited = drop_inherited
        self._renew()
        _instances.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(
            PerProcess, self._make, keep=self._keep, drop_inherited=self._drop_inherited
        ), ()

    def get(self) -> T:
        if self._make is None:
            raise TypeError("PerProcess.get() needs the argument 'make' of the constructor; use map()")
        return self.map(None, self._make)

    def map(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return this process's value of ``key``; ``make()`` is called if there is none."""
        try:
            return self._values[key]
        except KeyError:
            with self._lock:
                lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # one lock per key: values that take long to make do not wait for each other
            if key in self._values:
                return self._values[key]
            value = make()
            with self._lock:
                self._values[key] = value
                for oldest in list(self._values)[: -self._keep] if self._keep else ():
                    del self._values[oldest], self._locks[oldest]
            return value

    def values(self) -> list[T]:
        """Return the values that this process has made."""
        return list(self._values.values())

    def pop(self, key: Hashable = None) -> T | None:
        """Forget the value of ``key``, or the one value, and return it; None if there is none."""
        with self._lock:
            return self._values.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._values: dict[Hashable, T] = {}

    def _begin_child(self) -> None:
        if self._values and not self._drop_inherited:
            _inherited.append(self._values)
        self._renew()  # the locks as well: a thread of the parent may have held them


_instances: weakref.WeakSet[PerProcess[Any]] = weakref.WeakSet()


def _renew_instances() -> None:
    for values in list(_instances):
        values._begin_child()


os.register_at_fork(after_in_child=_renew_instances)

_preparations: dict[Callable[[], None], bool] = {}  # registered functions, and whether they were called

# An RLock, because a preparation may fork. Renewed in children, which inherit it locked.
_forking_lock = PerProcess(threading.RLock)
_is_collector_paused = False  # a child has to know whether to resume it


def before_forks(prepare: Callable[[], None]) -> None:
    """Have ``prepare`` called once before the next fork, so that the children need not do the same work each.

    It may leave nothing behind but modules and plain data.
    """
    _preparations.setdefault(prepare, False)


def prepare_fork() -> None:
    """Call the registered preparations that were not called yet; part of :func:`forking`.

    Hooks of ``os.register_at_fork`` cannot do this: a module that is imported in a hook, and registers hooks
    of its own, sees only the second half of that fork (``concurrent.futures`` then releases a lock that it
    does not hold).
    """
    # The lock keeps forking() of other threads waiting: a fork in the middle of an import would leave the
    # import's lock locked in the child for ever.
    with _forking_lock.get():
        for prepare in [prepare for prepare, is_done in _preparations.items() if not is_done]:
            with contextlib.suppress(Exception):  # a child that needs it will report what is wrong
                prepare()
            _preparations[prepare] = True


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Surround a fork with this; the child calls :func:`begin_child` first.

    The garbage collector is paused meanwhile: garbage of the parent, such as s3fs's file systems, must not be
    collected in the child; see :data:`_inherited`.
    """
    global _is_collector_paused
    with _forking_lock.get(), warnings.catch_warnings():
        # Python 3.12 warns that a process with threads forks, because a child may wait for a lock that one of
        # them held. Our children do not take such locks: PerProcess renews those of this library, obstore is
        # not used (storage/obstore_use.py), and imports are finished (prepare_fork).
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        prepare_fork()
        _is_collector_paused = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if _is_collector_paused:
                gc.enable()
                _is_collector_paused = False


@contextlib.contextmanager
def signals_held(numbers: Collection[int]) -> Iterator[None]:
    """Hold signals back while a process starts, which inherits that until it unblocks them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let what must not be torn apart end before Ctrl-C or SIGTERM takes effect; a second does so at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(handler := signal.getsignal(number)):
            handlers[number] = handler

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if len(came) > 1:
            handlers[number](number, frame)

    try:
        for each in handlers:
            signal.signal(each, note)
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for each, frame in came[:1]:
            handlers[each](each, frame)


def pickled(value: Any) -> bytes:
    """Return a pickle of a value, with tensors of any dtype."""
    if "torch" not in sys.modules:
        return pickle.dumps(value)
    from energon_stream.samples.tensor_pickles import dumps

    return dumps(value)


def pickled_error(error: BaseException) -> bytes | None:
    """Return a pickled error; None if it cannot be pickled, or, as many, not unpickled."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # our own bytes
    except Exception:
        return None
    return data


def begin_child() -> None:
    """Leave the parent's objects alone from now on; see :func:`forking`."""
    gc.freeze()
    if _is_collector_paused:
        gc.enable()


class _ChildTraceback(Exception):
    """The child's traceback, shown as the cause of an error."""


def run_isolated(function: Callable[..., T], *args: Any) -> T:
    """Call ``function(*args)`` in a forked child, and return a pickled copy of its result.

    A process that will fork workers uses this for the requests that it must make before, because client
    runtimes (obstore's above all) do not survive a fork. Raises the error of the function, with the child's
    traceback as its cause, and WorkerError if the child died, or result or error could not be pickled.

    Example:
        >>> run_isolated(os.getpid) == os.getpid()
        False
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the child would write our buffered output once more
    reading, writing = os.pipe()
    child = 0
    try:
        with forking():
            child = os.fork()
            if child == 0:
                os.close(reading)
                _answer(writing, function, args)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
    except BaseException:
        if child:  # nobody waits for the answer after an interrupt, so the child must not go on
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        raise
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code != 0 or not answer:
        raise WorkerError(
            f"the helper process for {_name(function)} died with "
            + (f"signal {-code}" if code < 0 else f"exit code {code}"),
            hint="Look for an out-of-memory kill or a crash in the system log.",
        )
    value: T
    ok, value, text = pickle.loads(answer)  # our own child's bytes, over a private pipe
    if not ok:
        raise value from _ChildTraceback(f"\n{text}")  # type: ignore[misc] # an error
    return value


def _answer(writing: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run the child; never returns."""
    code = 1
    try:
        begin_child()
        try:
            answer = pickled((True, function(*args), ""))
        except BaseException as error:
            answer = _error_answer(error, function)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        code = 0
    finally:
        os._exit(code)  # exit handlers and buffers belong to the parent


def _error_answer(error: BaseException, function: Callable[..., Any]) -> bytes:
    if pickled_error(error) is None:
        problem = f"{_name(function)} failed in the helper process: {type(error).__name__}: {error}"
        return pickle.dumps((False, WorkerError(problem), traceback.format_exc()))
    return pickle.dumps((False, error, traceback.format_exc()))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
