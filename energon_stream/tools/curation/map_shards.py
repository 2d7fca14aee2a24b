"""Runs a function over the shards of a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import Part, TaskEngine
from energon_stream.index.plain import find_shards
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.tar.scan import scan_shard
from energon_stream.tools.shard_copies import SampleRange, local_copy, read_samples

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard that a function of :func:`map_shards` gets."""

    store: Store  # store of the dataset
    entry: ListEntry  # path and size of the tar

    @property
    def path(self) -> str:
        """Path of the tar, relative to the dataset."""
        return self.entry.path

    def samples(self) -> Iterator[dict[str, str | memoryview]]:
        """Yield the samples in order: the key as ``__key__``, and the bytes of each part by name.

        A remote tar is fetched to a temporary file first. Bytes are valid until the next sample is taken.

        Raises:
            CorruptTarError: The tar is damaged.
        """
        with local_copy(self.store, self.entry) as copy:
            bounds = scan_shard(copy.store, self.entry).bounds()
            yield from read_samples(copy.store, (SampleRange(self.path, *each) for each in bounds))


def map_shards(
    url_or_path: str | os.PathLike[str],
    function: Callable[[Shard], _R],
    *,
    engine: TaskEngine | None = None,
    part: Part | None = None,
    in_order: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> Iterator[_R]:
    """Run a function once for each tar below a folder, prepared or not, and yield what it returns.

    Args:
        url_or_path: The folder, local or any fsspec URL.
        function: Gets a :class:`Shard`; see :meth:`TaskEngine.map` for what it must be.
        engine: Where it runs; None for this process.
        part: Share of the tars, for jobs side by side; None for all.
        in_order: Yield results in the order of the tars instead of as they come.
        storage_options: Options of the URL's file system, such as credentials.
        on_done: Called with the number of tars that are done, and of all.

    Raises:
        ObjectNotFoundError: The folder has no tars.
        WorkerError: A tar's process or machine was lost on each try.
        Exception: What the function raised.

    Example:
        >>> from energon_stream import map_shards
        >>> sorted(map_shards("tars", lambda shard: sum(1 for sample in shard.samples())))
        [16, 16, 16, 16]
    """
    spec = StoreSpec(os.fspath(url_or_path), storage_options)
    entries = find_shards(spec.open())
    tasks = entries if part is None else part.of(entries)
    run = partial(_run, spec, function)
    return (engine or LocalEngine(0)).map(run, tasks, in_order=in_order, on_done=on_done)


def _run(spec: StoreSpec, function: Callable[[Shard], _R], entry: ListEntry) -> _R:
    return function(Shard(spec.open(), entry))
