"""Loaders that Lightning's loops iterate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from energon_stream.errors import StateInUseError
from energon_stream.integrations.batch_puller import PulledBatch, PullingLoader, epoch_length, of_all_ranks
from energon_stream.loader import SavableDataLoader
from energon_stream.state import split_streams

T = TypeVar("T")


class TrainLoader(PullingLoader[T]):
    """Iterates a loader for a training loop that fetches more than it has trained on.

    Lightning fetches one batch ahead of a loader that has no length. So this loader keeps the state after
    each pulled batch until the loop's own count says that the batch was trained on.

    Each iteration goes on after the last batch trained on, because Lightning drops the batches that it
    fetched ahead when it begins an iteration. An iteration that would begin at the end of a pass begins with
    the next pass, because loops that count batches leave an epoch before its end.

    ``trained`` returns the number of batches that were trained on, counted from anywhere. None counts a batch
    as soon as it is pulled. Lightning ends a step with the epoch: epochs of an endless dataset have whole
    steps, of ``per_step`` batches.
    """

    def __init__(
        self, loader: SavableDataLoader[T], trained: Callable[[], int] | None, per_step: int = 1
    ) -> None:
        super().__init__(loader)
        self._trained, self._per_step = trained, per_step
        self._begin_here()

    def _begin_here(self) -> None:
        """Count from the loader's present position."""
        self._states: deque[dict[str, Any]] = deque([self._state()])
        self._first = 0 if self._trained is None else self._trained()  # the count at the first state

    def _position(self) -> dict[str, Any]:
        """Return the state after the last batch trained on, and drop the states before it."""
        ahead = len(self._states) - 1
        trained = ahead if self._trained is None else self._trained() - self._first
        if ahead == 0:
            trained = 0  # no batch was fetched here, so the count is of other batches
        if not 0 <= trained <= ahead:
            raise StateInUseError(
                f"the trainer counts {trained} batches more, but {ahead} were fetched",
                hint="a custom training loop has to count each batch in fit_loop.epoch_loop.batch_progress",
            )
        for _ in range(trained):
            self._states.popleft()
        self._first += trained
        return self._states[0]

    def __iter__(self) -> Iterator[T]:
        """Iterate to the end of the pass."""
        position = self._position()
        if len(self._states) > 1:
            with (loader := self._stop()).alone():  # other ranks may have nothing ahead
                loader.restore_state_rank(position)
        self._begin_here()
        pulled = self._pull()
        if pulled.ended:
            pulled = self._pull()
        while not pulled.ended:
            batch = [pulled.batch]
            del pulled
            yield batch.pop()  # keeps no reference, so the batch is freed as soon as the loop drops it
            pulled = self._pull()

    def _pull(self) -> PulledBatch[T]:
        self._position()
        pulled = super()._pull()
        if not pulled.ended:
            self._states.append(pulled.state)
        return pulled

    def __len__(self) -> int:
        """Return the batches of an epoch. Raises TypeError if their number is not certain."""
        length = epoch_length(self.loader.dataset)
        if length is None:
            raise TypeError("the number of batches is not known before they are read")
        per_step = 1 if self.loader.dataset.pass_length else self._per_step
        return -(-length // per_step) * per_step

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after the last batch trained on; all ranks have to call it."""
        return of_all_ranks(split_streams(self._position()), self.worker_config)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at the position of a state dict. Raises StateError if it does not fit."""
        self._stop().load_state_dict(state_dict)
        self._begin_here()

    def close(self) -> None:
        """End the workers."""
        self._stop()


class EvaluationLoader(Generic[T]):
    """Iterates a loader from the beginning each time, even if the last iteration ended early."""

    def __init__(self, loader: SavableDataLoader[T]) -> None:
        self._loader = loader
        self._at_start = True

    def __iter__(self) -> Iterator[T]:
        """Iterate to the end of the pass."""
        if not self._at_start:
            self._loader.close()
            with self._loader.alone():
                self._loader.restore_state_rank(None)
        self._at_start = False
        yield from self._loader
        self._at_start = True

    def close(self) -> None:
        """End the workers."""
        self._loader.close()
