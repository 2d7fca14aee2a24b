"""The causes that the thread which makes batches spends its time on, found by looks at its stack.

A cause is that of the innermost function that is known: a wait for a store within a user's function counts
for the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, TypeVar

from energon_stream.decode import FileStoreDecoder
from energon_stream.pipeline.batching import BatchMaker
from energon_stream.pipeline.decode_ahead import Decoding
from energon_stream.pipeline.failures import FailureGuard
from energon_stream.pipeline.stream_runner import StreamRunner
from energon_stream.threads import Repeater, steady_stacks
from energon_stream.tracing import current_recorder

F = TypeVar("F", bound=Callable[..., Any])

STORE, DECODE, ENCODE, COLLATE = "store", "decode", "encode", "collate"
CHANNEL, CONSUMER, LOADER = "channel", "consumer", "loader"
CAUSES = (STORE, DECODE, ENCODE, COLLATE, CHANNEL, CONSUMER, LOADER)
"""What time goes to: waiting for bytes; decoding; the user's functions; batching; sending a batch to the main
process; waiting for the training loop; and the loader's own work."""

_SECONDS = 0.05  # between two looks

_CODES: dict[CodeType, str] = {
    futures.Future.result.__code__: STORE,
    futures.wait.__code__: STORE,
    FailureGuard.call.__code__: ENCODE,
    BatchMaker.make.__code__: COLLATE,
    StreamRunner.step_any.__code__: LOADER,
}


def counts_as(cause: str) -> Callable[[F], F]:
    """Mark a function in which time is spent on a cause."""

    def mark(function: F) -> F:
        _CODES[function.__code__] = cause
        return function

    return mark


@dataclass(frozen=True, slots=True)
class Profile:
    """Numbers of looks at the threads that make batches. Add those of several processes."""

    causes: Mapping[str, int] = field(default_factory=dict)  # by cause, of ``CAUSES``
    functions: Mapping[str, int] = field(default_factory=dict)  # that found a user's function, by its name

    def __add__(self, other: Profile) -> Profile:
        causes = Counter(self.causes) + Counter(other.causes)
        return Profile(dict(causes), dict(Counter(self.functions) + Counter(other.functions)))

    def __sub__(self, earlier: Profile) -> Profile:
        causes = Counter(self.causes) - Counter(earlier.causes)
        return Profile(dict(causes), dict(Counter(self.functions) - Counter(earlier.functions)))

    @property
    def looks(self) -> int:
        """Number of looks while batches were made, or waited for the training loop."""
        return sum(self.causes.values())

    @property
    def idle(self) -> float:
        """Share of the looks at which a worker waited for the training loop."""
        return self.causes.get(CONSUMER, 0) / self.looks if self.looks else 0.0

    def share(self, cause: str) -> float:
        """Return the share of the time in which batches were made, without waiting for the training loop."""
        busy = self.looks - self.causes.get(CONSUMER, 0)
        return self.causes.get(cause, 0) / busy if busy else 0.0


class Profiler:
    """Looks at threads until it is closed."""

    def __init__(self, ident: int) -> None:
        self.idents: tuple[int, ...] = (ident,)  # of the threads; they may be changed
        self.looks: int = 0  # those that found a cause
        self._causes: Counter[str] = Counter()
        self._functions: Counter[str] = Counter()
        self._repeater = Repeater(self._look, _SECONDS, "profile of the loader")

    def snapshot(self) -> Profile:
        """Return the looks so far."""
        return Profile(dict(self._causes), dict(self._functions))

    def close(self) -> None:
        """End the thread. The collector may free a loader, and so close it, in that thread itself."""
        self._repeater.close()

    def _look(self) -> None:
        with steady_stacks() as frames:
            found = [(ident, *describe(frames.get(ident))) for ident in self.idents]
        for ident, cause, function in found:
            if cause is not None:
                self.looks += 1
                self._causes[cause] += 1
                if (record := current_recorder()) is not None:
                    record.look(cause, function, ident)
            if function is not None:
                self._functions[function] += 1


def describe(frame: FrameType | None) -> tuple[str | None, str | None]:
    """Return the cause of a stack, and the user's function in it; None where no batch is made."""
    cause = None
    while frame is not None:
        found = _cause_of(frame)
        cause = cause or found
        if found == ENCODE:
            return cause, frame.f_locals["self"].name
        if found is not None and found not in (STORE, DECODE, COLLATE):
            break
        frame = frame.f_back
    return cause, None


def _cause_of(frame: FrameType) -> str | None:
    code = frame.f_code
    cause = _CODES.get(code)
    if cause == STORE and frame.f_back is not None and frame.f_back.f_code is Decoding.value.__code__:
        return DECODE
    if cause == STORE:  # a user's function may wait for threads of its own
        caller = frame.f_back
        is_ours = caller is not None and str(caller.f_globals.get("__name__")).startswith("energon_stream.")
        return STORE if is_ours else None
    if cause is None and code.co_name in ("decode", "decode_file"):
        return DECODE if isinstance(frame.f_locals.get("self"), FileStoreDecoder) else None
    return cause
