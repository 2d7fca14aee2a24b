"""Places and keys of samples, looked up in the indices of their datasets by range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import ObjectNotFoundError
from energon_stream.index.database import index_database, sample_key
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.lineage.answers import StepSample

if TYPE_CHECKING:
    from energon_stream.lineage.segments import RunData

_PLACES = "SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ?"


def locate(
    data: RunData, refs: Sequence[Sequence[tuple[int, int]]], keys: bool
) -> list[tuple[StepSample, ...]]:
    """Return the samples of references, with their keys."""
    named: dict[tuple[int, int], StepSample] = {}
    for leaf, number in dict.fromkeys(ref for those in refs for ref in those):
        index, of = data.indices[leaf], data.described.leaves[leaf]
        shard = int(index.shard_of(np.array([number]))[0])
        place = number - int(index.shard_starts[shard])
        path = index.shard_paths[shard]
        named[leaf, number] = StepSample(of.url, of.split, path, place, number)
    found = _keys(data, named) if keys else {}
    return [tuple(replace(named[ref], key=found.get(ref)) for ref in those) for those in refs]


def _keys(data: RunData, named: Mapping[tuple[int, int], StepSample]) -> dict[Any, str]:
    def look_up(item: tuple[tuple[int, int], StepSample]) -> tuple[tuple[int, int], str | None]:
        leaf, number = item[0]
        index = data.indices[leaf]
        if not isinstance(index, WebDatasetIndex):
            return item[0], str(number)
        return item[0], sample_key(index, number)

    with ThreadPoolExecutor(16) as pool:
        return {ref: key for ref, key in pool.map(look_up, named.items()) if key is not None}


def find_samples(data: RunData, key: str) -> list[tuple[int, int]]:
    """Return leaf and number of the samples with a key."""
    found = []
    shard, in_tar, inner = key.partition(".tar/")
    for leaf, index in enumerate(data.indices):
        if not isinstance(index, WebDatasetIndex):
            if key.isdecimal() and int(key) < index.num_samples:
                found.append((leaf, int(key)))
            continue
        if index.shard_ids is None:
            continue
        try:
            rows = index_database(index.spec).rows(_PLACES, (inner if in_tar else key,))
        except ObjectNotFoundError:
            continue
        places = {shard_id: place for place, shard_id in enumerate(index.shard_ids.tolist())}
        for shard_id, number in rows:
            place = places.get(shard_id)
            if place is not None and (not in_tar or index.shard_paths[place] == f"{shard}.tar"):
                found.append((leaf, int(index.shard_starts[place]) + int(number)))
    return found
