"""JSONL datasets: one JSON object per line, found through the index ``x.jsonl.idx``.

The index holds N + 1 little-endian unsigned 64-bit integers: 0, and the end of each record. Blank lines
belong to the record before them; blank lines at the beginning belong to the first record.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from energon_stream.cache.cached_store import read_again
from energon_stream.errors import (
    EmptyDatasetError,
    EnergonStreamError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
    RangeError,
)
from energon_stream.index.dataset import DatasetIndex, digest_hex
from energon_stream.index.index_files import ENTRY_BYTES, RowFile, encode_offsets
from energon_stream.storage import ByteRange, Store, StoreSpec, shared_fetcher
from energon_stream.storage.in_order import PIECE_BYTES, stream_object
from energon_stream.urls import split_query

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array

_END_BYTES = 4096
_NEWLINE, _OPEN, _CLOSE = b"\n{}"


@dataclass(frozen=True, slots=True, eq=False)
class JsonlIndex(DatasetIndex):
    """An opened JSONL file: one virtual shard, which belongs to every split part."""

    version: str = field(kw_only=True)  # its size, and a hash of the size and of the last bytes

    def is_of(self, version: str) -> bool:
        """Return whether the file has a version, or has only grown since."""
        with suppress(ValueError, EnergonStreamError):
            stop = int(version.partition("-")[0])
            end = self.spec.open().get_range("", ByteRange(max(0, stop - _END_BYTES), stop)).data
            return version in (self.version, _version(stop, end))
        return False

    def content(self, shards: int) -> tuple[str, str] | None:
        return "end", self.version.partition("-")[2]

    @property
    def offsets(self) -> RowFile:
        """The index; record ``i`` begins at row ``i`` and ends at row ``i + 1``."""
        return RowFile(_index_spec(self.spec), 0, 1, self.num_samples + 1, ascends=True)


def _index_spec(spec: StoreSpec) -> StoreSpec:
    url, query = split_query(spec.url)
    return replace(spec, url=f"{url}.idx{query}")


def open_jsonl(spec: StoreSpec) -> JsonlIndex:
    """Open a JSONL file.

    Raises NotPreparedError if the file has no index, IndexMismatchError if the index is of another version of
    the file, and EmptyDatasetError if the file has no records.
    """
    store, index_store = spec.open(), _index_spec(spec).open()
    return read_again(index_store, [""], lambda: _open(spec, store, index_store))


def _open(spec: StoreSpec, store: Store, index_store: Store) -> JsonlIndex:
    hint, fetcher = f"run `energon-stream prepare {spec.url}`", shared_fetcher()
    content = fetcher.ask(store, lambda store: store.get_suffix("", _END_BYTES), deadline=-1)
    tail = fetcher.ask(index_store, lambda store: store.get_suffix("", ENTRY_BYTES), deadline=-1)
    data, size = b"", 0
    with suppress(RangeError):  # the file is empty
        body = content.result()
        data, size = bytes(body.data), store.head("").size if body.total_size is None else body.total_size
    try:
        last = tail.result()
        length = last.total_size if last.total_size is not None else index_store.head("").size
    except ObjectNotFoundError as error:
        raise NotPreparedError("the file has no index", where=index_store.url, hint=hint) from error
    except RangeError:  # the index is empty
        length = 0
    end = int.from_bytes(last.data, "little") if length and len(last.data) == ENTRY_BYTES else -1
    if length % ENTRY_BYTES or end != size:
        raise IndexMismatchError(
            f"the index does not match the file of {size} bytes: its last entry is {end}",
            where=spec.url,
            hint=hint,
        )
    if length < 2 * ENTRY_BYTES:
        raise EmptyDatasetError("the file has no records", where=spec.url)
    records = np.array([length // ENTRY_BYTES - 1], dtype=np.int64)
    name = split_query(spec.url)[0].rpartition("/")[2]
    return JsonlIndex(spec, "all", (name,), records, version=_version(size, data))


def _version(size: int, data: bytes | memoryview) -> str:
    return f"{size}-{digest_hex(size.to_bytes(8, 'little') + data)}"


def prepare_jsonl(
    url_or_path: str, *, storage_options: Mapping[str, Any] | None = None, piece_bytes: int = PIECE_BYTES
) -> int:
    """Write ``x.jsonl.idx`` beside ``x.jsonl``, and replace an existing one.

    Args:
        url_or_path: Local path or any fsspec URL of the file.
        storage_options: Options of the URL's file system, such as credentials.
        piece_bytes: Size of the range requests that read the file, 8 MiB by default.

    Returns:
        Number of records.

    Raises:
        ObjectNotFoundError: There is no such file.
        MetadataError: A line does not begin and end with braces. Nothing else of the JSON is checked.
        EmptyDatasetError: The file has no records.

    Example:
        >>> prepare_jsonl("lines.jsonl")
        32
    """
    spec = StoreSpec(url_or_path, storage_options)
    store = spec.open()
    offsets, size = _records(stream_object(store, "", piece_bytes), store.url)
    if not len(offsets):
        raise EmptyDatasetError("the file has no records", where=store.url)
    offsets[0] = 0
    _index_spec(spec).open().put("", encode_offsets(np.append(offsets, size)))
    return len(offsets)


def _records(pieces: Iterable[memoryview], where: str) -> tuple[Int64Array, int]:
    """Return the first byte of each record, and the size of the file."""
    found = [np.zeros(0, dtype=np.int64)]
    base, line, rest = 0, 1, b""
    for piece in pieces:
        data = rest + bytes(piece)
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == _NEWLINE) + 1
        found.append(base + _starts(data, ends, base, line, where))
        last = int(ends[-1]) if len(ends) else 0
        base, line, rest = base + last, line + len(ends), data[last:]
    if rest:
        found.append(base + _starts(rest + b"\n", np.array([len(rest) + 1]), base, line, where))
    return np.concatenate(found), base + len(rest)


def _starts(data: bytes, ends: npt.NDArray[Any], base: int, line: int, where: str) -> Int64Array:
    """Return the first byte of each line that is not blank; base, number and URL are for messages."""
    if not len(ends):
        return np.zeros(0, dtype=np.int64)
    starts: Int64Array = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    view = np.frombuffer(data, dtype=np.uint8)
    # Most lines are {…} without spaces around: only the others are looked at one by one.
    plain = (view[starts] == _OPEN) & (view[np.maximum(ends - 2, 0)] == _CLOSE)
    for number in np.flatnonzero(~plain).tolist():
        text = data[starts[number] : ends[number]].strip()
        if line + number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        plain[number] = bool(text)
        if text and not (text.startswith(b"{") and text.endswith(b"}")):
            raise MetadataError(
                f"line {line + number} is not a JSON object: {text[:40]!r}",
                where=f"{where} from byte {base + starts[number]}",
                hint="each line must hold one object in braces",
            )
    return np.compress(plain, starts)
