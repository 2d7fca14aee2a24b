"""A loader as a node of ``torchdata.nodes``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from energon_stream.errors import StateInUseError
from energon_stream.integrations.optional import of_extra
from energon_stream.loader import SavableDataLoader

with of_extra("torchdata"):
    from torchdata.nodes import BaseNode

__all__ = ["LoaderNode"]

T = TypeVar("T")

_NOW, _BEGIN = "now", "begin"


class LoaderNode(BaseNode, Generic[T]):  # type: ignore[misc]
    """The batches of a loader, as the source of a graph of nodes.

    A pass of the loader is an iteration of the node. ``reset(None)``, which ``torchdata.nodes.Loader`` calls for each
    ``for`` loop, begins the next pass after the end of one. In the middle of a pass it goes back to its beginning: nodes
    behind this one may have fetched batches that were never used, so that to go on would lose them. (A pass whose end
    such nodes have fetched already counts as ended, because this node cannot see more.) The state is where
    the loader stands after the last batch given out; nodes such as ``Prefetcher`` keep it with their batches.

    Args:
        loader: The loader. The node restores it at will, so nothing else may iterate it.

    Raises:
        MissingPackageError: (On import.) ``torchdata`` is not installed.
    """

    def __init__(self, loader: SavableDataLoader[T]) -> None:
        super().__init__()
        self._loader = loader
        self._begin = loader.state_dict()
        self._batches: Iterator[T] = iter(())

    def reset(self, initial_state: Mapping[str, Any] | None = None) -> None:
        """Go where a state says, or to the beginning of a pass.

        Args:
            initial_state: What ``get_state`` returned on this rank; None for the beginning.

        Raises:
            StateInUseError: None, in the middle of an endless dataset: it has no passes.
            StateError: The state does not fit this dataset or topology.
        """
        super().reset(initial_state)
        if initial_state is not None:
            self._go_to(initial_state[_NOW])
            self._begin = initial_state[_BEGIN]
        elif self._begin != self._loader.state_dict():
            dataset, streams = self._loader.dataset, self._loader.worker_config.streams
            if any(dataset.len_stream(stream) is None for stream in streams):
                raise StateInUseError(
                    "an endless dataset cannot begin anew",
                    hint="iterate it once, or give it epochs with virtual_epoch_length",
                )
            self._go_to(self._begin)
        self._batches = iter(self._loader)

    def _go_to(self, state: Mapping[str, Any]) -> None:
        self._loader.close()
        self._loader.load_state_dict(state)

    def next(self) -> T:
        """The next batch.

        Raises:
            StopIteration: The pass has ended.
        """
        try:
            return next(self._batches)
        except StopIteration:
            self._begin = self._loader.state_dict()
            raise

    def get_state(self) -> dict[str, Any]:
        """Where this rank stands, and where the pass began."""
        return {_NOW: self._loader.state_dict(), _BEGIN: self._begin}
