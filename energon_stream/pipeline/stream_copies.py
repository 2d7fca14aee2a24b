"""Copies of objects whose class writes ``__iter__``: one for each stream, with the stream's inputs."""

from __future__ import annotations

import copy
import io
from collections import deque
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any, Final

from energon_stream.errors import ConfigError, StateError
from energon_stream.pipeline.node import Context, Item, Node, RestoreKey
from energon_stream.pipeline.own_state import InputState, Place
from energon_stream.pipeline.stream_runner import with_restore_key

INPUTS: Final = "_stream_inputs"
"""Attribute of the copies: their inputs."""


class EndlessError(Exception):
    """A length was asked for, and there is none."""


class Input:
    """One stream of a dataset, as the copy of an object that reads from it sees it."""

    def __init__(self, dataset: Any, context: Context, number: int, place: Place) -> None:
        self.__dataset, self.__context, self.__number = dataset, context, number
        self.__saved, self.__ended = place
        self.__is_over = self.__ended  # the next iteration is what is left of a restored one
        self.__node: Any = None
        if self.__saved is not None:
            self.__open()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dataset, name)

    @property  # type: ignore[misc] # isinstance finds the dataset's class
    def __class__(self) -> type[Any]:
        return type(self.__dataset)

    def __open(self) -> Node:
        if self.__node is None:
            self.__node = self.__dataset.make_node(self.__context, self.__saved)
        node: Node = self.__node
        return node

    def __iter__(self) -> Iterator[Any]:
        if self.__is_over:
            self.__is_over = False
            return
        self.__ended = False
        while isinstance(item := self.__open().next(), Item):
            yield with_restore_key(item.value, item.key)
        self.__ended = True

    def stream_place(self) -> Place:
        return self.__saved if self.__node is None else self.__node.state(), self.__ended

    def end_pass(self) -> None:
        self.__ended = self.__is_over = False

    def save_state(self) -> InputState:
        return InputState(self.__number, self.stream_place())

    def restore_state(self, state: Any) -> None:
        if not isinstance(state, InputState):
            what = f"{type(state).__name__} is no state of this {type(self.__dataset).__name__}"
            raise StateError(what, hint="pass what its save_state() returned")
        self.close()
        self.__saved, self.__ended = state["place"]
        self.__is_over = self.__ended

    def restore_sample(self, restore_key: RestoreKey) -> Any:
        ((value, key),) = self.__dataset.restore_many([restore_key], self.__context)
        return with_restore_key(value, key)

    def __len__(self) -> int:
        length: int | None = self.__dataset.len_stream(self.__context.stream)
        if length is None:
            raise EndlessError
        return length

    def len_worker(self, worker_idx: int | None = None) -> int:
        return len(self)

    len_rank = len_worker

    def worker_has_samples(self, worker_idx: int | None = None) -> bool:
        return bool(self.__dataset.len_stream(self.__context.stream) != 0)

    def close(self) -> None:
        if self.__node is not None:
            self.__node.close()
            self.__node = None


def inputs_of(dataset: Any) -> tuple[Any, ...]:
    """Return the datasets among an object's attributes, also in lists, tuples and dicts."""
    found: dict[int, Any] = {}

    def look(value: Any) -> None:
        if hasattr(value, "make_node"):
            found.setdefault(id(value), value)
        elif isinstance(value, (list, tuple, dict)):
            for entry in value.values() if isinstance(value, dict) else value:
                look(entry)

    look(list(vars(dataset).values()))
    return tuple(found.values())


def sources_of(dataset: Any) -> list[Any]:
    """Return the inputs, and last the object as the operator that its class derives from, if any."""
    of_class = type(dataset).make_node
    above = next(cls for cls in type(dataset).__mro__ if getattr(cls, "make_node", of_class) is not of_class)
    if getattr(above, "node_type", None) is None:
        return [*dataset.inputs]
    parent: Any = object.__new__(
        above
    )  # not by __class__, which cannot be assigned where classes are mixed in
    vars(parent).update(vars(dataset))
    return [*dataset.inputs, parent]


