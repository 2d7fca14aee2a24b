"""Join indices: rows of samples of several datasets that belong together.

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from energon_stream.errors import (
    EmptyDatasetError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
    RangeError,
)
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.index_files import RowFile
from energon_stream.index.metadata import META_FOLDER
from energon_stream.storage import ByteRange, StoreSpec

NonMatch: TypeAlias = Literal["error", "skip", "none"]

_MAGIC = b"JIDX0001"
_HEADER = 16


@dataclass(frozen=True, slots=True)
class JoinMember:
    """One dataset of a join."""

    index: WebDatasetIndex  # the opened dataset
    # Treatment of a sample of the primary without a partner in this dataset: an error, skip it, or leave the
    # partner out (``none``).
    nonmatch: NonMatch


@dataclass(frozen=True, slots=True, eq=False)
class JoinIndex(DatasetIndex):
    """An opened join: one virtual shard of rows, with the paths of the members' shards. The location is that
    of the index, and the split part that of the primary. Excluded samples are not in the index.
    """

    members: tuple[WebDatasetIndex, ...] = field(kw_only=True)  # the joined datasets, the primary first
    rows: RowFile = field(kw_only=True)  # the index; a row has (shard, first byte, size) for each member


def _identity(index: WebDatasetIndex) -> str:
    """Return the dataset's ``index.uuid``, or a hash of shards and counts if it has none."""
    store = index.spec.open()
    try:
        return bytes(store.get(f"{META_FOLDER}/index.uuid").data).decode()
    except ObjectNotFoundError:
        shards = zip(index.shard_paths, index.shard_counts.tolist(), strict=True)
        return hashlib.sha256(repr(list(shards)).encode()).hexdigest()


def join_index_spec(metadataset: StoreSpec, members: Sequence[JoinMember]) -> StoreSpec:
    """Return the location of a join's index. Reads the identities of all members concurrently."""
    with ThreadPoolExecutor(len(members)) as pool:
        identities = list(pool.map(_identity, (member.index for member in members)))
    digest = hashlib.sha256()
    for member, identity in zip(members, identities, strict=True):
        index = member.index
        excluded = sorted(f"{shard}/{key}" for shard, keys in index.excluded.items() for key in keys)
        digest.update(f"\0uuid={identity}\0excludes=".encode())
        digest.update("".join(f"{entry}\0" for entry in excluded).encode())
        digest.update(f"\0nonmatch={member.nonmatch}\0".encode())
        if index.split_part != "train" or index.excluded_shards:
            shards = "\0".join(index.shard_paths)
            digest.update(f"\0split={index.split_part}\0shards={shards}\0".encode())
    return replace(metadataset, url=f"{metadataset.url}.cache/join_index_{digest.hexdigest()}.bin")


def open_join_index(metadataset: StoreSpec, members: Sequence[JoinMember]) -> JoinIndex:
    """Open the index of a join.

    Raises:
        NotPreparedError: There is no index of these datasets in their present state.
        MetadataError: The file is not an index of a join of so many datasets.
        EmptyDatasetError: The index has no rows.
    """
    spec = join_index_spec(metadataset, members)
    store, width = spec.open(), 3 * len(members)
    try:
        body = store.get_range("", ByteRange(0, _HEADER))
    except ObjectNotFoundError as error:
        raise NotPreparedError(
            "the join has no index, or a dataset was prepared again after the join",
            where=spec.url,
            hint=f"run `energon-stream prepare {metadataset.url}`",
        ) from error
    except RangeError as error:
        raise MetadataError("the file is not a join index", where=spec.url) from error
    size = store.head("").size if body.total_size is None else body.total_size
    rows, rest = divmod(size - _HEADER, 8 * width)
    if rest or bytes(body.data) != join_header(len(members)):
        raise MetadataError(f"the file is not an index of a join of {len(members)} datasets", where=spec.url)
    if not rows:
        raise EmptyDatasetError("the join has no rows", where=spec.url)
    indices = tuple(member.index for member in members)
    return JoinIndex(
        spec,
        indices[0].split_part,
        tuple(path for index in indices for path in index.shard_paths),
        np.array([rows], dtype=np.int64),
        members=indices,
        rows=RowFile(spec, _HEADER, width, rows),
    )


def join_header(members: int) -> bytes:
    """Return the first bytes of an index of so many datasets."""
    return _MAGIC + members.to_bytes(8, "little")
