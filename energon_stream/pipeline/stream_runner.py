"""Runs the streams of one process in rotation, and reports their states."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from energon_stream.imports import LazyModule
from energon_stream.pipeline.decode_ahead import DecodeThreads
from energon_stream.pipeline.failure_notes import Failures
from energon_stream.pipeline.failures import check_pass
from energon_stream.pipeline.node import Context, End, Node, RestoreKey, Runnable, State
from energon_stream.plugins import debug_log
from energon_stream.schedule.saved import reading

if TYPE_CHECKING:
    import torch

    from energon_stream.index.bad_samples import BadSample
    from energon_stream.pipeline.pack_keys import PackPlan
    from energon_stream.read.consume import ReaderGroup
    from energon_stream.schedule import WeightChange
else:
    torch = LazyModule("torch")

BAD_SAMPLES: Final = "__bad_samples__"
"""Attribute of an error that ended a step: the samples that had failed."""
Note: TypeAlias = tuple[int, bytes]
"""What is noted about an element: a kind, and its content."""
TakeNote: TypeAlias = "Callable[[int, RestoreKey | None, State], Note | None]"
"""Looks at each element: its stream, its key (None at an end), and the state of the node after it."""


@dataclass(slots=True)
class Rotation:
    """Round-robin of the streams of a process; a stream that has ended is left out until the pass is over.

    Where passes follow each other without a gap, as virtual epochs do, the rotation goes on from one to the
    next: element k of the job, counted over all passes, comes from stream ``k % num_streams``, on whatever
    process. Elsewhere each pass begins with the first stream.
    """

    streams: tuple[int, ...]  # the streams of this process, ascending
    num_streams: int  # streams of the whole job
    # Elements of a pass of the whole job, where passes follow each other without a gap; else 0.
    pass_length: int = 0
    passes: int = 0  # passes that are over
    next_stream: int = 0  # the job's stream that comes next; it may be another process's
    ended: frozenset[int] = frozenset()  # streams that have ended in this pass
    consumed: int = 0  # elements of this pass that all streams together have returned

    @classmethod
    def start(cls, dataset: Runnable, streams: Sequence[int]) -> Rotation:
        """Make the rotation before the first element of some of a dataset's streams."""
        return cls(tuple(streams), dataset.worker_config.num_streams, dataset.pass_length)

    @property
    def first_stream(self) -> int:
        """The stream with which the pass began."""
        return self.passes * self.pass_length % self.num_streams

    def of_streams(self, streams: Sequence[int]) -> Rotation:
        """Return the rotation of a process that serves only some of the streams."""
        rotation = replace(self, streams=tuple(streams), ended=self.ended.intersection(streams))
        if len(rotation.ended) == len(rotation.streams):
            rotation._next_pass()
        return rotation

    def copy(self) -> Rotation:
        """Return a rotation that moves on its own; ``replace`` takes three times as long."""
        return Rotation(
            self.streams,
            self.num_streams,
            self.pass_length,
            self.passes,
            self.next_stream,
            self.ended,
            self.consumed,
        )

    def current(self) -> int:
        """Return the stream of this process that comes next."""
        place = bisect_left(self.streams, self.next_stream) % len(self.streams)
        while self.streams[place] in self.ended:
            place = (place + 1) % len(self.streams)
        self.next_stream = self.streams[place]
        return self.next_stream

    def advance(self) -> None:
        """Count an element of the current stream, and go on to the next stream."""
        self.consumed += 1
        self.next_stream = (self.next_stream + 1) % self.num_streams

    def end_stream(self) -> bool:
        """Leave the current stream out of this pass; return True if that ended the pass."""
        self.ended |= {self.next_stream}
        if len(self.ended) < len(self.streams):
            return False
        self._next_pass()
        return True

    def _next_pass(self) -> None:
        self.passes, self.ended, self.consumed = self.passes + 1, frozenset(), 0
        self.next_stream = self.first_stream


class StepLoads(NamedTuple):
    """Loads of the planned packs of a batch, for each cost."""

    step: int  # number of the global step, from the start of the run
    costs: tuple[str, ...]  # their names
    own: tuple[float, ...]  # of the samples that the batch has
    planned: tuple[tuple[float, float], ...]  # of the step: the slowest rank's, and the mean


@dataclass(frozen=True, slots=True)
class Step:
    """One element, or the end of a stream's pass."""

    stream: int  # the stream that it came from
    value: Any  # the element; None at an end
    ended: bool  # True if the stream's pass has ended
    state: State  # the stream's state after it
    note: Note | None = None  # what ``take_note`` returned
    bad: tuple[BadSample, ...] = ()  # samples that failed on the way to it
    loads: StepLoads | None = None  # of planned packs


def with_restore_key(value: Any, key: RestoreKey) -> Any:
    """Write the key into an element that has a field or an item ``__restore_key__``."""
    if isinstance(value, dict):
        if "__restore_key__" in value:
            value["__restore_key__"] = key
    elif hasattr(value, "__restore_key__"):
        object.__setattr__(value, "__restore_key__", key)
    return value


