"""Bytes of other datasets: whole shards as they are, or some samples by range."""

from __future__ import annotations

import os
import posixpath
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast

from energon_stream.errors import ConfigError, CorruptTarError, IndexMismatchError
from energon_stream.storage import Body, ByteRange, ListEntry, ObjectMeta, Store, shared_fetcher
from energon_stream.storage.in_order import stream_object
from energon_stream.storage.local import named_errors
from energon_stream.storage.mapping import map_file
from energon_stream.tar.format import sample_parts
from energon_stream.tar.scan import LinkedParts
from energon_stream.temporary_folders import temporary_folder
from energon_stream.urls import local_path

_AHEAD = 16  # requests
_MOST_BYTES = 8 << 20  # of one request, unless a sample is larger


@dataclass(frozen=True, slots=True)
class _Copy:
    """An object of a store, on the local disk, for functions that read one object of a local store."""

    url: str
    data: memoryview
    is_local: bool = True

    def get(self, path: str, *, etag: str | None = None) -> Body:
        return Body(self.data, etag, len(self.data))

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        return Body(self.data[byte_range.start : byte_range.stop], etag, len(self.data))

    def head(self, path: str) -> ObjectMeta:
        return ObjectMeta(len(self.data), None)


class LocalCopy(NamedTuple):
    """A shard on the local disk."""

    store: Store  # a store that has the shard under its path
    path: str  # local path of the shard; empty if it was not needed


@contextmanager
def local_copy(store: Store, entry: ListEntry, is_needed: bool = True) -> Iterator[LocalCopy]:
    """Have a shard on the local disk within this block: as it is, if the store is local.

    Otherwise the shard is fetched to a temporary file: each byte comes once, and takes no memory. Nothing is
    fetched unless ``is_needed``.
    """
    if store.is_local or not is_needed:
        yield LocalCopy(store, posixpath.join(local_path(store.url), entry.path) if store.is_local else "")
        return
    with temporary_folder(use="shard") as folder, open(os.path.join(folder, "shard.tar"), "w+b") as file:
        for piece in stream_object(store, entry.path, etag=entry.meta.etag):
            with named_errors(file.name):
                file.write(piece)
        with named_errors(file.name):
            file.flush()
        data = map_file(file.fileno(), entry.meta.size)  # which lives as long as views of it do
        yield LocalCopy(cast("Store", _Copy(store.url, data)), file.name)


class SampleRange(NamedTuple):
    """Place of a sample in its shard."""

    shard: str  # path of the tar
    start: int  # first byte
    stop: int  # one past the last byte


def read_samples(store: Store, places: Iterable[SampleRange]) -> Iterator[dict[str, str | memoryview]]:
    """Yield samples as ``ShardWriter`` takes them, in order. Only their bytes are fetched.

    Samples that follow each other share a request. Up to 16 requests run ahead. Raises IndexMismatchError if
    a range does not hold one sample, and ObjectChangedError if a tar was replaced meanwhile.
    """
    fetcher, etags, linked = shared_fetcher(), dict[str, str | None](), LinkedParts(store)
    waiting: deque[tuple[list[SampleRange], Future[Body]]] = deque()
    for group in _groups(places):
        shard = group[0].shard
        if shard not in etags:
            etags.clear()
            etags[shard] = store.head(shard).etag
        whole = ByteRange(group[0].start, group[-1].stop)
        waiting.append((group, fetcher.submit(store, shard, whole, etag=etags[shard])))
        if len(waiting) > (0 if store.is_local else _AHEAD):
            yield from _cut(store, linked, *waiting.popleft())
    while waiting:
        yield from _cut(store, linked, *waiting.popleft())


def _groups(places: Iterable[SampleRange]) -> Iterator[list[SampleRange]]:
    group: list[SampleRange] = []
    for place in places:
        if group and (
            place.shard != group[-1].shard
            or place.start != group[-1].stop
            or place.stop - group[0].start > _MOST_BYTES
        ):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _cut(
    store: Store, linked: LinkedParts, group: list[SampleRange], answer: Future[Body]
) -> Iterator[dict[str, str | memoryview]]:
    data, first = answer.result().data, group[0].start
    for place in group:
        try:
            found = sample_parts(data, place.start - first, place.stop - first)
        except CorruptTarError as error:
            raise IndexMismatchError(
                f"the index and the tar disagree: {error.what}",
                where=f"{store.url}/{place.shard} from byte {place.start}",
                hint="run `energon-stream lint` on the dataset",
            ) from error
        sample: dict[str, str | memoryview] = {"__key__": found.key}
        for name, start, stop in zip(found.names, found.starts, found.stops, strict=True):
            sample[name] = data[start:stop]
        sample.update(linked.read(place.shard, found.key, found.links))
        yield sample


def check_outside(sources: Iterable[str], target: str) -> None:
    """Raise ConfigError if a new dataset would be written into one that is read."""
    for source in sources:
        if f"{target.rstrip('/')}/".startswith(f"{source.rstrip('/')}/"):
            raise ConfigError(
                "the new dataset lies inside one that is read", where=target, hint="choose another folder"
            )
