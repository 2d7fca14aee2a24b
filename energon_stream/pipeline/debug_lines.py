"""Lines about samples and batches in the debug log, with the types and fields of Megatron-Energon's.

A pipeline has these parts only if the log's level asks for them, so that they cost nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from energon_stream.pipeline.node import Context, End, Item, Node, State

if TYPE_CHECKING:
    from energon_stream.worker import WorkerConfig

_SAMPLES = "WebdatasetSampleLoaderDataset._slices_iter"


def mode_of(dataset: Any) -> str:
    """Return ``"val"`` for a pipeline on a dataset that was opened for validation, else ``"train"``."""
    while getattr(dataset, "training", True) and getattr(dataset, "inputs", ()):
        dataset = dataset.inputs[0]
    return "train" if getattr(dataset, "training", True) else "val"


def field_of(value: Any, name: str) -> Any:
    """Return a field of a sample or batch, which may be a dict; None if it has no such field."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def keys_of(value: Any) -> dict[str, list[str]]:
    """Return the entry of a line that has the keys of an element's samples; empty if it has none."""
    keys = field_of(value, "__key__")
    if isinstance(keys, str):
        return {"keys": [keys]}
    return {"keys": [*map(str, keys)]} if isinstance(keys, (list, tuple)) else {}


def log_line(config: WorkerConfig, kind: str, **fields: Any) -> None:
    """Write a line of the current stream."""
    config.worker_log({"t": kind, "r": config.rank, "w": config.rank_worker_id(), **fields})


class BatchLog:
    """Logs the batches of some streams.

    Args:
        config: The job's configuration.
        mode: ``"train"`` or ``"val"``.
    """

    def __init__(self, config: WorkerConfig, mode: str) -> None:
        self._config = config
        self._mode = mode

    @classmethod
    def of(cls, dataset: Any) -> BatchLog | None:
        """Return the log for a pipeline's batches; None if the level asks for none."""
        mode = mode_of(dataset)
        config: WorkerConfig = dataset.worker_config
        return cls(config, mode) if config.should_log(1 if mode == "train" else 2) else None

    def write(self, stream: int, number: int, value: Any) -> None:
        """Log a batch."""
        with self._config.activate(stream):
            log_line(self._config, "yield_batch", m=self._mode, idx=number, **keys_of(value))


class _Logging:
    """Base of nodes that log the elements of another node, whose state is theirs."""

    def __init__(self, inner: Node, context: Context) -> None:
        self._inner = inner
        self._config = context.config

    def state(self) -> State:
        return self._inner.state()

    def close(self) -> None:
        self._inner.close()


class LoggingReader(_Logging):
    """Logs the samples that a reader yields, and the ends of its passes."""

    _of_pass = 0  # samples of this pass, since the node was made
    _count = 0  # samples since the node was made
    _passes = 0

    def next(self) -> Item | End:
        """Return the next sample."""
        item = self._inner.next()
        if isinstance(item, End):
            if self._config.should_log(2):
                log_line(self._config, f"{_SAMPLES}.all_exhausted", **self._counts())
            self._passes, self._of_pass = self._passes + 1, 0
            return item
        self._count, self._of_pass = self._count + 1, self._of_pass + 1
        _, leaf, index = item.key
        sources = field_of(item.value, "__sources__")
        log_line(
            self._config,
            f"{_SAMPLES}.yield",
            index=index,
            key=field_of(item.value, "__key__"),
            shard=sources[0].shard_name if sources else None,
            leaf=leaf,
            **self._counts(),
        )
        return item

    def _counts(self) -> dict[str, int]:
        return {"count": self._count, "epoch": self._passes, "epoch_count": self._of_pass}


class LoggingEpochs(_Logging):
    """Logs where the virtual epochs of a stream begin and end.

    Args:
        inner: The node of the dataset that makes the epochs.
        context: Where it runs.
        length: Elements of an epoch of this rank.
    """

    def __init__(self, inner: Node, context: Context, length: int) -> None:
        super().__init__(inner, context)
        self._length = length
        self._between = True

    def next(self) -> Item | End:
        """Return the next element."""
        if self._between:
            self._line("start")
        item = self._inner.next()
        self._between = isinstance(item, End)
        if self._between:
            self._line("end")
        return item

    def _line(self, place: str) -> None:
        log_line(self._config, f"EpochizeDataset.epoch_{place}", length=self._length)