class StreamRunner:
    """Runs some streams of a dataset in rotation.

    ``changes`` are weights that the program set, ``resumed`` as in :class:`Context`. With ``of_loader``,
    values are what a loader returns: by Megatron-Energon's conventions, containers are converted.
    """

    def __init__(
        self,
        dataset: Runnable,
        streams: Sequence[int],
        states: Mapping[int, State] | None = None,
        rotation: Rotation | None = None,
        changes: tuple[WeightChange, ...] = (),
        take_note: TakeNote | None = None,
        decode_threads: int = 0,
        resumed: int = 0,
        of_loader: bool = False,
    ) -> None:
        self._decode_threads = DecodeThreads(decode_threads, len(streams)) if decode_threads else None
        self._take_note = take_note
        self._config = dataset.worker_config
        self._converts = of_loader and self._config.conventions == "energon"
        self.rotation: Rotation = rotation or Rotation.start(dataset, streams)
        self._nodes: dict[int, Node] = {}
        self._batches: dict[int, int] = {}
        self._counts: dict[int, list[int]] = {}  # as of :class:`Notes`, since the start
        self._failures = Failures(dataset)
        log = debug_log(self._config.worker_log_level)
        self._log = None if log is None else log.BatchLines(dataset)
        self._dataset, self._contexts = dataset, dict[int, Context]()
        self._changing: dict[int, set[int]] = {}  # for each stream, batches before which weights change
        by_batch = dataset.weights_by_batch()
        readers = len(streams) * dataset.count_readers()
        reader_groups: dict[int, ReaderGroup] = {}
        for stream in streams:
            saved = (states or {}).get(stream)
            self._batches[stream] = 0 if saved is None else int(saved["batches"])
            self._counts[stream] = [0, 0, 0] if saved is None else list(saved.get("counts", (0, 0, 0)))
            batches = self._batches[stream]
            changing = {*dataset.batches_of_changes(stream, changes)} if by_batch else set[int]()
            self._changing[stream] = {batch for batch in changing if batch > batches}
            self._contexts[stream] = context = Context(
                self._config,
                stream,
                readers,
                len(streams),
                changes=changes,
                batches=batches if changing else None,
                reader_groups=reader_groups,
                decode_threads=self._decode_threads,
                failures=self._failures,
                resumed=resumed,
            )
            with self._config.activate(stream, batch_index=self._batches[stream]):
                if saved is None:
                    self._nodes[stream] = dataset.make_node(context, None)
                    continue
                with reading(f"stream {stream}"):  # also of operators of users, and of elements that are held
                    self._nodes[stream] = dataset.make_node(context, saved["node"])
        self._failures.take()  # what a node makes again was counted before
        self._batch_packs = 1

    def step_any(self) -> Step:
        """Return the next element or end, of the stream that the rotation names."""
        stream = self.rotation.current()
        batches = self._batches[stream]
        if batches in self._changing[stream]:
            self._begin_anew(stream)
        node = self._nodes[stream]
        with self._config.activate(stream, batch_index=batches):
            try:
                item = node.next()
            except Exception as error:
                error.__dict__[BAD_SAMPLES] = self._bad(stream)
                raise
        planned = self._failures.notes.planned
        bad = self._bad(stream)
        if isinstance(item, End):
            self.rotation.end_stream()
            state = node.state()
            if self._take_note is not None:
                self._take_note(stream, None, state)
            return Step(stream, None, True, self._state(stream, state), bad=bad)
        self._batches[stream] = batches + 1
        self.rotation.advance()
        value = with_restore_key(item.value, ("Stream", stream, item.key))
        if self._log is not None:
            self._log.write(stream, batches, value)
        if self._converts:
            value = torch.utils.data.default_convert(value)  # type: ignore[no-untyped-call]
        state = node.state()
        note = None if self._take_note is None else self._take_note(stream, item.key, state)
        packing = self._failures.packing
        loads = None if packing is None else self._loads(packing, item.key, batches, planned)
        return Step(stream, value, False, self._state(stream, state), note, bad, loads)

    def _loads(self, packing: PackPlan, key: RestoreKey, batches: int, planned: Any) -> StepLoads:
        packs, own = packing.loads_in(key)
        self._batch_packs = max(self._batch_packs, packs)  # the last batch of a pass may have fewer
        each = packing.spec.step // self._config.num_streams
        names = tuple(kind.name or "load" for kind in packing.spec.kinds)
        return StepLoads(batches * self._batch_packs // each, names, tuple(own), tuple(planned))

    def _begin_anew(self, stream: int) -> None:
        """Make the node of a stream again where it stands, with the weights of its next batch."""
        batches, node = self._batches[stream], self._nodes[stream]
        self._changing[stream].remove(batches)
        state = node.state()
        node.close()
        with self._config.activate(stream, batch_index=batches):
            context = replace(self._contexts[stream], batches=batches)
            self._nodes[stream] = self._dataset.make_node(context, state)
        self._failures.take()  # what a node makes again was counted before

    def _bad(self, stream: int) -> tuple[BadSample, ...]:
        """Count what was noted since the last step, which may be of another stream; return what failed."""
        read, bad, calls, emptied = self._failures.notes.counts
        mine = self._counts[stream]
        more = [sum(mine[3:]) + emptied] if emptied or len(mine) > 3 else []
        self._counts[stream] = [mine[0] + read, mine[1] + bad, mine[2] + calls, *more]
        noted = self._failures.take().calls
        return tuple([sample for _, samples in noted for sample in samples]) if noted else ()

    def _state(self, stream: int, node: State) -> State:
        return {"batches": self._batches[stream], "node": node, "counts": self._counts[stream]}

    def step(self) -> Step | None:
        """Return the next element; None at the end of the pass of all streams."""
        while True:
            step = self.step_any()
            if not step.ended:
                return step
            if not self.rotation.ended:
                states = [
                    {"batches": self._batches[stream], "counts": self._counts[stream]}
                    for stream in self._nodes
                ]
                check_pass(states, self._config.world_size)
                return None

    def close(self) -> None:
        """Close all nodes."""
        for node in self._nodes.values():
            node.close()
        if self._decode_threads is not None:
            self._decode_threads.close()
