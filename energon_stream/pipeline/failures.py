"""Calls of user functions on samples: failure handlers, the tolerance, and errors that always end the run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType, GeneratorType
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from energon_stream.errors import (
    EnergonStreamError,
    FatalSampleError,
    SampleError,
    SampleTimeoutError,
    SkipSample,
    StorageError,
)
from energon_stream.index.bad_samples import most_frequent
from energon_stream.pipeline.failure_notes import MOST_CAUSES, entries, lines_of
from energon_stream.pipeline.node import Context, Item, State
from energon_stream.pipeline.time_limit import TimeLimit
from energon_stream.printable import counted

Items: TypeAlias = "Sequence[Item]"
P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)

SKIPPED: Final[Any] = object()
"""Returned by :meth:`FailureGuard.call` where there is no result, because the sample is left out."""

ALWAYS_RAISED = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
    FatalSampleError,
)
"""Errors that the next sample would meet as well. They end the run, and no handler sees them.

By Megatron-Energon's conventions they end it as the cause of a ``FatalSampleError``.
"""

_OF_A_SAMPLE = (StopIteration, StopAsyncIteration, RecursionError)
"""Those that one empty or deep sample can cause: handled as other errors, except by Energon's conventions."""


class _Default(int):
    """A tolerance that the user did not choose."""


DEFAULT_TOLERANCE: Final = _Default(100)
"""Failures in a row of one function that end the run."""

_FIRST = 10
"""Of its first calls, if all make the same mistake in the same line; not by Energon's conventions."""

_MISTAKES = (AttributeError, LookupError, TypeError)
"""What a typo raises, beside NameError. Other errors, as ValueError, may well be of ten samples in a row."""

_FEW = 4
"""Samples of one of several ranks that may all be bad by chance."""

_NOT_OF_THE_SAMPLE = (StorageError, ConnectionError, PermissionError, TimeoutError)
"""Errors of stores and networks, unless they are a SampleError too. No sample is bad for them."""


def field_of(sample: Any, name: str) -> Any:
    """Return a field of a sample or batch, which may be a dict; None if it has no such field."""
    return sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)


def log_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Log the error with the sample's key, sources and place, as one line; the sample is skipped.

    It is the handler where ``WorkerConfig.global_error_handler`` is None. At DEBUG, a traceback follows.

    Example:
        >>> from energon_stream import log_exception
        >>> log_exception(ValueError("no caption"), {"__key__": "a.tar/7"})
    """
    key = field_of(sample, "__key__")
    trace = error if _log.isEnabledFor(logging.DEBUG) else None
    what = type(error).__name__, error, lines_of(error)
    _log.warning("skipping sample %s (%s): %s: %s (%s)", key, sources, *what, exc_info=trace)


def reraise_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Raise the error again; it ends the run.

    Example:
        >>> from energon_stream import WorkerConfig, reraise_exception
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=reraise_exception)
    """
    raise error


def first_of(values: Any) -> Any:
    """Return the first of the samples that a function was called with; None if there are none."""
    return values[0] if values else None


