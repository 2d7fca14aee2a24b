"""Ends of passes: virtual epochs, limits, and passes of equal length on all streams."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError, EmptyStreamError
from energon_stream.pipeline.dataset import SavableDataset, T_co, Wrapper, common_config
from energon_stream.pipeline.node import (
    END,
    Context,
    End,
    Item,
    Node,
    RestoreKey,
    State,
    WrapperNode,
    read_state,
)
from energon_stream.plugins import debug_log
from energon_stream.schedule.saved import damaged
from energon_stream.worker import WorkerConfig

_log = logging.getLogger(__name__)

Ends: TypeAlias = Literal["uneven", "drop", "pad"]
"""End of a finite pass: as dealt, all streams cut to the shortest, or all filled up to the longest."""


def share_of_stream(begin: int, end: int, num_streams: int, stream: int) -> int:
    """Count elements ``begin`` to ``end`` of the job that are a stream's; k is of ``k % num_streams``."""
    return (end - stream + num_streams - 1) // num_streams - (begin - stream + num_streams - 1) // num_streams


class _BoundNode(WrapperNode):
    """State: ``in``, ``at`` (elements returned in this pass), ``pass`` (passes that ended)."""

    def __init__(self, dataset: _Bounded[Any], context: Context, state: State | None) -> None:
        saved = read_state(state, {"in": None, "at": 0, "pass": 0}, dataset, context)
        self._dataset = dataset
        self._context = context
        self._at: int = saved["at"]
        self._pass: int = saved["pass"]
        self._length = dataset.share(context.stream, self._pass)
        if self._at > self._length:
            raise damaged(f"{self._at} elements of a pass of {self._length}")
        self._inner = dataset.dataset.make_node(context, saved["in"])

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
            self._inner = self._dataset.dataset.make_node(self._context, None)
        self._at = 0
        self._pass += 1
        self._length = self._dataset.share(self._context.stream, self._pass)
        return END

    def state(self) -> State:
        return {"in": self._inner.state(), "at": self._at, "pass": self._pass}


