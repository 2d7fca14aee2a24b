"""Where a pass ends: virtual epochs, and limits."""

from __future__ import annotations

from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset, Wrapper, common_config
from energon_stream.pipeline.node import END, Context, End, Item, Node, State
from energon_stream.worker import WorkerConfig

__all__ = ["EpochizeDataset", "LimitDataset", "share_of_stream"]


def share_of_stream(begin: int, end: int, num_streams: int, stream: int) -> int:
    """How many of the job's elements ``begin`` to ``end`` come from a stream: element k is of stream k modulo their number."""
    return (end - stream + num_streams - 1) // num_streams - (begin - stream + num_streams - 1) // num_streams


class _BoundNode:
    """State: ``in`` (inner state), ``at`` (elements given out in this pass), ``pass`` (passes that ended)."""

    def __init__(self, dataset: _Bounded, context: Context, state: State | None) -> None:
        saved = state or {"in": None, "at": 0, "pass": 0}
        self._dataset = dataset
        self._context = context
        self._at: int = saved["at"]
        self._pass: int = saved["pass"]
        self._length = dataset.share(context.stream, self._pass)
        self._inner = dataset.dataset.build(context, saved["in"])

    def next(self) -> Item | End:
        if self._at < self._length:
            item = self._inner.next()
            if isinstance(item, End) and self._dataset.over_end:
                item = self._inner.next()
            if not isinstance(item, End):
                self._at += 1
                return item
        elif self._dataset.restart:
            self._inner.close()
            self._inner = self._dataset.dataset.build(self._context, None)
        self._at = 0
        self._pass += 1
        self._length = self._dataset.share(self._context.stream, self._pass)
        return END

    def state(self) -> State:
        return {"in": self._inner.state(), "at": self._at, "pass": self._pass}

    def close(self) -> None:
        self._inner.close()


class _Bounded(Wrapper[Any]):
    restart: bool
    """Whether the inner dataset begins anew after the bound, instead of going on."""
    over_end: bool
    """Whether a pass goes on over the end of the inner pass."""

    def __init__(
        self, dataset: SavableDataset[Any], global_length: int, worker_config: WorkerConfig | None
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if global_length < 1:
            raise ConfigError(
                f"{type(self).__name__} would have {global_length} elements", hint="use a positive length"
            )
        self.global_length = global_length

    def share(self, stream: int, number: int) -> int:
        """Elements of a stream in a pass, of which ``number`` have gone before."""
        begin = number * self.pass_length
        end = begin + self.global_length
        return share_of_stream(begin, end, self.worker_config.num_streams, stream)

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _BoundNode(self, context, state)

    def options(self) -> dict[str, Any]:
        """The length of a pass of all ranks together, which does not depend on their number."""
        return {"global_length": self.global_length}


class EpochizeDataset(_Bounded):
    """Cuts an endless sequence in epochs; the next epoch goes on where the last one ended.

    An epoch has ``length`` times the ranks elements of the whole job. Which stream gives how many of them follows from
    that product, so it has to stay the same when a run is resumed on another number of ranks.

    Args:
        dataset: The inner dataset; when it ends, its next pass follows within the epoch.
        length: Elements of one epoch of one rank.
        num_epochs: Instead of ``length``: passes over the inner dataset's data that make one epoch.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Epochize"
    restart = False
    over_end = True

    def __init__(
        self,
        dataset: SavableDataset[Any],
        length: int | None = None,
        *,
        num_epochs: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        config = common_config((dataset,), worker_config)
        if length is not None and num_epochs is None:
            global_length = length * config.world_size
        elif num_epochs is not None and length is None:
            global_length = num_epochs * _global_length(dataset)
        else:
            raise ConfigError("EpochizeDataset needs either length or num_epochs")
        super().__init__(dataset, global_length, worker_config)

    @property
    def pass_length(self) -> int:
        """Elements of an epoch of the whole job."""
        return self.global_length

    def len_stream(self, stream: int) -> int | None:
        """The stream's share of the first epoch."""
        return self.share(stream, 0)


def _global_length(dataset: SavableDataset[Any]) -> int:
    """Elements of a pass of the whole job; of endless datasets those of one pass over the data."""
    config = dataset.worker_config
    lengths = [dataset.len_stream(stream) for stream in range(config.num_streams)]
    known = [length for length in lengths if length is not None]
    return sum(known) if len(known) == len(lengths) else dataset.nominal_length() * config.world_size


class LimitDataset(_Bounded):
    """At most so many elements in each pass of a rank.

    Args:
        dataset: The inner dataset.
        length: Elements of one pass of one rank.
        reset_after_epoch: Whether the next pass begins the inner dataset anew (else it goes on).
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Limit"
    over_end = False

    def __init__(
        self,
        dataset: SavableDataset[Any],
        length: int,
        *,
        reset_after_epoch: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        config = common_config((dataset,), worker_config)
        super().__init__(dataset, length * config.world_size, worker_config)
        self.restart = reset_after_epoch

    def len_stream(self, stream: int) -> int | None:
        """The smaller of the limit's share and the inner length."""
        share, inner = self.share(stream, 0), self.dataset.len_stream(stream)
        return share if inner is None else min(share, inner)
