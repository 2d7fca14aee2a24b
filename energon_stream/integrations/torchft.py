"""Batches for the replica groups of torchft, which leave and come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from energon_stream.errors import ConfigError, StateInUseError
from energon_stream.integrations.batch_puller import go_to
from energon_stream.integrations.replicas import ReplicaPosition, end_of, side_by_side, understood
from energon_stream.loader import SavableDataLoader

T = TypeVar("T")


class ReplicaLoader(Generic[T]):
    """Deals the batches of a job anew among the replica groups that take part in a step.

    The job has one order of batches. A step takes as many of the next ones as groups take part, and they
    count when it is committed; those of a failed step are taken again. So each batch is trained on at most
    once, and none is left out, whichever groups leave. One that comes back gets the position by the manager.

    Take one batch a step, after ``optimizer.zero_grad()``. All groups then exchange the states of their
    streams, in two small all-reduces. With a number of groups that does not divide ``num_streams`` each group
    reads the batches of all, and after a step that counted without some groups, as with ``init_sync=True``.

    Args:
        open_loader: Called with a rank and a number of ranks; opens the dataset and returns its savable
            loader, always with the same ``num_streams``, and without virtual epochs.
        manager: The ``torchft.Manager``. A checkpoint has its state together with the loader's.
        group_rank: Number of this process in its replica group, whose processes read different batches.
        group_size: Processes of a replica group.
        device: Where the manager's process group reduces tensors.

    Example:
        >>> from energon_stream.integrations.torchft import ReplicaLoader
        >>> loader = ReplicaLoader(open_loader, manager)  # doctest: +SKIP
    """

    def __init__(
        self,
        open_loader: Callable[[int, int], SavableDataLoader[T]],
        manager: Any,
        group_rank: int = 0,
        group_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        self._open, self._manager, self._device = open_loader, manager, device
        self._dealt = self._group = group_rank, group_size
        self._lock = threading.Lock()  # torchft asks for the state on another thread
        self._agreed = ReplicaPosition()
        self._told: tuple[list[int], ReplicaPosition] | None = (
            None  # what counts in the last step, and follows it
        )
        self._loader, self._batches = open_loader(*self._group), iter(())
        self._stands: ReplicaPosition | None = None  # where the loader stands, if known
        dataset = self._loader.dataset
        self._streams = dataset.worker_config.num_streams
        lengths = [dataset.len_stream(stream) for stream in range(self._streams)]
        self._end = end_of(lengths, group_size)
        if dataset.pass_length:
            raise ConfigError("the dataset has virtual epochs", hint="leave out virtual_epoch_length")
        self._is_asked, start_quorum = False, manager.start_quorum

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._is_asked = True
            return start_quorum(*args, **kwargs)

        manager.start_quorum = noted
        manager.register_state_dict_fn("energon_stream", self.load_state_dict, self.state_dict)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Return the batch of this step; a group whose gradients do not count in it gets any batch.

        Raises StopIteration on all groups if too few batches are left for the step, and StateInUseError if
        the quorum of this step was not started, or steps were committed without batches of the loader.
        """
        is_asked, self._is_asked = self._is_asked, False
        place, groups = self._manager.participating_rank(), self._manager.num_participants()
        step, agreed = self._manager.current_step(), self._settled()
        if not is_asked or (place is not None and agreed.step != step):
            raise StateInUseError(
                f"torchft has committed {step} steps, the loader {agreed.step}, and no quorum was started since",
                hint="call optimizer.zero_grad(), take one batch, and call optimizer.step(); and restore the "
                "manager and the loader from one checkpoint",
            )
        wanted = agreed.wanted(groups)
        if self._end is not None and wanted[-1] >= self._end:
            raise StopIteration
        batch = self._read(agreed, wanted, place or 0)
        own = None if place is None else agreed._replace(step=step).after(wanted, self._loader.state_dict())
        self._exchange(own, wanted, place or 0)
        return batch

    def _read(self, agreed: ReplicaPosition, wanted: list[int], place: int) -> T:
        """Return one of the wanted batches; the loader then stands after all of them."""
        dealt = agreed.dealt(wanted, place, self._group, self._streams)
        if self._stands is not agreed or self._dealt != dealt:
            self._stands = None
            self._loader.close()
            self._loader = self._loader if self._dealt == dealt else self._open(*dealt)
            self._dealt = dealt
            # The groups have agreed, and processes of one may differ in failed steps.
            with self._loader.alone():
                go_to(self._loader, agreed.state)
            self._batches = iter(self._loader)
        numbers = range(agreed.at, wanted[-1] + 1) if dealt == self._group else [wanted[place]]
        return {number: next(self._batches) for number in numbers}[wanted[place]]

    def _exchange(self, own: ReplicaPosition | None, wanted: list[int], place: int) -> None:
        """Learn which batches count in the step, if it is committed, and where all streams stand then."""
        self._told = self._stands = None
        message = b"" if own is None else own.told(wanted[place])
        sizes = self._summed([len(message) * (each == place) for each in range(len(wanted))])
        content = self._summed(side_by_side(message, sizes, place)) if any(sizes) else []
        if not content:  # nobody's batch counts, or a group is lost
            return
        counted, after = understood(bytes(content), sizes)
        self._told = [] if len(counted) == len(wanted) else counted, after
        self._stands = None if own is None else after

    def _summed(self, numbers: list[int] | bytearray) -> list[int]:
        kind = torch.uint8 if isinstance(numbers, bytearray) else torch.int64
        tensor = torch.tensor(list(numbers), dtype=kind, device=self._device)
        self._manager.allreduce(tensor, reduce_op=dist.ReduceOp.SUM).wait()
        return tensor.tolist() if self._manager.errored() is None else []

    def _settled(self) -> ReplicaPosition:
        """Return the position after the last committed step."""
        with self._lock:
            if self._told is not None and self._manager.current_step() >= self._told[1].step:
                (counted, after), self._told = self._told, None
                self._agreed = self._agreed.with_some(counted, after.step) if counted else after
            return self._agreed

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all replica groups after the last committed step."""
        return self._settled()._asdict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at the position of a state dict, whichever group saved it."""
        with self._lock:
            self._agreed = ReplicaPosition(**{**state_dict, "taken": tuple(state_dict["taken"])})
            if self._told is not None and self._told[1].step != self._manager.current_step() + 1:
                self._told = None  # of a step that this group did not commit
