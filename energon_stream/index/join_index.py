"""Join indices: rows of samples of several datasets that belong together, matched by sample key.

``<metadataset file>.cache/join_index_<sha256>.bin`` has Megatron-Energon's format: the magic ``JIDX0001``,
the number of datasets, and rows of (shard, first byte, size) for each dataset, all little-endian 64-bit
integers. A shard is its position in the split part; a missing partner is -1, -1, -1. Rows are in the order of
the first dataset, the primary.

The name identifies the joined datasets. Megatron-Energon's name leaves out split part, excluded shards and
the order of excludes, so one file may stand for several joins there. Here they enter the name unless they
have their defaults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array
from energon_stream.errors import (
    DatasetError,
    EmptyDatasetError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
    RangeError,
)
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex, digest_hex, identity
from energon_stream.index.guarded_sqlite import connect_local, damaged_index
from energon_stream.index.index_files import RowFile
from energon_stream.index.info_files import META_FOLDER, read_info
from energon_stream.index.sqlite_index import INDEX_SQLITE, SqliteWriter, sqlite_file
from energon_stream.index.yaml_io import read_text
from energon_stream.storage import ByteRange, ListEntry, StoreSpec
from energon_stream.tar.scan import scan_shard
from energon_stream.temporary_folders import temporary_folder

NonMatch: TypeAlias = Literal["error", "skip", "none"]

_MAGIC = b"JIDX0001"
_HEADER = 16


@dataclass(frozen=True, slots=True)
class JoinMember:
    """One dataset of a join."""

    index: WebDatasetIndex  # the opened dataset
    nonmatch: (
        NonMatch  # a sample of the primary without partner here is an error, skipped, or alone (``none``)
    )


@dataclass(frozen=True, slots=True, eq=False)
class JoinIndex(DatasetIndex):
    """An opened join: one virtual shard of rows, with the paths of the members' shards.

    The location is that of the index, and the split part that of the primary. Excluded samples are not in the
    index.
    """

    members: tuple[WebDatasetIndex, ...] = field(kw_only=True)  # the joined datasets, the primary first
    rows: RowFile = field(kw_only=True)  # the index; a row has (shard, first byte, size) for each member

    def content(self, shards: int) -> tuple[str, str] | None:
        found = [
            [identity(member, len(member.shard_paths)), member.content(len(member.shard_paths))]
            for member in self.members
        ]
        kinds = sorted({kind for _, content in found for kind, _ in [content or ("", "")]})
        return None if "" in kinds else ("+".join(kinds), digest_hex(repr(found).encode()))

    @property
    def tars(self) -> tuple[WebDatasetIndex, ...]:
        return self.members


def _identity(index: WebDatasetIndex) -> str:
    """Return the dataset's ``index.uuid``, or else a hash of shards and counts."""
    store = index.spec.open()
    try:
        return read_text(f"{META_FOLDER}/index.uuid", store)
    except ObjectNotFoundError:
        shards = zip(index.shard_paths, index.shard_counts.tolist(), strict=True)
        return hashlib.sha256(repr(list(shards)).encode()).hexdigest()


def _index_spec(metadataset: StoreSpec, members: Sequence[JoinMember]) -> StoreSpec:
    """Return the location of a join's index. Reads the identities of all members concurrently."""
    with ThreadPoolExecutor(len(members)) as pool:
        identities = list(pool.map(_identity, (member.index for member in members)))
    digest = hashlib.sha256()
    for member, known in zip(members, identities, strict=True):
        index = member.index
        excluded = sorted(f"{shard}/{key}" for shard, keys in index.excluded.items() for key in keys)
        digest.update(f"\0uuid={known}\0excludes=".encode())
        digest.update("".join(f"{entry}\0" for entry in excluded).encode())
        digest.update(f"\0nonmatch={member.nonmatch}\0".encode())
        if index.split_part != "train" or index.excluded_shards:
            shards = "\0".join(index.shard_paths)
            digest.update(f"\0split={index.split_part}\0shards={shards}\0".encode())
    return replace(metadataset, url=f"{metadataset.url}.cache/join_index_{digest.hexdigest()}.bin")


def open_join_index(metadataset: StoreSpec, members: Sequence[JoinMember]) -> JoinIndex:
    """Open the index of a join. Raises NotPreparedError if none is of these datasets as they are now."""
    spec = _index_spec(metadataset, members)
    try:
        return read_join_index(spec, [member.index for member in members])
    except ObjectNotFoundError as error:
        raise NotPreparedError(
            "the join has no index, or a dataset was prepared again after the join",
            where=spec.url,
            hint=f"run `energon-stream prepare {metadataset.url}`",
        ) from error


