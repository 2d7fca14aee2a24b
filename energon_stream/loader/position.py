"""The position of a loader, a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from energon_stream.pipeline.stream_runner import Rotation

if TYPE_CHECKING:
    from energon_stream.pipeline.dataset import SavableDataset
    from energon_stream.pipeline.node import State
    from energon_stream.pipeline.stream_runner import Step
    from energon_stream.schedule import WeightChange


class Position(NamedTuple):
    """The place of a rank between two batches."""

    rotation: Rotation  # of the rank's streams
    states: dict[int, State]  # of each stream; None before its first batch
    begins_pass: bool = False  # whether the last step ended a pass
    changes: tuple[WeightChange, ...] = ()  # weights that the program set for the mixture
    # Step at which the number of ranks was chosen, and batches of the job before it.
    begun: tuple[int, int] = (0, 0)

    @classmethod
    def start(cls, dataset: SavableDataset[Any]) -> Position:
        """Return the position before the first batch."""
        rotation = Rotation.start(dataset, dataset.worker_config.streams)
        return cls(rotation, dict.fromkeys(rotation.streams))

    def next_stream(self) -> int:
        """Return the stream of which the next step is."""
        return self.rotation.current()

    def after(self, step: Step) -> Position:
        """Return the position after the next step."""
        rotation = self.rotation.copy()
        states = {**self.states, step.stream: step.state}
        if step.ended:
            return Position(rotation, states, rotation.end_stream(), *self[3:])
        rotation.advance()
        return Position(rotation, states, False, *self[3:])
