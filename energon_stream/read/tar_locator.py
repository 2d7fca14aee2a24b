"""The locator of prepared WebDatasets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.cache.cached_store import CachedStore
from energon_stream.errors import CorruptTarError, IndexMismatchError, ObjectNotFoundError
from energon_stream.index.checksums import new_digest
from energon_stream.index.entries import EntryPages, Load, OffsetCache
from energon_stream.index.index_files import PAGE_SAMPLES, index_path
from energon_stream.index.objects import ShardObject, VersionGuard
from energon_stream.index.sample_sizes import bounds_of
from energon_stream.index.verify import check_name, wrong_names
from energon_stream.read.locator import Cut, Locator, RawSample
from energon_stream.storage import ByteRange
from energon_stream.tar.format import (
    TAR_RECORD,
    SampleParts,
    sample_parts,
    split_name,
    walk_members,
    walk_sample,
)
from energon_stream.tar.headers import AlikeSamples, split_samples
from energon_stream.tar.scan import LinkedParts

if TYPE_CHECKING:
    import numpy.typing as npt

    from energon_stream.arrays import Int64Array
    from energon_stream.errors import ChecksumError
    from energon_stream.index.dataset import WebDatasetIndex
    from energon_stream.index.verify import Verifier
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request
    from energon_stream.storage.store import Store

_NONE: frozenset[str] = frozenset()
_KINDS = 16  # of samples, by the names of their parts, whose neighbours are looked at
_NEAR = 8 << 20  # bytes of a sample and its neighbours that are fetched for that
_HEADERS = 8 * TAR_RECORD  # bytes that the headers of a member may have


def _cut_alike(leaf: int, path: str, data: memoryview, found: AlikeSamples, excluded: frozenset[str]) -> Cut:
    """Cut an answer whose samples all have the same parts. This is the inner loop of training."""
    keys, names, starts, stops = found.keys, found.names, found.starts, found.stops
    width = len(names)

    def cut(sample: int, number: int) -> RawSample | None:
        key = keys[number]
        if key in excluded:
            return None
        place = number * width
        parts: dict[str, bytes | memoryview] = {}
        for name in names:  # a plain loop: it takes a third of the time of zip, map and slice
            parts[name] = data[starts[place] : stops[place]]
            place += 1
        return RawSample(leaf, sample, key, path, parts)

    return cut


@dataclass(slots=True)
class TarLocator(Locator):
    """Locator of one prepared WebDataset."""

    leaf: int
    index: WebDatasetIndex
    offsets: OffsetCache = field(default_factory=OffsetCache)
    verifier: Verifier | None = None  # compares samples with checksums
    store: Store = field(init=False)
    _versions: VersionGuard = field(init=False)
    _linked: LinkedParts = field(init=False)
    _pages: EntryPages = field(init=False)
    # Where each sample begins, as if all were in one object, and the end; None if the sizes are unknown.
    _bounds: Int64Array | None = field(init=False)
    _usual: set[tuple[str, ...]] = field(init=False, default_factory=set)  # names of parts
    _is_begun: bool = field(init=False, default=False)  # whether the first sample was requested
    # For each sample, whether it was compared with the one before.
    _compared: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.index.spec.open()
        plain = self.index.plain
        if plain is not None:
            plain.tell_versions(self.store)
        self._linked = LinkedParts(self.store)
        self._versions = VersionGuard(self.index.spec.url, None if plain is None else plain.versions())
        self._bounds = None if self.index.sizes is None else bounds_of(self.index.sizes)
        starts, read = self.index.shard_starts, self.index.read_offsets
        self._pages = EntryPages(self.store, self.offsets, starts, PAGE_SAMPLES, read)
        self._compared = np.zeros(self.index.shard_starts[-1], dtype=bool)

    @property
    def index_is_local(self) -> bool:
        return self.store.is_local

    @property
    def is_sparse(self) -> bool:
        return self.index.selection is not None

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of checksums, and one for each shard whose entries are needed and missing."""
        checks = [] if self.verifier is None else self.verifier.claim_loads(samples)
        if self._bounds is not None:
            return checks
        return checks + self._pages.claim_loads(samples)

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return shard number, first byte, and one past the last byte: ``int64 [len(samples), 1]`` arrays."""
        shards = self.index.shard_of(samples)
        if self._bounds is not None:
            base = self._bounds[self.index.shard_starts[shards]]
            starts, stops = self._bounds[samples] - base, self._bounds[samples + 1] - base
        else:
            starts, stops = np.empty((2, len(samples)), dtype=np.int64)
            for mine, rows, entries in self._pages.find(samples):
                starts[mine], stops[mine] = entries[rows], entries[rows + 1]
        return shards[:, None], starts[:, None], stops[:, None]

    def known_bounds(self, samples: Int64Array) -> tuple[Int64Array, Int64Array] | None:
        """Return first byte, and one past the last byte, of samples; None if index entries are needed."""
        if self._bounds is None:
            return None
        _, starts, stops = self.locate(samples)
        return starts[:, 0], stops[:, 0]

    def with_neighbours(self, request: Request) -> Request:
        if self._is_begun or not self._is_doubtful:
            return request
        self._is_begun = True
        around = [request.samples.min() - 1, request.samples.max() + 1]
        first, last = self.index.shard_starts[request.object : request.object + 2] - (0, 1)
        _, starts, stops = self.locate(np.clip(around, first, last))
        start, end = min(int(starts[0, 0]), request.start), request.range.stop
        stop = max(end, min(int(stops[1, 0]), end + _HEADERS))
        wide = replace(request, start=start, size=stop - start)
        if wide.size > request.size + _NEAR:
            return request
        path = self.index.shard_paths[request.object]
        if isinstance(self.store, CachedStore) and not self.store.asks_for(path, request.range):
            return (
                request if self.store.asks_for(path, wide.range) else wide
            )  # what was warmed asks for nothing
        return wide

    def object(self, shard: int) -> ShardObject:
        return ShardObject(self.store, self.index.shard_paths[shard], self._versions)

    def split(
        self, request: Request, data: memoryview, *, are_whole: bool = True, joined: bool = False
    ) -> Cut:
        """Return what cuts a sample. ``are_whole``: ranges have all parts; ``joined``: samples are rows."""
        path, begin = self.index.shard_paths[request.object], request.start
        excluded = self.index.excluded.get(path, _NONE)
        starts, stops = request.starts - begin, request.stops - begin
        found = split_samples(data, starts, stops)
        if found is not None and not (
            are_whole
            and (
                (not joined and self._is_unusual(found.names))
                or self._goes_on(request, data, len(starts) - 1, found.keys[-1])
            )
        ):
            return _cut_alike(self.leaf, path, data, found, excluded)

        before = self._starts_before(request, joined) if are_whole else None
        # With headers. Only of a local tar, whose answers take no memory, and change with the file.
        known: dict[int, tuple[SampleParts, list[bytes]]] = {}
        is_local = self.store.is_local

        def find(sample: int, number: int) -> SampleParts:
            first, last = int(starts[number]), int(stops[number])
            try:
                parts = sample_parts(data, first, last)
                key = parts[0]
                if are_whole and self._goes_on(request, data, number, key):
                    raise CorruptTarError(f"it ends the sample {key!r} before its last part")
                if before is not None and self._is_in(path, int(before[number]), begin + first, key):
                    raise CorruptTarError(f"it begins within the sample {key!r}")
                if before is not None and not joined:
                    self._compared[sample] = True
                if are_whole and not joined and self._is_unusual(parts[1]):
                    self._check_neighbours(request, data, sample, key, parts[1])
            except CorruptTarError as error:
                raise self._mismatch(error, path, begin + first) from error
            if is_local:
                known[sample] = parts, [data[at - TAR_RECORD : at].tobytes() for at in parts[2]]
            return parts

        def again(sample: int) -> SampleParts | None:
            """Return what is known of a sample, unless its headers are others since: the file was edited."""
            parts, heads = known.get(sample, (None, []))
            firsts = parts[2] if parts else ()
            return parts if heads == [data[at - TAR_RECORD : at].tobytes() for at in firsts] else None

        def cut(sample: int, number: int) -> RawSample | None:
            key, names, firsts, lasts, links = again(sample) or find(sample, number)
            if key in excluded:
                return None
            places = zip(names, firsts, lasts, strict=True)
            parts: dict[str, bytes | memoryview] = {name: data[start:stop] for name, start, stop in places}
            parts |= self._linked.read(path, key, links) if links else {}
            return RawSample(self.leaf, sample, key, path, parts)

        return cut

    def _goes_on(self, request: Request, data: memoryview, number: int, key: str) -> bool:
        """Return True if a part of the sample follows its range, as far as the bytes there are at hand."""
        stop = int(request.stops[number])
        begin = request.start
        if stop - begin >= len(data):
            if not self.store.is_local:
                return False
            data, begin = self.store.get(self.index.shard_paths[request.object]).data, 0
        first = stop - begin
        head = bytes(data[first : first + TAR_RECORD])
        if (
            head[156:157] == b"0"
            and not head[345:346].strip(b"\0")
            and not head.startswith(key.encode("utf-8", "surrogateescape")[:100])
        ):
            return False  # a plain header with another name
        with suppress(CorruptTarError):  # of another sample, which will be named
            for member in walk_members(lambda at, length: data[at : at + length], first, len(data)):
                name = split_name(member.name)
                return name is not None and name[0] == key
        return False

    @property
    def _is_doubtful(self) -> bool:
        """True if a ``.tar.idx`` alone tells where samples are, and to look beside them takes requests."""
        return self._bounds is None and not self.store.is_local and self.index.plain is None

    def _is_unusual(self, names: Sequence[str]) -> bool:
        """Return whether no sample before had the same parts; False if the index tells more."""
        return len(self._usual) < _KINDS and tuple(names) not in self._usual and self._is_doubtful

    def _check_neighbours(
        self, request: Request, data: memoryview, sample: int, key: str, names: Sequence[str]
    ) -> None:
        """Raise CorruptTarError if the ranges of its neighbours have parts of a sample, by a request unless
        the answer has them.
        """
        first, last = self.index.shard_starts[request.object : request.object + 2] - (0, 1)
        _, starts, stops = self.locate(np.clip(sample + np.arange(-1, 2), first, last))
        start, own, stop = int(starts[0, 0]), int(stops[1, 0]), int(stops[2, 0])
        begin = request.start
        if begin <= start and min(stop, own + _HEADERS) <= begin + len(data):
            stop = int(starts[1, 0])  # what follows was looked at
        elif stop - start <= _NEAR and (self._usual or not isinstance(self.store, CachedStore)):
            data, begin = self.object(request.object).get_range(ByteRange(start, stop)).data, start
        else:
            stop = start
        for member in walk_members(lambda at, length: data[at - begin : at - begin + length], start, stop):
            name = split_name(member.name) if member.is_file else None
            if name is not None and name[0] == key and name[1] not in names:
                raise CorruptTarError(f"it leaves the part {name[1]!r} of the sample {key!r} out")
        self._usual.add(tuple(names))

    def _starts_before(self, request: Request, joined: bool) -> Int64Array | None:
        """Return where the sample before each begins; None if no ``.tar.idx`` of a local tar is used, or all
        were compared.
        """
        is_used = self.store.is_local and self.index.plain is None
        if joined and is_used:
            with suppress(ObjectNotFoundError, ValueError):  # joins do without it
                data = self.store.get(index_path(self.index.shard_paths[request.object])).data
                entries: Int64Array = np.frombuffer(data, "<i8")
                return entries[np.maximum(np.searchsorted(entries, request.starts) - 1, 0)]
        if joined or not is_used or self._bounds is not None or self._compared[request.samples].all():
            return None
        first = self.index.shard_starts[request.object]
        return self.locate(np.maximum(request.samples - 1, first))[1][:, 0]

    def _is_in(self, path: str, start: int, stop: int, key: str) -> bool:
        """Return whether the last part in some bytes of a local tar is of a sample, given its key."""
        data, last = self.store.get(path).data, None
        with suppress(CorruptTarError):  # the usual case, in a fifth of the time
            return sample_parts(data, start, stop).key == key
        with suppress(CorruptTarError):  # of the sample before, which will be named
            for member in walk_members(lambda at, length: data[at : at + length], start, stop):
                last = split_name(member.name) or last
        return last is not None and last[0] == key

    def wrong_ranges(self, request: Request, data: memoryview) -> dict[int, ChecksumError]:
        starts, stops = request.starts - request.start, request.stops - request.start
        wrong = wrong_names(self.index, request.samples, data, starts, stops)
        if self.verifier is not None:
            wrong |= self.verifier.wrong(request.samples, data, starts, stops)
        return wrong

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        shard, stream = streams[0]
        path = self.index.shard_paths[shard]
        verifier, samples = self.verifier, np.array([sample])
        hasher = None
        if verifier is not None and len(verifier.chooses(samples)):
            hasher = new_digest()
            stream.watch = hasher.update

        def read(offset: int, length: int) -> bytes:
            stream.seek(offset)
            return stream.read(length)

        links: list[str] = []
        try:
            key, parts = walk_sample(
                lambda offset, length: memoryview(read(offset, length)),
                stream.start,
                stream.stop,
                lambda member: read(member.data_offset, member.size),
                links,
            )
        except CorruptTarError as error:
            raise self._mismatch(error, path, stream.start) from error
        check_name(self.index, sample, key, parts)
        if verifier is not None and hasher is not None:
            stream.seek(stream.stop)
            if [hasher.intdigest()] != verifier.expected(samples):
                raise verifier.error(sample)
        if key in self.index.excluded.get(path, _NONE):
            return None
        return RawSample(self.leaf, sample, key, path, {**dict(parts), **self._linked.read(path, key, links)})

    def _mismatch(self, error: CorruptTarError, path: str, offset: int) -> IndexMismatchError:
        """Return the error for an index entry that does not lead to a sample."""
        plain = self.index.plain
        again = "run `energon-stream prepare` again" if plain is None else f"remove {plain.folder}"
        return IndexMismatchError(
            f"the index and the tar disagree: {error.what}",
            where=f"{self.index.spec.url}/{path} from byte {offset}",
            hint=f"the shard was changed or damaged after it was indexed; {again}",
        )
