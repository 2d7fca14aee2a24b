"""Listed bad samples: where they are in the datasets that are opened."""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.errors import EnergonStreamError, ObjectNotFoundError
from energon_stream.index.bad_samples import BadSample, dataset_name, read_bad_list
from energon_stream.index.database import index_database
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.files_index import FilesIndex
from energon_stream.index.guarded_sqlite import indexed_name
from energon_stream.index.join_index import JoinIndex
from energon_stream.printable import strip_credentials
from energon_stream.storage import ByteRange, Store, StoreSpec, shared_fetcher
from energon_stream.tar.format import split_name, walk_members

_log = logging.getLogger(__name__)

_KEYS_AT_A_TIME = 500
_ROWS = 1 << 18
_DIGITS = 19  # more than the number of any record has


@dataclass(frozen=True)
class BadFile:
    """A list of bad samples, or the folder of a run, which is read when it is needed first."""

    spec: StoreSpec

    @cached_property
    def _by_dataset(self) -> dict[str, list[BadSample]]:
        found: dict[str, list[BadSample]] = {}
        for sample in read_bad_list(self.spec).samples:
            found.setdefault(_bare(sample.dataset or ""), []).append(sample)
        return found

    def samples(self, dataset: str) -> list[BadSample]:
        """Return the bad samples of a dataset, and all bad samples without a dataset."""
        return self._by_dataset.get(_bare(dataset), []) + self._by_dataset.get("", [])

    @cached_property
    def found(self) -> set[BadSample]:
        """The samples that were found in opened datasets."""
        return set()

    def warn_unless_used(self, datasets: Iterable[str], found: set[BadSample]) -> None:
        """Log a warning if all samples are of other datasets, or some were not found in those opened."""
        names = {"", *map(_bare, datasets)}
        others, url = self._by_dataset.keys() - names, strip_credentials(self.spec.url)
        if others and len(others) == len(self._by_dataset):
            where = ", ".join(sorted(others))
            _log.warning("%s: all of its samples are of other datasets: %.500s", url, where)
        given = [sample for name in names for sample in self._by_dataset.get(name, [])]
        missing = [sample for sample in given if sample not in found]
        if missing:
            first = {name: getattr(missing[0], name) for name in ("dataset", "shard", "index", "key")}
            told = json.dumps({name: value for name, value in first.items() if value is not None})
            numbers = f"{len(missing):,}", f"{len(given):,}"
            _log.warning("%s of the %s samples of exclude: %s are not in it: %.300s", *numbers, url, told)


def warn_of_unused(files: Sequence[BadFile], datasets: Sequence[str]) -> None:
    """Log a warning for each list with samples that are not in the opened datasets, which it names."""
    found = defaultdict[BadFile, set[BadSample]](set)
    for file in {id(file): file for file in files}.values():
        found[file] |= file.found
    for file, samples in found.items():
        file.warn_unless_used(datasets, samples)


def _bare(dataset: str) -> str:
    return dataset and dataset_name(dataset).rstrip("/")


Wanted: TypeAlias = defaultdict[str, set[str | None]]
"""Shards of samples by key; None for any shard."""


def want(wanted: Wanted, key: str, shard: str | None) -> None:
    """Note a sample to look up by its key, which may have its shard as in ``__key__``."""
    wanted[key].add(shard)
    tar, in_tar, inner = key.partition(".tar/")
    if in_tar:
        wanted[inner].add(f"{tar}.tar")