class _Bounded(Wrapper[T_co]):
    """Base of the operators that end a pass after a number of elements of the whole job."""

    node_type = _BoundNode
    # Of all ranks together, so it does not depend on their number.
    option_names: ClassVar[tuple[str, ...]] = ("global_length",)
    restart: bool
    """True if the inner dataset begins anew after the bound; else it goes on."""
    over_end: bool
    """True if a pass goes on over the end of the inner pass."""

    def __init__(
        self, dataset: SavableDataset[T_co], global_length: int, worker_config: WorkerConfig | None
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        check_whole(f"the length of {type(self).__name__}", global_length, 1, "use 1 or more")
        self.global_length = global_length

    def share(self, stream: int, number: int) -> int:
        """Return the elements of a stream in pass ``number``, counted from 0."""
        begin = number * self.pass_length
        return share_of_stream(begin, begin + self.global_length, self.worker_config.num_streams, stream)


class EpochizeDataset(_Bounded[T_co]):
    """Cuts an endless sequence into virtual epochs; each epoch goes on where the last one ended.

    An epoch of the whole job has ``length * world_size`` elements. The share of each stream follows from that
    product, so it has to stay the same when a run resumes on another number of ranks.

    Args:
        dataset: The inner dataset; when it ends, its next pass follows within the epoch.
        length: Elements of one epoch of one rank.
        worker_config: Must agree with the inner dataset's, if given.
        num_epochs: Instead of ``length``: passes over the inner dataset's data in one epoch.

    Example:
        >>> from energon_stream import EpochizeDataset, RepeatDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(EpochizeDataset(RepeatDataset(NumbersDataset(3)), length=5))
        [0, 1, 2, 0, 1]
    """

    kind = "Epochize"
    restart = False
    over_end = True

    def __init__(
        self,
        dataset: SavableDataset[T_co],
        length: int | None = None,
        worker_config: WorkerConfig | None = None,
        *,
        num_epochs: int | None = None,
    ) -> None:
        config = common_config((dataset,), worker_config)
        if length is not None and num_epochs is None:
            global_length = length * config.world_size
        elif num_epochs is not None and length is None:
            global_length = num_epochs * _global_length(dataset)
        else:
            raise ConfigError(
                "EpochizeDataset needs either length or num_epochs", hint="pass exactly one of the two"
            )
        super().__init__(dataset, global_length, worker_config)

    def make_node(self, context: Context, state: State | None) -> Node:
        """Make the node of one stream."""
        node = super().make_node(context, state)
        log, length = (
            debug_log(self.worker_config.worker_log_level),
            self.global_length // self.worker_config.world_size,
        )
        return node if log is None else log.LoggedEpochs(node, context, length)

    @property
    def pass_length(self) -> int:
        return self.global_length

    def len_stream(self, stream: int) -> int | None:
        return self.share(stream, 0)


def _global_length(dataset: SavableDataset[Any]) -> int:
    """Return the elements of one pass of the whole job; for endless datasets, of one pass over the data."""
    config = dataset.worker_config
    lengths = [dataset.len_stream(stream) for stream in range(config.num_streams)]
    known = [length for length in lengths if length is not None]
    return sum(known) if len(known) == len(lengths) else dataset.nominal_length() * config.world_size


class LimitDataset(_Bounded[T_co]):
    """Ends each pass of a rank after at most ``length`` elements.

    Args:
        dataset: The inner dataset.
        length: Elements of one pass of one rank.
        reset_after_epoch: Begin the inner dataset anew in the next pass; else it goes on, except under
            Megatron-Energon's conventions, by which it begins anew.
        worker_config: Must agree with the inner dataset's, if given.

    Example:
        >>> from energon_stream import LimitDataset
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> list(LimitDataset(NumbersDataset(10), 3))
        [0, 1, 2]
    """

    kind = "Limit"
    over_end = False

    def __init__(
        self,
        dataset: SavableDataset[T_co],
        length: int,
        *,
        reset_after_epoch: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        config = common_config((dataset,), worker_config)
        super().__init__(dataset, length * config.world_size, worker_config)
        self.restart: bool = reset_after_epoch or config.conventions == "energon"

    def len_stream(self, stream: int) -> int | None:
        share, inner = self.share(stream, 0), self.dataset.len_stream(stream)
        return share if inner is None else min(share, inner)


class _EvenNode(WrapperNode):
    """State: ``in``, ``at`` (elements of the pass), ``last`` (key of the last), ``end`` (inner pass over)."""

    def __init__(self, dataset: EvenDataset[Any], context: Context, state: State | None) -> None:
        saved = read_state(state, {"in": None, "at": 0, "last": None, "end": False}, dataset, context)
        self._length = dataset.share(context.stream, context.resumed)
        # Other ranks than now may have had one element more, and saved before they ended the pass.
        most = self._length if dataset.ends == "drop" else dataset.share(context.stream) + 1
        if saved["at"] > most or (saved["last"] is None) != (saved["at"] == 0):
            raise damaged(f"{saved['at']} elements of a pass of {self._length}")
        self._dataset = dataset
        self._context = context
        self._at: int = saved["at"]
        self._last: RestoreKey | None = saved["last"]
        self._ended: bool = saved["end"]
        self._inner = dataset.dataset.make_node(context, saved["in"])

    def next(self) -> Item | End:
        if self._at < self._length:
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
        self._length = self._dataset.share(self._context.stream)
        return END

    def _from_inner(self) -> Item | None:
        if self._ended:
            return None
        item = self._inner.next()
        if isinstance(item, Item):
            return item
        self._ended = True
        missing = self._length - self._at
        if missing > 0:
            _log.warning(
                "stream %d repeats its last element %d times to end with the others",
                self._context.stream,
                missing,
            )
        return None

    def _repeated(self) -> Item:
        if self._last is None:
            raise EmptyStreamError(
                f"stream {self._context.stream} has nothing to repeat: its pass had no element",
                hint="use fewer ranks and workers, or skip fewer samples",
            )
        self._dataset.dataset.assert_can_restore()
        # From its key, because the receiver may have changed the one that it got.
        item = self._dataset.dataset.restore_many([self._last], self._context)[0]
        return item if self._dataset.fill is None else item._replace(value=self._dataset.fill(item.value))

    def state(self) -> State:
        return {"in": self._inner.state(), "at": self._at, "last": self._last, "end": self._ended}


def _counts_samples(dataset: SavableDataset[Any]) -> bool:
    return dataset.counts_samples or any(map(_counts_samples, dataset.inputs))


class EvenDataset(Wrapper[T_co]):
    """Gives every stream, and so every rank, the same number of elements in a pass.

    Collective operations of a training or validation step then never wait for a rank that has no batch left.
    Streams are cut to the shortest, or filled up to the longest, by their lengths. A stream that a filter
    made shorter is filled up as well. Filling up repeats the stream's last element, and a warning says how
    often.

    Args:
        dataset: The inner dataset, whose passes end.
        ends: ``"drop"`` cuts all streams to the shortest; ``"pad"`` fills all up to the longest.
        multiple_of: What the elements of all streams together are a multiple of, such as the batches of a
            training step of all ranks; 0 for the number of streams. With ``"pad"``, the last step has at
            least one element that was not there to fill up.
        fill: Makes what fills up of the element that would be repeated, such as one without a loss.
        worker_config: Must agree with the inner dataset's, if given.

    Raises:
        ConfigError: The inner dataset never ends, or an element would have to be repeated and cannot be made
            again.

    Example:
        >>> from energon_stream import EvenDataset, WorkerConfig
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> two_streams = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=2)
        >>> list(EvenDataset(NumbersDataset(5, two_streams), "drop"))
        [0, 1, 2, 3]
        >>> list(EvenDataset(NumbersDataset(5, two_streams), "pad"))
        [0, 1, 2, 3, 4, 3]
    """

    kind = "Even"
    node_type = _EvenNode
    option_names: ClassVar[tuple[str, ...]] = ("ends", "length")

    def __init__(
        self,
        dataset: SavableDataset[T_co],
        ends: Literal["drop", "pad"],
        *,
        multiple_of: int = 0,
        fill: Callable[[Any], Any] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(dataset, worker_config=worker_config)
        self.ends, self._multiple_of = ends, multiple_of
        self.fill: Callable[[Any], Any] | None = fill
        self._measure()

    def set_config(self, config: WorkerConfig) -> None:
        super().set_config(config)
        self._measure()

    def _measure(self) -> None:
        """Count the elements of each stream, of which all get as many."""
        (dataset,), ends, multiple_of = self.inputs, self.ends, self._multiple_of
        lengths = [dataset.len_stream(stream) for stream in range(self.worker_config.num_streams)]
        known = [length for length in lengths if length is not None]
        if len(known) < len(lengths):
            raise ConfigError(
                f'ends="{ends}" needs passes that end, and this dataset goes on for ever',
                hint='leave ends="uneven", pass repeat=False, or use virtual_epoch_length',
            )
        if _counts_samples(dataset):
            raise ConfigError(
                f'ends="{ends}" needs the number of packs of a pass, and a buffer makes any number of its samples',
                hint='leave ends="uneven", or plan packs with packing=PlannedPacking(…), which counts them',
            )
        self.length: int = min(known) if ends == "drop" else max(known)
        if min(known) < 1:  # on all ranks alike: one that has begun would wait for the others
            raise EmptyStreamError(
                f'{known.count(0)} of {len(known)} streams have no element, so ends="{ends}" cannot make them even',
                hint="use fewer ranks and workers (a stream is a worker of a rank), or a larger split part",
            )
        streams = len(known)
        self.total: int = self.length * streams
        if multiple_of and ends == "drop":
            self.total -= self.total % multiple_of
        elif multiple_of:
            in_order = max((length - 1) * streams + stream for stream, length in enumerate(known)) + 1
            self.total = -(-in_order // multiple_of) * multiple_of
        self.length = -(-self.total // streams)
        if any(self.share(stream) > length for stream, length in enumerate(known)):
            dataset.assert_can_restore()

    def share(self, stream: int, resumed: int = 0) -> int:
        """Return the elements of a stream in a pass, in which ranks were restored after some of the job's.

        What is left of the pass is then made a multiple of the ranks.
        """
        total, ranks = self.total, self.worker_config.world_size
        if resumed and self.ends == "drop":
            total -= (total - resumed) % ranks
        elif resumed:
            total = max(total, resumed)
            total += (resumed - total) % ranks
        return share_of_stream(0, total, self.worker_config.num_streams, stream)

    def len_stream(self, stream: int) -> int | None:
        return self.share(stream)


def with_ends(dataset: SavableDataset[Any], ends: Ends, *, even: bool) -> SavableDataset[Any]:
    """Add an :class:`EvenDataset` if ``ends`` asks for one. Raises ConfigError for an unknown word."""
    if ends not in get_args(Ends):
        raise ConfigError(f"ends is {ends!r}", hint=f"use one of {', '.join(get_args(Ends))}")
    return dataset if ends == "uneven" or even else EvenDataset(dataset, ends)
