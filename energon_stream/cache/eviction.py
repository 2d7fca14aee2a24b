"""Eviction: lists the blocks on disk, lets the policy choose, and removes what it chose."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.identity import ObjectPlace, block_at
from energon_stream.cache.policy import Entry, candidates

if TYPE_CHECKING:
    from energon_stream.cache.directory import CacheDirectory


def make_room(
    directory: CacheDirectory,
    policy: Literal["pin", "lru"],
    need: int,
    spare: int,
    owner: ObjectPlace,
    shares: Mapping[str, int],
) -> bool:
    """Remove blocks. Blocks that any process has open stay.

    Args:
        directory: The cache.
        policy: Chooses the blocks.
        need: Bytes to gain. If the policy cannot give so many, nothing is removed.
        spare: Bytes to gain beyond ``need`` if possible, so that the next eviction is not needed soon.
        owner: Object that needs the room. Older versions of it count as unused.
        shares: Bytes planned for some datasets, by the names of their folders.

    Returns:
        True if ``need`` was gained.

    Raises:
        Busy: Others keep locks.
        OSError: The disk fails, or must not be written.
    """
    chosen = candidates(policy, _entries(directory, owner), shares)
    if sum(entry.bytes for entry in chosen) < need:
        return False
    for entry in chosen:
        if need + spare <= 0:
            break
        place = block_at(entry.key)
        block = BlockFile.open_unused(place) if place is not None else None
        if block is not None:
            with block:
                need -= directory.remove_block(block)
    return need <= 0


def _entries(directory: CacheDirectory, owner: ObjectPlace) -> list[Entry]:
    entries = []
    for root_folder in directory.root_folders():
        root, in_use = os.path.basename(root_folder), directory.root_in_use(root_folder)
        found: list[Entry] = []
        newest: dict[str, tuple[float, str]] = {}  # last use and folder of each object's newest version
        if root_folder == owner.root_folder:
            newest[_path_name(owner.folder)] = (math.inf, owner.folder)
        for folder in directory.object_folders(root_folder):
            path_name = _path_name(folder)
            for place in directory.blocks(folder):
                try:
                    status = os.stat(place.path)
                except FileNotFoundError:
                    continue
                used = status.st_mtime
                found.append(Entry(place.path, root, root, 512 * status.st_blocks, used, in_use))
                newest[path_name] = max(newest.get(path_name, (used, folder)), (used, folder))
        entries += [_superseded(entry, newest) if in_use else entry for entry in found]
    return entries


def _superseded(entry: Entry, newest: Mapping[str, tuple[float, str]]) -> Entry:
    """Return an entry of a dataset in use; an object's older versions are marked as unused."""
    folder = os.path.dirname(entry.key)
    if newest[_path_name(folder)][1] == folder:
        return entry
    return replace(entry, group=folder, in_use=False)


def _path_name(object_folder: str) -> str:
    """Return the part of the folder's name that all versions of the object share."""
    return os.path.basename(object_folder).partition("-")[0]
