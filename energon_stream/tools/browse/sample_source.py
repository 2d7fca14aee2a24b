"""Reads the samples of a dataset for the page: many small ones with few requests, large ones by part."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from energon_stream.arrays import Int64Array, distinct
from energon_stream.errors import (
    CorruptTarError,
    DatasetError,
    IndexMismatchError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.database import IndexDatabase, index_database
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex
from energon_stream.index.entries import OffsetCache
from energon_stream.index.objects import as_errors_of_shards
from energon_stream.read.at_once import fetch_samples
from energon_stream.read.locating import load_entries
from energon_stream.read.locator import Locator, RawSample
from energon_stream.read.open_locator import open_locator
from energon_stream.read.read_options import ReadOptions
from energon_stream.schedule import Refs
from energon_stream.storage import ByteRange, StoreSpec, shared_fetcher
from energon_stream.tar.format import Member, walk_sample
from energon_stream.tools.browse.memory_budget import check_client
from energon_stream.tools.browse.shown_parts import Place, ShownPart, ShownSample, texts_span, with_bytes

_SMALL = 1 << 20
"""Bytes of a sample that is read whole, with its neighbours. Of a larger one, texts are read, and other parts
when they are looked at."""
_MANY_SHARDS = 16
"""If a page has samples of more shards, their places come from ``index.sqlite``, not from a file each."""
_TEXT_BYTES = 64 << 10
_HEADERS = 64 << 10
"""Bytes of a request for the headers of a large sample that is not indexed."""
_KEPT_BYTES = 256 << 20
_PARTS = """
SELECT sample_key, part_name, content_byte_offset, content_byte_size
FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
WHERE tar_file_id = ? AND sample_index = ? ORDER BY content_byte_offset
"""
_KEYS = """
SELECT sample_key, tar_file_id, sample_index FROM samples
WHERE sample_key >= ? AND sample_key < ? ORDER BY sample_key LIMIT ?
"""
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Match:
    """A sample that a search found."""

    key: str
    shard: str
    number: int | None  # in the dataset; None if it is of another split part, or excluded with its shard


class _PartIndex:
    """The ``index.sqlite`` of one dataset: the places of single samples' parts, and which sample has a key.

    Its methods raise MetadataError if the index says something impossible.
    """

    def __init__(self, database: IndexDatabase) -> None:
        self._database = database
        self.has_parts: bool = database.has_table("sample_parts")

    @classmethod
    def open(cls, spec: StoreSpec) -> _PartIndex | None:
        """Open the index of a dataset; None if the dataset lacks the file."""
        try:
            return cls(index_database(spec))
        except ObjectNotFoundError:
            return None

    def parts(self, shard_id: int, number: int) -> tuple[str, list[tuple[str, int, int]]] | None:
        """Return a sample's key, and name, first byte and size of its parts; None if no part is indexed."""
        rows = self._database.rows(_PARTS, (shard_id, number))
        return (rows[0][0], [(name, start, size) for _, name, start, size in rows]) if rows else None

    def find(self, key: str, most: int) -> list[tuple[str, int, int]]:
        """Return key, number of the shard and number in it of the samples whose keys begin with a text."""
        return self._database.rows(_KEYS, (key, key + _LAST, most))


