"""What happens to samples that fail: handlers, tolerance, and what is never tolerated."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from energon_stream.errors import EnergonStreamError, FatalSampleError, SampleError, StorageError
from energon_stream.worker import WorkerConfig

__all__ = ["FailureGuard", "log_exception", "reraise_exception"]

_log = logging.getLogger(__name__)

_ALWAYS_RAISED = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
)
"""Errors that no other sample will cure. They end the run whatever the handler says."""


def log_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Log the error with the sample's key and sources; the sample is skipped."""
    key = getattr(sample, "__key__", None) or (sample.get("__key__") if isinstance(sample, dict) else None)
    _log.warning("skipping sample %s (%s): %s: %s", key, sources, type(error).__name__, error, exc_info=error)


def reraise_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Raise the error again; it ends the run."""
    raise error


class FailureGuard:
    """Counts failures in a row and calls the job's handler.

    Args:
        name: The function that may fail, for messages.
        config: Whose ``global_error_handler`` is called.
        tolerance: Failures in a row that end the run; 0 tolerates any number.

    Attributes:
        in_a_row: Failures since the last success.
    """

    def __init__(self, name: str, config: WorkerConfig, tolerance: int) -> None:
        self._name = name
        self._handler: Callable[..., None] | None = config.global_error_handler
        self._tolerance = tolerance
        self.in_a_row = 0

    def succeeded(self) -> None:
        """Note a sample that did not fail."""
        self.in_a_row = 0

    def failed(self, error: Exception, sample: Any) -> None:
        """Handle an error; returns when the sample is to be skipped.

        Raises:
            FatalSampleError: Too many failures in a row.
            Exception: The error itself, where it is not about this sample or the handler raises.
        """
        if isinstance(error, (*_ALWAYS_RAISED, FatalSampleError)):
            raise error
        # A store's error is for the user's handler only: skipping lost data must be their decision.
        tolerable = isinstance(error, (SampleError, StorageError) if self._handler else SampleError)
        if isinstance(error, EnergonStreamError) and not tolerable:
            raise error
        sources = getattr(sample, "__sources__", None)
        if sources is None and isinstance(sample, dict):
            sources = sample.get("__sources__")
        (self._handler or log_exception)(error, sample, sources)
        self.in_a_row += 1
        if self._tolerance and self.in_a_row >= self._tolerance:
            raise FatalSampleError(
                f"{self.in_a_row} samples in a row failed, the last with {type(error).__name__}: {error}",
                where=f"{self._name}, sources {sources}",
                hint="mend the function or the data, or raise its failure_tolerance",
            ) from error
