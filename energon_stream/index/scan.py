"""Finding the samples of a tar without reading its payloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from energon_stream.errors import CorruptTarError
from energon_stream.index.tar_format import BLOCK, Member, Read, split_name, walk_members
from energon_stream.storage import ByteRange, ListEntry, Store

__all__ = ["ShardScan", "peek_parts", "scan_shard"]

_FIRST_WINDOW = 256 << 10
_SMALL_WINDOW = 32 << 10
_MAX_WINDOW = 8 << 20
_SKIP = 1 << 20  # payload bytes that cost more to download than one more request does
_TAIL_PIECE = 1 << 20


@dataclass(slots=True)
class ShardScan:
    """The samples of one tar, in order.

    Attributes:
        path: Path of the tar, relative to the dataset.
        keys: Sample keys.
        offsets: First header of each sample, and the end of the last member.
        parts: Number of the sample, part name, first payload byte, payload size; in tar order.
    """

    path: str
    keys: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    parts: list[tuple[int, str, int, int]] = field(default_factory=list)


def scan_shard(store: Store, entry: ListEntry) -> ShardScan:
    """Read the headers of a tar: through the memory map of a local file, else by range requests.

    Args:
        store: The dataset's root.
        entry: The tar as it was listed; all reads must be of that version.

    Raises:
        CorruptTarError: Damaged or cut off; the message names shard and offset.
        ObjectChangedError: The tar was replaced meanwhile.
    """
    scan = ShardScan(entry.path)
    read, end = _reader(store, entry), 0
    with _named(store, entry):
        for key, part, member in _entries(read, entry.meta.size):
            end = member.end
            if part is None:
                continue
            if not scan.keys or scan.keys[-1] != key:
                scan.keys.append(key)
                scan.offsets.append(member.header_offset)
            scan.parts.append((len(scan.keys) - 1, part, member.data_offset, member.size))
        scan.offsets.append(end)
        _check_end(read, end, entry.meta.size)
    return scan


def peek_parts(store: Store, entry: ListEntry, samples: int = 8) -> tuple[str, ...]:
    """Names of the parts that the first samples of a tar have, sorted; raises as :func:`scan_shard` does."""
    keys: set[str] = set()
    parts: set[str] = set()
    with _named(store, entry):
        for key, part, _ in _entries(_reader(store, entry), entry.meta.size):
            if part is not None:
                keys.add(key)
                if len(keys) > samples:
                    break
                parts.add(part)
    return tuple(sorted(parts))


def _reader(store: Store, entry: ListEntry) -> Read:
    if not store.is_local:
        return _WindowReader(store, entry).read
    view = store.get(entry.path, etag=entry.meta.etag).data
    return lambda offset, length: view[offset : offset + length]


def _entries(read: Read, size: int) -> Iterator[tuple[str, str | None, Member]]:
    """Sample key, part and member of everything in a tar; the part is None for what is of no sample."""
    for member in walk_members(read, 0, size):
        found = split_name(member.name) if member.is_file else None
        yield ("", None, member) if found is None else (*found, member)


@contextmanager
def _named(store: Store, entry: ListEntry) -> Iterator[None]:
    """Add the shard to errors that know the offset only."""
    try:
        yield
    except CorruptTarError as error:
        raise CorruptTarError(
            error.what,
            where=f"{store.url}/{entry.path}",
            hint="Write the shard again, or leave it out with --exclude.",
        ) from error


def _check_end(read: Read, end: int, size: int) -> None:
    """An archive ends with zeros only; anything else is damage that would hide samples."""
    if end + BLOCK > size:
        raise CorruptTarError(f"the archive is cut off at byte {size}: its end mark is missing")
    while end < size:
        piece = bytes(read(end, min(_TAIL_PIECE, size - end)))
        if piece.strip(b"\0"):
            raise CorruptTarError(f"there is data behind the end mark at byte {end}")
        end += len(piece)


class _WindowReader:
    """Serves small reads at growing offsets from one window of the object.

    The window doubles while headers are close together, so small payloads are read along in few large
    requests; after a jump over a payload that is larger than a request is worth, it is small again.
    """

    def __init__(self, store: Store, entry: ListEntry) -> None:
        self._store, self._entry = store, entry
        self._start, self._data = 0, memoryview(b"")
        self._length = _FIRST_WINDOW // 2

    def read(self, offset: int, length: int) -> memoryview:
        """``length`` bytes from ``offset``, fewer at the end of the object."""
        stop = min(offset + length, self._entry.meta.size)
        window_stop = self._start + len(self._data)
        if not self._start <= offset <= stop <= window_stop:
            jumped = offset - window_stop > _SKIP
            self._length = _SMALL_WINDOW if jumped else min(2 * self._length, _MAX_WINDOW)
            window_stop = min(max(stop, offset + self._length), self._entry.meta.size)
            self._start = min(offset, window_stop)
            byte_range = ByteRange(self._start, window_stop)
            body = self._store.get_range(self._entry.path, byte_range, etag=self._entry.meta.etag)
            self._data = body.data
        return self._data[offset - self._start : stop - self._start]
