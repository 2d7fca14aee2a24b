"""First bytes of tars, which tell datasets without marks of their shards from others, and tars that were
overwritten after they were prepared; states need them.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from energon_stream.errors import EnergonStreamError, RangeError
from energon_stream.index.database import index_database
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.join_index import JoinIndex
from energon_stream.index.shard_marks import shard_mark
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.storage import ByteRange, Store
from energon_stream.storage.obstore_use import run_forkable
from energon_stream.tar.scan import HEAD_BYTES, ShardScan, hash_head
from energon_stream.urls import is_local, local_path

_log = logging.getLogger(__name__)

_MOST_LISTED, _MOST_COMPARED, _THREADS = 50_000, 16, 32  # objects of a folder, and tars
SAMPLES = """
SELECT tar_file_id, sample_key, byte_offset, byte_size FROM samples
WHERE tar_file_id >= ? AND tar_file_id < ? ORDER BY tar_file_id, sample_index
"""
PARTS = """
SELECT tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts
WHERE tar_file_id >= ? AND tar_file_id < ? ORDER BY tar_file_id, sample_index, content_byte_offset
"""


def with_starts(indices: Sequence[DatasetIndex], *, forks: bool, again: bool = False) -> list[DatasetIndex]:
    """Return datasets with what the first bytes of their tars tell.

    A dataset without marks has those of its first tar. Another has the marks of tars as they are now, for the
    16 newest that are newer than the index; in a store, by a listing, only if ``again``. Requests are
    concurrent. ``forks`` says whether this process may fork workers later.
    """
    tars = [each for index in indices for each in index.tars]
    tars = [each for each in tars if again or each.marks is None or is_local(each.spec.url)]
    remote = any(not is_local(each.spec.url) for each in tars)
    found = run_forkable(_read_all, tars) if forks and remote else _read_all(tars)
    known = {id(each): replace(each, **new) for each, new in zip(tars, found, strict=True) if new}
    for each in tars:
        for shard in np.flatnonzero(known.get(id(each), each).marks != each.marks).tolist()[:1]:
            message = "%s: tars such as %s were overwritten since the dataset was prepared: prepare it again"
            _log.warning(message, each.name, each.shard_paths[shard])
    return [
        replace(index, members=tuple(known.get(id(each), each) for each in index.members))
        if isinstance(index, JoinIndex) and not known.keys().isdisjoint(map(id, index.members))
        else known.get(id(index), index)
        for index in indices
    ]


def _read_all(tars: Sequence[WebDatasetIndex]) -> list[dict[str, Any]]:
    """Return the fields of each index that are others now. Each wait is for all datasets and tars at once."""
    with ThreadPoolExecutor(_THREADS) as pool:
        places = list(pool.map(_asked, tars))
        asked = [(index, at) for index, each in zip(tars, places, strict=True) for at in each]
        answers = pool.map(_look, *zip(*asked, strict=True)) if asked else iter(())
        return [
            _fields(index, {at: next(answers) for at in each})
            for index, each in zip(tars, places, strict=True)
        ]


def _asked(index: WebDatasetIndex) -> list[int]:
    """Return the shards whose first bytes are read: the first without marks, else the newest of the newer."""
    if index.marks is None:
        return [0] if index.start is None else []
    with suppress(EnergonStreamError, OSError):  # reading samples will say what is wrong
        paths, times = index.shard_paths, _times(index.shard_paths, index.spec.open())
        newer = [at for at, path in enumerate(paths) if times.get(path, 0.0) >= times[INDEX_SQLITE]]
        return sorted(newer, key=lambda at: times[paths[at]])[-_MOST_COMPARED:]
    return []


def _look(index: WebDatasetIndex, at: int) -> int | None:
    """Return the hash of a shard's first bytes, or its mark as it is now; None if it cannot be read."""
    with suppress(EnergonStreamError, OSError):
        store, path = index.spec.open(), index.shard_paths[at]
        if index.marks is None:
            return _read_start(path, store)
        if index.shard_ids is not None:
            number, select = int(index.shard_ids[at]), index_database(index.spec).rows
            rows = (select(query, (number, number + 1)) for query in (SAMPLES, PARTS))
            return mark_now(indexed_scan(path, *rows), store)
    return None


def _fields(index: WebDatasetIndex, found: Mapping[int, int | None]) -> dict[str, Any]:
    known = {at: value for at, value in found.items() if value is not None}
    if index.marks is None:
        return {"start": known[0]} if known else {}
    marks = index.marks.copy()
    for at, value in known.items():
        marks[at] = value
    return {} if np.array_equal(marks, index.marks) else {"marks": marks}


def _times(paths: Sequence[str], store: Store) -> dict[str, float]:
    """Return when tars changed, and the index was written. A file's own time may be set back."""
    if store.is_local:
        root, times = local_path(store.url), dict[str, float]()
        for path in paths:
            with suppress(FileNotFoundError):
                times[path] = os.stat(os.path.join(root, path)).st_ctime
        return times | {INDEX_SQLITE: os.stat(os.path.join(root, INDEX_SQLITE)).st_mtime}
    listed = ((entry.path, entry.meta.last_modified) for entry in islice(store.list(), _MOST_LISTED))
    return {INDEX_SQLITE: math.inf} | {path: time.timestamp() for path, time in listed if time is not None}


def indexed_scan(path: str, samples: list[Any], parts: list[Any]) -> ShardScan:
    """Return what an index says of a tar, in its rows of SAMPLES and PARTS."""
    offsets = [row[2] for row in samples] + ([sum(row[2:]) for row in samples[-1:]] or [0])
    return ShardScan(path, [row[1] for row in samples], offsets, [row[1:] for row in parts])


def mark_now(scan: ShardScan, store: Store) -> int:
    """Return the mark of a tar with the first bytes that it has now, given what an index says of it."""
    return shard_mark(replace(scan, head=_read_start(scan.path, store))) or 0


def _read_start(path: str, store: Store) -> int:
    try:
        return hash_head(store.get_range(path, ByteRange(0, HEAD_BYTES)).data)
    except RangeError:
        return hash_head(store.get(path).data)
