"""JSONL datasets: one JSON object per line, found through the index ``x.jsonl.idx``.

The index holds N + 1 little-endian unsigned 64-bit integers: 0, and the end of each record. Blank lines
belong to the record before them; blank lines at the beginning belong to the first record.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_stream.arrays import Int64Array
from energon_stream.errors import (
    EmptyDatasetError,
    EnergonStreamError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
    RangeError,
)
from energon_stream.index.dataset import digest_hex
from energon_stream.index.file_format import FileAddress, FileFormat, OpenedFile
from energon_stream.index.index_files import ENTRY_BYTES, encode_offsets, page_rows, read_rows, size_of
from energon_stream.limits import Limits
from energon_stream.storage import ByteRange, Store, StoreSpec, shared_fetcher
from energon_stream.storage.in_order import PIECE_BYTES, stream_object

_END_BYTES = 4096
_NEWLINE, _OPEN, _CLOSE = b"\n{}"


class JsonlFormat(FileFormat):
    """Files of JSON lines. The only part of a sample is ``json``."""

    name = "jsonl"
    suffix = ".jsonl"
    dataset_class = "DefaultCrudeJsonlShardListDatasetFactory"

    @property
    def page_rows(self) -> int:
        return page_rows()

    def index_name(self, name: str) -> str:
        return f"{name}.idx"

    def open(self, place: FileAddress, limits: Limits) -> OpenedFile:
        """Raise NotPreparedError if a file has no index, and IndexMismatchError if that is of another version
        of the file.
        """
        hint, fetcher = f"run `energon-stream prepare {place.store.url}`", shared_fetcher()
        content = fetcher.ask(
            place.store, lambda store: store.get_suffix(place.path, _END_BYTES), deadline=-1
        )
        tail = fetcher.ask(
            place.index_store, lambda store: store.get_suffix(place.index_path, ENTRY_BYTES), deadline=-1
        )
        data, size = b"", 0
        with suppress(RangeError):  # the file is empty
            body = content.result()
            data, size = bytes(body.data), size_of(place.store, place.path, body)
        try:
            last = tail.result()
            length = size_of(place.index_store, place.index_path, last)
        except ObjectNotFoundError as error:
            raise NotPreparedError("the file has no index", where=place.index_url, hint=hint) from error
        except RangeError:  # the index is empty
            length = 0
        end = int.from_bytes(last.data, "little") if length and len(last.data) == ENTRY_BYTES else -1
        if length % ENTRY_BYTES or end != size:
            raise IndexMismatchError(
                f"the index does not match the file of {size} bytes: its last entry is {end}",
                where=place.url,
                hint=hint,
            )
        return OpenedFile((max(0, length // ENTRY_BYTES - 1),), _version(size, data), size)

    def places(self, store: Store, path: str, file: OpenedFile, first: int, last: int) -> Int64Array:
        rows = read_rows(store, path, first, last + 1, file.num_samples + 1, ascends=True)[:, 0]
        return np.stack([rows[:-1], rows[1:]], axis=1)

    def cut(self, row: int, data: memoryview, file: OpenedFile) -> dict[str, Any]:
        """Return one record, with the whitespace around it."""
        record: bytes | memoryview = data
        if record[0] != ord("{") or bytes(record[-2:]) != b"}\n":
            text = bytes(record).strip()  # blank lines, or the last line
            if not row and text.startswith(codecs.BOM_UTF8):
                record = text = text.removeprefix(codecs.BOM_UTF8).strip()
            if not (text.startswith(b"{") and text.endswith(b"}")):
                raise IndexMismatchError(
                    f"record {row} does not begin and end with braces: {text[:40]!r}",
                    hint="the index is damaged, or the file was changed; run `energon-stream prepare` again",
                )
        return {"json": record}

    def is_of(self, place: FileAddress, file: OpenedFile, version: str) -> bool:
        """Return whether the file has a version, or has only grown since."""
        with suppress(ValueError, EnergonStreamError):
            stop = int(version.partition("-")[0])
            end = place.store.get_range(place.path, ByteRange(max(0, stop - _END_BYTES), stop)).data
            return version in (file.version, _version(stop, end))
        return False

    def prepare(self, place: FileAddress) -> None:
        _write_index(place)


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
    place = FileAddress.of(StoreSpec(url_or_path, storage_options), "", JsonlFormat())
    return _write_index(place, piece_bytes, may_be_empty=False)


def _write_index(place: FileAddress, piece_bytes: int = PIECE_BYTES, *, may_be_empty: bool = True) -> int:
    """Write the index of a file; return the number of records."""
    offsets, size = _records(stream_object(place.store, place.path, piece_bytes), place.url)
    if not (len(offsets) or may_be_empty):
        raise EmptyDatasetError("the file has no records", where=place.url)
    offsets[:1] = 0
    place.index_store.put(place.index_path, encode_offsets(np.append(offsets, size)))
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
