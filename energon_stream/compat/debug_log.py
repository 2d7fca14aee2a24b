"""Debug logs: one JSON object a line, in a file for each process of the job.

Lines have the types (``"t"``) and fields of Megatron-Energon's debug logs. This module is
the plug-in ``debug_log``: pipelines and loaders call it only if ``worker_log_level`` asks for lines.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from itertools import count
from typing import Any

from energon_stream.active_call import active_config
from energon_stream.errors import ConfigError
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.node import Context, End, Item, Node, State
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.printable import strip_credentials
from energon_stream.worker import WorkerConfig

_log = logging.getLogger(__name__)

_SAMPLES = "WebdatasetSampleLoaderDataset._slices_iter"

_loader_ids = count()  # numbers of the loaders of this process, and of their iterations
_SHOWN = 4  # datasets that the line of a loader names


def check_path(pattern: str) -> None:
    """Check the format string of a debug log's path. Raises ConfigError if it cannot name a file."""
    try:
        path = _path(pattern, 0)
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"worker_debug_path has a field that is unknown: {type(error).__name__}: {error}",
            where=str(pattern),
            hint="use {worker_id} and {pid}; write other braces twice",
        ) from error
    if "://" in path:
        raise ConfigError(
            "worker_debug_path is a URL", where=path, hint="name a local file, and copy it after the run"
        )


def _path(pattern: str, worker_id: int) -> str:
    return os.fspath(pattern).format(worker_id=worker_id, pid=os.getpid())


def write(config: WorkerConfig, data: Mapping[str, Any]) -> None:
    """Append a line to the debug log of this process; without ``worker_debug_path``, log it at level INFO."""
    line = json.dumps(data, default=str)
    if config.worker_debug_path is None:
        _log.info("%s", line)
        return
    path = _path(config.worker_debug_path, _process_number(config))
    # Opened for each line: nothing is open across a fork, and no line is lost when a process dies.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        file = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, flags, 0o666)
    try:
        os.write(file, line.encode() + b"\n")  # in one piece: several processes may append to one file
    finally:
        os.close(file)


def _process_number(config: WorkerConfig) -> int:
    """Return the number of this process: each rank has its main process, then its workers."""
    is_main = config.num_workers == 0 or active_config() is None
    worker = 0 if is_main else 1 + config.rank_worker_id() % config.num_workers
    return config.rank * (config.num_workers + 1) + worker


def write_batch(config: WorkerConfig, mode: str, number: int, value: Any, keys: Any = None) -> None:
    """Write the line of a batch of the current stream; ``keys`` None stands for the batch's own."""
    found = _keys(value) if keys is None else {"keys": keys}
    _write_of_stream(config, "yield_batch", m=mode, idx=number, **found)


def _write_of_stream(config: WorkerConfig, kind: str, **fields: Any) -> None:
    write(config, {"t": kind, "r": config.rank, "w": config.rank_worker_id(), **fields})


def _mode(dataset: Any) -> str:
    """Return ``"val"`` for a pipeline on a dataset that was opened for validation, else ``"train"``."""
    while getattr(dataset, "training", True) and getattr(dataset, "inputs", ()):
        dataset = dataset.inputs[0]
    return "train" if getattr(dataset, "training", True) else "val"


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _keys(value: Any) -> dict[str, list[str]]:
    """Return the entry of a line that has the keys of an element's samples; empty if it has no keys."""
    keys = _field(value, "__key__")
    if isinstance(keys, str):
        return {"keys": [keys]}
    return {"keys": [*map(str, keys)]} if isinstance(keys, (list, tuple)) else {}


class BatchLines:
    """Writes the lines of the batches that a pipeline makes, of some streams."""

    def __init__(self, dataset: Any) -> None:
        self._config: WorkerConfig = dataset.worker_config
        self._mode = _mode(dataset)
        self._wanted = self._config.should_log(1 if self._mode == "train" else 2)

    def write(self, stream: int, number: int, value: Any) -> None:
        """Write the line of a batch, if the level asks for it."""
        if self._wanted:
            with self._config.activate(stream):
                write_batch(self._config, self._mode, number, value)


