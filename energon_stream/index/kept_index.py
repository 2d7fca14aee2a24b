"""Indices of tars that were not prepared, kept on this node.

Each version of a tar has a file below ``<directory>/v1/indexes/<root URL>/``, named by a hash. The file
holds, as little-endian 64-bit integers, a mark of the format, the number of samples, a checksum, and the
content of a ``.tar.idx`` file. The checksum is an XXH3 hash of the content and of the file's name, so a file
that was written in part, or for another tar, is not valid.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from energon_stream.cache import CachedStore, CacheLayer
from energon_stream.cache.identity import root_name
from energon_stream.errors import IndexMismatchError, NotPreparedError
from energon_stream.index.index_files import ENTRY_BYTES, OffsetWindow, decode_offsets, encode_offsets

if TYPE_CHECKING:
    from energon_stream.storage import ListEntry, Store, StoreSpec

_MARK = int.from_bytes(b"ES.idx.1", "little")
_HEADER = 3 * ENTRY_BYTES
_HINT = "remove it, and open the dataset again"


def index_directory(spec: StoreSpec) -> str:
    """Return the folder for the indices of a dataset: that of the dataset's cache, or else the user's.

    The user's folder is ``ENERGON_STREAM_CACHE_DIR``, or ``energon_stream`` in ``XDG_CACHE_HOME``
    (``~/.cache``).
    """
    if isinstance(spec.through, CacheLayer):
        return spec.through.config.directory
    named = os.environ.get("ENERGON_STREAM_CACHE_DIR")
    if not named:
        named = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "energon_stream")
    return os.path.abspath(os.path.expanduser(named))


@dataclass(frozen=True, slots=True)
class PlainTars:
    """Tars of a dataset that was not prepared, and their indices on this node. A picklable value."""

    folder: str  # folder of the index files
    tars: tuple[ListEntry, ...] = ()  # with size and version, as they were when the dataset was opened

    @classmethod
    def of(cls, spec: StoreSpec, url: str, tars: Iterable[ListEntry]) -> PlainTars:
        """Return tars of the dataset with the root ``url``, which has no credentials."""
        return cls(os.path.join(index_directory(spec), "v1", "indexes", root_name(url)), tuple(tars))

    def path(self, tar: ListEntry) -> str:
        """Return the path of a tar's index, whether it exists or not."""
        identity = "\0".join((tar.path, tar.meta.etag or "", str(tar.meta.size)))
        name = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return os.path.join(self.folder, f"{name}.idx")

    def count(self, tar: ListEntry) -> int | None:
        """Verify the index of a tar, and return the number of samples; None if there is no index. Raises
        IndexMismatchError if the index is damaged.
        """
        path = self.path(tar)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:  # no such file, or one that writing will report
            return None
        if len(content) >= _HEADER:
            mark, count, check = np.frombuffer(content, dtype="<u8", count=3).tolist()
            whole = mark == _MARK and len(content) == _HEADER + (count + 1) * ENTRY_BYTES
            if whole and check == _check(path, count, content[_HEADER:]):
                return int(count)
        raise IndexMismatchError("the index is damaged", where=f"{path}, index of {tar.path}", hint=_HINT)

    def write(self, tar: ListEntry, offsets: list[int], *, suffix: str) -> None:
        """Keep the index of a tar. The file appears when it is complete. Raises OSError if the file cannot be
        written.
        """
        path, data, count = self.path(tar), encode_offsets(offsets), len(offsets) - 1
        header = np.array([_MARK, count, _check(path, count, data)], dtype="<u8").tobytes()
        with open(path + suffix, "wb") as file:
            file.write(header + data)
        os.replace(path + suffix, path)

    def read_offsets(self, tar: ListEntry, count: int, first: int, last: int) -> OffsetWindow:
        """Read entries of a tar's index; see :func:`energon_stream.index.index_files.read_offsets`. Raises
        NotPreparedError if the index was removed after the dataset was opened, and IndexMismatchError if the
        index is damaged, or has another number of samples.
        """
        where = f"{self.path(tar)}, index of {tar.path}"
        try:
            with open(self.path(tar), "rb") as file:
                file.seek(_HEADER + first * ENTRY_BYTES)
                data = file.read((last + 1 - first) * ENTRY_BYTES)
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError as error:
            raise NotPreparedError(
                "the index was removed while it was in use", where=where, hint="open the dataset again"
            ) from error
        if size != _HEADER + (count + 1) * ENTRY_BYTES or not 0 <= first <= last <= count:
            raise IndexMismatchError(
                f"the index has {size} bytes, and not entries {first} to {last} of {count} samples",
                where=where,
                hint=_HINT,
            )
        return decode_offsets(data, first, where)

    def versions(self) -> dict[str, str]:
        """Return the versions of the tars by path, without the tars whose store reports none."""
        return {tar.path: tar.meta.etag for tar in self.tars if tar.meta.etag is not None}

    def tell_versions(self, store: Store) -> None:
        """Pass size and version of the tars to the disk cache, if the store has one: it need not ask for
        them.
        """
        if isinstance(store, CachedStore):
            for tar in self.tars:
                store.remember(tar.path, tar.meta)


def _check(path: str, count: int, data: bytes) -> int:
    name = os.path.basename(path).encode()
    return xxhash.xxh3_64_intdigest(data, seed=xxhash.xxh3_64_intdigest(name, seed=count))
