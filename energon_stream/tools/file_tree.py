"""A prepared dataset as a read-only tree of files: what a folder lists, what a path names, and its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from energon_stream.auxiliary import OpenedDataset, ShardBytes
from energon_stream.errors import NotPreparedError, ObjectNotFoundError
from energon_stream.storage import ByteRange, StoreSpec
from energon_stream.tar.format import sample_parts, split_name

_KEYS = "SELECT sample_key FROM samples WHERE sample_key >= ? AND sample_key < ? ORDER BY sample_key LIMIT ?"
_KEYS_AND_PARTS = """
SELECT sample_key, (SELECT group_concat(part_name, '/') FROM sample_parts AS part
  WHERE part.tar_file_id = sample.tar_file_id AND part.sample_index = sample.sample_index)
FROM samples AS sample WHERE sample_key >= ? AND sample_key < ? ORDER BY sample_key LIMIT ?
"""
_PARTS = """
SELECT part_name, tar_file_id, content_byte_offset, content_byte_size
FROM samples JOIN sample_parts USING (tar_file_id, sample_index) WHERE sample_key = ?
"""
_SAMPLE = "SELECT tar_file_id, byte_offset, byte_size FROM samples WHERE sample_key = ?"

_LAST = "\U0010ffff"
_MOST_ROWS = 4096
_KEPT_SAMPLES = 4096
_BLOCK = 4 << 20
"""Bytes of a request; the kernel asks for 128 KiB at a time."""
_KEPT_BLOCKS = 16


class FileTree:
    """The parts of all samples as files, by paths without a leading slash; ``""`` is the root.

    Folders come from the sample keys. Keys with an empty component, ``.`` or ``..`` have no path.

    With ``sample_folders``, each sample has a folder: ``key/part`` instead of ``key.part``. ``allow_slow``
    accepts an index without the places of parts, as older versions wrote: the headers of each sample are read
    from the tar then. Raises NotPreparedError if the dataset has no index, or one that is not accepted.

    Example:
        >>> from energon_stream.storage import StoreSpec
        >>> tree = FileTree(StoreSpec("captions"))
        >>> sorted(tree.names(""))[:2]
        ['00000000.jpg', '00000000.txt']
        >>> tree.size("00000000.txt"), tree.read("00000000.txt", 0, 7)
        (21, b'a red c')
    """

    def __init__(self, spec: StoreSpec, *, sample_folders: bool = False, allow_slow: bool = False) -> None:
        self._opened = OpenedDataset(spec, "only prepared datasets have files")
        self._database, self._sample_folders = self._opened.database, sample_folders
        self._has_parts = self._database.has_table("sample_parts")
        if not self._has_parts and not allow_slow:
            raise NotPreparedError(
                "the index has no places of parts: an older version prepared the dataset",
                where=self._database.url,
                hint="prepare the dataset again, or pass allow_slow=True",
            )
        self._parts = lru_cache(_KEPT_SAMPLES)(self._find_parts)
        self._block = lru_cache(_KEPT_BLOCKS)(self._read_block)

    def is_folder(self, path: str) -> bool:
        """Return whether a path names a folder."""
        if not path or self._rows(_KEYS, f"{path}/", _end(f"{path}/"), 1):
            return True
        return self._is_sample_folder(path)

    def _is_sample_folder(self, path: str) -> bool:
        return self._sample_folders and bool(self._rows(_SAMPLE, path))

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, or None if there is no such file."""
        part = self._part(path)
        return None if part is None else len(part.bytes)

    def names(self, path: str) -> Iterator[str]:
        """Yield the names in a folder, each once."""
        if self._sample_folders:
            yield from self._parts(path)
        folder = f"{path}/" if path else ""
        position, end, limit = folder, _end(folder), _MOST_ROWS
        query = _KEYS_AND_PARTS if self._has_parts and not self._sample_folders else _KEYS
        while rows := self._rows(query, position, end, limit):
            limit = min(4 * limit, _MOST_ROWS)
            for key, *parts in rows:
                name, slash, _ = key[len(folder) :].partition("/")
                position = f"{key}\1"
                if name in ("", ".", ".."):
                    continue
                if slash:
                    # Go on behind this folder, which may have any number of samples.
                    position, limit = _end(f"{folder}{name}/"), 1
                    if not self._is_sample_folder(f"{folder}{name}"):
                        yield name
                    break
                if self._sample_folders:
                    yield name
                    continue
                if parts == [None]:  # a damaged index: the sample has no parts
                    continue
                for part in parts[0].split("/") if parts else self._parts(key):
                    yield f"{name}.{part}"

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Return bytes of a file, fewer at its end.

        Raises ObjectNotFoundError if there is no such file, and ObjectChangedError if the tar was replaced.
        """
        part = self._part(path)
        if part is None:
            raise ObjectNotFoundError("no such file", where=f"{self._opened.store.url}: {path}")
        stop = min(offset + size, len(part.bytes))
        pieces = []
        for number in range(offset // _BLOCK, -(-stop // _BLOCK)):
            first = number * _BLOCK
            pieces.append(self._block(part, number)[max(0, offset - first) : stop - first])
        return b"".join(pieces)

    def _part(self, path: str) -> ShardBytes | None:
        if self._sample_folders:
            key, _, name = path.rpartition("/")
            return self._parts(key).get(name)
        split = split_name(path)
        return None if split is None else self._parts(split[0]).get(split[1])

    def _find_parts(self, key: str) -> dict[str, ShardBytes]:
        """Return the parts of a sample by name; none if there is no such sample."""
        if self._has_parts:
            return {name: self._opened.place(place) for name, *place in self._rows(_PARTS, key)}
        for row in self._rows(_SAMPLE, key):
            shard, whole = self._opened.place(row)
            found = sample_parts(shard.get_range(whole).data, 0, len(whole))
            places = zip(found.names, found.starts, found.stops, strict=True)
            start = whole.start
            return {name: ShardBytes(shard, ByteRange(start + a, start + b)) for name, a, b in places}
        return {}

    def _read_block(self, part: ShardBytes, number: int) -> bytes:
        start = part.bytes.start + number * _BLOCK
        return bytes(part.shard.get_range(ByteRange(start, min(start + _BLOCK, part.bytes.stop))).data)

    def _rows(self, query: str, *values: str | int) -> list[tuple[Any, ...]]:
        return self._database.rows(query, values)


def _end(folder: str) -> str:
    """Return the first text behind all paths in a folder, which ends in a slash or is the root."""
    return f"{folder[:-1]}0" if folder else _LAST  # "0" follows "/"
