"""Error handling around user functions, for pipelines that programs wrote for Megatron-Energon."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from energon_stream.compat.sample_helpers import format_sample_compact, get_source_info
from energon_stream.errors import FatalSampleError, SkipSample
from energon_stream.pipeline.failures import ALWAYS_RAISED

Handler: TypeAlias = Callable[..., None]
"""Called with the error, the sample and the sample's sources."""

SYSTEM_EXCEPTIONS = ALWAYS_RAISED
"""Errors that the next sample would meet as well, so that no handler may skip the sample."""


def _fatal(sample: Any, what: str) -> FatalSampleError:
    return FatalSampleError(what, where=f"sample {format_sample_compact(sample)}")


def _cause(error: BaseException) -> BaseException | None:
    # contextlib takes a RuntimeError whose cause is a StopIteration for that StopIteration.
    return None if isinstance(error, StopIteration) else error


class ErrorContext:
    """Hands the errors of a step to a handler, and counts those in a row.

    Args:
        name: Name of the step, for messages.
        handler: Called with the error, the sample and its sources.
        tolerance: Errors in a row that end the run; 0 tolerates any number.

    Example:
        >>> failed = []
        >>> context = ErrorContext("step", lambda error, sample, sources: failed.append(sample), tolerance=2)
        >>> with context.handle_errors({"__key__": "a"}):
        ...     raise ValueError("no caption")
        >>> failed
        [{'__key__': 'a'}]
    """

    def __init__(self, name: str, handler: Handler, tolerance: int = 100) -> None:
        self.name: str = name
        self.handler: Handler = handler
        self.tolerance: int = tolerance
        self._in_a_row = 0

    def reset(self) -> None:
        """Count from 0 again; call it after a success."""
        self._in_a_row = 0

    @contextmanager
    def handle_errors(self, sample: Any) -> Iterator[None]:
        """Handle the error of a ``with`` block; ``SkipSample`` ends the block silently.

        Raises:
            FatalSampleError: The error is one of :data:`SYSTEM_EXCEPTIONS`, or the last that is tolerated.
        """
        try:
            yield
        except SkipSample:
            pass
        except SYSTEM_EXCEPTIONS as error:
            raise _fatal(sample, f"{self.name} failed with {type(error).__name__}: {error}") from _cause(
                error
            )
        except Exception as error:
            self.handler(error, sample, get_source_info(sample))
            self._in_a_row += 1
            if self.tolerance and self._in_a_row >= self.tolerance:
                what = f"{self.name} failed {self._in_a_row} times in a row, the last with {error}"
                raise _fatal(sample, what) from error


@contextmanager
def handle_restore_errors(error_handler: Handler, sample: Any) -> Iterator[None]:
    """Hand the error of a ``with`` block, which makes a sample again, to a handler.

    Args:
        error_handler: Called with the error, the sample and its sources.
        sample: The sample, or what it is made of.

    Raises:
        FatalSampleError: The error is one of :data:`SYSTEM_EXCEPTIONS`.

    Example:
        >>> with handle_restore_errors(lambda error, sample, sources: print(error), {"__key__": "a"}):
        ...     raise ValueError("no caption")
        no caption
    """
    with ErrorContext("restoring", error_handler, tolerance=0).handle_errors(sample):
        try:
            yield
        except SkipSample:
            what = f"a sample was skipped that was not when it was made: {sample!r:.80}"
            raise ValueError(what) from None


def legacy_handler(handler: Handler) -> Handler:
    """Return a handler of three arguments for one that may take the error and the key alone.

    Example:
        >>> legacy_handler(lambda error, key: print(key))(ValueError(), "a", None)
        a
    """
    parameters = inspect.signature(handler).parameters.values()
    if len(parameters) > 2 or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return handler

    def call(error: Exception, key: Any, sources: Any = None) -> None:
        handler(error, key)

    return call