class SampleSource:
    """One dataset, with the samples that were looked at last in memory. For any threads.

    ``shards`` are the paths of all shards of the folder, in the order of the index; empty if unknown.
    """

    def __init__(self, index: DatasetIndex, shards: Sequence[str] = ()) -> None:
        self.index: DatasetIndex = index
        self._shards = shards
        self._options = ReadOptions()
        self._locator: Locator = open_locator(0, index, OffsetCache(), None, self._options.max_gap)
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._kept: OrderedDict[int, ShownSample] = OrderedDict()
        self._part_index: _PartIndex | None = None
        self._is_looked_for = False

    def load(self, numbers: Sequence[int]) -> list[ShownSample]:
        """Return samples by their numbers, each with its texts. One that cannot be read says why.

        Raises StorageError if the store does not deliver, and ConfigError if the client has left.
        """
        check_client()
        with self._lock:
            found = {number: self._kept[number] for number in numbers if number in self._kept}
        missing = np.array(sorted({*numbers} - found.keys()), dtype=np.int64)
        if len(missing):
            found |= {sample.number: sample for sample in self._read_each(missing)}
            self._keep(found)
        return [found[number] for number in numbers]

    def find(self, key: str, most: int) -> list[Match]:
        """Return the samples whose keys begin with a text. Raises NotPreparedError if keys have no index."""
        index, opened = self.index, self.part_index()
        if not isinstance(index, WebDatasetIndex) or opened is None or index.shard_ids is None:
            raise NotPreparedError(
                "keys cannot be searched: there is no index of them",
                where=index.spec.url,
                hint="filter the page by key, or prepare the dataset",
            )
        places = {shard: place for place, shard in enumerate(index.shard_ids.tolist())}
        shard, in_tar, inner = key.partition(".tar/")
        matches = []
        for found, shard_id, at in opened.find(inner if in_tar else key, most):
            place = places.get(shard_id)
            path = self._shards[shard_id] if shard_id < len(self._shards) else ""
            path = path if place is None else index.shard_paths[place]
            if in_tar and path != f"{shard}.tar":
                continue
            number = None if place is None else int(index.shard_starts[place]) + at
            matches.append(Match(found, path, number))
        return matches

    def find_shards(self, text: str, most: int) -> list[Match]:
        """Return the shards whose paths contain a text, each with the number of its first sample."""
        paths, starts = self.index.shard_paths, self.index.shard_starts
        found = [place for place, path in enumerate(paths) if text in path][:most]
        return [Match("", paths[place], int(starts[place])) for place in found]

    def part_index(self) -> _PartIndex | None:
        """Return the dataset's ``index.sqlite``, opened at the first call; None if there is no such file."""
        index = self.index
        if not isinstance(index, WebDatasetIndex) or index.plain is not None:
            return None
        with self._opening:
            if not self._is_looked_for:
                self._part_index = _PartIndex.open(index.spec)
                self._is_looked_for = True
            return self._part_index

    def _keep(self, found: dict[int, ShownSample]) -> None:
        with self._lock:
            self._kept.update(found)
            held = sum(sample.held for sample in self._kept.values())
            while held > _KEPT_BYTES and len(self._kept) > 1:
                held -= self._kept.popitem(last=False)[1].held

    def _read_each(self, numbers: Int64Array) -> list[ShownSample]:
        """Read samples together; if one of them cannot be read, each by itself."""
        try:
            return self._read(numbers)
        except (DatasetError, ObjectNotFoundError) as error:
            if len(numbers) == 1:
                return [ShownSample(int(numbers[0]), "", self._shard_path(int(numbers[0])), (), str(error))]
        return [
            sample for place in range(len(numbers)) for sample in self._read_each(numbers[place : place + 1])
        ]

    def _read(self, numbers: Int64Array) -> list[ShownSample]:
        if self._is_scattered(numbers):
            return self._with_texts([self._read_places(number, None) for number in numbers.tolist()])
        refs = Refs(np.zeros(len(numbers), dtype=np.int32), numbers)
        for load in load_entries([self._locator], refs, shared_fetcher(), 0):
            load.result()
        objects, starts, stops = self._locator.locate(numbers)
        sizes = np.where(objects < 0, 0, stops - starts).sum(axis=1)
        is_small = (sizes <= _SMALL) | (not isinstance(self.index, WebDatasetIndex))
        whole = Refs(refs.leaf[is_small], numbers[is_small])
        raws = fetch_samples([self._locator], whole, shared_fetcher(), self._options) if len(whole) else []
        samples = [_whole(number, raw) for number, raw in zip(whole.index.tolist(), raws, strict=True)]
        large = zip(numbers[~is_small].tolist(), starts[~is_small, 0], stops[~is_small, 0], strict=True)
        bounds = {number: ByteRange(int(start), int(stop)) for number, start, stop in large}
        answers = [
            shared_fetcher().call(lambda place=place: self._read_places(*place))  # type: ignore[misc]
            for place in bounds.items()
        ]
        return samples + self._with_texts([answer.result() for answer in answers])

    def _is_scattered(self, numbers: Int64Array) -> bool:
        """Return whether finding the samples by the files beside their shards takes too many requests."""
        index = self.index
        if not isinstance(index, WebDatasetIndex) or index.sizes is not None or self._locator.index_is_local:
            return False
        if len(distinct(index.shard_of(numbers))) <= _MANY_SHARDS:
            return False
        opened = self.part_index()
        return opened is not None and opened.has_parts

    def _read_places(self, number: int, bounds: ByteRange | None) -> ShownSample:
        """Find the parts of a sample of a tar, without reading them.

        ``bounds`` are the bytes of the sample; None if it is in the index for certain.
        """
        index = self.index
        if not isinstance(index, WebDatasetIndex):
            raise TypeError("only tars have parts with places; please report this bug")
        place = int(index.shard_of(np.array([number]))[0])
        shard, path = self._locator.object(place), index.shard_paths[place]
        opened, found = self.part_index(), None
        if opened is not None and opened.has_parts and index.shard_ids is not None:
            found = opened.parts(int(index.shard_ids[place]), number - int(index.shard_starts[place]))
        if found is None:
            if bounds is None:
                raise IndexMismatchError("the index lacks the sample", where=f"{shard.url}, sample {number}")
            key, members = _walk(lambda wanted: shard.get_range(wanted).data, bounds)
            found = key, [(name, member.data_offset, member.size) for name, member in members]
        key, parts = found
        if index.is_excluded(place, key):
            return _excluded(number, path)
        return ShownSample(
            number,
            key,
            path,
            tuple(ShownPart(name, size, Place(shard, start)) for name, start, size in parts),
        )

    def _with_texts(self, samples: list[ShownSample]) -> list[ShownSample]:
        """Read the texts of samples, and all of small ones, with one request for each sample."""
        wanted = []
        for sample in samples:
            places = [part.content for part in sample.parts if isinstance(part.content, Place)]
            span = texts_span(sample.parts, _TEXT_BYTES)
            if places and sum(part.size for part in sample.parts) <= _SMALL:
                ends = [place.start + part.size for place, part in zip(places, sample.parts, strict=True)]
                span = ByteRange(min(place.start for place in places), max(ends))
            if places and span is not None:
                answer = places[0].shard.submit(shared_fetcher(), span)
                wanted.append((sample, places[0].shard, span, answer))
        read = {}
        for sample, shard, span, answer in wanted:
            with as_errors_of_shards():
                body = answer.result()
            shard.observe(body.etag)
            parts = tuple(with_bytes(part, span.start, body.data) for part in sample.parts)
            read[sample.number] = replace(sample, parts=parts)
        return [read.get(sample.number, sample) for sample in samples]

    def _shard_path(self, number: int) -> str | None:
        if not isinstance(self.index, WebDatasetIndex):
            return None
        return self.index.shard_paths[int(self.index.shard_of(np.array([number]))[0])]


