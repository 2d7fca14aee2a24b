"""Positions of datasets that a program iterates itself, after ``WorkerConfig.worker_activate``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from energon_stream.active_call import Activation, innermost_call
from energon_stream.errors import StateError, StateMismatchError, WorkerError
from energon_stream.pipeline.node import State
from energon_stream.pipeline.stream_runner import Rotation, StreamRunner
from energon_stream.rng import derive_key
from energon_stream.schedule.saved import damaged, is_count, reading

_NAME = "_position"


def is_activated() -> bool:
    """Return True between the program's ``WorkerConfig.worker_activate`` and ``worker_deactivate``."""
    return isinstance(innermost_call(), Activation)


class Position:
    """The place after the last element of a dataset; ``states`` are the states of its streams."""

    def __init__(self, dataset: Any) -> None:
        self.rotation: Rotation = Rotation.start(dataset, list(dataset.worker_config.streams))
        self.states: dict[int, State] = {}
        self._run: object = None  # the iterator that moves the position

    @classmethod
    def of(cls, dataset: Any) -> Position:
        """Return a dataset's position. Raises WorkerError without one, as where a loader iterates."""
        found: Position | None = vars(dataset).get(_NAME)
        if found is None and not is_activated():
            raise WorkerError(
                "a dataset has a position only where the program iterates it after worker_activate",
                hint="save and restore the loader: loader.save_state_rank(), loader.restore_state_rank(state)",
            )
        return vars(dataset).setdefault(_NAME, cls(dataset)) if found is None else found

    @staticmethod
    def reset(dataset: Any) -> None:
        """Go back to the start."""
        vars(dataset).pop(_NAME, None)

    def iterate(self, dataset: Any) -> Iterator[Any]:
        """Iterate to the end of the pass. Only the last iterator that was begun may go on."""
        self._run = run = object()
        runner = StreamRunner(dataset, self.rotation.streams, self.states, self.rotation.copy())
        try:
            while vars(dataset).get(_NAME) is self and self._run is run:
                step = runner.step_any()
                self.states[step.stream] = step.state
                self.rotation = runner.rotation.copy()
                if not step.ended:
                    yield step.value
                elif not runner.rotation.ended:
                    return
        finally:
            runner.close()
        raise WorkerError(
            "the position of the dataset was set, or another iterator was begun",
            hint="call iter(dataset) again; one iterator at a time may go on",
        )

    def state(self, dataset: Any) -> dict[str, Any]:
        """Return the position as plain values."""
        rotation = self.rotation
        return {
            "dataset": _print(dataset),
            "rotation": [rotation.passes, rotation.next_stream, sorted(rotation.ended), rotation.consumed],
            "streams": [[stream, state] for stream, state in self.states.items()],
        }

    @classmethod
    def restore(cls, dataset: Any, state: Any) -> None:
        """Set a dataset's position."""
        if not isinstance(state, dict) or state.keys() != {"dataset", "rotation", "streams"}:
            what = f"a {type(state).__name__} is no state of a dataset"
            raise StateError(what, hint="pass what save_state() returned")
        if state["dataset"] != _print(dataset):
            raise StateMismatchError(
                "the state is of another pipeline, or of another rank or number of streams",
                hint="build the dataset as when the state was saved; a loader's states fit other numbers of ranks",
            )
        position = cls(dataset)
        with reading():
            passes, next_stream, ended, consumed = state["rotation"]
            position.states = dict(state["streams"])
            rotation = position.rotation
            known = {*rotation.streams}
            if not (
                known.issuperset([*position.states, *ended])
                and all(map(is_count, (passes, next_stream, consumed)))
            ):
                raise damaged("streams or counters that cannot be")
            rotation.passes, rotation.next_stream, rotation.consumed = passes, next_stream, consumed
            rotation.ended = frozenset(ended)
        vars(dataset)[_NAME] = position


def _print(dataset: Any) -> int:
    config = dataset.worker_config
    return derive_key("dataset state", repr(dataset.config()), config.num_streams, *config.streams)
