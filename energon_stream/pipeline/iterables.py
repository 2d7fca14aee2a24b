"""Datasets whose class writes ``__iter__``, as operators like any other.

Each stream has a copy of the object, in which an ``Input`` stands for each dataset that it reads from. A copy
runs the class's own methods, while the object itself is a description, as all datasets are.

Where the object has a state of its own, a node saves it and restores it: the attributes that
``_savable_fields`` names, or what its own ``save_state`` returns. Else a node keeps the inputs' states at the
start of the pass, and the number of elements since, and a restore makes these elements again.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Final

import msgpack

from energon_stream.errors import ConfigError
from energon_stream.pipeline.failures import field_of
from energon_stream.pipeline.node import (
    END,
    INNER_STATE,
    Context,
    End,
    Item,
    Node,
    RestoreKey,
    State,
    foreign_key,
    read_state,
)
from energon_stream.pipeline.own_state import Place, pack, unpack
from energon_stream.pipeline.pack_members import as_key
from energon_stream.pipeline.stream_copies import (
    INPUTS,
    EndlessError,
    copy_for_stream,
    inputs_of,
    restore_attribute,
    saved,
    sources_of,
)
from energon_stream.random_states import seed_in_step
from energon_stream.rng import derive_key
from energon_stream.schedule.saved import damaged, is_count

_log = logging.getLogger(__name__)

_KIND: Final = "Iterable"
_REPLAYED = 10_000  # elements since the start of a pass, from which a log says what a restore takes
_NEAR = 64  # elements between two states, from which held elements are made again
_OFFERED = ("__iter__", "save_state", "restore_state", "restore_sample", "reset_state_deep")
"""Methods that a class may write: a copy calls them, and for the object itself the library's hold."""
_OURS = (
    "make_node", "restore_many", "inner_states", "with_inner_states", "input_path", "len_stream", "inputs", "places",
    "drawing", "nominal_length", "pass_length", "count_readers", "weights_by_batch", "batches_of_changes",
)  # fmt: skip
"""Names of datasets here that Megatron-Energon's do not have: no names for attributes of users."""


def adopt(cls: type[Any], base: type[Any]) -> None:
    """Make a class that writes ``__iter__`` an operator. Its objects are descriptions, and copies run it.

    ``base`` is the base of all datasets, whose methods hold for the objects.
    """
    if cls.__iter__ is not base.__iter__ and "make_node" not in vars(cls):
        methods = (make_node, restore_many, inner_states, with_inner_states, input_path, len_stream, config)
        for number, function in enumerate(methods):
            name = function.__name__
            if number < 5 or getattr(getattr(cls, name), "__isabstractmethod__", False):
                setattr(cls, name, function)
        if cls.inputs == ():
            cls.inputs = _Found()
    if cls.make_node is make_node:
        cls.__setattr__ = _set  # type: ignore[assignment] # a function is a method here
        cls._lengths = [
            name for name in ("len_worker", "__len__") if getattr(cls, name) is not getattr(base, name)
        ]
        for name in _OFFERED:
            own, ours = getattr(cls, name), getattr(base, name)
            if own is not ours and not hasattr(own, "own_method"):
                setattr(cls, name, _of_copies(own, ours))


def _set(self: Any, name: str, value: Any) -> None:
    is_inputs = name == "inputs" and isinstance(value, (list, tuple))
    if name in _OURS and not (is_inputs and all(hasattr(entry, "make_node") for entry in value)):
        raise ConfigError(
            f"{type(self).__name__} sets the attribute {name}, which the library's datasets have for themselves",
            hint="give the attribute another name",
        )
    object.__setattr__(self, name, value)


