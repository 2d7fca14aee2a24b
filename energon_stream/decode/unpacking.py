"""Unpacks parts within a limit on their bytes: nothing is allocated before it is known to fit."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

_FIRST_PIECE, _LARGEST_PIECE, _LARGEST_RESULT = 4 << 10, 1 << 20, 16 << 20  # bytes of one call of zlib
_PARSES = 20  # of a header: in Python 3.11 and 3.12, threads that parse at once may raise SystemError


class TooLargeError(Exception):
    """Unpacked data has more bytes than allowed; ``found`` says how many, if that is known."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


class PickledArrayError(Exception):
    """An array has objects of Python, which only a pickle holds."""


def gunzip(data: bytes | memoryview, most: int) -> bytes:
    """Unpack gzip data, of one member or several.

    Raises TooLargeError if the result would have more than ``most`` bytes, of which no more are unpacked,
    EOFError if the data is cut off, and ``zlib.error`` if it is damaged, or no gzip data.
    """
    pieces = list(_members(data, most))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _members(data: bytes | memoryview, most: int) -> Iterator[bytes]:
    view, position, left = memoryview(data), 0, most
    while position < len(view):
        # Usually there is one member. zlib copies what it leaves over, so the pieces of others are small.
        # 31 is gzip with its header and checksum.
        member, length = zlib.decompressobj(31), _LARGEST_PIECE if not position else _FIRST_PIECE
        while not member.eof:
            packed: bytes | memoryview = view[position : position + length]
            if not len(packed):
                raise EOFError("the gzip data ends before its end mark")
            position += len(packed)
            length = min(2 * length, _LARGEST_PIECE)
            while len(packed) and not member.eof:
                piece = member.decompress(packed, min(left + 1, _LARGEST_RESULT))
                left -= len(piece)
                if left < 0:
                    raise TooLargeError(f"more than {most:,}")
                yield piece
                packed = member.unconsumed_tail
        position -= len(member.unused_data)
        while position < len(view) and not view[position]:  # padding
            position += 1


def read_npy(data: bytes | memoryview, trusted: bool = False) -> Any:
    """Return the array of an ``npy`` file, which is writable.

    Raises ValueError for a damaged file, and PickledArrayError for pickled objects, unless they are trusted.
    """
    for _ in range(_PARSES):
        with suppress(SystemError):
            return _read_npy(data, trusted)
    return _read_npy(data, trusted)


def _read_npy(data: bytes | memoryview, trusted: bool) -> Any:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"the npy format {version[0]}.{version[1]} is unknown")
    formats = np.lib.format
    read_header = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
    shape, fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        if not trusted:
            raise PickledArrayError
        return formats.read_array(io.BytesIO(data), allow_pickle=True)
    start, size = file.tell(), math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > len(data) - start:
        raise ValueError(f"the header says {size:,} bytes, and {len(data) - start:,} follow")
    if version == (3, 0):  # as 2.0, but for the names of fields, which are UTF-8
        return formats.read_array(io.BytesIO(data), allow_pickle=False)
    if dtype.itemsize == 0:
        return np.empty(shape, dtype)
    flat = np.frombuffer(data, dtype, math.prod(shape), start)
    array = flat.reshape(shape, order="F" if fortran_order else "C")
    return array.copy("K")


def read_npz(data: bytes | memoryview, most: int, trusted: bool = False) -> dict[str, Any]:
    """Return the arrays of an ``npz`` file by name; members that are no arrays stay bytes.

    Raises TooLargeError if they have more than ``most`` bytes together, and the errors of :func:`read_npy`.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        _check_members(members, most)
        found: dict[str, Any] = {}
        for member in members:
            with archive.open(member) as file:
                content = file.read(member.file_size)  # read() alone would unpack more than it claims
            is_array = content.startswith(b"\x93NUMPY")
            value = read_npy(content, trusted) if is_array else content
            found[member.filename.removesuffix(".npy")] = value
    return found


def check_pth(data: bytes, most: int) -> None:
    """Check a file of ``torch.save`` before ``torch.load`` unpacks it.

    Raises TooLargeError if it unpacks to more than ``most`` bytes, and ValueError if its pickle makes a
    ``bytearray``, which may have any length.
    """
    pickles = [data]
    if data.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            _check_members(members, most)
            pickles = []
            for member in members:
                if member.filename.endswith(".pkl"):
                    with archive.open(member) as file:
                        pickles.append(file.read(member.file_size))
    if any(b"bytearray\n" in content for content in pickles):
        raise ValueError("the pickle makes a bytearray, which may have any length")


def check_tensors(value: Any, most: int) -> None:
    """Raise TooLargeError if the tensors in a loaded value have more than ``most`` bytes together.

    A tensor may show a small storage many times, or have a size and no storage; batching would fill it in.
    """
    total, seen, waiting = 0, set[int](), [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif hasattr(one, "element_size"):
            total += one.numel() * one.element_size()
    if total > most:
        raise TooLargeError(f"{total:,}")


def _check_members(members: list[zipfile.ZipInfo], most: int) -> None:
    """Check what an archive claims. Its members are read up to these sizes and no further."""
    total = sum(member.file_size for member in members)
    if total > most:
        raise TooLargeError(f"{total:,}")
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{member.filename!r} is packed by a method that NumPy does not use")
