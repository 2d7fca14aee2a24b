"""A function on each element: one to one, one to many (a generator), or none (``SkipSample``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import GeneratorType
from typing import Any

from energon_stream.errors import ConfigError, SkipSample, StateMismatchError
from energon_stream.pipeline.dataset import SavableDataset, Wrapper
from energon_stream.pipeline.failures import FailureGuard
from energon_stream.pipeline.node import END, Context, End, Item, Node, RestoreKey, State, new_item
from energon_stream.worker import WorkerConfig

__all__ = ["MapDataset", "function_label", "function_name"]


def function_name(function: Callable[..., Any]) -> str:
    """Qualified name of a function for messages."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def function_label(function: Callable[..., Any]) -> str:
    """Name of a function in descriptions, without its class: renaming that must not refuse saved states."""
    return function_name(function).rpartition(".")[2]


class _MapNode:
    """State: ``in`` (inner state), ``n`` (calls), ``open`` (key, call and place of a running generator)."""

    def __init__(self, dataset: MapDataset, context: Context, state: State | None) -> None:
        self._dataset = dataset
        self._fn = dataset.fn
        self._context = context
        self._guard = FailureGuard(function_name(dataset.fn), context.config, dataset.failure_tolerance)
        saved = state or {"in": None, "n": 0, "open": None}
        self._calls: int = saved["n"]
        self._active = context.config.activate(context.stream)
        self._generator: Iterator[Any] | None = None
        self._open: tuple[Any, RestoreKey, int, int] | None = None
        if saved["open"] is not None:
            key, call, place = saved["open"]
            inner = dataset.dataset.restore_many([key], context)[0]
            self._open = (inner.value, inner.key, call, 0)
            self._generator = self._call(inner.value, call)
            for _ in range(place):
                self._next_of_generator()
        self._inner = dataset.dataset.build(context, saved["in"])

    def _call(self, value: Any, call: int) -> Any:
        with self._active.at(call):
            return self._dataset.fn(value)

    def _next_of_generator(self) -> Item | None:
        if self._generator is None or self._open is None:
            return None
        value, key, call, place = self._open
        try:
            with self._active.at(call):
                made = next(self._generator)
        except (StopIteration, SkipSample):
            self._generator = self._open = None
            return None
        except Exception as error:
            self._generator = self._open = None
            self._guard.failed(error, value)
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
                return END
            call = self._calls
            self._calls = call + 1
            try:
                with self._active.at(call):
                    value = self._fn(item.value)
            except SkipSample:
                continue
            except Exception as error:
                self._guard.failed(error, item.value)
                continue
            if self._guard.in_a_row:
                self._guard.succeeded()
            if not isinstance(value, GeneratorType):
                return new_item((value, (MapDataset.kind, call, item.key)))
            self._generator = value
            self._open = (item.value, item.key, call, 0)

    def state(self) -> State:
        opened = self._open
        return {
            "in": self._inner.state(),
            "n": self._calls,
            "open": None if opened is None else [opened[1], opened[2], opened[3]],
        }

    def close(self) -> None:
        self._inner.close()


class MapDataset(Wrapper[Any]):
    """Applies a function to each element.

    The function may return a generator, whose elements follow each other, or raise ``SkipSample``.

    Args:
        dataset: The inner dataset.
        fn: The function; also accepted by its older name ``map_fn``.
        stateless_map_fn: Whether the function's result depends on its argument (and the seeds) only.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Map"

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
        self.stateless_map_fn = stateless_map_fn or bool(getattr(function, "__stateless__", False))
        self.failure_tolerance = failure_tolerance

    @property
    def pass_length(self) -> int:
        """That of the inner dataset: elements pass one by one."""
        return self.dataset.pass_length

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _MapNode(self, context, state)

    def can_restore_sample(self) -> bool:
        """True when the function, and all before it, are stateless."""
        return self.stateless_map_fn and super().can_restore_sample()

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Make the inner elements again and apply the function with the counters of then."""
        for key in keys:
            if key[0] != self.kind:
                raise StateMismatchError(
                    f"a key of {key[0]!r} does not belong to a MapDataset", hint="see config()"
                )
        restored = []
        for key, inner in zip(
            keys, self.dataset.restore_many([key[2] for key in keys], context), strict=True
        ):
            with context.config.activate(context.stream, key[1]):
                value = self.fn(inner.value)
                if len(key) > 3:
                    for place, made in enumerate(value):
                        if place == key[3]:
                            value = made
                            break
            restored.append(Item(value, (self.kind, key[1], inner.key, *key[3:])))
        return restored

    def options(self) -> dict[str, Any]:
        """Name of the function."""
        return {"fn": function_label(self.fn)}
