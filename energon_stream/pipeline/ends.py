"""Where the passes of all streams end: after the same number of elements, whatever was dealt to them."""

from __future__ import annotations

import logging
from typing import Any, Literal, TypeAlias, get_args

from energon_stream.errors import ConfigError, EmptyStreamError
from energon_stream.pipeline.dataset import SavableDataset, Wrapper
from energon_stream.pipeline.node import END, Context, End, Item, Node, RestoreKey, State
from energon_stream.worker import WorkerConfig

__all__ = ["EvenDataset", "Ends", "with_ends"]

_log = logging.getLogger(__name__)

Ends: TypeAlias = Literal["uneven", "drop", "pad"]


class _EvenNode:
    """State: ``in``, ``at`` (elements given out in this pass), ``last`` (key of the last one), ``end`` (the inner
    pass is over).

    An element that is repeated is made again from its key: the one that was given out is its receiver's.
    """

    def __init__(self, dataset: EvenDataset, context: Context, state: State | None) -> None:
        saved = state or {"in": None, "at": 0, "last": None, "end": False}
        self._dataset = dataset
        self._context = context
        self._at: int = saved["at"]
        self._last: RestoreKey | None = saved["last"]
        self._ended: bool = saved["end"]
        self._inner = dataset.dataset.build(context, saved["in"])

    def next(self) -> Item | End:
        if self._at < self._dataset.length:
            item = self._from_inner() or self._repeated()
            self._at += 1
            self._last = item.key
            return item
        surplus = 0
        while self._from_inner() is not None:
            surplus += 1
        if surplus:
            _log.info("stream %d dropped %d elements at the end of its pass", self._context.stream, surplus)
        self._at, self._last, self._ended = 0, None, False
        return END

    def _from_inner(self) -> Item | None:
        if self._ended:
            return None
        item = self._inner.next()
        if isinstance(item, End):
            self._ended = True
            missing = self._dataset.length - self._at
            if missing > 0:
                _log.warning(
                    "stream %d repeats its last element %d times to end with the others",
                    self._context.stream,
                    missing,
                )
            return None
        return item

    def _repeated(self) -> Item:
        if self._last is None:
            raise EmptyStreamError(
                f"stream {self._context.stream} has nothing to repeat: its pass gave no element",
                hint="use fewer ranks and workers, or let less be skipped",
            )
        self._dataset.dataset.assert_can_restore()
        return self._dataset.dataset.restore_many([self._last], self._context)[0]

    def state(self) -> State:
        return {"in": self._inner.state(), "at": self._at, "last": self._last, "end": self._ended}

    def close(self) -> None:
        self._inner.close()


class EvenDataset(Wrapper[Any]):
    """Gives every stream, and so every rank, the same number of elements in a pass.

    Collective operations of a training or validation step then never wait for a rank that has no batch left.
    Streams are cut to the shortest, or filled up to the longest, of what the lengths say; where a filter makes a
    stream shorter than that, it is filled up too. Filling up repeats the stream's last element, and a warning says how often.

    Args:
        dataset: The inner dataset, whose passes end.
        ends: ``"drop"`` drops what the shortest stream does not have; ``"pad"`` repeats until all have what the longest has.
        worker_config: Must agree with the inner dataset's where given.

    Raises:
        ConfigError: The inner dataset never ends, or an element would have to be repeated and cannot be made
            again.
    """

    kind = "Even"

    def __init__(
        self,
        dataset: SavableDataset[Any],
        ends: Literal["drop", "pad"],
        *,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        lengths = [dataset.len_stream(stream) for stream in range(self.worker_config.num_streams)]
        known = [length for length in lengths if length is not None]
        if len(known) < len(lengths):
            raise ConfigError(
                f'ends="{ends}" needs passes that end, and this dataset goes on for ever',
                hint='leave ends="uneven", pass repeat=False, or use virtual_epoch_length',
            )
        self.ends = ends
        self.length = min(known) if ends == "drop" else max(known)
        if self.length < 1:
            raise EmptyStreamError(
                "some stream has no element, so none would be left",
                hint='use fewer ranks and workers, or ends="pad"',
            )
        if self.length > min(known):
            dataset.assert_can_restore()

    def build(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        return _EvenNode(self, context, state)

    def len_stream(self, stream: int) -> int | None:
        """The same for all."""
        return self.length

    def options(self) -> dict[str, Any]:
        """How passes end."""
        return {"ends": self.ends, "length": self.length}


def with_ends(dataset: SavableDataset[Any], ends: Ends, *, even: bool) -> SavableDataset[Any]:
    """A dataset whose passes end so.

    Args:
        dataset: The dataset.
        ends: How.
        even: Whether its passes have the same length on all ranks already.

    Raises:
        ConfigError: An unknown word, or it cannot be so.
    """
    if ends not in get_args(Ends):
        raise ConfigError(f"ends is {ends!r}", hint=f"one of {', '.join(get_args(Ends))}")
    return dataset if ends == "uneven" or even else EvenDataset(dataset, ends)
