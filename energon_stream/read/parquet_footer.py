"""The footer of a Parquet file, which says where everything is, and the headers of pages, which say how large
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from energon_stream.errors import LimitError, MetadataError, RangeError
from energon_stream.imports import LazyModule
from energon_stream.index.file_format import OpenedFile
from energon_stream.index.index_files import size_of
from energon_stream.limits import Limits
from energon_stream.storage import ByteRange, Store

pa: Any = LazyModule("pyarrow", "parquet")
pc: Any = LazyModule("pyarrow.compute", "parquet")
pq: Any = LazyModule("pyarrow.parquet", "parquet")

_TAIL_BYTES = 64 << 10  # the end of a file, which has most footers whole
_SIGNATURE_BYTES = 28
_MOST_PAGES = 100_000  # of a column chunk; to look at more would take seconds
_MOST_LEVELS = 8  # of structures in the header of a page, which has three
_BY_DICTIONARY = {2, 8}  # encodings
_WITH_OWN_BYTES = {0, 5, 6, 9}  # encodings by which each value has bytes in its page
_PAGE_KINDS = {0: 5, 2: 7, 3: 8}  # data, dictionary, data of version 2: the field with more about such a page
_MOST_FIELDS = 64  # of such a structure, which has a dozen
_HEADER_BYTES = 4 << 10, 64 << 10, 1 << 20, 16 << 20  # that a header may have: pyarrow reads no longer ones
_DAMAGED = "the file is cut off or damaged; write it again"
CHANGED = "the file was changed since it was opened; run `energon-stream prepare` again if it is in a folder"


def read_footer(store: Store, path: str, known: OpenedFile | None, limits: Limits) -> tuple[bytes, int]:
    """Return the footer with the mark after it, and the size of the file, which may be known."""
    where, hint = f"{store.url}/{path}".rstrip("/"), _DAMAGED if known is None else CHANGED
    try:
        if known is None:
            body = store.get_suffix(path, _TAIL_BYTES)
            size = size_of(store, path, body)
        else:
            size = known.size or 0
            body = store.get_range(path, ByteRange(max(0, size - known.facts[1]), size))
    except RangeError:
        raise MetadataError("this is no Parquet file: it is too short", where=where, hint=hint) from None
    tail = bytes(body.data)
    if tail[-4:] == b"PARE":
        raise _encrypted(where)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] != b"PAR1" or length > size or (known is not None and length != known.facts[1]):
        raise MetadataError("this is no Parquet file, or is damaged", where=where, hint=hint)
    if length > limits.document_bytes:
        told = limits.exceeded("document_bytes", f"the footer has {length:,} bytes")
        raise LimitError(**told, where=where)
    if length > len(tail):
        tail = bytes(store.get_range(path, ByteRange(size - length, size)).data)
    return tail[-length:], size


def parse_footer(footer: bytes, url: str) -> Any:
    """Return what pyarrow makes of a footer; raise MetadataError if columns are encrypted.

    pyarrow ends the process where such a column is looked at, so this comes first. A readable footer of
    encrypted columns is signed: after it are 28 bytes that are none of it.
    """
    found = pq.ParquetFile(pa.BufferReader(footer)).metadata
    if len(footer) - 8 - found.serialized_size == _SIGNATURE_BYTES:
        raise _encrypted(url)
    return found


def _encrypted(url: str) -> MetadataError:
    hint = "columns that are encrypted cannot be read; write a file that is not"
    return MetadataError("the Parquet file is encrypted", where=url, hint=hint)


class Page(NamedTuple):
    """A page of a column chunk."""

    size: int  # bytes when it is unpacked
    encoding: int  # of its values, by Parquet's number; -1 if it is not known
    is_dictionary: bool


def pages(read: Callable[[int, int], memoryview], start: int, stop: int) -> Iterator[Page]:
    """Iterate over the pages of a column chunk, by their headers.

    The footer may lie about them, and the headers cannot, since pyarrow unpacks by them. ``read`` returns
    bytes from one to another. Raises ValueError for what is no page.
    """
    for _ in range(_MOST_PAGES):
        if start >= stop:
            return
        for length in _HEADER_BYTES:
            try:
                header, at = _structure(read(start, min(start + length, stop)), 0, 0)
                break
            except IndexError:  # the header is longer
                continue
        else:
            raise ValueError("the header of a page is cut off")
        if not header:  # zeros fill up; pyarrow reads no page there
            return
        kind, unpacked, packed = (header.get(number, -1) for number in (1, 2, 3))
        if not all(type(size) is int and size >= 0 for size in (unpacked, packed)):
            raise ValueError("a page has no size")
        values = header.get(_PAGE_KINDS[kind]) if kind in (0, 2, 3) else None
        encoding = values.get(4 if kind == 3 else 2) if isinstance(values, dict) else None
        yield Page(unpacked, encoding if isinstance(encoding, int) else -1, kind == 2)
        start += at + packed
    raise ValueError(f"a column chunk has more than {_MOST_PAGES:,} pages")


def row_bytes(
    footer: Any, group: int, numbers: Sequence[int], chunks: Sequence[list[Page]], source: Any
) -> int:
    """Return bytes that a row may take beyond the bytes of its pages: a value may repeat an earlier value.

    A value of a dictionary takes what the longest one takes. One with a prefix of the value before it takes
    its page at most, as does any other that is not known to have its own bytes.
    """
    row, repeated = 0, []
    for number, found in zip(numbers, chunks, strict=True):
        column = footer.schema.column(number)
        row += 16 + max(0, column.length or 0)
        if column.physical_type != "BYTE_ARRAY":
            continue
        data = [page.encoding for page in found if not page.is_dictionary]
        if _WITH_OWN_BYTES.issuperset(data):
            continue
        begins = data[0] in _BY_DICTIONARY and "." not in column.path  # then pyarrow gives the dictionary
        if begins and (_BY_DICTIONARY | _WITH_OWN_BYTES).issuperset(data):
            repeated.append(column.path)
        else:
            row += max(page.size for page in found)
    if repeated:
        file = pq.ParquetFile(source, metadata=footer, pre_buffer=False, read_dictionary=repeated)
        batch = next(file.iter_batches(1, row_groups=[group], columns=repeated, use_threads=False), None)
        if batch is None:
            raise ValueError(f"row group {group} has no rows, and pages of a dictionary")
        row += sum(pc.max(pc.binary_length(column.dictionary)).as_py() or 0 for column in batch.columns)
    return row


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return found, at
        if shift > 63:
            raise ValueError("a number in the header of a page is too long")


def _structure(data: memoryview, at: int, level: int) -> tuple[dict[int, Any], int]:
    """Return integers of 32 bits and structures of a structure of Thrift's compact protocol, and its end.

    As Thrift, it takes the last field of a number of 16 bits, and none of another type.
    """
    found, number = dict[int, Any](), 0
    for _ in range(_MOST_FIELDS):
        kind, step, at = data[at] & 15, data[at] >> 4, at + 1
        if not kind:
            return found, at
        if not step:
            step, at = _varint(data, at)
            step, number = step >> 1 ^ -(step & 1), 0
        number += step
        if kind in (4, 5, 6):
            value, at = _varint(data, at)
            if kind == 5:
                found[number & 0xFFFF] = value >> 1 ^ -(value & 1)
        elif kind == 8:  # a text
            value, at = _varint(data, at)
            at += value
        elif kind == 12 and level < _MOST_LEVELS:
            found[number & 0xFFFF], at = _structure(data, at, level + 1)
        elif kind in (3, 7):  # a byte, a float
            at += 1 if kind == 3 else 8
        elif kind > 2:  # 1 and 2 are booleans, which have no bytes
            break
    raise ValueError("the header of a page is damaged")
