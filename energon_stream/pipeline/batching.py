"""Batches of consecutive elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from energon_stream.errors import ConfigError, SampleError
from energon_stream.pipeline.dataset import (
    FunctionConfig,
    SavableDataset,
    T,
    T_co,
    Wrapper,
    function_name,
    is_stateless,
)
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE, SKIPPED, FailureGuard, first_of
from energon_stream.pipeline.node import END, Context, End, Item, RestoreKey, State, WrapperNode, read_state
from energon_stream.samples.batch_memory import batching
from energon_stream.worker import WorkerConfig


class BatchMaker(Wrapper[T_co]):
    """Base of the operators that make batches. Keys are ``(kind, call, keys of the elements)``."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        batcher: Callable[[list[T]], T_co],
        batcher_stateless: bool,
        batcher_config: FunctionConfig,
        drop_last: bool,
        failure_tolerance: int,
        worker_config: WorkerConfig | None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.batcher: Callable[[list[Any]], Any] = batcher
        self.stateless: bool = batcher_stateless or is_stateless(batcher)
        self.function_config = batcher_config
        self.drop_last = drop_last
        self.failure_tolerance = failure_tolerance

    def make(self, values: list[Any]) -> Any:
        """Make a batch of elements. Raises SampleError if the batcher returned None."""
        with batching():
            batch = self.batcher(values)
        if batch is None:
            raise SampleError(
                f"{function_name(self.batcher)} returned None for a batch of {len(values)}",
                where=str(getattr(values[0], "__sources__", None) or getattr(values[0], "__key__", None)),
                hint="return the batch, or raise SkipSample to drop it",
            )
        return batch

    def item(self, batch: Any, call: int, items: Sequence[Item]) -> Item:
        """Label a batch with the key that makes it again."""
        return Item(batch, (self.kind, call, tuple([item.key for item in items])))

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        self.check_keys(keys, several=True)
        items = iter(self.dataset.restore_many([inner for key in keys for inner in key[2]], context))
        restored = []
        for key in keys:
            inner = [next(items) for _ in key[2]]
            with context.config.activate(context.stream, key[1], key[1]):
                batch = self.make([item.value for item in inner])
            restored.append(self.item(batch, key[1], inner))
        return restored


class _BatchNode(WrapperNode):
    """State: ``in``, ``n`` (calls), ``end`` (the inner pass is over, ``END`` is still due)."""

    def __init__(self, dataset: BatchDataset[Any], context: Context, state: State | None) -> None:
        self._dataset = dataset
        self._guard = FailureGuard(
            function_name(dataset.batcher), context, dataset.failure_tolerance, first_of
        )
        saved = read_state(state, {"in": None, "n": 0, "end": False}, dataset, context)
        self._calls: int = saved["n"]
        self._ended: bool = saved["end"]
        self._inner = dataset.dataset.make_node(context, saved["in"])

    def next(self) -> Item | End:
        dataset = self._dataset
        while not self._ended:
            items: list[Item] = []
            next_item = self._inner.next
            for _ in range(dataset.batch_size):
                item = next_item()
                if isinstance(item, End):
                    self._ended = True
                    break
                items.append(item)
            if not items or (len(items) < dataset.batch_size and dataset.drop_last):
                break
            call = self._calls
            self._calls += 1
            batch = self._guard.call(dataset.make, [item.value for item in items], call, call, of=items)
            if batch is not SKIPPED:
                return dataset.item(batch, call, items)
        self._ended = False
        return END

    def state(self) -> State:
        return {"in": self._inner.state(), "n": self._calls, "end": self._ended}


class BatchDataset(BatchMaker[T_co]):
    """Groups consecutive elements.

    Args:
        dataset: The inner dataset.
        batch_size: Elements of a batch, 1 or more.
        batcher: Makes a batch of a list of elements.
        batcher_stateless: True if the batcher's result depends on its argument (and the seeds) only.
        batcher_config: Describes ``batcher``: a dict, or a function that returns one. States must match it.
        drop_last: Drop the last batch of a pass if it is not full.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number. By default the first
            10 calls do, too, if they fail by one mistake, as of a typo.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import BatchDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(BatchDataset(NumbersDataset(5), 2, batcher=list))
        [[0, 1], [2, 3], [4]]
    """

    kind = "Batch"
    node_type = _BatchNode
    option_names: ClassVar[tuple[str, ...]] = ("batch_size", "drop_last", "batcher")

    def __init__(
        self,
        dataset: SavableDataset[T],
        batch_size: int,
        batcher: Callable[[list[T]], T_co],
        *,
        batcher_stateless: bool = False,
        batcher_config: FunctionConfig = None,
        drop_last: bool = False,
        failure_tolerance: int = DEFAULT_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(
            dataset, batcher, batcher_stateless, batcher_config, drop_last, failure_tolerance, worker_config
        )
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}", hint="use 1 or more, or None for single samples")
        self.batch_size = batch_size

    def len_stream(self, stream: int) -> int | None:
        samples = self.dataset.len_stream(stream)
        if samples is None:
            return None
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def nominal_length(self) -> int:
        return max(1, -(-self.dataset.nominal_length() // self.batch_size))
