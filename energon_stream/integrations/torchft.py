"""Batches for the replica groups of torchft, which leave and come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, count, islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgpack
import torch
import torch.distributed as dist

from energon_stream.errors import ConfigError, StateInUseError, StateMismatchError

if TYPE_CHECKING:
    from energon_stream.loader import SavableDataLoader

T = TypeVar("T")


class _Position(NamedTuple):
    step: int = 0  # committed steps, as torchft counts them
    at: int = 0  # all batches before this one were trained on
    taken: tuple[int, ...] = ()  # and these after it
    state: Mapping[str, Any] | None = None  # the state dict of all streams at ``at``; None for the start


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
        self._agreed = _Position()
        self._told: tuple[list[int], _Position] | None = None  # what counts in the last step, and follows it
        self._loader, self._batches = open_loader(*self._group), iter(())
        self._stands: _Position | None = None  # where the loader stands, if known
        dataset = self._loader.dataset
        self._streams = dataset.worker_config.num_streams
        lengths = [dataset.len_stream(stream) for stream in range(self._streams)]
        shortest = min(length or 0 for length in lengths)
        self._end = None if None in lengths else shortest * self._streams // group_size
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
        wanted = list(islice((batch for batch in count(agreed.at) if batch not in agreed.taken), groups))
        if self._end is not None and wanted[-1] >= self._end:
            raise StopIteration
        batch, at = self._read(agreed, wanted, place or 0), wanted[-1] + 1
        taken = tuple(number for number in agreed.taken if number >= at)
        self._exchange(_Position(step + 1, at, taken, self._loader.state_dict()), wanted, place)
        return batch

    def _read(self, agreed: _Position, wanted: list[int], place: int) -> T:
        """Return one of the wanted batches; the loader then stands after all of them."""
        (rank, size), groups = self._group, len(wanted)
        is_dealt = not agreed.taken and self._streams % (groups * size) == 0
        dealt = (wanted[place] % groups * size + rank, groups * size) if is_dealt else self._group
        if self._stands is not agreed or self._dealt != dealt:
            self._stands = None
            self._loader.close()
            self._loader = self._loader if self._dealt == dealt else self._open(*dealt)
            self._dealt = dealt
            # The groups have agreed, and processes of one may differ in failed steps.
            with self._loader.alone():
                if agreed.state is None:
                    self._loader.restore_state_rank(None)
                else:
                    self._loader.load_state_dict(agreed.state)
            self._batches = iter(self._loader)
        numbers = wanted[place : place + 1] if is_dealt else range(agreed.at, wanted[-1] + 1)
        return {number: next(self._batches) for number in numbers}[wanted[place]]

    def _exchange(self, after: _Position, wanted: list[int], place: int | None) -> None:
        """Learn which batches count in the step, if it is committed, and where all streams stand then."""
        self._told = self._stands = None
        own = b"" if place is None else msgpack.packb([wanted[place], *after])
        sizes = self._summed(
            torch.tensor([len(own) if number == place else 0 for number in range(len(wanted))])
        )
        end = sum(sizes[: (place or 0) + 1])
        data = bytearray(sum(sizes))
        if data and sizes[place or 0] == len(own):
            data[end - len(own) : end] = own
        content = bytes(self._summed(torch.frombuffer(data, dtype=torch.uint8))) if data else b""
        if not content:  # nobody's batch counts, or a group is lost
            return
        ends = accumulate(sizes)
        told = [
            msgpack.unpackb(content[end - size : end]) for end, size in zip(ends, sizes, strict=True) if size
        ]
        if any(each[1:4] != told[0][1:4] for each in told):
            raise StateMismatchError(
                f"the replica groups are at other steps and batches: {[each[1:3] for each in told]}",
                hint="restore all of them from one checkpoint",
            )
        _, step, at, taken, state = told[0]
        streams = {name: saved for *_, each in told for name, saved in each["streams"].items()}
        after = _Position(step, at, tuple(taken), {**state, "streams": streams})
        self._told = [] if len(told) == len(wanted) else [number for number, *_ in told], after
        self._stands = None if place is None else after

    def _summed(self, tensor: torch.Tensor) -> list[int]:
        tensor = tensor.to(self._device)
        self._manager.allreduce(tensor, reduce_op=dist.ReduceOp.SUM).wait()
        return tensor.tolist() if self._manager.errored() is None else []

    def _settled(self) -> _Position:
        """Return the position after the last committed step."""
        with self._lock:
            if self._told is not None and self._manager.current_step() >= self._told[1].step:
                (counted, after), self._told = self._told, None
                if counted:
                    taken = sorted({*self._agreed.taken, *counted})
                    after = self._agreed._replace(step=after.step, taken=tuple(taken))
                self._agreed = after
            return self._agreed

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all replica groups after the last committed step."""
        return self._settled()._asdict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on at the position of a state dict, whichever group saved it."""
        with self._lock:
            self._agreed = _Position(**{**state_dict, "taken": tuple(state_dict["taken"])})
            if self._told is not None and self._told[1].step != self._manager.current_step() + 1:
                self._told = None  # of a step that this group did not commit
