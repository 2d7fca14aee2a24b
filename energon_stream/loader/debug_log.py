"""The lines that a loader writes to the debug log of its process."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from energon_stream.pipeline.debug_lines import keys_of, mode_of
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.printable import strip_credentials

if TYPE_CHECKING:
    from energon_stream.pipeline.dataset import SavableDataset

_ids = count()
"""Numbers of the loaders of this process, and of their iterations."""

_SHOWN = 4
"""Datasets that the line of a loader names."""


def _describe(dataset: SavableDataset[Any]) -> dict[str, Any]:
    """Describe a pipeline; where Megatron-Energon looks for them, are its mode and the datasets it reads."""
    leaves = [leaf for _, reader in find_readers(dataset) for leaf in reader.leaves]
    paths = list(dict.fromkeys(strip_credentials(leaf.index.spec.url) for leaf in leaves))
    shown = ", ".join([*paths[:_SHOWN], *(["…"] if len(paths) > _SHOWN else [])])
    source = {"training": mode_of(dataset) == "train", "_path": shown or repr(dataset)}
    return {"type": type(dataset).__name__, "map_fn_config": source, "dataset": dataset.config()}


class LoaderLog:
    """Logs the iterations and batches of a loader.

    Args:
        dataset: The loader's dataset.
        name: The loader's class.
        made: What the first line calls the loader.
    """

    def __init__(self, dataset: SavableDataset[Any], name: str, made: str) -> None:
        self._config = dataset.worker_config
        self._name = name
        self._id = next(_ids)
        self._iteration = self._id
        self._of_iteration = 0  # batches of this iteration
        self._batches = 0  # batches since the loader was made
        self._line(f"{made}.__init__", config=_describe(dataset))

    def begin(self) -> None:
        """Log that an iteration begins."""
        self._iteration, self._of_iteration = next(_ids), 0
        self._line(f"{self._name}.iter", iter_id=self._iteration)

    def batch(self, stream: int, number: int, value: Any) -> None:
        """Log a batch, which has a number among those of its stream."""
        self._line(
            f"{self._name}.yield",
            iter_id=self._iteration,
            worker_id=stream // self._config.world_size,
            worker_idx=number,
            idx=self._of_iteration,
            iter_idx=self._of_iteration,
            global_idx=self._batches,
            **keys_of(value),
        )
        self._of_iteration += 1
        self._batches += 1

    def end(self) -> None:
        """Log that the iteration ends, or was left."""
        self._line(f"{self._name}.StopIteration", iter_id=self._iteration)

    def _line(self, kind: str, **fields: Any) -> None:
        self._config.worker_log({"t": kind, "r": self._config.rank, "w": None, "id": self._id, **fields})
