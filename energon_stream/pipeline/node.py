"""What runs one stream of a dataset: nodes, their items and their states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from energon_stream.read.allowance import Allowance
from energon_stream.rng import derive_key
from energon_stream.worker import WorkerConfig

__all__ = ["END", "Context", "End", "Item", "Node", "RestoreKey", "Runnable", "State", "new_item"]

State = Any
"""Nested dict, list, tuple, str, int, float, bool, bytes and None."""

RestoreKey = tuple[Any, ...]
"""How an element was made: operator, its counters, and the keys of what it was made of."""


class End:
    """Type of :data:`END`."""

    def __repr__(self) -> str:
        return "END"


END: Final = End()
"""What ``next()`` gives at the end of a pass."""


class Item(NamedTuple):
    """An element on its way through the pipeline, with the key that can make it again."""

    value: Any
    key: RestoreKey


new_item: Callable[[tuple[Any, RestoreKey]], Item] = partial(tuple.__new__, Item)
"""An item of its two fields; a fraction of the time of a call of the class, for what is done for every sample."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where a node runs.

    Attributes:
        config: The job's configuration.
        stream: The stream that is served.
        readers: Source nodes in this process; they share its byte budget.
        path: Place of the node among the inputs of datasets with several; part of its random keys.
        allowances: By dataset, what the source nodes of all streams of this process read ahead with.
    """

    config: WorkerConfig
    stream: int
    readers: int = 1
    path: str = ""
    allowances: dict[int, Allowance] = field(default_factory=dict, compare=False)

    def child(self, number: int) -> Context:
        """The context of one of several inputs."""
        return replace(self, path=f"{self.path}/{number}")

    def key(self, name: str) -> int:
        """Key for the random draws of a node here."""
        return derive_key(self.config.seed_offset, self.stream, self.path, name)


class Node(Protocol):
    """One stream of one dataset."""

    def next(self) -> Item | End:
        """The next item, or ``END``; the call after ``END`` begins the next pass."""

    def state(self) -> State:
        """Where the node stands after the last item given out, in plain values."""

    def close(self) -> None:
        """Let go of readers and buffers."""


class Runnable(Protocol):
    """What an engine needs of a dataset."""

    worker_config: WorkerConfig

    @property
    def pass_length(self) -> int:
        """Elements of a pass of the whole job, where pass follows pass; 0 elsewhere."""

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream, at the start or where ``state`` says."""

    def count_readers(self) -> int:
        """Source datasets below, each of which reads ahead on its own."""
