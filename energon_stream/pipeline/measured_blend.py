"""A blend by the sizes of elements, such as tokens, which are measured when they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE, SKIPPED, FailureGuard, field_of
from energon_stream.pipeline.mixing import BlendDataset, BlendNode, choose
from energon_stream.pipeline.node import END, Context, End, Item, State, read_state
from energon_stream.rng import uniform
from energon_stream.worker import WorkerConfig

_PARTS = 1 << 10  # of a unit, to which sizes are rounded: sums of integers are exact


class _MeasuredBlendNode(BlendNode):
    """State: that of a blend, and ``sizes`` (what each dataset has given, in parts)."""

    def __init__(self, dataset: MeasuredBlendDataset, context: Context, state: State | None) -> None:
        start = {"t": 0, "in": [None] * len(dataset.inputs), "end": [], "sizes": [0] * len(dataset.inputs)}
        self._sizes = list(read_state(state, start, dataset, context)["sizes"])
        rest = None if state is None else {name: state[name] for name in start if name != "sizes"}
        super().__init__(dataset, context, rest)
        self._measured = dataset
        self._guard = FailureGuard(dataset.unit, context, DEFAULT_TOLERANCE)

    def next(self) -> Item | End:
        while len(self._ended) < len(self._nodes):
            draw = float(uniform(self._key, np.array([self._draws]))[0])
            number = self._measured.choose_behind(draw, self._ended, self._sizes)
            item = self._nodes[number].next()
            if not isinstance(item, Item):
                self._ended.add(number)
                continue
            self._draws += 1
            size = self._guard.call(self._measured.measure, item.value, self._draws - 1, of=(item,))
            if size is not SKIPPED:
                self._sizes[number] += size
                return self._dataset.label(number, item)
        self._ended.clear()
        return END

    def state(self) -> State:
        return {**super().state(), "sizes": self._sizes.copy()}


class MeasuredBlendDataset(BlendDataset[Any]):
    """Draws the dataset of each element so that each has its share of a size, and not of the elements.

    A dataset of share *w* that has given less than *w* of the sum of all sizes, by *d*, is drawn with a
    probability in proportion to *w* (epsilon + *d*) ^ alpha; *d* is 0 for one that has given more.

    Args:
        *dataset_weights: Pairs of dataset and weight.
        size_fn: Returns the size of an element, a number from 0 on.
        unit: Name of what it counts.
        alpha: Larger than 1 prefers datasets that are far behind; 0 draws by the weights alone.
        epsilon: Above 0. Larger is more random.
        worker_config: Must agree with the inner datasets', if given.
    """

    node_type = _MeasuredBlendNode
    option_names: ClassVar[tuple[str, ...]] = ("weights", "size_fn", "unit", "alpha", "epsilon")

    def __init__(
        self,
        *dataset_weights: tuple[SavableDataset[Any], float],
        size_fn: Callable[[Any], float],
        unit: str,
        alpha: float = 1.0,
        epsilon: float = 1.0,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(*dataset_weights, worker_config=worker_config)
        if not (0 <= alpha < math.inf and 0 < epsilon < math.inf):
            raise ConfigError(
                f"blend_sample_size_alpha is {alpha!r}, and blend_sample_size_epsilon {epsilon!r}",
                hint="use finite numbers: from 0 on, and above 0",
            )
        self.size_fn: Callable[[Any], float] = size_fn
        self.unit: str = unit
        self.alpha: float = alpha
        self.epsilon: float = epsilon

    def measure(self, value: Any) -> int:
        """Return the size of an element in parts. Raises ConfigError if it is no number from 0 on."""
        size = self.size_fn(value)
        try:
            if 0 <= size < math.inf:
                return round(float(size) * _PARTS)
        except (TypeError, ValueError):
            pass
        raise ConfigError(
            f"the size of a sample in {self.unit!r} is {size!r:.80}",
            where=str(field_of(value, "__key__")),
            hint="return a finite number from 0 on, or raise SkipSample",
        )

    def choose_behind(self, draw: float, ended: set[int], sizes: list[int]) -> int:
        """Return the number of the dataset for a draw, given what each has given."""
        whole, total = sum(self.weights), sum(sizes)
        chances = []
        for number, weight in enumerate(self.weights):
            missing = max(0.0, weight / whole * total - sizes[number]) / _PARTS
            chances.append(0.0 if number in ended else weight * (self.epsilon + missing) ** self.alpha)
        return choose(draw, chances)
