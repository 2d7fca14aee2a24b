"""First bytes of tars, which tell datasets without marks of their shards from others, and tars that were
overwritten after they were prepared; states need them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import EnergonStreamError, RangeError
from energon_stream.index.database import index_database
from energon_stream.index.join_index import JoinIndex
from energon_stream.index.shard_marks import shard_mark
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.storage import ByteRange, Store, shared_fetcher
from energon_stream.storage.obstore_use import run_forkable
from energon_stream.tar.scan import HEAD_BYTES, ShardScan, hash_head
from energon_stream.urls import is_local, local_path

if TYPE_CHECKING:
    from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex

_log = logging.getLogger(__name__)

_MOST_LISTED, _MOST_COMPARED = 50_000, 16  # objects of a folder, and tars
_SAMPLES = (
    "SELECT sample_key, byte_offset, byte_size FROM samples WHERE tar_file_id = ? ORDER BY sample_index"
)
_PARTS = """
SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts
WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset
"""


def with_starts(indices: Sequence[DatasetIndex], *, forks: bool, again: bool = False) -> list[DatasetIndex]:
    """Return datasets with what first bytes tell: of those without marks, those of the first tar. ``again``
    makes the marks of tars anew, of the newest of those that are newer than the index.

    Requests are concurrent. ``forks`` says whether this process may fork workers later.
    """
    tars = [each for index in indices for each in (index.tars if again else index.unmarked)]
    remote = any(not is_local(each.spec.url) for each in tars)
    found = run_forkable(_read_all, tars) if forks and remote else _read_all(tars)
    known: dict[int, WebDatasetIndex] = {}
    for each, new in zip(tars, found, strict=True):
        if new:
            known[id(each)] = replace(each, **new)
        for shard in np.flatnonzero(new.get("marks", each.marks) != each.marks).tolist()[:1]:
            message = "%s: tars such as %s were overwritten since the dataset was prepared: prepare it again"
            _log.warning(message, each.name, each.shard_paths[shard])
    return [_with_tars(index, known) for index in indices]


def _with_tars(index: DatasetIndex, known: dict[int, WebDatasetIndex]) -> DatasetIndex:
    if isinstance(index, JoinIndex) and any(id(member) in known for member in index.members):
        return replace(index, members=tuple(known.get(id(member), member) for member in index.members))
    return known.get(id(index), index)


def _read_all(tars: Sequence[WebDatasetIndex]) -> list[dict[str, Any]]:
    fetcher, found = shared_fetcher(), []
    for each in [fetcher.ask(index.spec.open(), partial(_read, index), deadline=-1) for index in tars]:
        new: dict[str, Any] = {}
        with suppress(EnergonStreamError, OSError):  # reading samples will say what is wrong
            new = each.result()
        found.append(new)
    return found


def _read(index: WebDatasetIndex, store: Store) -> dict[str, Any]:
    """Return the fields of an index that are others now."""
    if index.plain is not None or index.start is not None:
        return {}
    if index.marks is None:
        return {"start": _read_start(index.shard_paths[0], store)}
    marks, times = index.marks.copy(), _times(index, store)
    written = times.get(INDEX_SQLITE, 0.0)
    newer = [at for at, path in enumerate(index.shard_paths) if times.get(path, -1.0) >= written]
    for at in sorted(newer, key=lambda at: times[index.shard_paths[at]])[-_MOST_COMPARED:]:
        marks[at] = _mark_now(index, at, store)
    return {} if np.array_equal(marks, index.marks) else {"marks": marks}


def _times(index: WebDatasetIndex, store: Store) -> dict[str, float]:
    """Return when the index and the tars were written. Programs that copy may set back a file's own time."""
    if store.is_local:
        files = {
            path: os.path.join(local_path(store.url), path) for path in (INDEX_SQLITE, *index.shard_paths)
        }
        times = {path: os.stat(file).st_ctime for path, file in files.items() if os.path.exists(file)}
        return times | {INDEX_SQLITE: os.stat(files[INDEX_SQLITE]).st_mtime}
    listed = islice(store.list(), _MOST_LISTED)
    found = ((entry.path, entry.meta.last_modified) for entry in listed)
    return {path: time.timestamp() for path, time in found if time is not None}


def _mark_now(index: WebDatasetIndex, shard: int, store: Store) -> int:
    """Return the mark of what the index says of a tar, and of the tar's first bytes as they are."""
    path, database = index.shard_paths[shard], index_database(index.spec)
    number = -1 if index.shard_ids is None else int(index.shard_ids[shard])
    samples = database.rows(_SAMPLES, (number,))
    offsets = [row[1] for row in samples] + [sum(row[1:]) for row in samples[-1:] or [(0,)]]
    scan = ShardScan(path, [row[0] for row in samples], offsets, database.rows(_PARTS, (number,)))
    return mark_now(scan, store)


def mark_now(scan: ShardScan, store: Store) -> int:
    """Return the mark of a tar with the first bytes that it has now, given what an index says of it."""
    return shard_mark(replace(scan, head=_read_start(scan.path, store))) or 0


def _read_start(path: str, store: Store) -> int:
    try:
        return hash_head(store.get_range(path, ByteRange(0, HEAD_BYTES)).data)
    except RangeError:
        return hash_head(store.get(path).data)
