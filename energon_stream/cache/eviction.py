"""Makes room: looks at what is on disk, lets the policy choose, removes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.identity import ObjectPlace, block_at
from energon_stream.cache.policy import Entry, Policy

__all__ = ["make_room"]


def make_room(
    directory: CacheDirectory,
    policy: Policy,
    need: int,
    spare: int,
    owner: ObjectPlace,
    shares: Mapping[str, int],
) -> bool:
    """Remove blocks. What anybody has open stays.

    Args:
        directory: The cache.
        policy: Says which.
        need: Bytes to gain; nothing is removed where the policy cannot give so many.
        spare: Bytes to gain beyond that if possible, so that it need not be done again soon.
        owner: Object that the room is for; other versions of it are not in use.
        shares: Bytes that some datasets are planned to have, by the names of their folders.

    Returns:
        Whether ``need`` was gained.

    Raises:
        Busy: Others keep locks.
        OSError: The disk fails, or must not be written.
    """
    candidates = policy.candidates(_entries(directory, owner), shares)
    if sum(candidate.bytes for candidate in candidates) < need:
        return False
    for candidate in candidates:
        if need + spare <= 0:
            break
        place = block_at(candidate.key)
        block = BlockFile.open_unused(place) if place is not None else None
        if block is not None:
            with block:
                need -= directory.remove_block(block)
    return need <= 0


def _entries(directory: CacheDirectory, owner: ObjectPlace) -> list[Entry]:
    entries = []
    for root_folder in directory.root_folders():
        root, in_use = os.path.basename(root_folder), directory.root_in_use(root_folder)
        its: list[Entry] = []
        newest = (
            {_path_name(owner.folder): (math.inf, owner.folder)} if root_folder == owner.root_folder else {}
        )
        for folder in directory.object_folders(root_folder):
            path_name = _path_name(folder)
            for place in directory.blocks(folder):
                try:
                    status = os.stat(place.path)
                except FileNotFoundError:
                    continue
                used = status.st_mtime
                its.append(Entry(place.path, root, root, 512 * status.st_blocks, used, in_use))
                newest[path_name] = max(newest.get(path_name, (used, folder)), (used, folder))
        entries += [_superseded(entry, newest) if in_use else entry for entry in its]
    return entries


def _superseded(entry: Entry, newest: Mapping[str, tuple[float, str]]) -> Entry:
    """A version that another one of the same object came after is not in use, though its dataset is."""
    folder = os.path.dirname(entry.key)
    if newest[_path_name(folder)][1] == folder:
        return entry
    return Entry(entry.key, entry.root, folder, entry.bytes, entry.last_use, in_use=False)


def _path_name(object_folder: str) -> str:
    """What all versions of an object have in common."""
    return os.path.basename(object_folder).partition("-")[0]
