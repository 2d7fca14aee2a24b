"""Conformance suite for datasets and operators, also yours: a restore after any step goes on identically."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from energon_stream.drawing import Drawing
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.node import END, INNER_STATE, Context, End, Item, Node, RestoreKey, State
from energon_stream.pipeline.stream_runner import Rotation, Step, StreamRunner
from energon_stream.schedule import damaged, is_count, shown
from energon_stream.state import dumps, loads
from energon_stream.worker import WorkerConfig


class _NumbersNode:
    def __init__(self, dataset: NumbersDataset, context: Context, state: State | None) -> None:
        self._numbers = dataset.numbers(context.stream)
        self._at: int = 0 if state is None else state
        if not is_count(self._at) or self._at > len(self._numbers):
            raise damaged(f"{shown(self._at)} is no place among {len(self._numbers)} numbers")

    def next(self) -> Item | End:
        if self._at == len(self._numbers):
            self._at = 0
            return END
        number = self._numbers[self._at]
        self._at += 1
        return Item(number, ("Number", number))

    def state(self) -> State:
        return self._at

    def close(self) -> None:
        pass


class NumbersDataset(SavableDataset[int]):
    """Numbers from ``offset`` on, dealt to the streams; a minimal dataset for tests and examples.

    Args:
        size: Number of numbers.
        worker_config: Default: one rank without workers.
        offset: Added to each number.

    Example:
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(NumbersDataset(4))
        [0, 1, 2, 3]
    """

    def __init__(self, size: int, worker_config: WorkerConfig | None = None, offset: int = 0) -> None:
        self.size: int = size
        self.offset: int = offset
        self.worker_config: WorkerConfig = worker_config or WorkerConfig(rank=0, world_size=1, num_workers=0)

    def numbers(self, stream: int) -> range:
        """Return the numbers of one pass of a stream."""
        return range(self.offset + stream, self.offset + self.size, self.worker_config.num_streams)

    def make_node(self, context: Context, state: State | None) -> Node:
        return _NumbersNode(self, context, state)

    def len_stream(self, stream: int) -> int | None:
        return len(self.numbers(stream))

    def nominal_length(self) -> int:
        return self.size

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        return [Item(key[1], ("Number", key[1])) for key in keys]

    def drawing(self) -> Drawing:
        offset = (f"offset={self.offset}",) if self.offset else ()
        return Drawing("NumbersDataset", (f"size={self.size}", *offset))

    def config(self) -> dict[str, Any]:
        return {"type": "NumbersDataset", "size": self.size, "offset": self.offset}


def run_steps(
    dataset: SavableDataset[Any], steps: int, states: Any = None, rotation: Rotation | None = None
) -> list[Step]:
    """Run a dataset's streams for some steps, which are elements and ends of passes.

    Args:
        dataset: The dataset.
        steps: Number of steps.
        states: State of each stream, to go on from; None for the start.
        rotation: Rotation of the streams, to go on from; None for the start.

    Example:
        >>> from energon_stream.testing.operator_suite import NumbersDataset, run_steps
        >>> [(step.value, step.ended) for step in run_steps(NumbersDataset(2), 4)]
        [(0, False), (1, False), (None, True), (0, False)]
    """
    runner = StreamRunner(dataset, list(dataset.worker_config.streams), states, rotation)
    try:
        return [runner.step_any() for _ in range(steps)]
    finally:
        runner.close()


def assert_equal_values(left: Any, right: Any, where: str = "value") -> None:
    """Compare elements deeply, tensors bit by bit.

    Args:
        left: An element.
        right: Another element.
        where: Name of the elements in messages.

    Raises:
        AssertionError: They differ; the message says where.

    Example:
        >>> from energon_stream.testing.operator_suite import assert_equal_values
        >>> assert_equal_values({"a": [1, 2]}, {"a": [1, 3]})
        Traceback (most recent call last):
            ...
        AssertionError: value['a'][1]: 2 and 3
    """
    if isinstance(left, torch.Tensor):
        if not (isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)):
            raise AssertionError(f"{where}: tensors differ")
        return
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        left, right = (left.dtype, left.tolist()), (right.dtype, right.tolist())
    if type(left) is not type(right):
        raise AssertionError(f"{where}: {type(left).__name__} and {type(right).__name__}")
    if isinstance(left, dict):
        if left.keys() != right.keys():
            raise AssertionError(f"{where}: keys {sorted(left)} and {sorted(right)}")
        for key in left:
            assert_equal_values(left[key], right[key], f"{where}[{key!r}]")
    elif isinstance(left, (list, tuple)):
        if len(left) != len(right):
            raise AssertionError(f"{where}: lengths {len(left)} and {len(right)}")
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_equal_values(one, other, f"{where}[{place}]")
    elif hasattr(left, "__dataclass_fields__"):
        for name in left.__dataclass_fields__:
            assert_equal_values(getattr(left, name), getattr(right, name), f"{where}.{name}")
    elif left != right:
        raise AssertionError(f"{where}: {left!r} and {right!r}")


def assert_exact_resume(make: Callable[[], SavableDataset[Any]], steps: int = 40, tail: int = 12) -> None:
    """Check that a dataset, restored after every one of its first steps, goes on identically.

    Each state goes through msgpack, and is restored into a new dataset. The state of a running stream must
    not change its kind over time. The contract of ``config()`` and ``inner_states()`` is checked too: a run
    that continues on a dataset that grew relies on it.

    Args:
        make: Makes the dataset anew.
        steps: Steps of the uninterrupted run.
        tail: Steps compared after each restore.

    Raises:
        AssertionError: A continuation differs, and the message says after which step; or the contract is
            broken, and the message says which method to fix.

    Example:
        >>> from energon_stream import MapDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume
        >>> assert_exact_resume(lambda: MapDataset(NumbersDataset(9), lambda number: -number))
    """
    dataset = make()
    _assert_config(dataset)
    reference = run_steps(dataset, steps)
    states: dict[int, Any] = {}
    rotation = Rotation.start(dataset, dataset.worker_config.streams)
    for cut, step in enumerate(reference[:-1], start=1):
        states[step.stream] = step.state
        if step.state["node"] is None:
            raise AssertionError("state() returned None, which stands for the start: return an empty dict")
        _assert_inner_states(dataset, step.state["node"])
        rotation.current()
        if step.ended:
            rotation.end_stream()
        else:
            rotation.advance()
        restored = {stream: loads(dumps(state)) for stream, state in states.items()}
        expected = reference[cut : cut + tail]
        found = run_steps(make(), len(expected), restored, replace(rotation))
        for place, (one, other) in enumerate(zip(expected, found, strict=True)):
            where = f"step {place} after a restore at step {cut}"
            if (one.stream, one.ended) != (other.stream, other.ended):
                raise AssertionError(f"{where}: stream or end differ: {one} and {other}")
            assert_equal_values(one.value, other.value, where)
            saved, again = dumps(one.state), dumps(other.state)
            if saved != again:  # or say where
                assert_equal_values(loads(saved), loads(again), f"state at {where}")


def _assert_config(dataset: SavableDataset[Any]) -> None:
    """Check that each ``config()`` has plain values, among them those of the inputs in order."""
    config, name = dataset.config(), type(dataset).__name__
    try:
        plain = loads(dumps(config))
    except Exception as error:
        raise AssertionError(f"{name}.config() does not return plain values: {error}") from error
    assert_equal_values(plain, loads(dumps(dataset.config())), f"{name}.config(), called twice")
    found = iter(_parts(config))
    for number, inner in enumerate(dataset.inputs):
        _assert_config(inner)
        if inner.config() not in found:
            raise AssertionError(
                f"{name}.config() does not contain config() of input {number}, a {type(inner).__name__}, "
                "after that of the input before: return {**options, 'dataset': self.dataset.config()}, or "
                "'datasets' with a list"
            )


def _parts(config: Any) -> Iterator[Any]:
    for value in config.values() if isinstance(config, dict) else config:
        if isinstance(value, (dict, list, tuple)):
            yield value
            yield from _parts(value)


def _assert_inner_states(dataset: SavableDataset[Any], state: State) -> None:
    """Check that ``inner_states`` and ``with_inner_states`` read and write the states of all inputs."""
    name = type(dataset).__name__
    advice = (
        f"have the node's state() return {{{INNER_STATE!r}: inner.state(), …}} (with several inputs, derive "
        f"from MultiInput and return a list), or override {name}.inner_states and {name}.with_inner_states"
    )
    try:
        inner = dataset.inner_states(state)
        again = dataset.with_inner_states(state, inner)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise AssertionError(f"{name} does not say where the inner state is ({error!r}): {advice}") from error
    if len(inner) != len(dataset.inputs):
        raise AssertionError(
            f"{name} has {len(dataset.inputs)} inputs and {len(inner)} inner states: {advice}"
        )
    assert_equal_values(again, state, f"{name}.with_inner_states(state, {name}.inner_states(state))")
    for one, at in zip(dataset.inputs, inner, strict=True):
        if at is not None:
            _assert_inner_states(one, at)


def assert_restores_by_key(make: Callable[[], SavableDataset[Any]], steps: int = 20) -> None:
    """Check that each element can be made again from its restore key, in another dataset object.

    Args:
        make: Makes the dataset anew.
        steps: Steps to take in each stream.

    Raises:
        AssertionError: An element differs, or ``can_restore_sample()`` is False.

    Example:
        >>> from energon_stream import BatchDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset, assert_restores_by_key
        >>> assert_restores_by_key(lambda: BatchDataset(NumbersDataset(9), 2, list, batcher_stateless=True))
    """
    dataset, other = make(), make()
    if not dataset.can_restore_sample():
        raise AssertionError("can_restore_sample() is False")
    for stream in dataset.worker_config.streams:
        context = Context(dataset.worker_config, stream)
        with dataset.worker_config.activate(stream):
            node = dataset.make_node(context, None)
            items = [item for item in (node.next() for _ in range(steps)) if isinstance(item, Item)]
            node.close()
            again = other.restore_many(loads(dumps([item.key for item in items])), context)
        for item, restored in zip(items, again, strict=True):
            assert_equal_values(item.value, restored.value, f"element of key {item.key}")