def _of_copies(own: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (own if INPUTS in vars(self) else ours)(self, *args, **kwargs)

    method.own_method = own  # type: ignore[attr-defined]
    return method


def is_iterable(dataset: Any) -> bool:
    """Return True if the class of a dataset writes ``__iter__``."""
    return type(dataset).make_node is make_node


def is_own(dataset: Any, name: str) -> bool:
    """Return True if the class of a dataset writes one of the methods of a user's own datasets."""
    return hasattr(getattr(type(dataset), name), "own_method")


class _Found:
    """``inputs`` of classes that do not set them."""

    def __get__(self, dataset: Any, cls: type[Any]) -> tuple[Any, ...]:
        return () if dataset is None else inputs_of(dataset)


class _Calls:
    """The calls of ``next`` since a state, by batches, whose indices hooks may see.

    Runs are ``(first batch, batches, calls in each)``; most pipelines have a few, whatever their length.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []
        self._batch, self._calls = -1, 0  # of the batch that is not over

    def add(self, batch: int) -> None:
        if batch != self._batch:
            self._runs = self.runs()
            self._batch, self._calls = batch, 0
        self._calls += 1

    def runs(self) -> list[tuple[int, int, int]]:
        if not self._calls:
            return self._runs
        first, batches, calls = self._runs[-1] if self._runs else (-1, 0, 0)
        if first + batches == self._batch and calls == self._calls and batches:
            return [*self._runs[:-1], (first, batches + 1, calls)]
        return [*self._runs, (self._batch, 1, self._calls)]


class IterableNode:
    """State: ``in`` and ``ended`` (for each input), ``n`` (passes, elements), ``own``, ``saves``, ``calls``,
    ``at`` (passes and elements after these).

    If ``saves``, the state is the object's own, and ``own`` has it; ``in`` has the inputs' present states. If
    not, ``in`` has their states at the start of a pass, where the object's attributes in ``own`` had changed;
    the calls since are made again.
    """

    def __init__(self, dataset: Any, context: Context, state: State | None) -> None:
        inputs = len(sources_of(dataset))
        start = {
            "in": [None] * inputs, "ended": [False] * inputs, "n": [0, 0], "at": [0, 0], "calls": [],
            "own": None, "saves": False,
        }  # fmt: skip
        at = read_state(state, start, dataset, context)
        places = [*zip(at["in"], at["ended"], strict=True)]
        self._dataset, self._name, self._context = dataset, type(dataset).__name__, context
        self._key = context.key(f"iterable {self._name}")
        self._error: Exception | None = None
        self._copy, self._inputs = copy_for_stream(dataset, context, places)
        self._by_key = is_own(dataset, "restore_sample") and bool(self._copy.can_restore_sample())
        self._has_save = is_own(dataset, "save_state") and is_own(dataset, "restore_state")
        self._saves: bool = at["saves"] or bool(dataset._savable_fields)
        self._first = self._own_state()[0] if self._has_save and not self._saves else None
        self._pass, self._count = at["n"]
        if at["own"] is not None:
            self._restore(unpack(at["own"], places), at["saves"])
        self._iterator = self._iterate()
        self._mark({**at, "calls": [], "at": at["n"]})
        for _ in self.run(at["calls"]):
            pass
        if [self._pass, self._count] != [*at["at"]]:
            raise damaged(f"the calls since the pass began lead to {self._pass, self._count}, not {at['at']}")

    def _restore(self, values: Any, saves: bool) -> None:
        if saves:
            self._copy.restore_state(values[0])
            return
        for name, value in values:
            restore_attribute(self._copy, name, value)

    def run(self, calls: Any) -> Iterator[Item | End]:
        """Make calls again, and yield what they return."""
        for first, batches, each in calls:
            if not all(map(is_count, (first, batches, each))):
                raise damaged("calls that cannot be")
            for batch in range(first, first + batches):
                with self._context.config.activate(self._context.stream, batch_index=batch):
                    for _ in range(each):
                        yield self.next()

    def _iterate(self) -> Iterator[Any]:
        return iter(self._copy)

    def _mark(self, state: State) -> None:
        """Set the state from which elements are made again."""
        self._start = state
        self._calls = _Calls()
        self._since: int = 0
        self._packed_start: bytes | None = None

    def _packed(self, value: Any) -> State:
        return pack(value, (), self._name)

    def _places(self) -> list[Place]:
        return [source.stream_place() for source in self._inputs]

    def _state_here(self, places: list[Place], own: State) -> State:
        inputs, ended = [state for state, _ in places], [ended for _, ended in places]
        n = [self._pass, self._count]
        return {
            "in": inputs, "ended": ended, "n": n, "at": n, "calls": [], "own": own, "saves": self._saves
        }  # fmt: skip

    def _own_state(self) -> tuple[State, list[Place]]:
        inputs = self._places()
        return pack(self._copy.save_state(), inputs, self._name), inputs

    def next(self) -> Item | End:
        if self._error is not None:
            raise self._error
        try:
            self._calls.add(self._context.config.stream_batch_index)
            seed_in_step(derive_key(self._key, self._pass, self._count) % 2**32)
            for value in self._iterator:
                return self._item(value)
            self._end_pass()
        except Exception as error:
            self._error = error
            raise
        return END

    def _item(self, value: Any) -> Item:
        self._since += 1
        self._count += 1
        if self._since == _REPLAYED and not self._saves:
            _log.warning(
                "%s saves no state of its own: a restore makes the elements of its pass again, by now %d. Give "
                "it _savable_fields, or end its passes: RepeatDataset(%s(EpochizeDataset(...)))",
                self._name, _REPLAYED, self._name,
            )  # fmt: skip
        if self._by_key and (made := field_of(value, "__restore_key__")) is not None:
            return Item(value, (_KIND, 0, made))
        if self._packed_start is None:
            self._packed_start = bytes(msgpack.packb(self._start))
        key = (_KIND, 1, self._packed_start, bytes(msgpack.packb(self._calls.runs())))
        if self._saves and self._since >= _NEAR:
            self._mark(self.state())
        return Item(value, key)

    def _end_pass(self) -> None:
        self._pass, self._count = self._pass + 1, 0
        for source in self._inputs:
            source.end_pass()
        self._iterator = self._iterate()
        changed = None if self._saves else self._changed()
        if self._saves or changed is not None:
            self._mark(self.state() if self._saves else self._state_here(self._places(), changed or None))

    def _changed(self) -> State | None:
        """Return the attributes that iterating changed, with their values; None if states cannot hold one."""
        changed = []
        for name, value in vars(self._copy).items():
            old = vars(self._dataset).get(name)
            if value is old or name == INPUTS:
                continue
            try:
                packed = self._packed(saved(value))
                if packed != self._packed(saved(old)):
                    changed.append([name, packed])
            except Exception:
                if not _same(value, old):
                    return None
        return changed

    def state(self) -> State:
        if self._saves or self._has_save:
            own, inputs = self._own_state()
            self._saves = self._saves or own != self._first
            if self._saves:
                return self._state_here(inputs, [own])
        return {**self._start, "calls": self._calls.runs(), "at": [self._pass, self._count]}

    def close(self) -> None:
        """Close the iterator and the inputs."""
        if hasattr(self._iterator, "close"):
            self._iterator.close()
        for source in self._inputs:
            source.close()


def _same(value: Any, old: Any) -> bool:
    """Return True if two objects are equal, as far as their pickles tell; the pickles are not kept."""
    try:
        return pickle.dumps(value) == pickle.dumps(old)
    except Exception:
        return False


# The methods of a class that writes ``__iter__``.


def make_node(self: Any, context: Context, state: State | None) -> Node:
    """Make the node of one stream."""
    return IterableNode(self, context, state)


def restore_many(self: Any, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
    """Make elements again: by the object's ``restore_sample``, or by iterating from a state before them."""
    found: dict[int, Item] = {}
    wanted: dict[bytes, list[tuple[int, int, Any]]] = {}
    made = None
    for place, key in enumerate(keys):
        parts = list(key) if isinstance(key, (list, tuple)) else [None]
        if parts[:2] == [_KIND, 0] and len(parts) == 3:
            made = made or copy_for_stream(self, context)[0]
            found[place] = Item(made.restore_sample(as_key(parts[2])), as_key(key))
        elif parts[:2] == [_KIND, 1] and len(parts) == 4 and all(type(part) is bytes for part in parts[2:]):
            calls = msgpack.unpackb(parts[3])
            wanted.setdefault(parts[2], []).append((sum(run[1] * run[2] for run in calls), place, calls))
        else:
            raise foreign_key(self, key)
    for start, places in wanted.items():
        node = IterableNode(self, context, msgpack.unpackb(start))
        made_again = list(node.run(max(places)[2]))
        for count, place, _ in places:
            item = made_again[count - 1]
            if not isinstance(item, Item):
                raise foreign_key(self, keys[place])
            found[place] = Item(item.value, as_key(keys[place]))
        node.close()
    return [found[place] for place in range(len(keys))]


def inner_states(self: Any, state: State) -> list[State]:
    """Return the states of the inputs."""
    return list(state[INNER_STATE][: len(self.inputs)])


def with_inner_states(self: Any, state: State, inner: Sequence[State]) -> State:
    """Return a state with other states of the inputs."""
    return {**state, INNER_STATE: [*inner, *state[INNER_STATE][len(self.inputs) :]]}


def input_path(self: Any, path: str, number: int) -> str:
    """Return the path of an input, which has a number if there are several."""
    return f"{path}/{number}" if len(self.inputs) > 1 else path


def len_stream(self: Any, stream: int) -> int | None:
    """Return the length of a stream: what the class says, or that of the inputs."""
    made, inputs = copy_for_stream(self, Context(self.worker_config, stream))
    try:
        for name in type(self)._lengths[:1]:
            return len(made) if name == "__len__" else int(made.len_worker(0))
        return sum(map(len, inputs)) if inputs else None
    except EndlessError:
        return None


def config(self: Any) -> dict[str, Any]:
    """Describe the object by its class and its inputs."""
    return {"type": type(self).__name__, "datasets": [dataset.config() for dataset in self.inputs]}
