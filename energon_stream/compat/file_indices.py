"""Index files of tars and JSON lines, under Megatron-Energon's names. Files are read and written whole."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Self

from energon_stream.compat.epath import EPath
from energon_stream.index.index_files import decode_offsets, encode_offsets, index_path
from energon_stream.media.seekable import SeekableFile
from energon_stream.storage import ByteRange, StoreSpec


class _Closing:
    """Base of what is used in a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what is held."""


class _OffsetReader(_Closing):
    """The entries of an index: where each sample begins, and the end of the last one."""

    def __init__(self, index: EPath) -> None:
        self._offsets: list[int] = decode_offsets(index.read_bytes(), 0, str(index)).tolist()

    def __getitem__(self, index: int) -> int:
        return self._offsets[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


class _OffsetWriter(_Closing):
    """Writes an index when it is closed. An error in the ``with`` block writes nothing."""

    def __init__(self, index: EPath) -> None:
        self._index, self._offsets = index, list[int]()

    def append(self, offset: int) -> None:
        """Add an entry; the last one is the end of the last sample."""
        self._offsets.append(offset)

    def close(self, finalize: bool = True) -> None:
        """Write the file, or nothing if ``finalize`` is False."""
        if finalize:
            self._index.write_bytes(encode_offsets(self._offsets))

    def __exit__(self, kind: object = None, *_: object) -> None:
        self.close(finalize=kind is None)


class TarIndexReader(_OffsetReader):
    """The index of a tar.

    Args:
        tar_path: The tar; its index lies beside it.

    Example:
        >>> TarIndexReader("captions/data-000000.tar")[0]
        0
    """

    def __init__(self, tar_path: EPath | str) -> None:
        super().__init__(EPath(index_path(EPath(tar_path).url)))


class TarIndexWriter(_OffsetWriter):
    """Writes the index of a tar.

    Args:
        tar_path: The tar; its index is written beside it.
    """

    def __init__(self, tar_path: EPath) -> None:
        super().__init__(EPath(index_path(EPath(tar_path).url)))


class IJsonlIndexReader(_OffsetReader):
    """The index of a file of JSON lines.

    Args:
        jsonl_path: The file; its index lies beside it.

    Example:
        >>> IJsonlIndexReader.count_samples("lines.jsonl")
        32
    """

    def __init__(self, jsonl_path: EPath | str) -> None:
        super().__init__(EPath(f"{EPath(jsonl_path).url}.idx"))

    @staticmethod
    def count_samples(jsonl_path: EPath | str) -> int:
        """Return the number of lines."""
        return len(IJsonlIndexReader(jsonl_path)) - 1

    @staticmethod
    def size(jsonl_path: EPath | str) -> int:
        """Return the size of the file, which is the last entry."""
        return IJsonlIndexReader(jsonl_path)[-1]


class IJsonlIndexWriter(_OffsetWriter):
    """Writes the index of a file of JSON lines.

    Args:
        jsonl_path: The file; its index is written beside it.
    """

    def __init__(self, jsonl_path: EPath) -> None:
        super().__init__(EPath(f"{EPath(jsonl_path).url}.idx"))


@dataclass(kw_only=True, slots=True)
class ITarSamplePointer:
    """Place of a sample: number of its tar, first byte, and size.

    Example:
        >>> ITarSamplePointer(tar_file_id=0, byte_offset=512, byte_size=2560).byte_size
        2560
    """

    tar_file_id: int
    byte_offset: int
    byte_size: int


@dataclass(kw_only=True, slots=True)
class ITarRawSamplePartPointer:
    """Place of a part's bytes: number of the tar, first byte, and size.

    Example:
        >>> ITarRawSamplePartPointer(tar_file_id=0, raw_byte_offset=512, raw_byte_size=9).raw_byte_size
        9
    """

    tar_file_id: int
    raw_byte_offset: int
    raw_byte_size: int


@dataclass(kw_only=True, slots=True)
class IJsonlSamplePointer:
    """Place of a line: its number, first byte, and size.

    Example:
        >>> IJsonlSamplePointer(index=0, byte_offset=0, byte_size=9).byte_size
        9
    """

    index: int
    byte_offset: int
    byte_size: int


@dataclass(kw_only=True, slots=True)
class TarCacheEntry:
    """An open index of a tar, and the sample that is likely to be asked for next."""

    tar_index_reader: TarIndexReader
    lookahead_offset: int | None = None
    lookahead_byteoffset: int | None = None


@dataclass(kw_only=True, slots=True)
class IJsonlCacheEntry:
    """An open index of a file of JSON lines, and the line that is likely to be asked for next."""

    ijsonl_index_reader: IJsonlIndexReader
    lookahead_offset: int | None = None
    lookahead_byteoffset: int | None = None


class CachedItarOffsetReader:
    """Looks up places of samples in tars, and keeps the indices that were used last.

    Args:
        cache_size: Number of indices to keep.

    Example:
        >>> CachedItarOffsetReader().get_itar_byte_offset("captions/data-000000.tar")[0]
        0
    """

    def __init__(self, cache_size: int = 32) -> None:
        self._size, self._readers = cache_size, dict[str, TarIndexReader]()

    def get_itar_byte_offset(self, tar_file: str | EPath, sample_offset: int = 0) -> tuple[int, int]:
        """Return first byte and size of a sample; the size is 0 behind the last sample."""
        path = EPath(tar_file).url
        reader = self._readers.pop(path, None) or TarIndexReader(path)
        self._readers[path] = reader
        if len(self._readers) > self._size:
            del self._readers[next(iter(self._readers))]
        start = reader[sample_offset]
        return start, reader[min(sample_offset + 1, len(reader) - 1)] - start


class CachedIJsonlOffsetReader(_Closing):
    """Looks up places of lines in a file of JSON lines.

    Args:
        jsonl_file: The file.
        cache_size: Not needed: the index is read once.

    Example:
        >>> len(CachedIJsonlOffsetReader("lines.jsonl"))
        32
    """

    def __init__(self, jsonl_file: str | EPath, cache_size: int = 32) -> None:
        self._reader = IJsonlIndexReader(jsonl_file)

    def __len__(self) -> int:
        return len(self._reader) - 1

    def get_ijsonl_byte_offset(self, sample_offset: int = 0) -> tuple[int, int]:
        """Return first byte and size of a line."""
        start = self._reader[sample_offset]
        return start, self._reader[sample_offset + 1] - start

    def get_total_size(self) -> int:
        """Return the size of the file."""
        return self._reader[-1]


class IJsonlFile(_Closing):
    """Lines of an open file.

    Args:
        fileobj: The file, open for reading bytes.

    Example:
        >>> with IJsonlFile(open("lines.jsonl", "rb")) as lines:
        ...     len(list(lines))
        32
    """

    def __init__(self, fileobj: BinaryIO) -> None:
        self._file = fileobj

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._file)

    def next(self, offset: int | None = None, size: int | None = None) -> bytes | None:
        """Return the next line, or ``size`` bytes from ``offset``; None at the end."""
        if offset is not None:
            self._file.seek(offset)
        return (self._file.readline() if size is None else self._file.read(size)) or None

    def seek(self, offset: int) -> None:
        """Go to a byte of the file."""
        self._file.seek(offset)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def get_itar_byte_offset(path: str | EPath, sample_offset: int = 0) -> int:
    """Return the first byte of a sample of a tar.

    Example:
        >>> get_itar_byte_offset("captions/data-000000.tar")
        0
    """
    return TarIndexReader(path)[sample_offset]


class RetryReadStream(SeekableFile):
    """A file, open for reading at any place. Reads of remote files are range requests, which are retried.

    Args:
        path: The file.

    Example:
        >>> with RetryReadStream(EPath("s3://data/mix.yaml")) as file:
        ...     file.seek(2), file.read(8)
        (2, b'module__')
    """

    def __init__(self, path: EPath) -> None:
        super().__init__()
        self._store = StoreSpec(EPath(path).url).open()
        self._size = self._store.head("").size

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self._size

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        stop = min(self._position + len(view), self._size)
        if stop <= self._position:
            return 0
        data = self._store.get_range("", ByteRange(self._position, stop)).data
        view[: len(data)] = data
        self._position = stop
        return len(data)


class SubFileReader(SeekableFile):
    """A range of an open file as a file of its own.

    Args:
        stream: The file, open for reading bytes.
        offset: First byte.
        size: Number of bytes.

    Example:
        >>> SubFileReader(io.BytesIO(b"0123456789"), 2, 5).read()
        b'23456'
    """

    def __init__(self, stream: IO[bytes], offset: int, size: int) -> None:
        super().__init__()
        self._stream, self._offset, self._size = stream, offset, size

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self._size

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        self._stream.seek(self._offset + self._position)
        data = self._stream.read(max(0, min(len(view), self._size - self._position)))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


class ITarFile(tarfile.TarFile):
    """A tar that may begin and end at any member."""


@contextmanager
def open_itar(path: str | EPath, byte_offset: int = 0, byte_size: int | None = None) -> Iterator[ITarFile]:
    """Open a range of a tar for the length of a ``with`` block.

    Args:
        path: The tar.
        byte_offset: First byte, where a member begins.
        byte_size: Number of bytes; None for all to the end.

    Example:
        >>> with open_itar("captions/data-000000.tar") as tar:
        ...     len(tar.getnames()) > 0
        True
    """
    with RetryReadStream(EPath(path)) as stream:
        size = stream.seek(0, io.SEEK_END) - byte_offset if byte_size is None else byte_size
        part: Any = io.BufferedReader(SubFileReader(stream, byte_offset, size))  # type: ignore[arg-type]
        with ITarFile(fileobj=part, mode="r") as tar:
            yield tar
