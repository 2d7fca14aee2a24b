"""Runs the streams of one process in turn, and says after each element where its stream stands."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from energon_stream.pipeline.node import Context, End, Node, RestoreKey, Runnable, State
from energon_stream.read.allowance import Allowance

__all__ = ["Engine", "Rotation", "Step", "with_restore_key"]


@dataclass(slots=True)
class Rotation:
    """Whose turn it is: streams take turns, an ended one is left out until the pass is over.

    Where pass follows pass, as virtual epochs do, the turn goes on from one to the next: element k of the job, counted over all
    passes, comes from stream k modulo their number, whoever serves it. Elsewhere each pass begins with the first stream.

    Attributes:
        streams: The streams that take turns here, ascending.
        num_streams: Streams of the whole job.
        pass_length: Elements of a pass of the whole job, where pass follows pass; 0 elsewhere.
        passes: Passes that are over.
        at: Of the job's streams, the one whose turn is next; it may be another process's.
        ended: Streams that have ended in this pass.
        given: Elements given out in this pass, by all of the streams.
    """

    streams: tuple[int, ...]
    num_streams: int
    pass_length: int = 0
    passes: int = 0
    at: int = 0
    ended: frozenset[int] = frozenset()
    given: int = 0

    @classmethod
    def start(cls, dataset: Runnable, streams: Sequence[int]) -> Rotation:
        """The turn before the first element of some of a dataset's streams."""
        return cls(tuple(streams), dataset.worker_config.num_streams, dataset.pass_length)

    @property
    def begin(self) -> int:
        """The stream that the pass began with."""
        return self.passes * self.pass_length % self.num_streams

    def part(self, streams: Sequence[int]) -> Rotation:
        """The turn as the process sees it that serves some of the streams."""
        part = replace(self, streams=tuple(streams), ended=self.ended.intersection(streams))
        if len(part.ended) == len(part.streams):
            part._next_pass()
        return part

    def current(self) -> int:
        """The stream whose turn it is."""
        place = bisect_left(self.streams, self.at) % len(self.streams)
        while self.streams[place] in self.ended:
            place = (place + 1) % len(self.streams)
        self.at = self.streams[place]
        return self.at

    def done(self) -> None:
        """The current stream gave an element."""
        self.given += 1
        self.at = (self.at + 1) % self.num_streams

    def end(self) -> bool:
        """The current stream has ended; True when that ended the pass, and the next one begins."""
        self.ended |= {self.at}
        if len(self.ended) < len(self.streams):
            return False
        self._next_pass()
        return True

    def _next_pass(self) -> None:
        self.passes, self.ended, self.given = self.passes + 1, frozenset(), 0
        self.at = self.begin


@dataclass(frozen=True, slots=True)
class Step:
    """One element, or the end of a stream's pass.

    Attributes:
        stream: The stream it came from.
        value: The element; None at an end.
        ended: Whether the stream's pass has ended.
        state: Where the stream stands now.
    """

    stream: int
    value: Any
    ended: bool
    state: State


def with_restore_key(value: Any, key: RestoreKey) -> Any:
    """Write the key into an element that has a place for it."""
    if isinstance(value, dict):
        if "__restore_key__" in value:
            value["__restore_key__"] = key
    elif hasattr(value, "__restore_key__"):
        object.__setattr__(value, "__restore_key__", key)
    return value


class Engine:
    """Some streams of a dataset, run in turn.

    Args:
        dataset: What to run.
        streams: The streams that this process serves, in the order of their turns.
        states: Where each stream stands; a stream that is not in it begins at the start.
        rotation: Where the rotation of the streams stands, when a saved run continues.
    """

    def __init__(
        self,
        dataset: Runnable,
        streams: Sequence[int],
        states: Mapping[int, State] | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        self._config = dataset.worker_config
        self.rotation = rotation or Rotation.start(dataset, streams)
        self._nodes: dict[int, Node] = {}
        self._batches: dict[int, int] = {}
        readers = len(streams) * dataset.count_readers()
        allowances: dict[int, Allowance] = {}
        for stream in streams:
            saved = (states or {}).get(stream)
            self._batches[stream] = 0 if saved is None else int(saved["batches"])
            context = Context(self._config, stream, readers, allowances=allowances)
            with self._config.activate(stream):
                self._nodes[stream] = dataset.build(context, None if saved is None else saved["node"])

    def step_any(self) -> Step:
        """The next element or end, of whatever stream's turn it is."""
        stream = self.rotation.current()
        node, batches = self._nodes[stream], self._batches[stream]
        with self._config.activate(stream, batch_index=batches):
            item = node.next()
        if isinstance(item, End):
            self.rotation.end()
            return Step(stream, None, True, {"batches": batches, "node": node.state()})
        self._batches[stream] = batches + 1
        self.rotation.done()
        value = with_restore_key(item.value, ("Stream", stream, item.key))
        return Step(stream, value, False, {"batches": batches + 1, "node": node.state()})

    def step(self) -> Step | None:
        """The next element; None when the pass of all streams has ended."""
        while True:
            step = self.step_any()
            if not step.ended:
                return step
            if not self.rotation.ended:
                return None

    def close(self) -> None:
        """Close all nodes."""
        for node in self._nodes.values():
            node.close()
