"""Run a function in a short-lived forked child, so that nothing it starts stays in this process."""

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

__all__ = ["run_isolated"]

T = TypeVar("T")


class _ChildTraceback(Exception):
    """Shown as the cause of an error that was raised in the child."""


def run_isolated(function: Callable[..., T], *args: Any) -> T:
    """Call ``function(*args)`` in a forked child.

    A process that is going to fork workers uses this for requests that it must make before, because
    client runtimes (obstore's above all) do not survive a fork.

    Args:
        function: Anything callable; it is not pickled, its result is.
        *args: Its arguments.

    Returns:
        The result.

    Raises:
        WorkerError: The child died, or its result or error could not be pickled.
        BaseException: Whatever the function raised, with the child's traceback as its cause.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the child would write our buffered output once more
    reading, writing = os.pipe()
    with forking():
        child = os.fork()
        if child == 0:
            os.close(reading)
            _answer(writing, function, args)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
    except BaseException:  # who is interrupted waits for nothing; the child must not go on alone
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
    """The child's whole life; never returns."""
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
        pickle.loads(answer)  # many exceptions pickle well and fail when they are made again
        return answer
    except Exception:
        named = WorkerError(
            f"{_name(function)} failed in the helper process: {type(error).__name__}: {error}"
        )
        return pickle.dumps((False, named, text))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
