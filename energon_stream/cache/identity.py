"""Which object, and which block of it: values, and the names they have on disk."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from energon_stream.cache.records import page_ceil
from energon_stream.storage import strip_credentials

__all__ = [
    "BlockPart",
    "BlockPlace",
    "ObjectIdentity",
    "ObjectPlace",
    "block_at",
    "clean_url",
    "object_place",
    "root_name",
]


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """One version of an object: with another etag or size it is another object.

    Attributes:
        root: URL below which it lies, the dataset's as a rule; credentials are taken out.
        path: Path below that.
        etag: Version as the store names it.
        size: Length in bytes.
    """

    root: str
    path: str
    etag: str
    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", clean_url(self.root))


def clean_url(url: str) -> str:
    """A dataset's URL as it names the dataset in the cache."""
    return strip_credentials(url).rstrip("/")


class BlockPlace(NamedTuple):
    """Where a block lies.

    Attributes:
        path: Its file, whose name says the block's number and size.
        size: Bytes of it, fewer for the last one of an object.
        key: Makes the checks of its records; from the names of dataset, object and block, and not from those of the
            folders above, so that a cache may be moved.
    """

    path: str
    size: int
    key: int

    @property
    def data_bytes(self) -> int:
        """Length of the data in the file; records follow."""
        return page_ceil(self.size)

    @property
    def object_folder(self) -> str:
        """Folder of the object."""
        return os.path.dirname(self.path)

    @property
    def root_folder(self) -> str:
        """Folder of the dataset."""
        return os.path.dirname(self.object_folder)


class BlockPart(NamedTuple):
    """Bytes of an object that lie in one block.

    Attributes:
        block: The block.
        base: Where in the object it begins.
        start: First byte, counted in the object.
        stop: One past the last.
    """

    block: BlockPlace
    base: int
    start: int
    stop: int

    @property
    def span(self) -> tuple[int, int]:
        """First byte, and one past the last, counted in the block."""
        return self.start - self.base, self.stop - self.base

    def between(self, start: int, stop: int) -> BlockPart | None:
        """What of it lies between two places of the object."""
        start, stop = max(start, self.start), min(stop, self.stop)
        return self._replace(start=start, stop=stop) if start < stop else None


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Where the blocks of an object lie.

    Attributes:
        identity: The object.
        block_bytes: Size of its blocks.
        folder: Its folder, in that of the dataset. The name begins with the path's, so that other versions of the
            object are found.
    """

    identity: ObjectIdentity
    block_bytes: int
    folder: str

    @property
    def root_folder(self) -> str:
        """Folder of the dataset."""
        return os.path.dirname(self.folder)

    def parts(self, start: int, stop: int) -> Iterator[BlockPart]:
        """A byte range by blocks."""
        numbers = range(start // self.block_bytes, -(-stop // self.block_bytes)) if start < stop else ()
        for number in numbers:
            base = number * self.block_bytes
            size = min(self.block_bytes, self.identity.size - base)
            block = _block(f"{self.folder}/{number}.{size}", size)
            yield BlockPart(block, base, max(start, base), min(stop, base + size))


def block_at(path: str) -> BlockPlace | None:
    """The block that a file holds; None if its name is none of a block."""
    number, dot, size = os.path.basename(path).partition(".")
    return _block(path, int(size)) if dot and number.isdecimal() and size.isdecimal() else None


@functools.lru_cache(4096)
def _block(path: str, size: int) -> BlockPlace:
    return BlockPlace(path, size, int.from_bytes(_hash(*path.split("/")[-3:])[:8], "little"))


def root_name(url: str) -> str:
    """Name of a dataset's folder."""
    return _hash(url).hex()


@functools.lru_cache(4096)
def object_place(data_folder: str, identity: ObjectIdentity, block_bytes: int) -> ObjectPlace:
    """The place of an object below a cache's data folder."""
    version = _hash(identity.etag, str(identity.size), str(block_bytes)).hex()
    folder = f"{data_folder}/{root_name(identity.root)}/{_hash(identity.path).hex()}-{version}"
    return ObjectPlace(identity, block_bytes, folder)


def _hash(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogateescape"), digest_size=12).digest()
