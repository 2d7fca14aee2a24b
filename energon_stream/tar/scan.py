"""Finds the samples of a tar without reading large payloads."""

from __future__ import annotations

import logging
import posixpath
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import xxhash

from energon_stream.cache.cached_store import forget, read_again
from energon_stream.errors import CorruptTarError
from energon_stream.logs import log_once
from energon_stream.storage import Body, ByteRange, ListEntry, Store, shared_fetcher
from energon_stream.tar.format import TAR_RECORD, Member, Read, is_system_file, split_name, walk_members
from energon_stream.tar.remarks import Oddity, Remarks, add_names, add_remark

_log = logging.getLogger(__name__)

_WINDOW = 8 << 10  # bytes of the smallest window; all others are multiples of it
_FIRST = 32
_LARGE = 128  # windows of this size and more are read ahead
_LARGEST = 256
_MAX_GAP = 32  # a larger payload is jumped over: one more request costs no more than its bytes
_GROWTH = 4
_TAIL_PIECE = 1 << 20
_LONGEST_END = 11 << 10  # bytes: writers fill archives up with zeros, to a multiple of 10 KiB
_MOST_LINKS = 40  # that lead to each other, as in Linux
OTHER_KINDS = {  # what is often named .tar, by first bytes
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\x04\x22\x4d\x18": "LZ4",
    b"PK\x03\x04": "zip",
    b"<": "HTML or XML",
    b"version https://git-lfs": "a pointer of Git LFS",
}
_NO_ARCHIVES = ("HTML or XML", "a pointer of Git LFS")
_REPAIR = "`energon-stream repair` writes what is whole to a new dataset; or leave the tar out"
HEAD_BYTES = 4096  # first bytes of a tar, whose hash tells it from others with equal names and sizes


@dataclass(slots=True)
class ShardScan:
    """The samples of one tar, in order."""

    path: str  # path of the tar, relative to the dataset
    keys: list[str] = field(default_factory=list)  # sample keys
    # First header of each sample, and the end of the last member.
    offsets: list[int] = field(default_factory=list)
    # Number of the sample, part name, first byte of the payload, its size in bytes; in tar order.
    parts: list[tuple[int, str, int, int]] = field(default_factory=list)
    remarks: Remarks = field(default_factory=dict)  # what is odd, and no error
    links: dict[str, ByteRange] = field(default_factory=dict)  # what links lead to, by the name of the link
    head: int | None = None  # hash of the first bytes; None if unknown

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Yield the first byte of each sample, and one past its last."""
        return pairwise([0, *self.offsets[1:]])

    def first_names(self) -> list[str]:
        """Return the name of each sample's first member."""
        first = {sample: part for sample, part, _, _ in reversed(self.parts)}
        return [f"{key}.{first[sample]}" for sample, key in enumerate(self.keys)]


class _Window(NamedTuple):
    """A range of an object that was requested."""

    start: int
    stop: int
    body: Future[Body]


def scan_shard(
    store: Store,
    entry: ListEntry,
    *,
    ahead: int = 2,
    check: Callable[[], object] = lambda: None,
    window: int = _WINDOW,
    max_gap: int | None = None,
    most: int | None = None,
) -> ShardScan:
    """Read the headers of a tar: through a memory map of a local file, else by range requests, all of the
    version that was listed.

    Args:
        store: Store of the dataset's root.
        entry: The tar as listed.
        ahead: Largest number of windows to read ahead while payloads are small.
        check: Called before each request of a remote tar; may raise to stop the scan.
        window: Size of the smallest range request in bytes. The largest one is 256 times as large.
        max_gap: Bytes between two headers that are read rather than jumped over; None for 32 windows.
        most: Number of samples after which to stop; None to read the whole tar and check its end.

    Raises CorruptTarError, with shard and offset, if the tar is damaged or cut off.
    """
    scan = partial(_scan, store, entry, ahead, check, window, max_gap, most)
    return read_again(store, [entry.path], scan)