class FailureGuard:
    """Calls a user's function on samples, counts failures in a row, and calls the job's handler.

    ``tolerance`` failures in a row end the run; 0 tolerates any number. By default, ten do if they are
    the first calls, with the same mistake. ``describe`` makes the sample that handlers see from the value.
    """

    def __init__(
        self, name: str, context: Context, tolerance: int, describe: Callable[[Any], Any] | None = None
    ) -> None:
        self.name = name
        self._handler: Callable[..., None] | None = context.config.global_error_handler
        self._failures, self._path = context.failures, context.path
        self._tolerance = tolerance
        self._describe = describe
        self._wraps_fatal = context.config.conventions == "energon"
        self.active = context.config.activate(context.stream)  # as hooks see it; keeps the last counters
        seconds = context.config.sample_timeout
        self._limit = None if seconds is None else TimeLimit(seconds)
        self._run: Callable[..., Any] = self.limited(self.active.run)
        self.in_a_row: int = 0  # failures since the last success
        self._kinds: Counter[str] = Counter()  # of these failures
        self._looks_for_typos = isinstance(tolerance, _Default) and not self._wraps_fatal

    def limited(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function that ends with SampleTimeoutError after the job's ``sample_timeout``, if any."""
        return function if self._limit is None else partial(self._limit.run, function)

    def unlimited(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Return what a function returns that a limited one calls, and whose time does not count."""
        run = function if self._limit is None else partial(self._limit.pause, function)
        return run(*arguments, **options)

    def call(
        self, function: Callable[[Any], Any], value: Any, number: int, batch: int | None = None, *, of: Items
    ) -> Any:
        """Return ``function(value)``, or ``SKIPPED`` if it raises ``SkipSample`` or a tolerated error.

        Hooks see ``number``, the counter of the function's calls, from which seeds follow; and ``batch``, the
        counter of batches where the function makes one. The value is made ``of`` items. Raises as
        :meth:`failed`.
        """
        try:
            result = self._run(function, value, number, batch)
        except SkipSample:
            return SKIPPED
        except Exception as error:
            self.failed(error, value if self._describe is None else self._describe(value), of, number)
            return SKIPPED
        if self.in_a_row and result is not SKIPPED and not isinstance(result, GeneratorType):
            self.in_a_row = 0
        return result

    def failed(self, error: Exception, sample: Any, of: Items = (), number: int = -1) -> None:
        """Handle an error of a call with a number, and note the samples; returns if they are to be skipped.

        Raises FatalSampleError after too many in a row, and the error itself if it is not about this sample.
        """
        if isinstance(error, SampleTimeoutError):
            late, error = error, SampleTimeoutError.from_sample(sample, f"{self.name}: {error.what}")
            error.__cause__ = late
        if isinstance(error, ALWAYS_RAISED) and (self._wraps_fatal or not isinstance(error, _OF_A_SAMPLE)):
            if self._wraps_fatal and not isinstance(error, FatalSampleError):
                message = f"{self.name} raised {type(error).__name__}: {error}"
                raise FatalSampleError.from_sample(sample, message) from error
            raise error
        # Only a user's own handler may skip data that a store failed to deliver.
        tolerable = isinstance(error, (SampleError, StorageError) if self._handler else SampleError)
        if isinstance(error, EnergonStreamError) and not tolerable:
            raise error
        sources = field_of(sample, "__sources__")
        is_new = True
        if isinstance(error, SampleError) or not isinstance(error, _NOT_OF_THE_SAMPLE):
            is_new = self._failures.add(error, of, self.name, self._path)
        if self._handler is not None:
            try:
                as_theirs = self._wraps_fatal and isinstance(sources, tuple)
                self._handler(error, sample, list(sources) if as_theirs else sources)
            except StopIteration as raised:  # generators would end with another error, which names no sample
                message = f"{self.name} raised {type(raised).__name__}: {raised}"
                raise FatalSampleError.from_sample(sample, message) from raised
        elif is_new:
            log_exception(error, sample, sources)
        if not self.in_a_row:
            self._kinds.clear()
        self.in_a_row += 1
        place = lines_of(error)
        self._kinds[f"{type(error).__name__} ({place})"] += 1
        is_typo = (
            self._looks_for_typos
            and self.in_a_row == number + 1 >= _FIRST
            and len(self._kinds) == 1
            and isinstance(error, _MISTAKES)
        )
        if is_typo or (self._tolerance and self.in_a_row >= self._tolerance):
            self._failures.drop(self.name, self.in_a_row)  # they tell of the function, not of samples
            which = (
                f"the first {_FIRST} samples" if is_typo else f"{counted(self.in_a_row, 'sample')} in a row"
            )
            kinds = f": {most_frequent(self._kinds)};" if len(self._kinds) > 1 else ","
            raise FatalSampleError(
                f"{which} failed{kinds} the last with {type(error).__name__}: {error}",
                where=f"{self.name}, {place}, sources {sources}",
                hint="fix the function or the data, or set its failure_tolerance",
            ) from error


def shorten(error: BaseException) -> None:
    """Leave the library's frames out of the tracebacks of a user's error. A log at DEBUG keeps them."""
    codes = [entry.tb_frame.f_code for entry in entries(error.__traceback__, outside=False)]
    is_fatal = isinstance(error, FatalSampleError)
    of_user = FailureGuard.call.__code__ in codes and not isinstance(error, EnergonStreamError)
    if _log.isEnabledFor(logging.DEBUG) or not (of_user or is_fatal):
        return
    one: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if one is not None:
            kept = None
            for entry in reversed(entries(one.__traceback__, outside=True)):
                entry.tb_next, kept = kept, entry
            if kept or (one is error and is_fatal):
                one.__traceback__ = kept
            one = one.__cause__ or one.__context__


def check_pass(states: Iterable[State | None], ranks: int, kinds: str = "") -> None:
    """Raise FatalSampleError if all samples failed, at the end of a pass: an empty one would not tell of it.

    ``states`` are the states of a rank's streams. One of several ranks may have a few samples, all bad.
    """
    known = [state for state in states if state is not None]
    read, bad = (sum(state.get("counts", (0, 0))[place] for state in known) for place in range(2))
    if bad == read >= (1 if ranks == 1 else _FEW) and not any(state["batches"] for state in known):
        raise FatalSampleError(
            f"all {read:,} samples of the pass failed{kinds}",
            hint="the log has the first error of each kind: check field_map, the decoder and your functions",
        )


def running_call(frame: FrameType | None) -> tuple[str, Any] | None:
    """Return the name of the user's function that a thread's frame runs, and its sample; None if none."""
    while frame is not None:
        if frame.f_code is FailureGuard.call.__code__:
            guard, value = frame.f_locals["self"], frame.f_locals["value"]
            return guard.name, value if guard._describe is None else guard._describe(value)
        frame = frame.f_back
    return None
