"""Nodes, which run one stream of a dataset, with their items, keys, states and context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from energon_stream.errors import StateMismatchError
from energon_stream.pipeline.failure_notes import Failures
from energon_stream.rng import derive_key
from energon_stream.schedule.saved import damaged, is_count, shown

if TYPE_CHECKING:
    from energon_stream.pipeline.decode_ahead import DecodeThreads
    from energon_stream.read.consume import ReaderGroup
    from energon_stream.schedule import WeightChange
    from energon_stream.worker import WorkerConfig

State = Any
"""Plain values: nested dict, list, tuple, str, int, float, bool, bytes and None."""

INNER_STATE: Final = "in"
"""Key of a node's state that holds the state of its inner node, or a list with the state of each inner node.

A run that continues on a dataset that grew (``on_change="continue"``) finds the readers' states by it.
"""

RestoreKey = tuple[Any, ...]
"""Makes an element again: operator, counters of its calls, and the keys of the elements it was made of."""


class End:
    """Type of :data:`END`."""

    def __repr__(self) -> str:
        return "END"


END: Final = End()
"""Returned by ``next()`` at the end of a pass."""


class Item(NamedTuple):
    """An element on its way through the pipeline, with the key that can make it again."""

    value: Any
    key: RestoreKey


new_item: Callable[[tuple[Any, RestoreKey]], Item] = partial(tuple.__new__, Item)
"""Make an item from a tuple of its two fields. It is faster than the class, for code that runs per sample."""


@dataclass(frozen=True, slots=True)
class Context:
    """The place where a node runs."""

    config: WorkerConfig  # the job's configuration
    stream: int  # number of the stream, among all streams of the job
    readers: int = 1  # reader nodes in this process; they share its byte budget
    streams: int = 1  # streams in this process
    # Place of the node among the inputs of datasets with several inputs; part of its random keys.
    path: str = ""
    # Weights that the program set for the mixture; they replace the plan's from the first one on.
    changes: tuple[WeightChange, ...] = ()
    # Batches of the stream before, where weights change by batches; None where they do by references.
    batches: int | None = None
    # Look-ahead of each dataset, by ``id``; its reader nodes of all streams of this process share it.
    reader_groups: dict[int, ReaderGroup] = field(default_factory=dict, compare=False)
    decode_threads: DecodeThreads | None = field(default=None, compare=False)  # of this process
    failures: Failures = field(default_factory=Failures, compare=False)  # of this process
    # Elements of the job in the pass under way before the ranks began amid a step.
    resumed: int = 0

    def child(self, number: int) -> Context:
        """Return the context for one of several inputs."""
        return replace(self, path=f"{self.path}/{number}")

    def key(self, name: str) -> int:
        """Return the key for a node's random draws; ``name`` says what they are for."""
        return derive_key(self.config.seed_offset, self.config.share(self.stream), self.path, name)


class Node(Protocol):
    """One stream of one dataset. A node is built from a state or from None, so restoring is starting."""

    def next(self) -> Item | End:
        """Return the next item, or ``END``. The call after ``END`` begins the next pass."""

    def state(self) -> State:
        """Return the position after the last item, in plain values; never None: that is the start."""

    def close(self) -> None:
        """Release readers and buffers, and close the inner nodes."""


def read_state(state: State | None, start: dict[str, Any], dataset: object, context: Context) -> Any:
    """Return the fields of a node's state, checked; those of the start if there is no state.

    A state has the fields of ``start``: flags, counters and lists where these are, and lists as long as these
    unless they are empty. None stands for an optional list, and at :data:`INNER_STATE` for a state that the
    inner node has at all other times. Raises StateError if the state, which is not trusted, is damaged.
    """
    if state is None:
        return start
    where = f"{type(dataset).__name__} in stream {context.stream}"
    if not isinstance(state, dict) or state.keys() != start.keys():
        raise damaged(f"{shown(state)} has not the fields {', '.join(map(repr, start))}", where)
    for name, default in start.items():
        value = state[name]
        if not (value is not None if name == INNER_STATE and default is None else _is_like(value, default)):
            raise damaged(f"{name!r} is {shown(value)}", where)
    return state


def _is_like(value: Any, default: Any) -> bool:
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int):
        return is_count(value)
    if default is None:
        return value is None or isinstance(value, (list, tuple))
    if not isinstance(value, (list, tuple)) or (default and len(value) != len(default)):
        return False
    return all(_is_like(*each) for each in zip(value, default, strict=False) if each[1] is not None)


def foreign_key(dataset: object, key: RestoreKey) -> StateMismatchError:
    """Return the error for a restore key that is not of a dataset."""
    return StateMismatchError(
        f"the restore key {key!r:.100} does not belong to this {type(dataset).__name__}",
        hint="restore with the pipeline that made the key",
    )


class WrapperNode:
    """Base for the nodes of operators on one dataset: holds the inner node and closes it."""

    _inner: Node

    def close(self) -> None:
        """Close the inner node."""
        self._inner.close()


class Runnable(Protocol):
    """The part of a dataset that a StreamRunner uses; see ``SavableDataset``."""

    worker_config: WorkerConfig

    @property
    def pass_length(self) -> int: ...
    def make_node(self, context: Context, state: State | None) -> Node: ...
    def count_readers(self) -> int: ...
    def weights_by_batch(self) -> bool: ...
    def batches_of_changes(self, stream: int, changes: Sequence[WeightChange]) -> Iterator[int]: ...
