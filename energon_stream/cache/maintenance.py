"""Inspection of a cache: list, verify and clear it. Safe while others use the cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_stream.cache.block_file import BlockFile, DamagedError
from energon_stream.cache.directory import OBJECT_FILE, ROOT_FILE, CacheDirectory, read_description

if TYPE_CHECKING:
    from energon_stream.cache.identity import BlockPlace

_RECOUNT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CachedObject:
    """One version of an object of which a cache has blocks.

    Attributes:
        path: Path in the dataset; ``"?"`` if the description is lost.
        etag: Version.
        size: Length of the object in bytes.
        blocks: Number of blocks in the cache.
        bytes: Disk space of the blocks.
        last_use: Time of the last read or write, to a minute; seconds since 1970.
        folder: Folder of the blocks.
    """

    path: str
    etag: str
    size: int
    blocks: int
    bytes: int
    last_use: float
    folder: str


@dataclass(frozen=True, slots=True)
class CachedDataset:
    """A dataset of which a cache has blocks.

    Attributes:
        url: Root URL; ``"?"`` if the description is lost.
        objects: Number of objects in the cache, at least in part.
        blocks: Number of their blocks.
        bytes: Disk space of the blocks.
        last_use: Latest use of an object; 0 if the cache has none.
        in_use: True if a running process uses the dataset.
        folder: Folder of the dataset in the cache.
    """

    url: str
    objects: int
    blocks: int
    bytes: int
    last_use: float
    in_use: bool
    folder: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of :func:`verify_cache`.

    Attributes:
        blocks: Number of undamaged blocks.
        bytes: Bytes of data in these.
        damaged: Number of damaged blocks, which were removed.
        counted: True if the count of bytes was corrected as well; False if others kept writing.
    """

    blocks: int
    bytes: int
    damaged: int
    counted: bool


@dataclass(frozen=True, slots=True)
class ClearReport:
    """Result of :func:`clear_cache`.

    Attributes:
        blocks: Number of blocks removed.
        bytes: Disk space of these. The space of a block that is being read is freed when the reader closes
            it.
    """

    blocks: int
    bytes: int


def list_datasets(directory: CacheDirectory) -> list[CachedDataset]:
    """Return the datasets of a cache, the largest first."""
    found = []
    for folder in directory.root_folders():
        objects = list_objects(directory, folder)
        found.append(
            CachedDataset(
                str(read_description(folder, ROOT_FILE).get("url", "?")),
                len(objects),
                sum(each.blocks for each in objects),
                sum(each.bytes for each in objects),
                max((each.last_use for each in objects), default=0.0),
                directory.root_in_use(folder),
                folder,
            )
        )
    return sorted(found, key=lambda each: -each.bytes)


def list_objects(directory: CacheDirectory, root_folder: str) -> list[CachedObject]:
    """Return the objects of one dataset, by path."""
    found = []
    for folder in directory.object_folders(root_folder):
        statuses = [status for place in directory.blocks(folder) if (status := _status(place)) is not None]
        if statuses:
            about = read_description(folder, OBJECT_FILE)
            found.append(
                CachedObject(
                    str(about.get("path", "?")),
                    str(about.get("etag", "?")),
                    int(about.get("size", 0)),
                    len(statuses),
                    sum(512 * status.st_blocks for status in statuses),
                    max(status.st_mtime for status in statuses),
                    folder,
                )
            )
    return sorted(found, key=lambda each: (each.path, each.last_use))


def verify_cache(
    directory: CacheDirectory, progress: Callable[[int], object] = lambda size: None
) -> VerifyReport:
    """Hash all blocks, remove damaged ones, and measure the disk space again.

    Args:
        directory: The cache.
        progress: Called after each block with the disk space that it took.

    Raises:
        Busy: Another process keeps locks.
        OSError: A damaged block cannot be removed.
    """
    whole = size = damaged = 0
    for place in _blocks(directory):
        status, block = _status(place), BlockFile.open(place)
        if block is not None:
            with block:
                verified = _verify(block)
            if verified is None:
                damaged += _remove(directory, place) > 0
            else:
                whole, size = whole + 1, size + verified
        progress(512 * status.st_blocks if status is not None else 0)
    return VerifyReport(whole, size, damaged, directory.recount(seconds=_RECOUNT_SECONDS, always=True))


def clear_cache(
    directory: CacheDirectory, root_folder: str | None = None, *, unused_for: float | None = None
) -> ClearReport:
    """Remove objects from a cache. Processes that read them go on, and later fetch the bytes again.

    Args:
        directory: The cache.
        root_folder: Folder of the dataset to remove objects of; None for all datasets.
        unused_for: Remove only objects last used at least so many seconds ago.

    Raises:
        Busy: Another process keeps locks.
        OSError: The disk fails, or must not be written.
    """
    blocks = size = 0
    before = None if unused_for is None else time.time() - unused_for
    for root in directory.root_folders() if root_folder is None else [root_folder]:
        for found in list_objects(directory, root):
            if before is None or found.last_use <= before:
                for place in directory.blocks(found.folder):
                    removed = _remove(directory, place)
                    blocks, size = blocks + (removed > 0), size + removed
        directory.remove_root(root)
    return ClearReport(blocks, size)


def _blocks(directory: CacheDirectory) -> Iterator[BlockPlace]:
    for root_folder in directory.root_folders():
        for folder in directory.object_folders(root_folder):
            yield from directory.blocks(folder)


def _status(place: BlockPlace) -> os.stat_result | None:
    try:
        return os.stat(place.path)
    except FileNotFoundError:
        return None


def _verify(block: BlockFile) -> int | None:
    """Return the bytes of a block's data; None if some are damaged or cannot be read."""
    size = 0
    try:
        for run in block.table().runs(0, block.place.size):
            size += len(block.read(run, run[0][0], run[-1][1]))
    except (DamagedError, OSError):
        return None
    return size


def _remove(directory: CacheDirectory, place: BlockPlace) -> int:
    block = BlockFile.open(place, writable=True)
    if block is None:
        return 0
    with block:
        return directory.remove_block(block)
