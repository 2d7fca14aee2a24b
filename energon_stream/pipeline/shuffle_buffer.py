"""A shuffle buffer for elements.

States have the *keys* of elements that are held, from which a restore makes all of them again in one call. It
calls functions without the mark ``@stateless`` again too, with the same counters.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset, T_co, Wrapper
from energon_stream.pipeline.node import END, Context, End, Item, State, WrapperNode, read_state
from energon_stream.rng import uniform
from energon_stream.schedule.saved import damaged
from energon_stream.worker import WorkerConfig


class _ShuffleNode(WrapperNode):
    """State: ``in``, ``t`` (draws), ``held`` (keys), ``end`` (the inner pass is over)."""

    def __init__(self, dataset: ShuffleBufferDataset[Any], context: Context, state: State | None) -> None:
        saved = read_state(state, {"in": None, "t": 0, "held": [], "end": False}, dataset, context)
        if len(saved["held"]) > dataset.size:
            raise damaged(f"a shuffle buffer of {dataset.size} holds {len(saved['held'])} elements")
        self._size = dataset.size
        self._key = context.key("shuffle")
        self._draws: int = saved["t"]
        self._ended: bool = saved["end"]
        self._held = dataset.dataset.restore_many(saved["held"], context) if saved["held"] else []
        self._inner = dataset.dataset.make_node(context, saved["in"])

    def next(self) -> Item | End:
        while not self._ended and len(self._held) < self._size:
            item = self._inner.next()
            if isinstance(item, End):
                self._ended = True
            else:
                self._held.append(item)
        if not self._held:
            self._ended = False
            return END
        draw = float(uniform(self._key, np.array([self._draws]))[0])
        self._draws += 1
        return self._held.pop(int(draw * len(self._held)))

    def state(self) -> State:
        return {
            "in": self._inner.state(),
            "t": self._draws,
            "held": [item.key for item in self._held],
            "end": self._ended,
        }

    def close(self) -> None:
        self._held = []
        super().close()


class ShuffleBufferDataset(Wrapper[T_co]):
    """Shuffles elements through a buffer.

    ``get_train_dataset`` shuffles references instead, which costs no memory. This operator is for elements
    without references, such as the batches of a blend.

    Args:
        dataset: The inner dataset.
        size: Elements in the buffer, 1 or more.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import ShuffleBufferDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(ShuffleBufferDataset(NumbersDataset(6), size=4))
        [...]
    """

    kind = "Shuffle"
    node_type = _ShuffleNode
    option_names: ClassVar[tuple[str, ...]] = ("size",)

    def __init__(
        self, dataset: SavableDataset[T_co], size: int, *, worker_config: WorkerConfig | None = None
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if size < 1:
            raise ConfigError(f"size of the shuffle buffer is {size}", hint="use 1 or more")
        self.size = size