def _whole(number: int, raw: RawSample | None) -> ShownSample:
    """Return a sample that was read whole; the parts of a join have the number of the dataset before them."""
    if raw is None:
        return _excluded(number, None)
    if raw.members:
        named = [
            (f"{place}.{name}", data)
            for place, member in enumerate(raw.members)
            if member is not None
            for name, data in member.parts.items()
        ]
    else:
        named = list(raw.parts.items())
    named = [
        (name, data if isinstance(data, (bytes, memoryview)) else str(data).encode()) for name, data in named
    ]
    parts = tuple(ShownPart(name, len(data), memoryview(data)) for name, data in named)
    return ShownSample(number, raw.key, raw.shard, parts)


def _excluded(number: int, path: str | None) -> ShownSample:
    return ShownSample(number, "", path, (), "the split file excludes this sample")


def _walk(read: Callable[[ByteRange], memoryview], bounds: ByteRange) -> tuple[str, list[tuple[str, Member]]]:
    """Find the parts of a sample by its headers, of which neighbouring ones are read together."""
    kept = ByteRange(bounds.start, bounds.start)
    data = memoryview(b"")

    def at(offset: int, length: int) -> memoryview:
        nonlocal kept, data
        stop = min(offset + length, bounds.stop)
        if offset < kept.start or stop > kept.stop:
            kept = ByteRange(offset, max(stop, min(offset + _HEADERS, bounds.stop)))
            with as_errors_of_shards():
                data = read(kept)
        return data[offset - kept.start : stop - kept.start]

    try:
        return walk_sample(at, bounds.start, bounds.stop, lambda member: member)
    except CorruptTarError as error:
        raise IndexMismatchError(
            f"the index and the tar disagree: {error.what}", hint="run `energon-stream prepare` again"
        ) from error
