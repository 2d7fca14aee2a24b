"""A look at a cache from outside: what it holds, whether it is whole, and taking things out. Safe while others use it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from energon_stream.cache.block_file import BlockFile, DamagedError
from energon_stream.cache.directory import OBJECT_FILE, ROOT_FILE, CacheDirectory, read_description
from energon_stream.cache.identity import BlockPlace

__all__ = [
    "CachedDataset",
    "CachedObject",
    "ClearReport",
    "VerifyReport",
    "clear_cache",
    "list_datasets",
    "list_objects",
    "verify_cache",
]

_RECOUNT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CachedObject:
    """One version of an object that is in a cache, at least in part.

    Attributes:
        path: Its path in the dataset; ``"?"`` where its description is lost.
        etag: Its version.
        size: Its length in bytes.
        blocks: Blocks that are there.
        bytes: What they take of the disk.
        last_use: When one of them was last read or written, to a minute; seconds since 1970.
        folder: Where they are.
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
    """A dataset that is in a cache, at least in part.

    Attributes:
        url: Its root URL; ``"?"`` where its description is lost.
        objects: Objects that are there.
        blocks: Blocks of these.
        bytes: What they take of the disk.
        last_use: The latest of the objects'; 0 where there are none.
        in_use: Whether a running process uses it.
        folder: Where it is.
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
    """What was verified.

    Attributes:
        blocks: Blocks that are whole.
        bytes: Their data.
        damaged: Blocks that were removed.
        counted: Whether the count of bytes was corrected, too; not so while others write all the time.
    """

    blocks: int
    bytes: int
    damaged: int
    counted: bool


@dataclass(frozen=True, slots=True)
class ClearReport:
    """What was taken out.

    Attributes:
        blocks: Blocks.
        bytes: What they took of the disk; where they are being read, it is given back after that.
    """

    blocks: int
    bytes: int


def list_datasets(directory: CacheDirectory) -> list[CachedDataset]:
    """Datasets of a cache, the largest first."""
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
    """Objects of one dataset, by path."""
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
    """Hash all that is there, remove what is damaged, count anew.

    Args:
        directory: The cache.
        progress: Told the bytes that a block took of the disk, after each.

    Raises:
        Busy: Another process keeps locks.
        OSError: A damaged block cannot be removed.
    """
    whole = size = damaged = 0
    for place in _blocks(directory, directory.root_folders()):
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
    """Take things out; who reads them goes on, and fetches again what it needs later.

    Args:
        directory: The cache.
        root_folder: Only of this dataset.
        unused_for: Only objects that were last used at least so many seconds ago.

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


def _blocks(directory: CacheDirectory, root_folders: list[str]) -> Iterator[BlockPlace]:
    for root_folder in root_folders:
        for folder in directory.object_folders(root_folder):
            yield from directory.blocks(folder)


def _status(place: BlockPlace) -> os.stat_result | None:
    try:
        return os.stat(place.path)
    except FileNotFoundError:
        return None


def _verify(block: BlockFile) -> int | None:
    """Bytes of a block's data; None if some are not what they should be, or cannot be read."""
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
