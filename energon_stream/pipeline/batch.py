"""Consecutive elements to batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from energon_stream.errors import ConfigError, SampleError, SkipSample, StateMismatchError
from energon_stream.pipeline.dataset import SavableDataset, Wrapper
from energon_stream.pipeline.failures import FailureGuard
from energon_stream.pipeline.map import function_label, function_name
from energon_stream.pipeline.node import END, Context, End, Item, Node, RestoreKey, State
from energon_stream.worker import WorkerConfig

__all__ = ["BatchDataset", "make_batch", "restore_batches"]


def make_batch(batcher: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    """Call a batcher.

    Raises:
        SampleError: It returned nothing.
    """
    batch = batcher(values)
    if batch is None:
        raise SampleError(
            f"{function_name(batcher)} returned None for a batch of {len(values)}",
            where=str(getattr(values[0], "__sources__", None) or getattr(values[0], "__key__", None)),
            hint="return the batch, or raise SkipSample to drop it",
        )
    return batch


class Batching(Protocol):
    """What :func:`restore_batches` needs of a dataset that makes batches."""

    kind: ClassVar[str]
    dataset: SavableDataset[Any]
    batcher: Callable[[list[Any]], Any]


def restore_batches(batching: Batching, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
    """Make batches again: all their elements at once, then the batcher with the counters of then.

    Keys are ``(kind, call, keys of the elements)``.

    Raises:
        StateMismatchError: A key of another operator.
    """
    if any(key[0] != batching.kind for key in keys):
        raise StateMismatchError(
            f"some key does not belong to {type(batching).__name__}", hint="restore with the pipeline of then"
        )
    items = iter(batching.dataset.restore_many([inner for key in keys for inner in key[2]], context))
    restored = []
    for key in keys:
        inner = [next(items) for _ in key[2]]
        with context.config.activate(context.stream, key[1], key[1]):
            value = make_batch(batching.batcher, [item.value for item in inner])
        restored.append(Item(value, (batching.kind, key[1], tuple(item.key for item in inner))))
    return restored


class _BatchNode:
    """State: ``in`` (inner state), ``n`` (calls), ``end`` (the inner pass is over, END is still due).

    Between two batches nothing is held, so no sample has to be kept in the state.
    """

    def __init__(self, dataset: BatchDataset, context: Context, state: State | None) -> None:
        self._dataset = dataset
        self._context = context
        self._guard = FailureGuard(function_name(dataset.batcher), context.config, dataset.failure_tolerance)
        saved = state or {"in": None, "n": 0, "end": False}
        self._calls: int = saved["n"]
        self._ended: bool = saved["end"]
        self._inner = dataset.dataset.build(context, saved["in"])

    def next(self) -> Item | End:
        dataset = self._dataset
        while not self._ended:
            items: list[Item] = []
            while len(items) < dataset.batch_size:
                item = self._inner.next()
                if isinstance(item, End):
                    self._ended = True
                    break
                items.append(item)
            if not items or (len(items) < dataset.batch_size and dataset.drop_last):
                break
            call = self._calls
            self._calls += 1
            values = [item.value for item in items]
            try:
                with self._context.config.activate(self._context.stream, call, call):
                    batch = make_batch(dataset.batcher, values)
            except SkipSample:
                continue
            except Exception as error:
                self._guard.failed(error, values[0])
                continue
            self._guard.succeeded()
            return Item(batch, (dataset.kind, call, tuple([item.key for item in items])))
        self._ended = False
        return END

    def state(self) -> State:
        return {"in": self._inner.state(), "n": self._calls, "end": self._ended}

    def close(self) -> None:
        self._inner.close()


class BatchDataset(Wrapper[Any]):
    """Groups consecutive elements.

    Args:
        dataset: The inner dataset.
        batch_size: Elements of a batch.
        batcher: Makes a batch of a list of elements.
        batcher_stateless: Whether its result depends on its argument (and the seeds) only.
        drop_last: Whether a last batch that is not full is dropped.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Batch"

    def __init__(
        self,
        dataset: SavableDataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        drop_last: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}", hint="use 1 or more, or None for single samples")
        self.batch_size = batch_size
        self.batcher = batcher
        self.batcher_stateless = batcher_stateless or bool(getattr(batcher, "__stateless__", False))
        self.drop_last = drop_last
        self.failure_tolerance = failure_tolerance

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _BatchNode(self, context, state)

    def len_stream(self, stream: int) -> int | None:
        """Batches of one pass."""
        samples = self.dataset.len_stream(stream)
        if samples is None:
            return None
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def nominal_length(self) -> int:
        """Batches of one pass over what is repeated."""
        return max(1, -(-self.dataset.nominal_length() // self.batch_size))

    def can_restore_sample(self) -> bool:
        """True when the batcher, and all before it, are stateless."""
        return self.batcher_stateless and super().can_restore_sample()

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Make the elements again, all at once, and batch them."""
        return restore_batches(self, keys, context)

    def options(self) -> dict[str, Any]:
        """What decides the batches."""
        return {
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "batcher": function_label(self.batcher),
        }
