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
    """Hands the errors of a step to a handler; ``tolerance`` errors in a row end the run, unless it is 0."""

    def __init__(self, name: str, handler: Handler, tolerance: int = 100) -> None:
        self.name: str = name
        self.handler: Handler = handler
        self.tolerance: int = tolerance
        self._consecutive_failures = 0

    def reset(self) -> None:
        """Count from 0 again; call it after a success."""
        self._consecutive_failures = 0

    @contextmanager
    def handle_errors(self, sample: Any) -> Iterator[None]:
        """Handle the error of a ``with`` block; ``SkipSample`` ends the block silently.

        Raises FatalSampleError if it is one of :data:`SYSTEM_EXCEPTIONS`, or the last that is tolerated.
        """
        try:
            yield
            self.reset()
        except SkipSample:
            pass
        except SYSTEM_EXCEPTIONS as error:
            raise _fatal(sample, f"{self.name} failed with {type(error).__name__}: {error}") from _cause(
                error
            )
        except Exception as error:
            self.handler(error, sample, get_source_info(sample))
            self._consecutive_failures += 1
            if self.tolerance and self._consecutive_failures >= self.tolerance:
                what = (
                    f"{self.name} failed {self._consecutive_failures} times in a row, the last with {error}"
                )
                raise _fatal(sample, what) from error


@contextmanager
def handle_restore_errors(error_handler: Handler, sample: Any) -> Iterator[None]:
    """Hand the error of a ``with`` block, which makes a sample again, to a handler.

    Raises FatalSampleError if it is one of :data:`SYSTEM_EXCEPTIONS`.
    """
    with ErrorContext("restoring", error_handler, tolerance=0).handle_errors(sample):
        try:
            yield
        except SkipSample:
            what = f"a sample was skipped that was not when it was made: {sample!r:.80}"
            raise ValueError(what) from None


def legacy_handler(handler: Handler) -> Handler:
    """Return a handler of three arguments for one that may take the error and the key alone."""
    parameters = inspect.signature(handler).parameters.values()
    if len(parameters) > 2 or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return handler

    def call(error: Exception, key: Any, sources: Any = None) -> None:
        handler(error, key)

    return call