def read_join_index(spec: StoreSpec, members: Sequence[WebDatasetIndex]) -> JoinIndex:
    """Open the file of a join's index."""
    store, width = spec.open(), 3 * len(members)
    try:
        body = store.get_range("", ByteRange(0, _HEADER))
    except RangeError as error:
        raise MetadataError("the file is not a join index", where=spec.url) from error
    size = store.head("").size if body.total_size is None else body.total_size
    rows, rest = divmod(size - _HEADER, 8 * width)
    if rest or bytes(body.data) != _header(len(members)):
        raise MetadataError(f"the file is not an index of a join of {len(members)} datasets", where=spec.url)
    if not rows:
        raise EmptyDatasetError("the join has no rows", where=spec.url)
    return JoinIndex(
        spec,
        members[0].split_part,
        tuple(path for index in members for path in index.shard_paths),
        np.array([rows], dtype=np.int64),
        members=tuple(members),
        rows=RowFile(spec, _HEADER, width, rows),
    )


def _header(members: int) -> bytes:
    """Return the first bytes of the index of a join."""
    return _MAGIC + members.to_bytes(8, "little")


@dataclass(frozen=True, slots=True)
class JoinReport:
    """Result of :func:`build_join_index`."""

    url: str
    rows: int  # number of rows
    skipped: int  # number of samples of the primary that are not in the index
    missing: tuple[int, ...]  # number of rows without a sample of the member, for each member


def build_join_index(metadataset: StoreSpec, members: Sequence[JoinMember]) -> JoinReport:
    """Match samples by their keys and write the index. It replaces an existing one.

    Keys and locations come from the ``index.sqlite`` of each dataset, or else from its tars. Raises
    DatasetError if a sample has no partner in a dataset with ``nonmatch: error``, and MetadataError for an
    index that cannot be used.
    """
    spec = _index_spec(metadataset, members)
    rows = skipped = 0
    missing = np.zeros(len(members), dtype=np.int64)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder(use="join"))
        databases = [_database(member.index, stack) for member in members]
        partners = [
            _Partners(member.index, databases[0], own, stack)
            for member, own in zip(members, databases, strict=True)
        ]
        path = Path(folder, "index.bin")
        with open(path, "wb") as file:
            file.write(_header(len(members)))
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
            shown = ", ".join(repr(keys[row]) for row in wrong[:5].tolist()) + "…" * (len(wrong) > 5)
            raise DatasetError(
                f"some samples of {members[0].index.spec.url} have no partner: {shown}",
                where=member.index.name,
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
        self._where = f"{index.spec.url}/{INDEX_SQLITE}"
        self._database = stack.enter_context(closing(connect_local(primary, self._where)))
        self._database.attach(own, "partner")

    def find(self, tar_id: int) -> tuple[list[str], Int64Array]:
        """Return the keys of a shard of the primary, and ``int64 [keys, 3]`` of the member: -1 for none."""
        rows = self._database.select(
            "SELECT own.sample_key, other.tar_file_id AS tar, other.byte_offset AS start, other.byte_size AS size "
            "FROM main.samples AS own "
            "LEFT JOIN partner.samples AS other ON other.sample_key = own.sample_key "
            "WHERE own.tar_file_id = ? ORDER BY own.sample_index",
            tar_id,
        )
        keys, places = [], []
        for key, tar, offset, size in rows:
            shard = self._shard_of.get(tar, -1)  # samples of other split parts are no partners
            usable = shard >= 0 and not self._index.is_excluded(shard, key)
            if usable and not (type(offset) is type(size) is int and 0 <= offset <= offset + size < 1 << 63):
                raise damaged_index(self._where, f"{key!r:.80} has byte {offset!r:.40} and size {size!r:.40}")
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


def _database(index: WebDatasetIndex, stack: ExitStack) -> str:
    """Return the local path of the dataset's ``index.sqlite``, or of one built from the tars."""
    store = index.spec.open()
    try:
        return stack.enter_context(sqlite_file(store))
    except NotPreparedError:
        path = f"{stack.enter_context(temporary_folder(use='join'))}/index.sqlite"
        order = _shard_ids(index)
        with SqliteWriter(path, list(order)) as writer:
            for shard in index.shard_paths:
                scan = scan_shard(store, ListEntry(shard, store.head(shard)))
                writer.add(order[shard], scan)
        return path
