"""Where a pass ends: virtual epochs, and limits."""

from __future__ import annotations

from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset, Wrapper
from energon_stream.pipeline.node import END, Context, End, Item, Node, State
from energon_stream.worker import WorkerConfig

__all__ = ["EpochizeDataset", "LimitDataset", "share_of_stream"]


def share_of_stream(length: int, config: WorkerConfig, stream: int, begin: int = 0) -> int:
    """How many of a rank's ``length`` elements from number ``begin`` on come from a stream.

    The streams of a rank take turns.
    """
    streams = config.streams
    place = streams.index(stream) if stream in streams else stream // config.world_size
    turn = (place - begin) % len(streams)
    return length // len(streams) + (1 if turn < length % len(streams) else 0)


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

    def __init__(self, dataset: SavableDataset[Any], length: int, worker_config: WorkerConfig | None) -> None:
        super().__init__(dataset, worker_config=worker_config)
        if length < 1:
            raise ConfigError(f"length of {type(self).__name__} is {length}", hint="use a positive number")
        self.length = length

    def share(self, stream: int, number: int) -> int:
        """Elements of a stream in a pass, of which ``number`` have gone before."""
        return share_of_stream(self.length, self.worker_config, stream)

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _BoundNode(self, context, state)

    def options(self) -> dict[str, Any]:
        """The length of a pass of one rank."""
        return {"length": self.length}


class EpochizeDataset(_Bounded):
    """Cuts an endless sequence in epochs; the next epoch goes on where the last one ended.

    Args:
        dataset: The inner dataset; when it ends, its next pass follows within the epoch.
        length: Elements of one epoch of one rank.
        num_epochs: Instead of ``length``: passes over the inner dataset's data that make one epoch.
        worker_config: Must agree with the inner dataset's where given.
    """

    kind = "Epochize"
    passes_follow = True
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
        if length is None and num_epochs is not None:
            length = num_epochs * dataset.len_rank()
        elif length is None or num_epochs is not None:
            raise ConfigError("EpochizeDataset needs either length or num_epochs")
        super().__init__(dataset, length, worker_config)

    def share(self, stream: int, number: int) -> int:
        """Elements of a stream in an epoch; those over come from another stream each time.

        Else short epochs would leave out, or see less of, the data of the last streams.
        """
        return share_of_stream(self.length, self.worker_config, stream, number * self.length)

    def len_stream(self, stream: int) -> int | None:
        """The stream's share of the first epoch."""
        return share_of_stream(self.length, self.worker_config, stream)


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
        super().__init__(dataset, length, worker_config)
        self.restart = reset_after_epoch

    def len_stream(self, stream: int) -> int | None:
        """The smaller of the limit's share and the inner length."""
        share = share_of_stream(self.length, self.worker_config, stream)
        inner = self.dataset.len_stream(stream)
        return share if inner is None else min(share, inner)