def _scan(
    store: Store,
    entry: ListEntry,
    ahead: int,
    check: Callable[[], object],
    window: int,
    max_gap: int | None,
    most: int | None,
) -> ShardScan:
    scan, end, size = ShardScan(entry.path), 0, entry.meta.size
    if store.is_local:
        view = store.get(entry.path, etag=entry.meta.etag).data
        read: Read = lambda offset, length: view[offset : offset + length]  # noqa: E731
    else:
        gap = _MAX_GAP * window if max_gap is None else max_gap
        read = _WindowReader(store, entry, ahead, check, window, gap).read
    names: set[str] = set()  # of the parts of the sample
    links = _Links()
    scan.head = hash_head(read(0, min(HEAD_BYTES, size)))
    try:
        for member in walk_members(read, 0, size):
            found = split_name(member.name) if member.is_file or member.link else None
            if is_system_file(member.name):
                add_remark(scan.remarks, "system_files", member.name)
            elif found is not None and member.link:
                links.add(member, found[0], scan)
            elif found is not None:
                key, part = found
                if not scan.keys or scan.keys[-1] != key:
                    if len(scan.keys) == most:
                        break
                    scan.offsets.append(links.begin(key, member.header_offset))
                    scan.keys.append(key)
                    names.clear()
                elif links.before:
                    links.lose()
                if part in names:
                    add_remark(scan.remarks, "twice", member.name)
                names.add(part)
                scan.parts.append((len(scan.keys) - 1, part, member.data_offset, member.size))
            end = member.end
        if most is None and not _has_end(read, end, size) and scan.keys:
            add_remark(scan.remarks, "no_end_mark", "")
        if most is None and not store.is_local and (size - end > _LONGEST_END or not scan.keys):
            _has_end(partial(_read_anew, store, entry), end, min(end + TAR_RECORD, size))
    except CorruptTarError as error:
        what, hint = _explain(error.what, read)
        raise CorruptTarError(what, where=f"{store.url}/{entry.path}", hint=hint) from error
    if not scan.keys:
        add_remark(scan.remarks, "no_samples", "")
    links.follow(scan)
    add_names(scan.remarks, scan.keys, scan.parts)
    scan.offsets.append(end)
    return scan


