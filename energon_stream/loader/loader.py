"""Loaders: what the training loop iterates, saves and restores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from energon_stream.errors import ConfigError
from energon_stream.loader.session import LoaderOptions, Session, open_session
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.engine import Rotation, with_restore_key
from energon_stream.pipeline.node import Context, RestoreKey, State
from energon_stream.samples.tensors import map_tensors
from energon_stream.storage import CounterSnapshot, run_isolated

__all__ = ["BasicDataLoader"]

T = TypeVar("T")


class BasicDataLoader(Generic[T]):
    """Iterates a dataset in this process or in workers.

    The streams of the rank take turns, so the order of the batches does not depend on timing. A ``for``
    loop ends with the pass; the next one goes on after it. Leaving a loop early and iterating again goes
    on where it was left.

    Args:
        dataset: What to iterate.
        options: How batches come here.
        pin_memory: Whether batches are pinned; None pins where CUDA is available.
    """

    def __init__(
        self,
        dataset: SavableDataset[T],
        options: LoaderOptions | None = None,
        *,
        pin_memory: bool | None = None,
    ) -> None:
        self.dataset = dataset
        self.worker_config = dataset.worker_config
        self._options = options or LoaderOptions()
        self._pin = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._session: Session | None = None
        self._rotation = Rotation.start(dataset, self.worker_config.streams)
        self._states: dict[int, State] = dict.fromkeys(self._rotation.streams)

    def __iter__(self) -> Iterator[T]:
        """Iterate to the end of the pass."""
        if self._session is None:
            rotation = replace(self._rotation)
            self._session = open_session(self.dataset, self._states, rotation, self._options)
            self._prepare()
        while True:
            stream = self._rotation.current()
            try:
                step = self._session.step(stream)
            except BaseException:
                self.close()
                raise
            self._states[stream] = step.state
            if step.ended:
                if self._rotation.end_stream():
                    return
                continue
            self._rotation.advance()
            batch = [self._pinned(step.value)]
            del step
            yield batch.pop()  # so that nothing here keeps it alive while the next one is read

    def _prepare(self) -> None:
        """Do what is needed later, while workers make the first batch."""

    def _pinned(self, value: Any) -> Any:
        if not self._pin:
            return value
        from torch.utils.data._utils.pin_memory import pin_memory

        if is_dataclass(value) and not hasattr(value, "pin_memory"):  # torch would leave it as it is
            return map_tensors(lambda tensor: tensor.pin_memory(), value)
        return pin_memory(value)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """Batches of this rank in one pass; for endless datasets those of one pass over the data."""
        return max(1, self.dataset.len_rank())

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> BasicDataLoader[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing() and getattr(self, "_session", None) is not None:
            self.close()

    def close(self) -> None:
        """End the workers. Iterating again starts new ones after the last batch given out."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def io_counters(self) -> CounterSnapshot:
        """Requests, bytes, retries and errors of this loader's readers since iteration began.

        With workers, what each had counted when it made the last batch that was taken from it.
        """
        return CounterSnapshot() if self._session is None else self._session.io_counters()

    def config(self) -> dict[str, Any]:
        """The pipeline and the topology as plain values."""
        return {"dataset": self.dataset.config(), "worker_config": self.worker_config.config()}

    def can_restore_sample(self) -> bool:
        """Whether :meth:`restore_sample` can work: all functions are stateless."""
        return self.dataset.can_restore_sample()

    def restore_sample(self, restore_key: RestoreKey) -> T:
        """Make one element again from its ``__restore_key__``.

        Raises:
            ConfigError: Some function is not stateless, or the key is not one of a loader's.
        """
        self.dataset.assert_can_restore()
        if not restore_key or restore_key[0] != "Stream":
            raise ConfigError(
                f"{restore_key!r} is not a restore key",
                hint="pass the __restore_key__ of a batch of such a loader",
            )
        stream, key = restore_key[1], restore_key[2]
        # Before its workers are forked, this process must not open a client of its own.
        before_fork = self.worker_config.num_workers > 0 and self._session is None
        made: T = (run_isolated if before_fork else _call)(_restore, self.dataset, stream, key)
        return made


def _call(function: Any, *args: Any) -> Any:
    return function(*args)


def _restore(dataset: SavableDataset[Any], stream: int, key: RestoreKey) -> Any:
    config = dataset.worker_config
    with config.activate(stream):
        item = dataset.restore_many([key], Context(config, stream))[0]
    return with_restore_key(item.value, ("Stream", stream, item.key))
