"""Names of objects and blocks: values, and the paths that they have on disk."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from energon_stream.cache.records import page_ceil
from energon_stream.printable import strip_credentials


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """One version of an object. The same path with another ETag or size is another object."""

    root: str  # URL of the folder that contains it, usually the dataset's. Credentials are removed.
    path: str  # path below the root
    etag: str  # version, as the store names it
    size: int  # length in bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", clean_url(self.root))


def clean_url(url: str) -> str:
    """Return a dataset's URL without credentials and without a slash at the end."""
    return strip_credentials(url).rstrip("/")


class BlockPlace(NamedTuple):
    """A block's place on disk."""

    path: str  # the block's file
    size: int  # bytes of the block; the last block of an object may have fewer
    key: int  # for the checks of records; made of names, not of the folders above, so that a cache can be moved

    @property
    def data_bytes(self) -> int:
        """Length of the data in the file; the records follow."""
        return page_ceil(self.size)

    @property
    def object_folder(self) -> str:
        """Folder of the object."""
        return os.path.dirname(self.path)

    @property
    def root_folder(self) -> str:
        """Folder of the dataset."""
        return os.path.dirname(self.object_folder)


class BlockRange(NamedTuple):
    """A range of an object's bytes that lies in one block. All positions are positions in the object."""

    block: BlockPlace
    base: int  # the block's first byte
    start: int
    stop: int

    @property
    def span(self) -> tuple[int, int]:
        """First byte and one past the last, counted in the block."""
        return self.start - self.base, self.stop - self.base

    def between(self, start: int, stop: int) -> BlockRange | None:
        """Return the intersection with the object's bytes ``[start, stop)``; None if it is empty."""
        start, stop = max(start, self.start), min(stop, self.stop)
        return self._replace(start=start, stop=stop) if start < stop else None


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """The folder of an object's blocks, inside the dataset's folder."""

    identity: ObjectIdentity
    block_bytes: int
    folder: str  # the names of all versions of an object begin with the same hash of the path

    @property
    def root_folder(self) -> str:
        """Folder of the dataset."""
        return os.path.dirname(self.folder)

    def ranges(self, start: int, stop: int) -> Iterator[BlockRange]:
        """Yield the bytes ``[start, stop)`` block by block."""
        numbers = range(start // self.block_bytes, -(-stop // self.block_bytes)) if start < stop else ()
        for number in numbers:
            base = number * self.block_bytes
            size = min(self.block_bytes, self.identity.size - base)
            block = _block(f"{self.folder}/{number}.{size}", size)
            yield BlockRange(block, base, max(start, base), min(stop, base + size))


def block_at(path: str) -> BlockPlace | None:
    """Return the block of a file; None if the file's name is not a block's."""
    number, dot, size = os.path.basename(path).partition(".")
    return _block(path, int(size)) if dot and number.isdecimal() and size.isdecimal() else None


@functools.lru_cache(4096)
def _block(path: str, size: int) -> BlockPlace:
    return BlockPlace(path, size, int.from_bytes(hash_texts(*path.split("/")[-3:])[:8], "little"))


def root_name(url: str) -> str:
    """Return the name of a dataset's folder."""
    return hash_texts(url).hex()


@functools.lru_cache(4096)
def object_place(data_folder: str, identity: ObjectIdentity, block_bytes: int) -> ObjectPlace:
    """Return the place of an object in a cache's data folder."""
    version = hash_texts(identity.etag, str(identity.size), str(block_bytes)).hex()
    folder = f"{data_folder}/{root_name(identity.root)}/{hash_texts(identity.path).hex()}-{version}"
    return ObjectPlace(identity, block_bytes, folder)


def hash_texts(*texts: str, size: int = 12) -> bytes:
    """Return a hash of ``size`` bytes, for the name of a file."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogateescape"), digest_size=size).digest()
