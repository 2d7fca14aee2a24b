"""Eviction: lists the blocks on disk, lets a policy choose, and removes what it chose.

The policies are pure functions, used by the cache and by its simulation. Training reads each epoch in another
order, so no policy can serve more than the share c of the reads if the share c of the data fits. "pin" keeps
what it has and reaches c; evicting the least recently used data reaches c + (1 - c) ln(1 - c).
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.object_identity import ObjectPlace, block_at
from energon_stream.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EvictableBlock:
    """A block, as policies see it."""

    key: str  # path of the block
    root: str  # dataset of the block
    group: str  # name of what comes into and falls out of use as a whole: a dataset, a version of an object
    bytes: int  # bytes that removing the block frees
    last_use: float  # time of the last read or write, in any unit
    in_use: bool  # True if a running process uses the group


def candidates(
    policy: Literal["pin", "lru"], entries: Sequence[EvictableBlock], shares: Mapping[str, int]
) -> list[EvictableBlock]:
    """Return the blocks that may be evicted; the first one goes first.

    ``"lru"`` evicts the least recently used blocks. ``"pin"`` evicts what no running process uses, starting
    with the group that has been unused for longest, and then what datasets have beyond their planned shares.
    """
    if policy == "lru":
        return sorted(entries, key=lambda entry: entry.last_use)
    last_use: dict[str, float] = {}
    for entry in entries:
        last_use[entry.group] = max(entry.last_use, last_use.get(entry.group, entry.last_use))
    unused = [entry for entry in entries if not entry.in_use]
    unused.sort(key=lambda entry: (last_use[entry.group], entry.group, entry.last_use))
    return unused + _beyond([entry for entry in entries if entry.in_use], shares)


def _beyond(entries: Iterable[EvictableBlock], shares: Mapping[str, int]) -> list[EvictableBlock]:
    """Return the oldest blocks of each dataset that make up what it has beyond its share."""
    by_root: dict[str, list[EvictableBlock]] = defaultdict(list)
    for entry in entries:
        if entry.root in shares:
            by_root[entry.root].append(entry)
    beyond = []
    for root, blocks in by_root.items():
        surplus = sum(entry.bytes for entry in blocks) - shares[root]
        for entry in sorted(blocks, key=lambda entry: entry.last_use):
            if surplus < entry.bytes:
                break
            surplus -= entry.bytes
            beyond.append(entry)
    return beyond


def make_room(
    directory: CacheDirectory, policy: Literal["pin", "lru"], need: int, spare: int, owner: ObjectPlace
) -> bool:
    """Remove blocks until ``need`` bytes are gained, and return True; return False if that is not possible.

    If possible, ``spare`` bytes more are gained, so that the next eviction is not needed soon. Blocks that
    any process has open stay. Older versions of ``owner``, which needs the room, count as unused. Raises as
    :meth:`CacheDirectory.remove_block`.
    """
    chosen = candidates(policy, _entries(directory, owner), directory.ledger.limits.shares)
    if sum(entry.bytes for entry in chosen) < need:
        return False
    for entry in chosen:
        if need + spare <= 0:
            break
        place = block_at(entry.key)
        if place is not None:
            need -= directory.remove_block(place, alone=True)
    return need <= 0


def _entries(directory: CacheDirectory, owner: ObjectPlace) -> list[EvictableBlock]:
    entries = []
    for root_folder in directory.root_folders():
        root, in_use = os.path.basename(root_folder), directory.root_in_use(root_folder)
        blocks = {folder: directory.blocks(folder) for folder in directory.object_folders(root_folder)}
        times = {folder: [status.st_mtime for _, status in found] for folder, found in blocks.items()}
        last_use = {folder: max(found, default=0.0) for folder, found in times.items()}
        if root_folder == owner.root_folder:
            last_use[owner.folder] = math.inf
        by_use = sorted(last_use, key=lambda folder: (last_use[folder], folder))
        newest = {_path_name(folder): folder for folder in by_use}
        for folder, found in blocks.items():
            is_current = in_use and newest[_path_name(folder)] == folder
            group = root if is_current or not in_use else folder
            entries += [
                EvictableBlock(place.path, root, group, 512 * status.st_blocks, status.st_mtime, is_current)
                for place, status in found
            ]
    return entries


def _path_name(object_folder: str) -> str:
    """Return the part of the folder's name that all versions of the object share."""
    return os.path.basename(object_folder).partition("-")[0]


def plan_shares(sizes: Sequence[int], reads: Sequence[float], quota: int) -> list[int]:
    """Divide a quota among datasets so that as many reads as possible are hits.

    If a share of a dataset is pinned, the same share of its reads are hits. So a byte of the quota is worth
    as much as a byte of its dataset is read, and the quota goes first to the datasets whose bytes are read
    most. Datasets whose bytes are worth the same get the same share of their sizes.

    ``reads`` are bytes that are read of each dataset in the same time, such as weight × bytes of a sample, in
    any unit. Raises ConfigError if a number is negative, or there are not as many reads as sizes.

    Example:
        >>> from energon_stream.cache import plan_shares
        >>> plan_shares(sizes=[100, 100], reads=[1, 3], quota=150)
        [50, 100]
    """
    if len(sizes) != len(reads) or min((*sizes, *reads, quota), default=0) < 0:
        raise ConfigError(
            f"{len(sizes)} sizes, {len(reads)} reads and a quota of {quota} bytes make no plan",
            hint="Give one number of reads for each size, none of them negative.",
        )
    shares = [0] * len(sizes)
    by_worth: dict[float, list[int]] = defaultdict(list)
    for number, size in enumerate(sizes):
        if size:
            by_worth[reads[number] / size].append(number)
    for _, numbers in sorted(by_worth.items(), reverse=True):
        wanted = sum(sizes[number] for number in numbers)
        dealt = min(wanted, quota)
        quota -= dealt
        for number in numbers:  # a part of what is left, so that rounding loses nothing
            shares[number] = dealt * sizes[number] // wanted
            dealt, wanted = dealt - shares[number], wanted - sizes[number]
    return shares
