"""Batches of elements that share a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from energon_stream.errors import ConfigError, SampleError
from energon_stream.pipeline.batching import BatchMaker
from energon_stream.pipeline.dataset import FunctionConfig, SavableDataset, T, T_co, function_name
from energon_stream.pipeline.failures import DEFAULT_TOLERANCE, SKIPPED, FailureGuard, first_of
from energon_stream.pipeline.node import END, Context, End, Item, State, WrapperNode, read_state
from energon_stream.schedule.saved import damaged
from energon_stream.worker import WorkerConfig


class _GroupNode(WrapperNode):
    """State: ``in``, ``n`` (batches made), ``held`` (keys in order of arrival, grouped anew), ``end``."""

    def __init__(self, dataset: GroupBatchDataset[Any], context: Context, state: State | None) -> None:
        saved = read_state(state, {"in": None, "n": 0, "held": [], "end": False}, dataset, context)
        tolerance = dataset.failure_tolerance
        self._dataset = dataset
        self._criterion = FailureGuard(
            function_name(dataset.criterion), context, tolerance, lambda item: item.value
        )
        self._batcher = FailureGuard(function_name(dataset.batcher), context, tolerance, first_of)
        self._batches: int = saved["n"]
        self._ended: bool = saved["end"]
        self._arrived = 0
        self._groups: dict[Hashable, tuple[int, list[tuple[int, Item]]]] = {}
        for item in dataset.dataset.restore_many(saved["held"], context) if saved["held"] else []:
            with context.config.activate(context.stream, self._arrived):
                if self._add(item)[1]:  # it would grow for ever
                    raise damaged("a group that is held is full")
        self._inner = dataset.dataset.make_node(context, saved["in"])

    def _add(self, item: Item) -> tuple[Hashable, bool]:
        """Put an item in its group; return the group's key, and True if the group is full."""
        key, size = self._dataset.group_of(item.value)
        known, items = self._groups.setdefault(key, (size, []))
        if known != size:
            raise SampleError(
                f"batch size {size} for group {key!r}, which has {known}",
                where=str(getattr(item.value, "__key__", None)),
                hint="the batch size must depend on the group's key only",
            )
        items.append((self._arrived, item))
        self._arrived += 1
        return key, len(items) == size

    def next(self) -> Item | End:
        while not self._ended:
            item = self._inner.next()
            if isinstance(item, End):
                self._ended = True
                break
            added = self._criterion.call(self._add, item, self._arrived, of=(item,))
            made = self._make(added[0]) if added is not SKIPPED and added[1] else None
            if made is not None:
                return made
        while self._groups:
            key = next(iter(self._groups))
            if self._dataset.drop_last:
                del self._groups[key]
                continue
            made = self._make(key)
            if made is not None:
                return made
        self._ended = False
        return END

    def _make(self, key: Hashable) -> Item | None:
        _, members = self._groups.pop(key)
        items = [item for _, item in members]
        call = self._batches
        self._batches += 1
        batch = self._batcher.call(self._dataset.make, [item.value for item in items], call, call, of=items)
        return None if batch is SKIPPED else self._dataset.item(batch, call, items)

    def state(self) -> State:
        held = sorted(
            (arrived, item.key) for _, members in self._groups.values() for arrived, item in members
        )
        return {
            "in": self._inner.state(),
            "n": self._batches,
            "held": [key for _, key in held],
            "end": self._ended,
        }

    def close(self) -> None:
        self._groups = {}
        super().close()


class GroupBatchDataset(BatchMaker[T_co]):
    """Makes batches of elements that share a key.

    Args:
        dataset: The inner dataset.
        fixed_batch_size: The batch size where ``sample_group_key`` returns None for it.
        sample_group_key: Returns an element's group as ``(key, batch size or None)``.
        batcher: Makes a batch of a list of elements.
        batcher_stateless: True if the batcher's result depends on its argument (and the seeds) only.
        batcher_config: Describes ``batcher``: a dict, or a function that returns one. States must match it.
        drop_last: Drop the groups that are not full at the end of a pass.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number. By default the first
            10 calls do, too, if they fail by one mistake, as of a typo.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import GroupBatchDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(GroupBatchDataset(NumbersDataset(8), 3, lambda number: (number % 2, None), list))
        [[0, 2, 4], [1, 3, 5], [6], [7]]
    """

    kind = "Group"
    regroups: ClassVar[bool] = True
    node_type = _GroupNode
    option_names: ClassVar[tuple[str, ...]] = ("criterion", "batch_size", "drop_last")

    def __init__(
        self,
        dataset: SavableDataset[T],
        fixed_batch_size: int | None,
        sample_group_key: Callable[[T], tuple[Hashable, int | None]],
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
        if fixed_batch_size is not None and fixed_batch_size < 1:
            raise ConfigError(f"batch_size is {fixed_batch_size}", hint="use 1 or more")
        self.criterion: Callable[[Any], tuple[Hashable, int | None]] = sample_group_key
        self.batch_size = fixed_batch_size
        self.counts_samples: bool = fixed_batch_size is None

    def group_of(self, value: Any) -> tuple[Hashable, int]:
        """Return an element's group and its size. Raises ConfigError if there is no size."""
        key, size = self.criterion(value)
        size = self.batch_size if size is None else size
        if type(size) is not int or size < 1:
            raise ConfigError(
                "a group has no batch size" if size is None else f"the batch size of a group is {size!r:.80}",
                hint="give batch_size, or return it from the group criterion: a number from 1 on",
            )
        return key, size

    def len_stream(self, stream: int) -> int | None:
        """Estimate the batches of one pass, as if all elements were of one group."""
        samples = self.dataset.len_stream(stream)
        if samples is None or self.batch_size is None:
            return samples
        return -(-samples // self.batch_size)

    def nominal_length(self) -> int:
        return max(1, self.dataset.nominal_length() // (self.batch_size or 1))