def copy_for_stream(dataset: Any, context: Context, places: Sequence[Place] = ()) -> tuple[Any, list[Any]]:
    """Return a copy of an object for a stream, and its inputs, which are at ``places``.

    Functions, and what cannot be copied, such as locks, are shared.
    """
    made, several = object.__new__(type(dataset)), len(dataset.inputs)
    inputs: list[Any] = []
    for number, source in enumerate(sources_of(dataset)):
        at = context.child(number) if 1 < several > number else context
        inputs.append(Input(source, at, number, places[number] if places else (None, False)))
    config = dataset.worker_config
    shown = config if inputs else config.of_source()
    memo: dict[int, Any] = {id(dataset): made, id(config): shown}
    memo.update({id(source): inputs[number] for number, source in enumerate(dataset.inputs)})

    def copied(name: str, value: Any) -> Any:
        is_own_method = isinstance(value, MethodType) and value.__self__ is dataset
        if callable(value) and id(value) not in memo and not is_own_method:
            return value
        before = dict(memo)
        try:
            return copy.deepcopy(value, memo)
        except Exception:
            memo.clear()  # it has halves of copies
            memo.update(before)
            return parts_copied(name, value)

    def parts_copied(name: str, value: Any) -> Any:
        """Copy a collection or an object some parts of which cannot be copied, such as locks."""
        if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            raise ConfigError(
                f"the attribute {name} of {type(dataset).__name__} is a {type(value).__name__}, which cannot be "
                "copied for each stream and has no state",
                hint="make it in __iter__",
            )
        kind: Any = type(value)
        if id(value) in memo:
            return memo[id(value)]
        if kind in (list, set, tuple, deque):
            entries = [copied(name, entry) for entry in value]
            memo[id(value)] = deque(entries, value.maxlen) if kind is deque else kind(entries)
        elif kind is dict:
            memo[id(value)] = {key: copied(name, entry) for key, entry in value.items()}
        elif hasattr(value, "__dict__") and kind.__new__ is object.__new__ and kind.__module__ != "builtins":
            memo[id(value)] = object.__new__(kind)
            for key, entry in vars(value).items():
                object.__setattr__(memo[id(value)], key, copied(f"{name}.{key}", entry))
        return memo.get(id(value), value)

    vars(made).update({name: copied(name, value) for name, value in vars(dataset).items()})
    vars(made)[INPUTS] = inputs
    if len(inputs) > several:  # the library's operators call it at the end of __init__ in Megatron-Energon
        made.reset_state_own()
    return made, inputs


def stream_inputs(dataset: Any) -> list[Any] | None:
    """Return the inputs of a copy; None of an object that is no copy."""
    found: list[Any] | None = vars(dataset).get(INPUTS)
    return found


def iterate_parent(made: Any) -> Iterator[Any]:
    """Iterate a copy as the operator from which its class derives does."""
    inputs = vars(made)[INPUTS]
    if len(inputs) == len(made.inputs):
        raise NotImplementedError(f"the bases of {type(made).__name__} write no __iter__")
    return iter(inputs[-1])


def save_own(made: Any) -> dict[str, Any]:
    """Return the state of a copy: the states of its inputs, and the attributes in ``_savable_fields``."""
    of_inputs = [source.save_state() for source in vars(made)[INPUTS]]
    return {"datasets": of_inputs, **{name: saved(getattr(made, name)) for name in made._savable_fields}}


def restore_own(made: Any, state: Any) -> None:
    """Restore what :func:`save_own` returned."""
    for source, of_input in zip(vars(made)[INPUTS], state["datasets"], strict=True):
        source.restore_state(of_input)
    for name in made._savable_fields:
        restore_attribute(made, name, state[name])


def saved(value: Any) -> Any:
    """Return the state of an attribute that has one; else the attribute."""
    return value.save_state() if hasattr(value, "save_state") else value


def restore_attribute(made: Any, name: str, state: Any) -> None:
    """Restore what :func:`saved` returned."""
    current = vars(made).get(name)
    if hasattr(current, "restore_state"):
        current.restore_state(state)
    else:
        setattr(made, name, state)
