"""A loader as a node of ``torchdata.nodes``; states of ``StatefulDataLoader`` for other ranks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from energon_stream.errors import StateError, StateInUseError
from energon_stream.imports import of_extra
from energon_stream.integrations.batch_puller import go_to, is_endless

if TYPE_CHECKING:
    from energon_stream.loader import SavableDataLoader

with of_extra("torchdata"):
    from torchdata.nodes import BaseNode

T = TypeVar("T")

_NOW, _BEGIN = "now", "begin"


class LoaderNode(BaseNode, Generic[T]):  # type: ignore[misc]
    """Returns the batches of a loader, as the first node of a graph of nodes.

    A pass of the loader is an iteration of the node. ``torchdata.nodes.Loader`` calls ``reset(None)`` for
    each ``for`` loop. After the end of a pass, that begins the next one. In the middle of a pass, it goes
    back to its beginning: later nodes may have fetched batches that were never used, and going on would lose
    them. A pass whose end later nodes have fetched counts as ended. A state of the end of a pass begins the
    next one.

    The state is the loader's position after the last batch that the node returned; nodes such as
    ``Prefetcher`` keep it with their batches.

    Args:
        loader: The loader. The node restores it, so nothing else may iterate it.

    Raises:
        MissingPackageError: (On import.) ``torchdata`` is not installed.

    Example:
        >>> from torchdata.nodes import Loader, Prefetcher
        >>> from energon_stream import WorkerConfig, get_savable_loader, get_val_dataset
        >>> from energon_stream.integrations.torchdata import LoaderNode
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("texts", worker_config=config, batch_size=4)
        >>> loader = Loader(Prefetcher(LoaderNode(get_savable_loader(dataset)), prefetch_factor=2))
        >>> [len(batch.text) for batch in loader]
        [4, 4]
    """

    def __init__(self, loader: SavableDataLoader[T]) -> None:
        super().__init__()
        self._loader = loader
        self._begin = loader.state_dict()
        self._batches: Iterator[T] = iter(())
        self._ahead: tuple[T, Any] | None = None  # the first batch after a state, and that state
        # A later node's thread may still read while its graph begins anew, and must not take a batch then.
        self._lock, self._resets = threading.Lock(), 0

    def reset(self, initial_state: Mapping[str, Any] | None = None) -> None:
        """Go to the position of a state, or to the beginning of a pass.

        Raises StateInUseError if ``initial_state`` is None in the middle of an endless dataset, which has no
        passes, and StateError if the state does not fit this dataset or topology.
        """
        super().reset(initial_state)
        with self._lock:
            self._reset(initial_state)
            self._resets += 1

    def _reset(self, initial_state: Mapping[str, Any] | None) -> None:
        self._ahead = None
        if initial_state is not None:
            go_to(self._loader, initial_state[_NOW])
            self._begin = initial_state[_BEGIN]
            self._batches = iter(self._loader)
            for batch in self._batches:
                self._ahead = (batch, initial_state[_NOW])
                return
            # At the end, torchdata's Loader would go on, but its states would stay that of the end.
            self._begin = self._loader.state_dict()
        elif self._begin != self._loader.state_dict():
            if is_endless(self._loader.dataset):
                raise StateInUseError(
                    "an endless dataset cannot begin anew",
                    hint="iterate it once, or give it epochs with virtual_epoch_length",
                )
            with self._loader.alone():  # other ranks may have left their loops elsewhere
                go_to(self._loader, self._begin)
        self._batches = iter(self._loader)

    def next(self) -> T:
        """Return the next batch. Raises StopIteration if the pass has ended."""
        resets = self._resets
        with self._lock:
            if resets != self._resets:
                raise StopIteration
            if self._ahead is not None:
                batch, self._ahead = self._ahead[0], None
                return batch
            try:
                return next(self._batches)
            except StopIteration:
                self._begin = self._loader.state_dict()
                raise

    def get_state(self) -> dict[str, Any]:
        """Return the positions of this rank: the present one, and the beginning of the pass."""
        now = self._loader.state_dict() if self._ahead is None else self._ahead[1]
        return {_NOW: now, _BEGIN: self._begin}


def deal_sampled(states: Sequence[Any], ranks: int) -> Any:
    """Return the state of a ``StatefulDataLoader`` with which each of ``ranks`` goes on.

    For loaders whose sampler, such as torch's ``DistributedSampler``, deals rows by number. Let the batch
    sizes of all ranks together stay the same.

    Args:
        states: Results of ``state_dict()`` of all ranks, saved after the same step. The first is changed.
        ranks: Number of ranks that go on.

    Raises:
        StateError: No states, or of unequal numbers of rows.
    """
    counts = {tuple(_sampled(state)) for state in states}
    if len(counts) != 1 or any(count * len(states) % ranks for count in min(counts)):
        raise StateError(
            f"the positions of {len(states)} ranks, {sorted(counts)} rows, cannot be dealt to {ranks}",
            hint="pass a complete checkpoint, and a number of ranks that divides the rows of a step",
        )
    _sampled(states[0], len(states), ranks)
    return states[0]


def _sampled(state: Any, saved: int = 1, ranks: int = 1) -> list[int]:
    """Return the rows that a rank's sampler gave; scale them to ranks."""
    found: list[int] = []
    for name, value in state.items() if isinstance(state, dict) else ():
        if name == "samples_yielded":
            state[name] = value * saved // ranks
        found += [value] if name == "samples_yielded" else _sampled(value, saved, ranks)
    return found