class _LoggedNode:
    """Base of nodes that log the elements of another node, whose state is theirs."""

    def __init__(self, inner: Node, context: Context) -> None:
        self._inner = inner
        self._config = context.config

    def state(self) -> State:
        return self._inner.state()

    def close(self) -> None:
        self._inner.close()


class LoggedReader(_LoggedNode):
    """Logs the samples that a reader yields, and the ends of its passes."""

    _of_pass = 0  # samples of this pass, since the node was made
    _count = 0  # samples since the node was made
    _passes = 0

    def next(self) -> Item | End:
        """Return the next sample."""
        item = self._inner.next()
        if isinstance(item, End):
            if self._config.should_log(2):
                self._write("all_exhausted")
            self._passes, self._of_pass = self._passes + 1, 0
            return item
        self._count, self._of_pass = self._count + 1, self._of_pass + 1
        _, leaf, index = item.key
        sources = _field(item.value, "__sources__")
        shard = sources[0].shard_name if sources else None
        self._write("yield", index=index, key=_field(item.value, "__key__"), shard=shard, leaf=leaf)
        return item

    def _write(self, kind: str, **fields: Any) -> None:
        counts = {"count": self._count, "epoch": self._passes, "epoch_count": self._of_pass}
        _write_of_stream(self._config, f"{_SAMPLES}.{kind}", **fields, **counts)


class LoggedEpochs(_LoggedNode):
    """Logs where the virtual epochs of a stream begin and end; ``length`` is that of the rank's epoch."""

    def __init__(self, inner: Node, context: Context, length: int) -> None:
        super().__init__(inner, context)
        self._length = length
        self._between = True

    def next(self) -> Item | End:
        """Return the next element."""
        if self._between:
            self._write("start")
        item = self._inner.next()
        self._between = isinstance(item, End)
        if self._between:
            self._write("end")
        return item

    def _write(self, place: str) -> None:
        if self._config.should_log(2):
            _write_of_stream(self._config, f"EpochizeDataset.epoch_{place}", length=self._length)


def _describe(dataset: SavableDataset[Any]) -> dict[str, Any]:
    """Describe a pipeline; where Megatron-Energon looks for them, are its mode and the datasets it reads."""
    leaves = [leaf for _, reader in find_readers(dataset) for leaf in reader.leaves]
    paths = list(dict.fromkeys(strip_credentials(leaf.index.spec.url) for leaf in leaves))
    shown = ", ".join([*paths[:_SHOWN], *(["…"] if len(paths) > _SHOWN else [])])
    source = {"training": _mode(dataset) == "train", "_path": shown or repr(dataset)}
    return {"type": type(dataset).__name__, "map_fn_config": source, "dataset": dataset.config()}


class LoaderLines:
    """Writes the lines of a loader's iterations and batches; ``made`` is its name in the first line."""

    def __init__(self, dataset: SavableDataset[Any], name: str, made: str) -> None:
        self._config = dataset.worker_config
        self._name = name
        self._id = next(_loader_ids)
        self._iteration = self._id
        self._of_iteration = 0  # batches of this iteration
        self._batches = 0  # batches since the loader was made
        self._write(f"{made}.__init__", config=_describe(dataset))

    def begin(self) -> None:
        """Log that an iteration begins."""
        self._iteration, self._of_iteration = next(_loader_ids), 0
        self._write(f"{self._name}.iter", iter_id=self._iteration)

    def batch(self, stream: int, number: int, value: Any) -> None:
        """Log a batch, which has a number among those of its stream."""
        self._write(
            f"{self._name}.yield",
            iter_id=self._iteration,
            worker_id=stream // self._config.world_size,
            worker_idx=number,
            idx=self._of_iteration,
            iter_idx=self._of_iteration,
            global_idx=self._batches,
            **_keys(value),
        )
        self._of_iteration += 1
        self._batches += 1

    def end(self) -> None:
        """Log that the iteration ends, or was left."""
        self._write(f"{self._name}.StopIteration", iter_id=self._iteration)

    def _write(self, kind: str, **fields: Any) -> None:
        write(self._config, {"t": kind, "r": self._config.rank, "w": None, "id": self._id, **fields})
