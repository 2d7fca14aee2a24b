"""Operators that filter, log or collect garbage; and functions on the stream of elements."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import FunctionConfig, SavableDataset, T, T_co, Wrapper
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE, FailureGuard
from energon_stream.pipeline.node import (
    END,
    Context,
    End,
    Item,
    Node,
    RestoreKey,
    State,
    WrapperNode,
    foreign_key,
    read_state,
)
from energon_stream.plugins import load_plugin
from energon_stream.schedule.saved import damaged
from energon_stream.worker import WorkerConfig


class _PassThroughNode(WrapperNode):
    """State: ``in`` and ``n`` (elements taken from the inner node)."""

    def __init__(self, dataset: PassThrough[Any], context: Context, state: State | None) -> None:
        saved = read_state(state, {"in": None, "n": 0}, dataset, context)
        self._dataset = dataset
        self._guard = FailureGuard(type(dataset).__name__, context, dataset.failure_tolerance)
        self._taken: int = saved["n"]
        self._inner = dataset.dataset.make_node(context, saved["in"])

    def next(self) -> Item | End:
        while True:
            item = self._inner.next()
            if isinstance(item, End):
                return item
            call = self._taken
            self._taken += 1
            if self._guard.call(self._look, item.value, call, of=(item,)) is True:
                return item

    def _look(self, value: Any) -> bool:
        return self._dataset.look(value, self._taken - 1)

    def state(self) -> State:
        return {"in": self._inner.state(), "n": self._taken}


class PassThrough(Wrapper[T_co]):
    """Base of operators that look at each element and pass it on unchanged, or drop it."""

    node_type = _PassThroughNode
    failure_tolerance: int = DEFAULT_TOLERANCE

    @property
    def pass_length(self) -> int:
        return self.dataset.pass_length

    def look(self, value: Any, number: int) -> bool:
        """Look at element ``number`` of the stream; return False to drop it."""
        raise NotImplementedError


class FilterDataset(PassThrough[T_co]):
    """Drops the elements for which a function returns False.

    The length does not take the filter into account.

    Args:
        dataset: The inner dataset.
        filter_fn: Returns True for the elements to keep.
        filter_fn_config: Describes ``filter_fn``: a dict, or a function that returns one; states must match.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number. By default the first
            10 calls do, too, if they fail by one mistake, as of a typo.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import FilterDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(FilterDataset(NumbersDataset(6), lambda number: number % 2 == 1))
        [1, 3, 5]
    """

    kind = "Filter"
    option_names: ClassVar[tuple[str, ...]] = ("filter_fn",)

    def __init__(
        self,
        dataset: SavableDataset[T_co],
        filter_fn: Callable[[T_co], bool],
        *,
        filter_fn_config: FunctionConfig = None,
        failure_tolerance: int = DEFAULT_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.filter_fn = filter_fn
        self.function_config = filter_fn_config
        self.failure_tolerance = failure_tolerance

    def look(self, value: Any, number: int) -> bool:
        return bool(self.filter_fn(value))


class GcDataset(PassThrough[T_co]):
    """Runs Python's garbage collector every ``every_n_iter`` elements, so that all ranks pause together.

    Args:
        dataset: The inner dataset.
        every_n_iter: Elements between two collections, 1 or more.
        freeze: Exclude the objects that exist at the start from later collections.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import GcDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(GcDataset(NumbersDataset(3), every_n_iter=2, freeze=False))
        [0, 1, 2]
    """

    kind = "Gc"

    def __init__(
        self,
        dataset: SavableDataset[T_co],
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

    def make_node(self, context: Context, state: State | None) -> Node:
        node = super().make_node(context, state)
        if self.freeze:
            gc.collect()
            gc.freeze()
        return node

    def look(self, value: Any, number: int) -> bool:
        if (number + 1) % self.every_n_iter == 0:
            gc.collect()
        return True


class LogSampleDataset(PassThrough[T_co]):
    """Logs the keys of elements, as lines of type ``yield_batch`` in the debug log.

    Lines need ``worker_log_level=1``. Without ``worker_debug_path``, they are messages of the logger
    ``energon_stream``, at level INFO, whatever the level of the debug log. A line has ``r`` (the rank), ``w``
    (the stream's number on the rank), ``m`` (the mode), ``idx`` (the element's number in the stream) and
    ``keys``.

    Args:
        dataset: The inner dataset.
        mode: A word for the lines, such as ``"train"``.
        worker_config: Must agree with the inner dataset's, if given.
        get_keys_fn: Returns an element's keys; None takes ``__key__``.

    Example:
        >>> from energon_stream import LogSampleDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(LogSampleDataset(NumbersDataset(2), get_keys_fn=str))
        [0, 1]
    """

    kind = "Log"

    def __init__(
        self,
        dataset: SavableDataset[T_co],
        mode: str = "train",
        worker_config: WorkerConfig | None = None,
        get_keys_fn: Callable[[T_co], Any] | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.mode = mode
        self.get_keys_fn = get_keys_fn

    def look(self, value: Any, number: int) -> bool:
        config = self.worker_config
        if config.worker_debug_path is None or config.should_log(1):
            found = None if self.get_keys_fn is None else self.get_keys_fn(value)
            load_plugin("debug_log").write_batch(config, self.mode, number, value, found)
        return True


class _IterMapNode(WrapperNode):
    """State: ``in`` (inner state at the start of the pass) and ``n`` (elements returned since).

    The state of a function on a stream is out of reach: a restore runs it again, and drops ``n`` elements.
    """

    def __init__(self, dataset: IterMapDataset[Any], context: Context, state: State | None) -> None:
        saved = read_state(state, {"in": None, "n": 0}, dataset, context)
        self._dataset = dataset
        self._inner = dataset.dataset.make_node(context, saved["in"])
        self._keys: list[RestoreKey] = []  # of the elements that the function took for the next one
        self._of_keys = 0  # elements that it made of these
        self._begin()
        for number in range(saved["n"]):
            if isinstance(self.next(), End):
                raise damaged(f"the pass has {number} elements, of which {saved['n']} were returned")

    def _begin(self) -> None:
        self._start = self._inner.state()
        self._returned = 0
        self._stream = iter(self._dataset.iter_map_fn(self._values()))

    def _values(self) -> Iterator[Any]:
        while isinstance(item := self._inner.next(), Item):
            if self._of_keys:
                self._keys, self._of_keys = [], 0
            self._keys.append(item.key)
            yield item.value

    def next(self) -> Item | End:
        for value in self._stream:
            self._returned += 1
            self._of_keys += 1
            key: RestoreKey = (IterMapDataset.kind, self._returned - 1)
            if self._dataset.stateless:
                batch = self._dataset.worker_config.stream_batch_index
                key = (*key, tuple(self._keys), self._of_keys - 1, batch)
            return Item(value, key)
        self._begin()
        return END

    def state(self) -> State:
        return {"in": self._start, "n": self._returned}


class IterMapDataset(Wrapper[T_co]):
    """Applies a function to the stream of elements of each pass.

    A restore runs the function again from the start of the pass; keep passes short, or use MapDataset.

    Args:
        dataset: The inner dataset.
        iter_map_fn: Takes an iterator and returns an iterator.
        len_map_fn: Returns the outer length for the inner one; None if they are equal.
        stateless_iter_fn: True if each result depends only on the elements that the function took since it
            returned the results before, so that these elements make it again.
        iter_map_fn_config: Describes the function in plain values (a dict, or a function that returns it),
            so that a state of another function is refused. None for nothing.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from itertools import accumulate
        >>> from energon_stream import IterMapDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(IterMapDataset(NumbersDataset(5), accumulate))
        [0, 1, 3, 6, 10]
    """

    kind = "IterMap"
    node_type = _IterMapNode
    option_names: ClassVar[tuple[str, ...]] = ("iter_map_fn",)

    def __init__(
        self,
        dataset: SavableDataset[T],
        iter_map_fn: Callable[[Iterator[T]], Iterator[T_co]],
        *,
        len_map_fn: Callable[[int], int] | None = None,
        stateless_iter_fn: bool = False,
        iter_map_fn_config: FunctionConfig = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.iter_map_fn: Callable[[Iterator[Any]], Iterator[Any]] = iter_map_fn
        self.len_map_fn = len_map_fn
        self.stateless = stateless_iter_fn
        self.function_config = iter_map_fn_config

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        self.check_keys(keys, several=True)
        if any(len(key) < 4 for key in keys):
            raise foreign_key(self, next(key for key in keys if len(key) < 4))
        inner = iter(self.dataset.restore_many([taken for key in keys for taken in key[2]], context))
        restored = []
        for key in keys:
            values = [next(inner).value for _ in key[2]]
            with context.config.activate(context.stream, 0, *key[4:]):
                made = list(islice(self.iter_map_fn(iter(values)), key[3], key[3] + 1))
            if not made:
                raise foreign_key(self, key)
            restored.append(Item(made[0], key))
        return restored

    def len_stream(self, stream: int) -> int | None:
        length = self.dataset.len_stream(stream)
        return length if length is None or self.len_map_fn is None else self.len_map_fn(length)
