"""A function on each element, which returns one element, several (a generator), or none (``SkipSample``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset, Wrapper, foreign_key
from energon_stream.pipeline.failures import SKIPPED, FailureGuard
from energon_stream.pipeline.node import (
    Context,
    End,
    Item,
    RestoreKey,
    State,
    WrapperNode,
    new_item,
)
from energon_stream.worker import WorkerConfig

__all__ = ["MapDataset", "function_label", "function_name", "is_stateless", "nth_element"]


def function_name(function: Callable[..., Any]) -> str:
    """Return the qualified name of a function, for messages."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def function_label(function: Callable[..., Any]) -> str:
    """Return a function's name without its class, for ``config()``: states survive a renamed class."""
    return function_name(function).rpartition(".")[2]


def is_stateless(function: Callable[..., Any]) -> bool:
    """Return True if a function is marked with ``@stateless``."""
    return bool(getattr(function, "__stateless__", False))


def nth_element(generator: Any, place: int, dataset: SavableDataset[Any], key: RestoreKey) -> Any:
    """Return the element of a user's generator that a restore key names.

    Raises:
        StateMismatchError: The generator returns fewer elements.
    """
    for number, made in enumerate(generator):
        if number == place:
            return made
    raise foreign_key(dataset, key)


class _MapNode(WrapperNode):
    """State: ``in``, ``n`` (calls), ``open`` (key, call and place of a running generator, or None)."""

    def __init__(self, dataset: MapDataset, context: Context, state: State | None) -> None:
        self._fn = dataset.fn
        self._guard = FailureGuard(function_name(dataset.fn), context, dataset.failure_tolerance)
        saved = state or {"in": None, "n": 0, "open": None}
        self._calls: int = saved["n"]
        self._generator: GeneratorType[Any, Any, Any] | None = None
        self._open: tuple[Any, RestoreKey, int, int] | None = None
        if saved["open"] is not None:
            key, call, place = saved["open"]
            inner = dataset.dataset.restore_many([key], context)[0]
            with context.config.activate(context.stream, call):
                self._generator = self._fn(inner.value)
            self._open = (inner.value, inner.key, call, 0)
            for _ in range(place):
                self._next_of_generator()
        self._inner = dataset.dataset.build(context, saved["in"])

    def _advance(self, _: Any) -> Any:
        return SKIPPED if self._generator is None else next(self._generator, SKIPPED)

    def _next_of_generator(self) -> Item | None:
        if self._open is None:
            return None
        value, key, call, place = self._open
        made = self._guard.call(self._advance, value, call)
        if made is SKIPPED:
            self._generator = self._open = None
            return None
        self._open = (value, key, call, place + 1)
        return Item(made, (MapDataset.kind, call, key, place))

    def next(self) -> Item | End:
        while True:
            made = None if self._generator is None else self._next_of_generator()
            if made is not None:
                return made
            item = self._inner.next()
            if isinstance(item, End):
                return item
            call = self._calls
            self._calls = call + 1
            value = self._guard.call(self._fn, item.value, call)
            if isinstance(value, GeneratorType):
                self._generator = value
                self._open = (item.value, item.key, call, 0)
            elif value is not SKIPPED:
                return new_item((value, (MapDataset.kind, call, item.key)))

    def state(self) -> State:
        opened = self._open
        return {
            "in": self._inner.state(),
            "n": self._calls,
            "open": None if opened is None else [opened[1], opened[2], opened[3]],
        }


class MapDataset(Wrapper[Any]):
    """Applies a function to each element.

    The function may return a generator, whose elements follow each other, or raise ``SkipSample`` to drop the element.

    Args:
        dataset: The inner dataset.
        fn: The function; also accepted by its older name ``map_fn``.
        stateless_map_fn: True if the function's result depends on its argument (and the seeds) only.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import MapDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(MapDataset(NumbersDataset(3), lambda number: number * 10))
        [0, 10, 20]
    """

    kind = "Map"
    node_type = _MapNode

    def __init__(
        self,
        dataset: SavableDataset[Any],
        fn: Callable[[Any], Any] | None = None,
        *,
        map_fn: Callable[[Any], Any] | None = None,
        stateless_map_fn: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        function = fn if fn is not None else map_fn
        if function is None or (fn is not None and map_fn is not None):
            raise ConfigError("MapDataset needs one function", hint="pass it as the second argument")
        if failure_tolerance < 0:
            raise ConfigError(f"failure_tolerance is {failure_tolerance}", hint="use 0 for no limit")
        self.fn = function
        self.stateless_map_fn = stateless_map_fn or is_stateless(function)
        self.failure_tolerance = failure_tolerance

    @property
    def pass_length(self) -> int:
        """The inner dataset's: elements pass one by one."""
        return self.dataset.pass_length

    def can_restore_sample(self) -> bool:
        """Return True if the function, and all before it, are stateless."""
        return self.stateless_map_fn and super().can_restore_sample()

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Make the inner elements again and apply the function with the counters in the keys."""
        self.check_keys(keys)
        inner_items = self.dataset.restore_many([key[2] for key in keys], context)
        restored = []
        for key, inner in zip(keys, inner_items, strict=True):
            with context.config.activate(context.stream, key[1]):
                value = self.fn(inner.value)
                if len(key) > 3:
                    value = nth_element(value, key[3], self, key)
            restored.append(Item(value, (self.kind, key[1], inner.key, *key[3:])))
        return restored

    def options(self) -> dict[str, Any]:
        """Return the function's name."""
        return {"fn": function_label(self.fn)}
