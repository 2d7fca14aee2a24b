"""Functions that run in a short-lived forked child."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from energon_stream.errors import WorkerError
from energon_stream.storage.fork import begin_child, forking

T = TypeVar("T")


class _ChildTraceback(Exception):
    """The child's traceback, shown as the cause of an error."""


def run_isolated(function: Callable[..., T], *args: Any) -> T:
    """Call ``function(*args)`` in a forked child.

    A process that will fork workers uses this for the requests that it must make before, because client
    runtimes (obstore's above all) do not survive a fork.

    Args:
        function: Any callable. Its result is pickled; the function itself is not.
        *args: Its arguments.

    Raises:
        WorkerError: The child died, or its result or error could not be pickled.
        BaseException: The error that the function raised, with the child's traceback as its cause.

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
    ok, value, text = pickle.loads(answer)  # our own child's bytes, over a private pipe
    if not ok:
        raise value from _ChildTraceback(f"\n{text}")
    result: T = value
    return result


def _answer(writing: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run the child; never returns."""
    code = 1
    try:
        begin_child()
        try:
            answer = pickle.dumps((True, function(*args), ""))
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
    text = traceback.format_exc()
    try:
        answer = pickle.dumps((False, error, text))
        pickle.loads(answer)  # many exceptions can be pickled, but not unpickled
    except Exception:
        named = WorkerError(
            f"{_name(function)} failed in the helper process: {type(error).__name__}: {error}"
        )
        return pickle.dumps((False, named, text))
    return answer


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
