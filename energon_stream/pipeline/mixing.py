"""Combinations of datasets: blend, mix, concatenate; and repetitions of one dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from energon_stream.drawing import Drawing
from energon_stream.errors import ConfigError
from energon_stream.pipeline.batching import BatchDataset
from energon_stream.pipeline.dataset import MultiInput, SavableDataset, T_co, Wrapper
from energon_stream.pipeline.node import END, Context, End, Item, Node, State, WrapperNode, read_state
from energon_stream.rng import uniform
from energon_stream.schedule.saved import damaged
from energon_stream.worker import WorkerConfig


class _ConcatNode(WrapperNode):
    """State: ``i`` (number of the current dataset), ``in`` (a state for each, None where not begun)."""

    def __init__(self, dataset: ConcatDataset[Any], context: Context, state: State | None) -> None:
        self._dataset = dataset
        self._context = context
        count = len(dataset.inputs)
        saved = read_state(state, {"i": 0, "in": [None] * count}, dataset, context)
        self._number: int = saved["i"]
        self._states: list[State] = list(saved["in"])
        waiting = [number for number, inner in enumerate(self._states) if inner is None]
        if state is not None and waiting not in ([], list(range(self._number + 1, count))):
            raise damaged(f"dataset {self._number} of {count} is read, and {waiting} have not begun")
        self._inner = self._open()

    def _open(self) -> Node:
        number = self._number
        return self._dataset.inputs[number].make_node(self._context.child(number), self._states[number])

    def next(self) -> Item | End:
        while True:
            item = self._inner.next()
            if isinstance(item, Item):
                return self._dataset.label(self._number, item)
            self._states[self._number] = self._inner.state()
            self._inner.close()
            self._number = (self._number + 1) % len(self._states)
            self._inner = self._open()
            if self._number == 0:
                return END

    def state(self) -> State:
        states = list(self._states)
        states[self._number] = self._inner.state()
        return {"i": self._number, "in": states}


class ConcatDataset(MultiInput[T_co]):
    """Reads one dataset after the other; for finite datasets, as in validation.

    Args:
        *datasets: The inner datasets.
        worker_config: Must agree with the inner datasets', if given.

    Example:
        >>> from energon_stream import ConcatDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(ConcatDataset(NumbersDataset(2), NumbersDataset(2, offset=10)))
        [0, 1, 10, 11]
    """

    kind = "Concat"
    node_type = _ConcatNode

    def __init__(self, *datasets: SavableDataset[T_co], worker_config: WorkerConfig | None = None) -> None:
        super().__init__(datasets, worker_config=worker_config)


def choose(draw: float, chances: Sequence[float]) -> int:
    """Return the number of one of some chances, given a draw in ``[0, 1)``."""
    left = draw * sum(chances)
    for number, chance in enumerate(chances):
        left -= chance
        if left < 0:
            return number
    return max(number for number, chance in enumerate(chances) if chance)


class BlendNode:
    """State: ``t`` (draws), ``in`` (a state for each), ``end`` (numbers of the datasets that ended)."""

    def __init__(self, dataset: BlendDataset[Any], context: Context, state: State | None) -> None:
        self._dataset = dataset
        self._key = context.key("blend")
        count = len(dataset.inputs)
        saved = read_state(state, {"t": 0, "in": [None] * count, "end": []}, dataset, context)
        if state is not None and None in saved["in"]:
            raise damaged("some dataset of a blend has no state")
        self._draws: int = saved["t"]
        self._ended: set[int] = set(saved["end"])
        if not self._ended <= set(range(count)):
            raise damaged(f"{len(self._ended)} datasets of a blend of {count} have ended")
        self._nodes = [
            inner.make_node(context.child(number), saved["in"][number])
            for number, inner in enumerate(dataset.inputs)
        ]

    def next(self) -> Item | End:
        while len(self._ended) < len(self._nodes):
            draw = float(uniform(self._key, np.array([self._draws]))[0])
            number = self._dataset.choose(draw, self._ended)
            item = self._nodes[number].next()
            if isinstance(item, Item):
                self._draws += 1
                return self._dataset.label(number, item)
            self._ended.add(number)
        self._ended.clear()
        return END

    def state(self) -> State:
        return {"t": self._draws, "in": [node.state() for node in self._nodes], "end": sorted(self._ended)}

    def close(self) -> None:
        for node in self._nodes:
            node.close()


class BlendDataset(MultiInput[T_co]):
    """Draws the dataset of each element by weight; a pass ends when all inner datasets have ended.

    Args:
        *dataset_weights: Pairs of dataset and weight. Weights are positive and need not sum to one. A
            dataset that has ended has weight 0 for the rest of the pass.
        worker_config: Must agree with the inner datasets', if given.

    Example:
        >>> from energon_stream import BlendDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> blend = BlendDataset((NumbersDataset(3), 0.7), (NumbersDataset(3, offset=100), 0.3))
        >>> sorted(blend)
        [0, 1, 2, 100, 101, 102]
        >>> blend
        BlendDataset(0.7: NumbersDataset(size=3), 0.3: NumbersDataset(size=3, offset=100))
    """

    kind = "Blend"
    node_type: ClassVar[type[Any]] = BlendNode
    option_names: ClassVar[tuple[str, ...]] = ("weights",)

    def __init__(
        self, *dataset_weights: tuple[SavableDataset[T_co], float], worker_config: WorkerConfig | None = None
    ) -> None:
        if any(len(tuple(pair)) != 2 for pair in dataset_weights):
            raise ConfigError(
                "a blend is made of pairs of a dataset and a weight",
                hint="pass BlendDataset((dataset, weight), (dataset, weight))",
            )
        super().__init__([dataset for dataset, _ in dataset_weights], worker_config=worker_config)
        self.weights: tuple[float, ...] = tuple(float(weight) for _, weight in dataset_weights)
        if not all(weight > 0 and math.isfinite(weight) for weight in self.weights):
            raise ConfigError(
                f"blend weights {list(self.weights)}", hint="every weight must be positive and finite"
            )

    def choose(self, draw: float, ended: set[int]) -> int:
        """Return the number of the dataset for a draw in ``[0, 1)``, leaving out datasets that have ended."""
        return choose(draw, [0.0 if each in ended else weight for each, weight in enumerate(self.weights)])

    def drawing(self) -> Drawing:
        weighted = zip(self._inner_boxes(), self.weights, strict=False)  # the boxes are the first ones
        inner = tuple(box.labelled(f"{weight:g}") for box, weight in weighted)
        return replace(super().drawing(), details=(), inner=inner)


class MixBatchDataset(BatchDataset[Any]):
    """Makes batches whose elements come from several datasets.

    Args:
        *dataset_weights: Pairs of dataset and weight; the inner datasets yield single samples, or batches of
            one sample.
        batch_size: Elements of a batch, 1 or more.
        batch_mix_fn: Makes a batch of a list of elements of any of the inner types. Default: the list.
        drop_last: Drop the last batch of a pass if it is not full.
        batch_mix_stateless: True if the result of ``batch_mix_fn`` depends on its argument only.
        worker_config: Must agree with the inner datasets', if given.

    Example:
        >>> from energon_stream import MixBatchDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> pairs = (NumbersDataset(2), 1), (NumbersDataset(2, offset=10), 1)
        >>> [len(batch) for batch in MixBatchDataset(*pairs, batch_size=2)]
        [2, 2]
    """

    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset[Any], float],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = list,
        drop_last: bool = False,
        batch_mix_stateless: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        blend = BlendDataset(*dataset_weights, worker_config=worker_config)
        super().__init__(
            blend, batch_size, batch_mix_fn, batcher_stateless=batch_mix_stateless, drop_last=drop_last
        )


class _RepeatNode(WrapperNode):
    """State: ``in``, ``pass`` (inner passes that ended), ``at`` (elements of the current one), ``done``."""

    def __init__(self, dataset: RepeatDataset[Any], context: Context, state: State | None) -> None:
        saved = read_state(state, {"in": None, "pass": 0, "at": 0, "done": False}, dataset, context)
        self._dataset = dataset
        self._passes: int = saved["pass"]
        self._at: int = saved["at"]
        self._done: bool = saved["done"]
        self._last = dataset.part_of_last_pass(context.stream)
        self._inner = dataset.dataset.make_node(context, saved["in"])

    def next(self) -> Item | End:
        repeats = self._dataset.repeats
        while not self._done:
            if repeats is not None and self._passes + 1 > repeats and self._at >= self._last:
                break
            item = self._inner.next()
            if isinstance(item, Item):
                self._at += 1
                return item
            empty = self._at == 0
            self._passes, self._at = self._passes + 1, 0
            if empty:
                break  # an empty dataset would repeat for ever without an element
        self._done = not self._dataset.restart
        self._passes = self._at = 0
        return END

    def state(self) -> State:
        return {"in": self._inner.state(), "pass": self._passes, "at": self._at, "done": self._done}


class RepeatDataset(Wrapper[T_co]):
    """Joins several passes of a finite dataset to one pass.

    Args:
        dataset: The inner dataset.
        repeats: Number of passes; None repeats without end. The last pass of ``2.5`` has half the elements,
            rounded down.
        restart: Allow another pass of this dataset after the first; else it stays empty.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import RepeatDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(RepeatDataset(NumbersDataset(4), 1.5))
        [0, 1, 2, 3, 0, 1]
    """

    kind = "Repeat"
    node_type = _RepeatNode
    option_names: ClassVar[tuple[str, ...]] = ("repeats", "restart")

    def __init__(
        self,
        dataset: SavableDataset[T_co],
        repeats: float | None = None,
        *,
        restart: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if repeats is not None and not repeats > 0:
            raise ConfigError(
                f"repeats is {repeats}", hint="use a positive number, or None to repeat for ever"
            )
        self.repeats = repeats
        self.restart = restart

    def part_of_last_pass(self, stream: int) -> int:
        """Return the elements of the last, fractional pass of a stream; 0 if there is none."""
        fraction = 0.0 if self.repeats is None else self.repeats - math.floor(self.repeats)
        if not fraction:
            return 0
        length = self.dataset.len_stream(stream)
        if length is None:
            raise ConfigError(
                f"a fraction of an endless pass (repeats={self.repeats})", hint="repeat a finite dataset"
            )
        return math.floor(length * fraction)

    def len_stream(self, stream: int) -> int | None:
        length = self.dataset.len_stream(stream)
        if length is None or self.repeats is None:
            return 0 if length == 0 else None
        return length * math.floor(self.repeats) + self.part_of_last_pass(stream)