class LinkedParts:
    """Reads the parts of samples that are links, from where their bytes are in the tars of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scans: dict[str, tuple[ListEntry, ShardScan]] = {}  # by path

    def read(self, path: str, key: str, links: Sequence[str]) -> dict[str, memoryview]:
        """Return the parts of a sample that have these names. A link that leads to no part is left out,
        and named in the log.

        The first call for a tar reads its headers, because no index says where links lead. Raises the errors
        of :func:`scan_shard`, and those of the store.
        """
        found: dict[str, memoryview] = {}
        for part in links:
            if path not in self._scans:
                entry = ListEntry(path, self._store.head(path))
                self._scans[path] = entry, scan_shard(self._store, entry)
            entry, scan = self._scans[path]
            place = scan.links.get(f"{key}.{part}")
            if place is None:
                message = "%s/%s: links such as %s.%s lead to no part of the tar, so samples lack these parts"
                log_once(_log, message, self._store.url, path, key, part, key=self._store.url)
            elif place.stop == place.start:
                found[part] = memoryview(b"")
            else:
                found[part] = self._store.get_range(path, place, etag=entry.meta.etag).data
        return found


class _Links:
    """The links of a tar. They are parts beside a part of their sample that is a file."""

    def __init__(self) -> None:
        self._beside: list[Member] = []
        self._lost: list[Member] = []
        self.before: list[Member] = []  # links that wait for the first file of their sample
        self._key = ""  # of that sample

    def add(self, member: Member, key: str, scan: ShardScan) -> None:
        if scan.keys and scan.keys[-1] == key and not self.before:
            self._beside.append(member)
            return
        if key != self._key:
            self.lose()
        self._key = key
        self.before.append(member)

    def begin(self, key: str, offset: int) -> int:
        """Return where a sample begins whose first file begins at ``offset``."""
        if self.before and key == self._key:
            offset = self.before[0].header_offset
            self._beside += self.before
            self.before = []
        self.lose()
        return offset

    def follow(self, scan: ShardScan) -> None:
        """Find what the links lead to, when all members are known."""
        self.lose()
        if not (self._beside or self._lost):
            return
        normal = posixpath.normpath
        links = {normal(member.name): normal(member.link) for member in (*self._beside, *self._lost)}
        files = {
            normal(f"{scan.keys[at]}.{part}"): ByteRange(start, start + size)
            for at, part, start, size in scan.parts
        }
        for member in self._beside:
            name, steps = normal(member.name), 0
            while name in links and name not in files and steps < _MOST_LINKS:
                name, steps = links[name], steps + 1
            if name in files:
                scan.links[member.name] = files[name]
        for member in (*self._beside, *self._lost):
            oddity: Oddity = "followed_links" if member.name in scan.links else "links"
            add_remark(scan.remarks, oddity, f"{member.name} -> {member.link}")

    def lose(self) -> None:
        """Take the links that wait for the first file of their sample for links without a sample."""
        self._lost += self.before
        self.before = []


def hash_head(data: bytes | memoryview) -> int:
    """Return the hash of the first bytes of a tar."""
    return xxhash.xxh3_64_intdigest(data[:HEAD_BYTES])


def peek_parts(store: Store, entry: ListEntry, samples: int = 8) -> tuple[str, ...]:
    """Return the sorted part names of the first samples of a tar. Raises the errors of :func:`scan_shard`."""
    scan = scan_shard(store, entry, ahead=0, most=samples)
    return tuple(sorted({part for _, part, _, _ in scan.parts}))


def _has_end(read: Read, end: int, size: int) -> bool:
    """Return whether an end mark follows the last member. Raises CorruptTarError if other data does."""
    if end + TAR_RECORD > size:
        return False
    mark = end
    while end < size:
        piece = bytes(read(end, min(_TAIL_PIECE, size - end)))
        if piece.strip(b"\0"):
            first = end + (len(piece) - len(piece.lstrip(b"\0"))) // TAR_RECORD * TAR_RECORD
            try:
                next(walk_members(read, first, size))
            except CorruptTarError:
                what = f"there is data after the end mark at byte {mark}, from byte {first} on"
                raise CorruptTarError(what) from None
            raise CorruptTarError(f"after the end mark at byte {mark} another tar begins, at byte {first}")
        end += len(piece)
    return True


def _explain(what: str, read: Read) -> tuple[str, str]:
    """Return what is wrong with a tar, and advice, given the error."""
    beginning = bytes(read(0, TAR_RECORD)) if f"{what}:".partition(" at byte 0:")[1] else b""
    kind = next((kind for mark, kind in OTHER_KINDS.items() if beginning.startswith(mark)), None)
    if kind is None:
        return what, _REPAIR
    if kind in _NO_ARCHIVES:
        return f"the file is {kind}, and no tar", "fetch the tar again, or leave it out"
    return (
        f"the file is packed by {kind}, and no plain tar",
        "unpack it, because samples are read by byte range; `energon-stream repair` does so",
    )


def _read_anew(store: Store, entry: ListEntry, offset: int, length: int) -> memoryview:
    """Read bytes by a request of their own, past the disk cache: zeros might be a bad answer."""
    wanted = ByteRange(offset, offset + length)
    forget(store, entry.path, wanted)
    return store.get_range(entry.path, wanted, etag=entry.meta.etag).data


class _WindowReader:
    """Serves small reads at increasing offsets from windows of the object.

    While headers are close together, windows grow: few large requests fetch small payloads too, and the next
    large windows are requested ahead. After a jump over a payload that is worth a request of its own, windows
    are small again, and nothing is read ahead.
    """

    def __init__(
        self,
        store: Store,
        entry: ListEntry,
        ahead: int,
        check: Callable[[], object],
        window: int,
        max_gap: int,
    ) -> None:
        self._max_gap, self._read_to = max_gap, 0  # end of the last bytes that were asked for
        self._store, self._entry, self._most_ahead, self._check = store, entry, ahead, check
        self._window, self._length, self._ahead = window, window * _FIRST // _GROWTH, 0
        self._start, self._data = 0, memoryview(b"")
        self._waiting: deque[_Window] = deque()  # adjacent windows, in order

    def read(self, offset: int, length: int) -> memoryview:
        """Return ``length`` bytes from ``offset``, fewer at the end of the object."""
        stop = min(offset + length, self._entry.meta.size)
        if not self._start <= offset <= stop <= self._start + len(self._data):
            self._move(offset, stop)
        self._read_to = stop
        return self._data[offset - self._start : stop - self._start]

    def _move(self, offset: int, stop: int) -> None:
        """Make the window begin at ``offset`` and reach at least to ``stop``."""
        self._check()
        end = self._start + len(self._data)
        if offset > end and offset - self._read_to > self._max_gap:
            self._length, self._ahead = self._window, 0
        else:
            self._length = min(_GROWTH * self._length, _LARGEST * self._window)
            is_large = self._length >= _LARGE * self._window
            self._ahead = min(2 * self._ahead + 1, self._most_ahead) if is_large else 0
        pieces = [self._data[offset - self._start :]] if offset < end else []
        position = max(offset, end) if pieces else offset
        while position < stop:
            pieces.append(self._from(position, stop))
            position += len(pieces[-1])
        self._start = offset
        self._data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _from(self, position: int, stop: int) -> memoryview:
        """Return the rest of the window that has ``position``; request one that reaches to ``stop`` if none
        has.
        """
        while self._waiting and self._waiting[0].stop <= position:
            self._waiting.popleft().body.cancel()
        if not self._waiting:
            self._request(position, max(stop, position + self._length))
        while len(self._waiting) <= self._ahead and self._waiting[-1].stop < self._entry.meta.size:
            self._request(self._waiting[-1].stop, self._waiting[-1].stop + self._length)
        window = self._waiting.popleft()
        while len(self._waiting) > self._ahead:
            self._waiting.pop().body.cancel()
        return window.body.result().data[position - window.start :]

    def _request(self, start: int, stop: int) -> None:
        stop = min(stop, self._entry.meta.size)
        etag = self._entry.meta.etag
        body = shared_fetcher().submit(self._store, self._entry.path, ByteRange(start, stop), etag=etag)
        self._waiting.append(_Window(start, stop, body))
