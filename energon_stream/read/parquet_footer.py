"""The footer of a Parquet file, which says where everything is: its bytes, and what pyarrow makes of them."""

from __future__ import annotations

from typing import Any

from energon_stream.errors import LimitError, MetadataError, RangeError
from energon_stream.imports import LazyModule
from energon_stream.index.file_format import OpenedFile
from energon_stream.index.jsonl_index import size_of
from energon_stream.limits import Limits
from energon_stream.storage import ByteRange, Store

pa: Any = LazyModule("pyarrow", "parquet")
pq: Any = LazyModule("pyarrow.parquet", "parquet")

_TAIL_BYTES = 64 << 10  # the end of a file, which has most footers whole
_SIGNATURE_BYTES = 28
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
