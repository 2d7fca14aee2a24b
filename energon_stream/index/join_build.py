"""Builds join indices: matches sample keys in the ``index.sqlite`` of each dataset."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from energon_stream.errors import DatasetError, MetadataError, NotPreparedError
from energon_stream.index.join_index import JoinMember, join_header, join_index_spec
from energon_stream.index.metadata import read_info
from energon_stream.index.scan import scan_shard
from energon_stream.index.sqlite_index import SqliteWriter, sqlite_file
from energon_stream.storage import ListEntry, StoreSpec

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.dataset import WebDatasetIndex

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class JoinReport:
    """Result of :func:`build_join_index`."""

    url: str
    rows: int  # number of rows
    skipped: int  # number of samples of the primary that are not in the index
    missing: tuple[int, ...]  # number of rows without a sample of the member, for each member


def build_join_index(metadataset: StoreSpec, members: Sequence[JoinMember]) -> JoinReport:
    """Match samples by their keys and write the index. It replaces an existing one.

    Keys and locations come from the ``index.sqlite`` of each dataset, or from the tars of a dataset without
    that file.

    Raises:
        DatasetError: A sample has no partner in a dataset with ``nonmatch: error``.
        MetadataError: The ``index.sqlite`` of a dataset cannot be used.
        StorageError: A file cannot be read or written.
    """
    spec = join_index_spec(metadataset, members)
    rows = skipped = 0
    missing = np.zeros(len(members), dtype=np.int64)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="energon-join-"))
        databases = [stack.enter_context(_keys_file(member.index)) for member in members]
        partners = [
            _Partners(member.index, databases[0], own, stack)
            for member, own in zip(members, databases, strict=True)
        ]
        path = Path(folder, "index.bin")
        with open(path, "wb") as file:
            file.write(join_header(len(members)))
            for keys, found in _match(partners):
                kept = _kept(keys, found, members)
                rows, skipped = rows + int(kept.sum()), skipped + int((~kept).sum())
                missing += (found[kept][:, :, 0] < 0).sum(axis=0)
                file.write(found[kept].astype("<i8").tobytes())
        spec.open().put_file("", str(path))
    return JoinReport(spec.url, rows, skipped, tuple(missing.tolist()))


def _kept(keys: Sequence[str], found: Int64Array, members: Sequence[JoinMember]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of a shard that enter the index."""
    lacking = found[:, :, 0] < 0
    kept = np.ones(len(keys), dtype=np.bool_)
    for number, member in enumerate(members):
        if member.nonmatch == "skip":
            kept &= ~lacking[:, number]
    for number, member in enumerate(members):
        wrong = np.flatnonzero(lacking[:, number] & kept)
        if member.nonmatch == "error" and len(wrong):
            shown = ", ".join(repr(keys[row]) for row in wrong[:_SHOWN].tolist())
            raise DatasetError(
                f"some samples of {members[0].index.spec.url} have no partner: {shown}{'…' * (len(wrong) > _SHOWN)}",
                where=f"{member.index.spec.url} [{member.index.split_part}]",
                hint="add the samples, or give the dataset `nonmatch: skip` or `nonmatch: none`",
            )
    return kept


class _Partners:
    """Finds a member's samples for those of the primary."""

    def __init__(self, index: WebDatasetIndex, primary: str, own: str, stack: ExitStack) -> None:
        self._index = index
        order = _shard_ids(index)
        self.tar_ids = [order[path] for path in index.shard_paths]
        self._shard_of = {tar_id: shard for shard, tar_id in enumerate(self.tar_ids)}
        # One connection for each member, because SQLite attaches at most ten files to a connection.
        self._database = stack.enter_context(
            closing(sqlite3.connect(f"file:{primary}?mode=ro&immutable=1", uri=True))
        )
        try:
            self._database.execute("ATTACH ? AS partner", (f"file:{own}?mode=ro&immutable=1",))
            self._database.execute("SELECT 1 FROM partner.samples LIMIT 1")
        except sqlite3.DatabaseError as error:
            raise MetadataError(f"index.sqlite cannot be used: {error}", where=index.spec.url) from error

    def find(self, tar_id: int) -> tuple[list[str], Int64Array]:
        """Return the keys of a shard of the primary, and index columns ``int64 [keys, 3]`` of the member: -1
        where it has no sample to use.
        """
        rows = self._database.execute(
            "SELECT own.sample_key, other.tar_file_id, other.byte_offset, other.byte_size FROM main.samples AS own "
            "LEFT JOIN partner.samples AS other ON other.sample_key = own.sample_key "
            "WHERE own.tar_file_id = ? ORDER BY own.sample_index",
            (tar_id,),
        )
        keys, places = [], []
        for key, tar, offset, size in rows:
            shard = self._shard_of.get(tar, -1)  # samples of other split parts are no partners
            usable = shard >= 0 and not self._index.is_excluded(shard, key)
            keys.append(key)
            places.append((shard, offset, size) if usable else (-1, -1, -1))
        return keys, np.array(places, dtype=np.int64).reshape(-1, 3)


def _match(members: Sequence[_Partners]) -> Iterator[tuple[list[str], Int64Array]]:
    """Yield the keys of each shard of the primary, and index rows ``int64 [keys, members, 3]``."""
    for tar_id in members[0].tar_ids:
        columns = [member.find(tar_id) for member in members]
        used = columns[0][1][:, 0] >= 0  # excluded samples are -1
        keys = list(compress(columns[0][0], used.tolist()))
        yield keys, np.stack([places for _, places in columns], axis=1)[used]


def _shard_ids(index: WebDatasetIndex) -> dict[str, int]:
    """Return the number of each shard in ``index.sqlite``, which is its position in ``.info.json``."""
    return {shard: number for number, shard in enumerate(read_info(index.spec.open()))}


@contextmanager
def _keys_file(index: WebDatasetIndex) -> Iterator[str]:
    """Yield the local path of the dataset's ``index.sqlite``, or of one built from the tars."""
    store = index.spec.open()
    with ExitStack() as stack:
        try:
            path = stack.enter_context(sqlite_file(store))
        except NotPreparedError:
            path = f"{stack.enter_context(TemporaryDirectory(prefix='energon-join-'))}/index.sqlite"
            order = _shard_ids(index)
            with SqliteWriter(path, list(order)) as writer:
                for shard in index.shard_paths:
                    writer.add(order[shard], scan_shard(store, ListEntry(shard, store.head(shard))))
        yield path
