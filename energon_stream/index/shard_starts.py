"""First bytes of tars, which tell datasets without marks of their shards from others; states need them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from energon_stream.errors import RangeError, StorageError
from energon_stream.storage import ByteRange, Store, shared_fetcher
from energon_stream.storage.obstore_use import run_forkable
from energon_stream.tar.scan import HEAD_BYTES, hash_head
from energon_stream.urls import is_local

if TYPE_CHECKING:
    from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex


def read_starts(indices: Iterable[DatasetIndex], *, forks: bool) -> None:
    """Read the first bytes of datasets without marks of their shards, by a request for each, concurrently.

    ``forks`` says whether this process may fork workers later.
    """
    unmarked = [each for index in indices for each in index.unmarked]
    remote = any(not is_local(index.spec.url) for index in unmarked)
    found = run_forkable(_read_starts, unmarked) if forks and remote else _read_starts(unmarked)
    for index, start in zip(unmarked, found, strict=True):
        object.__setattr__(index, "start", start)


def _read_starts(indices: Sequence[WebDatasetIndex]) -> list[int | None]:
    fetcher = shared_fetcher()
    asked = [
        fetcher.ask(index.spec.open(), partial(_read_start, index.shard_paths[0]), deadline=-1)
        for index in indices
    ]
    found: list[int | None] = []
    for answer in asked:
        start = None
        with suppress(StorageError):  # reading samples will say what is wrong
            start = answer.result()
        found.append(start)
    return found


def _read_start(path: str, store: Store) -> int:
    try:
        return hash_head(store.get_range(path, ByteRange(0, HEAD_BYTES)).data)
    except RangeError:
        return hash_head(store.get(path).data)
