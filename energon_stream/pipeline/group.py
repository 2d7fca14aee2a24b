"""Batches of elements that share a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from energon_stream.errors import ConfigError, SampleError, SkipSample
from energon_stream.pipeline.batch import make_batch, restore_batches
from energon_stream.pipeline.dataset import SavableDataset, Wrapper
from energon_stream.pipeline.failures import FailureGuard
from energon_stream.pipeline.map import function_label, function_name
from energon_stream.pipeline.node import END, Context, End, Item, Node, RestoreKey, State
from energon_stream.worker import WorkerConfig

__all__ = ["GroupBatchDataset"]


class _GroupNode:
    """State: ``in``, ``n`` (batches made), ``held`` (keys in order of arrival), ``end``.

    The groups themselves are not saved: the criterion is asked again.
    """

    def __init__(self, dataset: GroupBatchDataset, context: Context, state: State | None) -> None:
        saved = state or {"in": None, "n": 0, "held": [], "end": False}
        self._dataset = dataset
        self._context = context
        self._guard = FailureGuard(
            function_name(dataset.criterion), context.config, dataset.failure_tolerance
        )
        self._batches: int = saved["n"]
        self._ended: bool = saved["end"]
        self._arrived = 0
        self._groups: dict[Hashable, tuple[int, list[tuple[int, Item]]]] = {}
        for item in dataset.dataset.restore_many(saved["held"], context) if saved["held"] else []:
            self._add(item)
        self._inner = dataset.dataset.build(context, saved["in"])

    def _add(self, item: Item) -> Hashable | None:
        """Put an item in its group; the group's key where that is full."""
        with self._context.config.activate(self._context.stream, self._arrived):
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
        return key if len(items) == size else None

    def next(self) -> Item | End:
        while not self._ended:
            item = self._inner.next()
            if isinstance(item, End):
                self._ended = True
                break
            try:
                full = self._add(item)
            except SkipSample:
                continue
            except Exception as error:
                self._guard.failed(error, item.value)
                continue
            self._guard.succeeded()
            if full is not None:
                made = self._make(full)
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
        try:
            with self._context.config.activate(self._context.stream, call, call):
                batch = make_batch(self._dataset.batcher, [item.value for item in items])
        except SkipSample:
            return None
        except Exception as error:
            self._guard.failed(error, items[0].value)
            return None
        return Item(batch, (GroupBatchDataset.kind, call, tuple(item.key for item in items)))

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
        self._inner.close()


class GroupBatchDataset(Wrapper[Any]):
    """Batches of elements that share a key.

    Args:
        dataset: The inner dataset.
        sample_group_key: Gives an element's group as ``(key, batch size or None)``.
        batcher: Makes a batch of a list of elements.
        fixed_batch_size: The batch size where ``sample_group_key`` gives None.
        batcher_stateless: Whether the batcher's result depends on its argument (and the seeds) only.
        drop_last: Whether groups that are not full at the end are dropped.
        failure_tolerance: Failures in a row that end the run; 0 tolerates any number.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Group"

    def __init__(
        self,
        dataset: SavableDataset[Any],
        sample_group_key: Callable[[Any], tuple[Hashable, int | None]],
        batcher: Callable[[list[Any]], Any],
        *,
        fixed_batch_size: int | None = None,
        batcher_stateless: bool = False,
        drop_last: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if fixed_batch_size is not None and fixed_batch_size < 1:
            raise ConfigError(f"batch_size is {fixed_batch_size}", hint="use 1 or more")
        self.criterion = sample_group_key
        self.batcher = batcher
        self.fixed_batch_size = fixed_batch_size
        self.batcher_stateless = batcher_stateless or bool(getattr(batcher, "__stateless__", False))
        self.drop_last = drop_last
        self.failure_tolerance = failure_tolerance

    def group_of(self, value: Any) -> tuple[Hashable, int]:
        """Key and batch size of an element's group.

        Raises:
            ConfigError: The batch size is given twice or not at all.
        """
        key, size = self.criterion(value)
        if (size is None) == (self.fixed_batch_size is None):
            raise ConfigError(
                "the batch size of a group is given twice" if size else "a group has no batch size",
                hint="give batch_size, or return it from the group criterion, but not both",
            )
        return key, size or self.fixed_batch_size or 0

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _GroupNode(self, context, state)

    def len_stream(self, stream: int) -> int | None:
        """Estimate: batches if all elements were of one group; unknown where sizes differ."""
        samples = self.dataset.len_stream(stream)
        if samples is None or self.fixed_batch_size is None:
            return samples
        return -(-samples // self.fixed_batch_size)

    def nominal_length(self) -> int:
        """Nominal batches."""
        return max(1, self.dataset.nominal_length() // (self.fixed_batch_size or 1))

    def can_restore_sample(self) -> bool:
        """True when the batcher, and all before it, are stateless."""
        return self.batcher_stateless and super().can_restore_sample()

    def restore_many(self, keys: Sequence[RestoreKey], context: Context) -> list[Item]:
        """Make the elements again, all at once, and batch them."""
        return restore_batches(self, keys, context)

    def options(self) -> dict[str, Any]:
        """What decides the batches."""
        return {
            "criterion": function_label(self.criterion),
            "batch_size": self.fixed_batch_size,
            "drop_last": self.drop_last,
        }
