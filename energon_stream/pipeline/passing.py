"""Operators that let elements pass: filter, stream functions, garbage collection, logging."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from energon_stream.errors import ConfigError, SkipSample
from energon_stream.pipeline.dataset import SavableDataset, Wrapper
from energon_stream.pipeline.failures import FailureGuard
from energon_stream.pipeline.map import function_label
from energon_stream.pipeline.node import END, Context, End, Item, Node, State
from energon_stream.worker import WorkerConfig

__all__ = ["FilterDataset", "GcDataset", "IterMapDataset", "LogSampleDataset"]

_log = logging.getLogger(__name__)


class _PassThroughNode:
    """State: ``in`` and ``n`` (elements taken from the inner node)."""

    def __init__(self, dataset: PassThrough, context: Context, state: State | None) -> None:
        saved = state or {"in": None, "n": 0}
        self._dataset = dataset
        self._context = context
        self._guard = FailureGuard(type(dataset).__name__, context.config, dataset.failure_tolerance)
        self._taken: int = saved["n"]
        self._inner = dataset.dataset.build(context, saved["in"])

    def next(self) -> Item | End:
        while True:
            item = self._inner.next()
            if isinstance(item, End):
                return END
            call = self._taken
            self._taken += 1
            try:
                with self._context.config.activate(self._context.stream, call):
                    passes = self._dataset.look(item.value, call)
            except SkipSample:
                continue
            except Exception as error:
                self._guard.failed(error, item.value)
                continue
            self._guard.succeeded()
            if passes:
                return item

    def state(self) -> State:
        return {"in": self._inner.state(), "n": self._taken}

    def close(self) -> None:
        self._inner.close()


class PassThrough(Wrapper[Any]):
    failure_tolerance: int = 100

    @property
    def pass_length(self) -> int:
        """That of the inner dataset: elements pass one by one."""
        return self.dataset.pass_length

    def look(self, value: Any, number: int) -> bool:
        """Look at an element; False drops it."""
        raise NotImplementedError

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _PassThroughNode(self, context, state)


class FilterDataset(PassThrough):
    """Drops the elements that a function says no to.

    Lengths are those before filtering.

    Args:
        dataset: The inner dataset.
        filter_fn: True for elements to keep.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Filter"

    def __init__(
        self,
        dataset: SavableDataset[Any],
        filter_fn: Callable[[Any], bool],
        *,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.filter_fn = filter_fn
        self.failure_tolerance = failure_tolerance

    def look(self, value: Any, number: int) -> bool:
        """Ask the function."""
        return bool(self.filter_fn(value))

    def options(self) -> dict[str, Any]:
        """Name of the function."""
        return {"filter_fn": function_label(self.filter_fn)}


class GcDataset(PassThrough):
    """Collects garbage every so many elements.

    Args:
        dataset: The inner dataset.
        every_n_iter: Elements between two collections.
        freeze: Whether what exists at the start is left out of collections from then on.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Gc"

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        every_n_iter: int = 10,
        freeze: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if every_n_iter < 1:
            raise ConfigError(f"every_n_iter is {every_n_iter}", hint="use 1 or more")
        self.every_n_iter = every_n_iter
        self.freeze = freeze

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        node = super().build(context, state)
        if self.freeze:
            gc.collect()
            gc.freeze()
        return node

    def look(self, value: Any, number: int) -> bool:
        """Collect when it is time."""
        if (number + 1) % self.every_n_iter == 0:
            gc.collect()
        return True


class LogSampleDataset(PassThrough):
    """Logs the keys of elements, as JSON lines, through the ``energon_stream`` logger.

    Args:
        dataset: The inner dataset.
        mode: A word for the lines, such as ``"train"``.
        get_keys_fn: Gives an element's keys; None takes ``__key__``.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Log"

    def __init__(
        self,
        dataset: SavableDataset[Any],
        *,
        mode: str = "train",
        get_keys_fn: Callable[[Any], Any] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.mode = mode
        self.get_keys_fn = get_keys_fn

    def look(self, value: Any, number: int) -> bool:
        """Log it."""
        if self.get_keys_fn is not None:
            keys = self.get_keys_fn(value)
        else:
            keys = value.get("__key__") if isinstance(value, dict) else getattr(value, "__key__", None)
        line = {"t": self.mode, "r": self.worker_config.rank, "stream": self.worker_config.global_worker_id()}
        _log.info("%s", json.dumps({**line, "n": number, "keys": keys}, default=str))
        return True


class _IterMapNode:
    """State: ``in`` (inner state at the start of the pass), ``n`` (elements given out in it), ``end``.

    What a stream function holds between its elements cannot be seen, so a restore runs it again from the
    start of the pass and drops what was given out before.
    """

    def __init__(self, dataset: IterMapDataset, context: Context, state: State | None) -> None:
        saved = state or {"in": None, "n": 0}
        self._dataset = dataset
        self._context = context
        self._inner = dataset.dataset.build(context, saved["in"])
        self._begin()
        for _ in range(saved["n"]):
            self.next()

    def _begin(self) -> None:
        self._start = self._inner.state()
        self._given = 0
        self._stream = iter(self._dataset.iter_map_fn(self._values()))

    def _values(self) -> Iterator[Any]:
        while isinstance(item := self._inner.next(), Item):
            yield item.value

    def next(self) -> Item | End:
        for value in self._stream:
            self._given += 1
            return Item(value, (IterMapDataset.kind, self._given - 1))
        self._begin()
        return END

    def state(self) -> State:
        return {"in": self._start, "n": self._given}

    def close(self) -> None:
        self._inner.close()


class IterMapDataset(Wrapper[Any]):
    """Applies a function to the stream of elements of each pass.

    A restore runs the function again from the start of the pass; keep passes short, or use MapDataset.

    Args:
        dataset: The inner dataset.
        iter_map_fn: Takes an iterator and returns an iterator.
        len_map_fn: Makes the outer length of the inner one; None for equal lengths.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "IterMap"

    def __init__(
        self,
        dataset: SavableDataset[Any],
        iter_map_fn: Callable[[Iterator[Any]], Iterator[Any]],
        *,
        len_map_fn: Callable[[int], int] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.iter_map_fn = iter_map_fn
        self.len_map_fn = len_map_fn

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _IterMapNode(self, context, state)

    def len_stream(self, stream: int) -> int | None:
        """The inner length through ``len_map_fn``."""
        length = self.dataset.len_stream(stream)
        return length if length is None or self.len_map_fn is None else self.len_map_fn(length)

    def can_restore_sample(self) -> bool:
        """False: an element depends on the stream, not on a key."""
        return False

    def options(self) -> dict[str, Any]:
        """Name of the function."""
        return {"iter_map_fn": function_label(self.iter_map_fn)}
