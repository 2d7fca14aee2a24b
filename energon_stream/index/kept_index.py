"""Indices of tars, kept on this node because the dataset has none.

A file for each version of a tar, below ``<directory>/v1/indexes/<root URL>/``; names are hashes. It holds, as little-endian
64-bit integers, a mark of the format, the number of samples, a check, and then what a ``.tar.idx`` file holds. The
check is an XXH3 hash of all of that and of the file's name, so what was written in part, or for another tar, is none.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np
import xxhash

from energon_stream.cache import CachedStore, CacheLayer
from energon_stream.cache.identity import root_name
from energon_stream.errors import IndexMismatchError, NotPreparedError
from energon_stream.index.index_files import OffsetWindow, decode_offsets, encode_offsets
from energon_stream.storage import ListEntry, Store, StoreSpec

__all__ = ["KeptIndices", "PlainTars", "index_directory"]

_MARK = int.from_bytes(b"ES.idx.1", "little")
_ENTRY = 8
_HEADER = 3 * _ENTRY
_HINT = "Remove it, and open the dataset again."


def index_directory(spec: StoreSpec) -> str:
    """Where indices of a dataset are kept: in its cache, or else in the user's folder for such things.

    That is what ``ENERGON_STREAM_CACHE_DIR`` says, or ``energon_stream`` in ``XDG_CACHE_HOME`` (``~/.cache``).
    """
    if isinstance(spec.through, CacheLayer):
        return spec.through.config.directory
    named = os.environ.get("ENERGON_STREAM_CACHE_DIR")
    if not named:
        named = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "energon_stream")
    return os.path.abspath(os.path.expanduser(named))


@dataclass(frozen=True, slots=True)
class KeptIndices:
    """The indices of one dataset's tars; a value that travels to other processes.

    Attributes:
        folder: Where they lie.
    """

    folder: str

    @classmethod
    def of(cls, spec: StoreSpec, url: str) -> KeptIndices:
        """Those of the dataset at ``url``, a root without credentials."""
        return cls(os.path.join(index_directory(spec), "v1", "indexes", root_name(url)))

    def path(self, tar: ListEntry) -> str:
        """Where the index of a tar is, or is to be."""
        identity = "\0".join((tar.path, tar.meta.etag or "", str(tar.meta.size)))
        name = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return os.path.join(self.folder, f"{name}.idx")

    def count(self, tar: ListEntry) -> int | None:
        """Number of samples of a tar, by all of its verified index; None where there is none.

        Raises:
            IndexMismatchError: It is damaged.
        """
        path = self.path(tar)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:  # not there; or else writing will tell
            return None
        if len(content) >= _HEADER:
            mark, count, check = np.frombuffer(content, dtype="<u8", count=3).tolist()
            whole = mark == _MARK and len(content) == _HEADER + (count + 1) * _ENTRY
            if whole and check == _check(path, count, content[_HEADER:]):
                return int(count)
        raise IndexMismatchError("the index is damaged", where=f"{path}, index of {tar.path}", hint=_HINT)

    def write(self, tar: ListEntry, offsets: list[int], *, suffix: str) -> None:
        """Keep the index of a tar, visible when it is complete.

        Args:
            tar: The tar.
            offsets: What :func:`encode_offsets` takes.
            suffix: Of the file until it is complete; nobody else may use it for this tar now.

        Raises:
            OSError: It cannot be written.
        """
        path, data, count = self.path(tar), encode_offsets(offsets), len(offsets) - 1
        header = np.array([_MARK, count, _check(path, count, data)], dtype="<u8").tobytes()
        with open(path + suffix, "wb") as file:
            file.write(header + data)
        os.replace(path + suffix, path)

    def read_offsets(self, tar: ListEntry, count: int, first: int, last: int) -> OffsetWindow:
        """Read entries of a tar's index, as :func:`energon_stream.index.index_files.read_offsets` does.

        Raises:
            NotPreparedError: The index was removed since the dataset was opened.
            IndexMismatchError: It is not that of ``count`` samples, or damaged.
        """
        where = f"{self.path(tar)}, index of {tar.path}"
        try:
            with open(self.path(tar), "rb") as file:
                file.seek(_HEADER + first * _ENTRY)
                data = file.read((last + 1 - first) * _ENTRY)
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError as error:
            raise NotPreparedError(
                "the index was removed while it was in use", where=where, hint="Open the dataset again."
            ) from error
        if size != _HEADER + (count + 1) * _ENTRY or not 0 <= first <= last <= count:
            raise IndexMismatchError(
                f"entries {first} to {last} of {count} samples are asked for, the index has {size} bytes",
                where=where,
                hint=_HINT,
            )
        return decode_offsets(data, first, where)


@dataclass(frozen=True, slots=True)
class PlainTars:
    """The tars of a dataset that was not prepared; a value that travels to other processes.

    Attributes:
        tars: The tars as they were when the dataset was opened.
        indices: Where their indices are kept.
    """

    tars: tuple[ListEntry, ...]
    indices: KeptIndices

    def read_offsets(self, shard: int, count: int, first: int, last: int) -> OffsetWindow:
        """Read entries of the index of shard number ``shard``; see :meth:`KeptIndices.read_offsets`."""
        return self.indices.read_offsets(self.tars[shard], count, first, last)

    def versions(self) -> dict[str, str]:
        """Versions of the tars by path, as far as they have any."""
        return {tar.path: tar.meta.etag for tar in self.tars if tar.meta.etag is not None}

    def tell_versions(self, store: Store) -> None:
        """Tell the dataset's store what is known of the tars, if it is one with a cache: it need not list them."""
        if isinstance(store, CachedStore):
            for tar in self.tars:
                store.remember(tar.path, tar.meta)


def _check(path: str, count: int, data: bytes) -> int:
    name = os.path.basename(path).encode()
    return xxhash.xxh3_64_intdigest(data, seed=xxhash.xxh3_64_intdigest(name, seed=count))
