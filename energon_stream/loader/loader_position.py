"""The position of a loader, a value."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from energon_stream.errors import StateInUseError
from energon_stream.pipeline.stream_runner import Rotation, Step, StreamRunner

if TYPE_CHECKING:
    from energon_stream.loader.loader_options import LoaderOptions
    from energon_stream.pipeline.dataset import SavableDataset
    from energon_stream.pipeline.node import State
    from energon_stream.schedule import WeightChange
    from energon_stream.worker import WorkerConfig


class LoaderPosition(NamedTuple):
    """The place of a rank, or of one of its workers, between two batches."""

    rotation: Rotation  # of the streams
    states: dict[int, State]  # of each stream; None before its first batch
    begins_pass: bool = False  # whether the last step ended a pass
    changes: tuple[WeightChange, ...] = ()  # weights that the program set for the mixture
    # Step at which the number of ranks was chosen, and batches of the job before it.
    begun: tuple[int, int] = (0, 0)
    # Pass in which the ranks began amid a step, and batches of the job in it before.
    resumed: tuple[int, int] = (0, 0)

    @classmethod
    def start(cls, dataset: SavableDataset[Any]) -> LoaderPosition:
        """Return the position before the first batch."""
        rotation = Rotation.start(dataset, dataset.worker_config.streams)
        return cls(rotation, dict.fromkeys(rotation.streams))

    def of_streams(self, streams: Sequence[int]) -> LoaderPosition:
        """Return the position of a worker that serves only some of the streams."""
        states = {stream: self.states[stream] for stream in streams}
        return LoaderPosition(
            self.rotation.of_streams(streams), states, changes=self.changes, resumed=self.resumed
        )

    def next_stream(self) -> int:
        """Return the stream of which the next step is."""
        return self.rotation.current()

    def after(self, step: Step) -> LoaderPosition:
        """Return the position after the next step."""
        rotation = self.rotation.copy()
        states = {**self.states, step.stream: step.state}
        if step.ended:
            return LoaderPosition(rotation, states, rotation.end_stream(), *self[3:])
        rotation.advance()
        return LoaderPosition(rotation, states, False, *self[3:])

    def open_runner(self, dataset: SavableDataset[Any], options: LoaderOptions) -> StreamRunner:
        """Open the streams in this process."""
        rotation, (number, before) = self.rotation.copy(), self.resumed
        note = None if options.tracker is None else options.tracker(self.states, self.changes).note
        return StreamRunner(
            dataset,
            rotation.streams,
            self.states,
            rotation,
            self.changes,
            note,
            options.decode_threads,
            before if rotation.passes == number else 0,
            of_loader=True,
        )


def check_streams(mine: WorkerConfig, those: WorkerConfig, dealt_to: int | None = None) -> None:
    """Check that no other loader of a dataset goes on with other streams; ``dealt_to`` once it has begun."""
    if mine.num_streams != those.num_streams or mine.dealt_to != (dealt_to or mine.dealt_to):
        raise StateInUseError(
            "another loader of the same dataset restored a state with other streams, or dealt in another way",
            hint="make a dataset for each loader",
        )


def with_inputs(dataset: SavableDataset[Any]) -> list[SavableDataset[Any]]:
    """Return a dataset and all below it, outer ones first."""
    found = [dataset]
    for each in found:
        found += each.inputs
    return found


def copied(state: State) -> State:
    """Copy plain values deeply, in a fraction of the time of ``copy.deepcopy``."""
    return marshal.loads(marshal.dumps(state))
