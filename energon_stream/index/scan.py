"""Finding the samples of a tar without reading its payloads."""

from __future__ import annotations

from dataclasses import dataclass, field

from energon_stream.errors import CorruptTarError
from energon_stream.index.tar_format import BLOCK, Read, split_name, walk_members
from energon_stream.storage import ByteRange, Store

__all__ = ["ShardScan", "scan_shard"]

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


def scan_shard(store: Store, path: str, size: int, etag: str | None) -> ShardScan:
    """Read the headers of a tar: through the memory map of a local file, else by range requests.

    Args:
        store: The dataset's root.
        path: Path of the tar.
        size: Its length in bytes.
        etag: Version it had when it was listed; all reads must be of it.

    Raises:
        CorruptTarError: Damaged or cut off; the message names shard and offset.
        ObjectChangedError: The tar was replaced meanwhile.
    """
    if store.is_local:
        view = store.get(path, etag=etag).data
        size = len(view)
        read: Read = lambda offset, length: view[offset : offset + length]  # noqa: E731
    else:
        read = _WindowReader(store, path, size, etag).read
    try:
        return _scan(path, read, size)
    except CorruptTarError as error:
        raise CorruptTarError(
            error.what,
            where=f"{store.url}/{path}",
            hint="Write the shard again, or leave it out with --exclude.",
        ) from error


def _scan(path: str, read: Read, size: int) -> ShardScan:
    scan = ShardScan(path)
    end = 0
    for member in walk_members(read, 0, size):
        end = member.end
        found = split_name(member.name) if member.is_file else None
        if found is None:
            continue
        key, part = found
        if not scan.keys or scan.keys[-1] != key:
            scan.keys.append(key)
            scan.offsets.append(member.header_offset)
        scan.parts.append((len(scan.keys) - 1, part, member.data_offset, member.size))
    scan.offsets.append(end)
    _check_end(read, end, size)
    return scan


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

    def __init__(self, store: Store, path: str, size: int, etag: str | None) -> None:
        self._store, self._path, self._size, self._etag = store, path, size, etag
        self._start, self._data = 0, memoryview(b"")
        self._length = _FIRST_WINDOW // 2

    def read(self, offset: int, length: int) -> memoryview:
        """``length`` bytes from ``offset``, fewer at the end of the object."""
        stop = min(offset + length, self._size)
        window_stop = self._start + len(self._data)
        if not self._start <= offset <= stop <= window_stop:
            jumped = offset - window_stop > _SKIP
            self._length = _SMALL_WINDOW if jumped else min(2 * self._length, _MAX_WINDOW)
            window_stop = min(max(stop, offset + self._length), self._size)
            self._start = min(offset, window_stop)
            byte_range = ByteRange(self._start, window_stop)
            self._data = self._store.get_range(self._path, byte_range, etag=self._etag).data
        return self._data[offset - self._start : stop - self._start]
