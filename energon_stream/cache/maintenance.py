"""Inspection of a cache: list, verify and clear it. Safe while others use the cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from energon_stream.cache.block_file import BlockFile, DamagedError
from energon_stream.cache.directory import OBJECT_FILE, ROOT_FILE, CacheDirectory, read_description
from energon_stream.cache.kept_files import clear_kept

_RECOUNT_SECONDS = 30.0


class CachedObject(NamedTuple):
    """One version of an object of which a cache has blocks."""

    path: str  # "?" if the description is lost
    etag: str  # likewise
    size: int  # length of the object
    blocks: int
    bytes: int  # disk space of the blocks
    last_use: float  # in seconds since 1970, exact to a minute
    folder: str


class CachedDataset(NamedTuple):
    """A dataset of which a cache has blocks: numbers and sums of its objects; see :class:`CachedObject`."""

    url: str
    objects: int
    blocks: int
    bytes: int
    last_use: float  # 0 if the cache has no object
    in_use: bool  # whether a running process uses the dataset


class VerifyReport(NamedTuple):
    """Undamaged blocks, bytes of data in these, and damaged blocks, which were removed."""

    blocks: int
    bytes: int
    damaged: int
    counted: bool  # False if others kept writing, so that the count of bytes was not corrected


class ClearReport(NamedTuple):
    """Removed blocks and kept files, and the disk space of all of them."""

    blocks: int
    bytes: int  # those of an open block are freed when its reader closes it
    kept_files: int


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
            )
        )
    return sorted(found, key=lambda each: -each.bytes)


def list_objects(directory: CacheDirectory, root_folder: str) -> list[CachedObject]:
    """Return the objects of one dataset, by path."""
    found = []
    for folder in directory.object_folders(root_folder):
        statuses = [status for _, status in directory.blocks(folder)]
        if statuses:
            about = read_description(folder, OBJECT_FILE)
            found.append(
                CachedObject(
                    str(about.get("path", "?")),
                    str(about.get("etag", "?")),
                    size if isinstance(size := about.get("size"), int) else 0,
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

    ``progress`` is called after each block with the disk space that it took. Raises Busy if another process
    keeps locks, and OSError if a damaged block cannot be removed.
    """
    whole = size = damaged = 0
    for root_folder in directory.root_folders():
        for folder in directory.object_folders(root_folder):
            for place, status in directory.blocks(folder):
                block = BlockFile.open(place)
                if block is not None:
                    with block:
                        verified = _verify(block)
                    if verified is None:
                        damaged += directory.remove_block(place) > 0
                    else:
                        whole, size = whole + 1, size + verified
                progress(512 * status.st_blocks)
    return VerifyReport(whole, size, damaged, directory.recount(seconds=_RECOUNT_SECONDS, always=True))


def clear_cache(
    directory: CacheDirectory, root_folder: str | None = None, *, unused_for: float | None = None
) -> ClearReport:
    """Remove objects and kept files from a cache. Processes that read them go on, and later fetch them again.

    The indices of tars that running processes use stay. ``root_folder`` limits it to one dataset,
    ``unused_for`` to what was last used at least this many seconds ago. Raises Busy if another process keeps
    locks, and OSError if the disk fails, or must not be written.
    """
    blocks = size = 0
    before = None if unused_for is None else time.time() - unused_for
    for root in directory.root_folders() if root_folder is None else [root_folder]:
        for found in list_objects(directory, root):
            if before is None or found.last_use <= before:
                for place, _ in directory.blocks(found.folder):
                    removed = directory.remove_block(place)
                    blocks, size = blocks + (removed > 0), size + removed
        directory.remove_root(root)
    dataset = None if root_folder is None else os.path.basename(root_folder)
    kept = clear_kept(directory.directory, dataset, before=before)
    return ClearReport(blocks, size + sum(each.bytes for each in kept), len(kept))


def _verify(block: BlockFile) -> int | None:
    """Return the bytes of a block's data; None if some are damaged or cannot be read."""
    try:
        runs = block.table().runs(0, block.place.size)
        return sum(len(block.read(run, run[0][0], run[-1][1])) for run in runs)
    except (DamagedError, OSError):
        return None
