"""Token files of Megatron-Core's ``IndexedDataset``: ``x.bin``, found through ``x.idx``.

The index has a header of 34 bytes, the length of each sequence (``int32``), its first byte in ``x.bin``
(``int64``), the first sequence of each document, and perhaps a mode of each sequence (``int8``).
"""

from __future__ import annotations

import struct
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import IndexMismatchError, MetadataError, ObjectNotFoundError, RangeError
from energon_stream.index.dataset import digest_hex
from energon_stream.index.file_format import FileAddress, FileFormat, OpenedFile
from energon_stream.index.index_files import read_rows, size_of
from energon_stream.storage import Body, ByteRange, Store, shared_fetcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from energon_stream.arrays import Int64Array
    from energon_stream.decode import FileStoreDecoder
    from energon_stream.limits import Limits

_HEADER = struct.Struct("<9sQBQQ")  # magic, version, code of the dtype, sequences, entries of documents
_MAGIC = b"MMIDIDX\0\0"
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_END_BYTES = 4096


class BinIdxFormat(FileFormat):
    """Files of token sequences. The only part of a sample is ``tokens``, a one-dimensional array."""

    name = "binidx"
    suffix = ".bin"
    shared_facts = 1

    def index_name(self, name: str) -> str:
        return name.removesuffix(".bin") + ".idx"

    def open(self, place: FileAddress, limits: Limits) -> OpenedFile:
        """Raise ObjectNotFoundError without an index, MetadataError if it is none, and IndexMismatchError if
        its numbers do not fit its size.
        """
        end = methodcaller("get_suffix", place.path, _END_BYTES)
        head = methodcaller("get_range", place.index_path, ByteRange(0, _HEADER.size))
        tail = methodcaller("get_suffix", place.index_path, _END_BYTES)
        ask = partial(shared_fetcher().ask, deadline=-1)
        store, index_store = place.store, place.index_store
        answers = [ask(store, end), ask(index_store, head), ask(index_store, tail)]
        try:
            data, size = _end(store, place.path, answers[0].result)
            index_end, index_size = _end(index_store, place.index_path, answers[2].result)
            header = bytes(answers[1].result().data) if index_size >= _HEADER.size else b""
        except ObjectNotFoundError as error:
            hint = "Megatron-Core writes both; name the .bin file, with the .idx file beside it"
            raise ObjectNotFoundError(
                "a .bin file needs its .idx file", where=error.where, hint=hint
            ) from error
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise MetadataError(
                "this is no index of Megatron-Core's IndexedDataset",
                where=place.index_url,
                hint="older formats must be converted by Megatron-LM's preprocess_data.py",
            )
        _, version, code, sequences, documents = _HEADER.unpack(header)
        if version != 1 or code not in _DTYPES:
            what = f"the index has version {version} and the dtype code {code}; known are 1, and 1 to 8"
            raise MetadataError(
                what, where=place.index_url, hint="the file is damaged, or of a newer version"
            )
        expected = _HEADER.size + 12 * sequences + 8 * documents
        if index_size not in (expected, expected + sequences):
            raise IndexMismatchError(
                f"the index says {sequences} sequences and {documents} documents, which take {expected} bytes, "
                f"but it has {index_size}",
                where=place.index_url,
                hint="the file is damaged or cut off; write it again",
            )
        seen = header + index_end + index_size.to_bytes(8, "little") + data + size.to_bytes(8, "little")
        # An empty file has sequences of no tokens only, and a sample needs bytes.
        return OpenedFile(
            (sequences if size else 0,), f"{size}-{digest_hex(seen)}", size, (code, sequences, index_size)
        )

    def places(self, store: Store, path: str, file: OpenedFile, first: int, last: int) -> Int64Array:
        code, sequences, *whole = (
            file.facts
        )  # earlier versions prepared folders without the size of the index
        read = partial(read_rows, store, path, first, last, sequences, whole=next(iter(whole), None))
        lengths = read(header=_HEADER.size, dtype="<i4")[:, 0]
        starts = read(header=_HEADER.size + 4 * sequences)[:, 0]
        return np.stack([starts, starts + lengths * np.dtype(_DTYPES[code]).itemsize], axis=1)

    def cut(self, row: int, data: memoryview, file: OpenedFile) -> dict[str, Any]:
        return {"tokens": np.frombuffer(data, dtype=_DTYPES[file.facts[0]]).copy()}

    def decoder(self, options: Mapping[str, Any], limits: Limits) -> FileStoreDecoder:
        from energon_stream.decode.sample_decoder import ValueDecoder

        return ValueDecoder()


def _end(store: Store, path: str, answer: Any) -> tuple[bytes, int]:
    """Return the last bytes of an object, and its size."""
    try:
        body: Body = answer()
    except RangeError:  # it is empty
        return b"", 0
    return bytes(body.data), size_of(store, path, body)
