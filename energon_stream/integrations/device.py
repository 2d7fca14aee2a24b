"""Batches on the device before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from energon_stream.errors import ConfigError
from energon_stream.integrations.batch_puller import BatchPuller
from energon_stream.loader import BasicDataLoader
from energon_stream.loader.ranks import gather_states
from energon_stream.samples import Batch
from energon_stream.samples.tensors import map_tensors
from energon_stream.state import split_streams
from energon_stream.worker import WorkerConfig

__all__ = ["DevicePrefetcher", "prefetch_to_device"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Coming:
    """A batch on its way to the device, or the end of a pass.

    Attributes:
        batch: The batch as it will be there; None at an end.
        ended: Whether the pass has ended.
        state: Where the loader stood after it.
        arrived: Recorded on the copying stream after the copy; None where nothing has to be waited for.
    """

    batch: Any
    ended: bool
    state: dict[str, Any]
    arrived: torch.cuda.Event | None


class DevicePrefetcher(Generic[T]):
    """Iterates a loader and gives out its batches on a device; see :func:`prefetch_to_device`.

    It takes the loader's place: what it saves is where the loader stood after the last batch *given out*, and it can be
    restored at any time. ``for`` loops end with the pass, as the loader's do.
    """

    def __init__(
        self,
        loader: BasicDataLoader[T],
        device: torch.device | str | int,
        *,
        non_blocking: bool = True,
        depth: int = 1,
    ) -> None:
        if depth < 0:
            raise ConfigError(f"depth is {depth}", hint="use 0 or more batches")
        self.device = torch.empty(0, device=device).device  # with its index
        self.depth = depth
        self._puller = BatchPuller(loader)
        self._non_blocking = non_blocking
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda" and non_blocking:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._coming: deque[_Coming] = deque()
        self._given = self._puller.state()

    @property
    def loader(self) -> BasicDataLoader[T]:
        """The loader."""
        return self._puller.loader

    @property
    def worker_config(self) -> WorkerConfig:
        """The loader's configuration."""
        return self.loader.worker_config

    def __iter__(self) -> Iterator[T]:
        """Iterate to the end of the pass."""
        self._fill(1)  # the first batch does not wait for the second
        while not (coming := self._take()).ended:
            batch = [self._there(coming)]
            del coming
            yield batch.pop()  # so that nothing here keeps it alive
            self._fill(1 + self.depth)

    def _fill(self, count: int) -> None:
        """Have so many batches under way, none of them beyond the end of the pass."""
        while len(self._coming) < count and not (self._coming and self._coming[-1].ended):
            pulled = self._puller.pull()
            moved, arrived = (None, None) if pulled.ended else self._send(pulled.batch)
            self._coming.append(_Coming(moved, pulled.ended, pulled.state, arrived))

    def _take(self) -> _Coming:
        """The next one; from now on it counts as given out."""
        coming = self._coming.popleft()
        self._given = coming.state
        return coming

    def _send(self, batch: Any) -> tuple[Any, torch.cuda.Event | None]:
        if self._stream is None:
            return _moved(batch, self.device, self._non_blocking), None
        with torch.cuda.stream(self._stream):
            moved = _moved(batch, self.device, True)
            return moved, self._stream.record_event()

    def _there(self, coming: _Coming) -> Any:
        """The batch, which the caller's stream may use now."""
        if coming.arrived is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(coming.arrived)
            # The memory is the copying stream's: it must not be used again before the current one is done with it.
            map_tensors(_recorder(current), coming.batch)
        return coming.batch

    def __len__(self) -> int:
        """As of the loader."""
        return len(self.loader)

    def __bool__(self) -> bool:
        return True

    def save_state_rank(self) -> dict[str, Any]:
        """Where this rank stands, after the last batch given out, in built-in types only.

        Raises:
            ConfigError: The loader is none of ``get_savable_loader``.
        """
        loader = self._puller.savable()
        # Without anything ahead it is where the loader is, which may have been restored itself.
        return self._given if self._coming else loader.save_state_rank()

    def restore_state_rank(self, state: dict[str, Any] | bytes | None) -> None:
        """Go on where a saved state stands; what was fetched ahead is dropped.

        Raises:
            StateError: The state does not fit this dataset or topology.
        """
        self._puller.stop().restore_state_rank(state)
        self._begin_here()

    def save_state_global(self, global_dst_rank: int = 0) -> list[dict[str, Any]] | None:
        """The states of all ranks, on one of them; see :meth:`SavableDataLoader.save_state_global`."""
        return gather_states(self.save_state_rank(), self.worker_config, global_dst_rank)

    def restore_state_global(self, states: Sequence[Any] | None, *, src_rank: int | None = None) -> None:
        """Go on where all ranks stood; see :meth:`SavableDataLoader.restore_state_global`."""
        self._puller.stop().restore_state_global(states, src_rank=src_rank)
        self._begin_here()

    def state_dict(self) -> dict[str, Any]:
        """Where this rank stands, with one entry (of bytes) for each of its streams."""
        return split_streams(self.save_state_rank())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state dict stands; what was fetched ahead is dropped.

        Raises:
            StateError: The state does not fit this dataset or topology.
        """
        self._puller.stop().load_state_dict(state_dict)
        self._begin_here()

    def _begin_here(self) -> None:
        self._coming.clear()
        self._given = self._puller.state()

    def close(self) -> None:
        """End the workers. Iterating again starts new ones after the last batch given out."""
        if self._coming and self._given:
            self.restore_state_rank(self._given)
        else:
            self.loader.close()


def _moved(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(batch, Batch):  # whose classes may have their own way
        return batch.to_device(device, non_blocking)
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), batch)


def _recorder(stream: torch.cuda.Stream) -> Callable[[torch.Tensor], torch.Tensor]:
    def record(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda:
            tensor.record_stream(stream)
        return tensor

    return record


def prefetch_to_device(
    loader: BasicDataLoader[T],
    device: torch.device | str | int,
    non_blocking: bool = True,
    depth: int = 1,
) -> DevicePrefetcher[T]:
    """Iterate a loader with batches on a device, of which the next are copied while one is used.

    Tensors are moved within dicts, lists, tuples, named tuples and dataclasses, which are copied; ``Batch`` classes by
    their ``to_device``. Everything else is left as it is.

    On CUDA, copies run on a stream of their own. The stream that is current where the batch is taken waits for the copy;
    the Python thread does not. Memory is used again when that stream is done with what it had been given by then; a program
    that uses a batch on yet another stream calls ``record_stream`` itself, as with any tensor. Copies are
    asynchronous from page-locked memory only, which is what loaders give where CUDA is available, unless made with
    ``pin_memory=False``; from other memory they are right as well, but the thread waits.

    Args:
        loader: A loader; of ``get_savable_loader`` if the position is to be saved.
        device: Where the batches go. On ``"cpu"`` they stay as they are, with the same saving and restoring.
        non_blocking: Whether copies may run while Python goes on. False copies on the current stream, and waits.
        depth: Batches that are ahead of the one given out. Each takes memory on the device.

    Raises:
        ConfigError: A negative depth.
    """
    return DevicePrefetcher(loader, device, non_blocking=non_blocking, depth=depth)