def look_up(
    index: WebDatasetIndex, wanted: Wanted, seen: Wanted | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield shard number, number in the shard, and first byte, of samples by key in ``index.sqlite``.

    ``seen`` is given what was found of ``wanted``, in other split parts too.
    """
    database = index_database(index.spec)
    # An index has no others.
    keys = [key for key in wanted if (name := indexed_name(key)).encode("utf-8", "ignore").decode() == name]
    ids = [] if index.shard_ids is None else index.shard_ids.tolist()
    places = dict[int, list[int]]()  # a split part may name a shard twice
    for place, shard in enumerate(ids):
        places.setdefault(shard, []).append(place)
    for at in range(0, len(keys), _KEYS_AT_A_TIME):
        part = keys[at : at + _KEYS_AT_A_TIME]
        marks = ",".join("?" * len(part))
        query = f"SELECT sample_key, tar_file_id, sample_index, byte_offset FROM samples WHERE sample_key IN ({marks})"
        for key, shard, number, offset in database.rows(query, tuple(part)):
            here = places.get(shard, [])
            fits = wanted[key] & {None, index.shard_paths[here[0]]} if here else wanted[key]
            if seen is not None:
                seen[key] |= fits
            if here and fits and 0 <= number < index.shard_counts[here[0]]:
                yield from ((place, number, offset) for place in here)


def bad_numbers(index: DatasetIndex, files: Sequence[BadFile]) -> Int64Array:
    """Return the numbers of the bad samples of a dataset or join, ascending.

    Samples are found by their keys, which hold where a dataset was prepared anew; by their numbers where
    there is no index of keys.
    """
    found = set[int]()
    members = index.members if isinstance(index, JoinIndex) else (index,)
    for number, member in enumerate(members):
        samples = [sample for file in files for sample in file.samples(member.spec.url)]
        used = set[BadSample]()
        if not samples:
            continue
        rows: Iterable[tuple[int, int, int]] = ()
        if isinstance(member, WebDatasetIndex) and member.shard_ids is not None and member.plain is None:
            wanted = Wanted(set)
            for sample in samples:
                if sample.key is not None:
                    want(wanted, sample.key, sample.shard)
            seen = Wanted(set)
            with suppress(ObjectNotFoundError):
                rows = list(look_up(member, wanted, seen))
                used.update(each for each in samples if is_seen(each.key, each.shard, seen))
                samples = [each for each in samples if each.key is None]
        if isinstance(index, JoinIndex):
            found.update(_join_rows(index, number, {(place, offset) for place, _, offset in rows}))
            samples = []
        by_number = list[tuple[int, int, BadSample]]()
        shards = defaultdict[str | None, list[int]](list)
        if isinstance(index, FilesIndex):
            known = {each.version: not each.version or index.is_of(each.version) for each in samples}
            samples = [each for each in samples if known[each.version]]
            for sample in samples:
                key = sample.key or ""
                at = int(key) if key.isdecimal() and len(key) < _DIGITS else sample.index
                if sample.shard is None and at is not None and at < index.num_samples:
                    used.add(sample)
                    found.add(at)
            samples = []
        for place, path in enumerate(index.shard_paths):
            shards[path].append(place)
        for sample in samples:
            for place in shards.get(sample.shard, []):
                if sample.index is not None and sample.index < int(index.shard_counts[place]):
                    used.add(sample)
                    by_number.append((place, sample.index, sample))
        others = _other_keys(member, by_number) if isinstance(member, WebDatasetIndex) else {}
        kept = ((place, at) for place, at, sample in by_number if sample not in others)
        found.update(int(index.shard_starts[place]) + at for place, at in kept)
        for file in files:
            file.found.update(used)
        if not isinstance(index, JoinIndex):
            found.update(int(index.shard_starts[place]) + at for place, at, _ in rows)
    return np.array(sorted(found), dtype=np.int64)


def is_seen(key: str | None, shard: str | None, seen: Wanted) -> bool:
    """Return whether :func:`look_up` found a sample; ``seen`` is what it was given."""
    wanted = Wanted(set)
    if key is not None:
        want(wanted, key, shard)
    return any(key in seen and not shards.isdisjoint(seen[key]) for key, shards in wanted.items())


def _other_keys(index: WebDatasetIndex, samples: list[tuple[int, int, BadSample]]) -> dict[BadSample, str]:
    """Find samples of plain tars that have other keys than a list tells of their numbers; log a warning."""
    ask = partial(shared_fetcher().ask, index.spec.open(), deadline=-1)
    asked = [(each[2], ask(partial(_other_key, index, *each))) for each in samples if each[2].key is not None]
    others = {sample: other for sample, answer in asked if (other := answer.result())}
    if others:
        message = "%s: %d samples of exclude have other keys in it, as its tars changed: %s; %s"
        told = next(iter(others.values())), "list the bad samples again, or prepare it"
        _log.warning(message, index.name, len(others), *told)
    return others


def _other_key(index: WebDatasetIndex, shard: int, number: int, sample: BadSample, store: Store) -> str:
    path, key = index.shard_paths[shard], sample.key or ""
    with suppress(EnergonStreamError):  # reading samples will say what is wrong
        first, stop = index.read_offsets(store, shard, number, number + 1).tolist()
        members = walk_members(partial(_range_of, store, path), first, stop)
        found = next((split_name(member.name) for member in members), None)
        if found is not None and found[0] not in (key, key.removeprefix(f"{path}/")):
            return f"{path}: sample {number} is {found[0]!r}, and {key!r} in the list"
    return ""


def _range_of(store: Store, path: str, first: int, length: int) -> memoryview:
    return memoryview(store.get_range(path, ByteRange(first, first + length)).data)


def join_row(index: JoinIndex, shard: int, offset: int) -> int | None:
    """Return the row of a join that has a sample of the primary, given its shard's number and first byte."""
    store, rows, wanted = index.rows.spec.open(), range(index.num_samples), (shard, offset)

    def place(row: int) -> tuple[int, int]:
        return tuple(index.rows.read(store, row, row + 1)[0, :2].tolist())

    found = bisect_left(rows, wanted, key=place)  # they are in the order of the primary
    return found if found in rows and place(found) == wanted else None


def _join_rows(index: JoinIndex, member: int, places: set[tuple[int, int]]) -> Iterator[int]:
    """Yield the rows of a join that have samples of a member, given by shard number and first byte."""
    store, wanted = index.rows.spec.open(), np.array(sorted(places), dtype=np.int64).reshape(-1, 2)
    for first in range(0, index.num_samples if places else 0, _ROWS):
        rows = index.rows.read(store, first, min(first + _ROWS, index.num_samples))[:, 3 * member :][:, :2]
        near = np.flatnonzero(np.isin(rows[:, 1], wanted[:, 1]))
        yield from (first + row for row in near.tolist() if tuple(rows[row].tolist()) in places)
