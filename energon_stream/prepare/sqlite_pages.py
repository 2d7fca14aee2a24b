"""Joins B-trees of SQLite files to one, page by page.

SQLite writes a file with one thread. Here, many processes write a file each, with rows that follow one
another, and the files are joined without looking at the rows: leaves are copied, and only the pages above
them, which are few, are made anew. https://www.sqlite.org/fileformat.html has the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from energon_stream.errors import MetadataError

if TYPE_CHECKING:
    import numpy.typing as npt

PAGE_BYTES = 4096
LONGEST_TEXT = 900
"""Bytes of the longest text in a row. Rows with longer ones may lie on more pages, which are not copied."""

_LOCK_PAGE = (1 << 30) // PAGE_BYTES + 1  # SQLite locks bytes of this page, and puts nothing there
_LEAF_OF_INDEX, _LEAF_OF_TABLE, _ABOVE_INDEX, _ABOVE_TABLE = 0x0A, 0x0D, 0x02, 0x05
_CHUNK = 4096  # pages that are copied at a time


@dataclass(frozen=True, slots=True)
class Tree:
    """A table or index of a file.

    Attributes:
        path: The file.
        root: Number of the tree's root page.
    """

    path: str
    root: int


class _Child(NamedTuple):
    """A page of one level, and what separates it from the next one."""

    page: int  # number of the page
    separator: bytes  # cell of the level above, without the page's number; empty for the last page


class PageFile:
    """A new SQLite file.

    Args:
        file: File for reading and writing that has the schema, with empty trees.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._next = file.seek(0, 2) // PAGE_BYTES + 1

    def join(self, root: int, trees: Iterable[Tree]) -> None:
        """Fill the tree of a root page with the rows of other trees, one tree after another.

        Each row of a tree must sort before those of the next one.
        """
        children: list[_Child] = []
        held: list[bytes] = []  # cells of the last leaf so far, which is written when the next one is known
        is_index = False
        for tree in trees:
            pages = np.memmap(tree.path, dtype=np.uint8, mode="r").reshape(-1, PAGE_BYTES)
            numbers, separators, is_index = _leaves(pages, tree.root)
            first = _cells(pages[numbers[0] - 1], is_index)
            if not first:  # the tree is empty
                continue
            if held:
                between, first = _separate(held, first, is_index)
                if between:
                    children.append(_Child(self._write(_leaf(held, is_index)), between))
            if len(numbers) == 1:
                held = first
                continue
            children.append(_Child(self._write(_leaf(first, is_index)), separators[0]))
            copied = self._copy(pages, numbers[1:-1])
            children += map(_Child, copied, separators[1:])
            held = _cells(pages[numbers[-1] - 1], is_index)
        if held:
            self._finish(root, children, held, is_index)

    def close(self) -> None:
        """Write the number of pages. The file is complete then."""
        header = bytearray(self._page(1))
        header[28:32] = struct.pack(">I", self._next - 1)
        header[92:96] = header[24:28]  # the number is valid for this version of the file
        self._put(1, bytes(header))
        self._file.flush()

    def _finish(self, root: int, children: list[_Child], held: list[bytes], is_index: bool) -> None:
        if not children:
            self._put(root, _leaf(held, is_index))
            return
        children.append(_Child(self._write(_leaf(held, is_index)), b""))
        kind = _ABOVE_INDEX if is_index else _ABOVE_TABLE
        while True:
            groups = _groups(children)
            pages = [_above(kind, group) for group in groups]
            if len(pages) == 1:
                self._put(root, pages[0])
                return
            children = [
                _Child(self._write(page), group[-1].separator)
                for page, group in zip(pages, groups, strict=True)
            ]

    def _write(self, page: bytes) -> int:
        if self._next == _LOCK_PAGE:
            self._put(self._next, bytes(PAGE_BYTES))
            self._next += 1
        self._put(self._next, page)
        self._next += 1
        return self._next - 1

    def _copy(self, pages: npt.NDArray[np.uint8], numbers: npt.NDArray[np.int64]) -> Iterator[int]:
        """Copy pages to the end of the file; return their new numbers."""
        for begin in range(0, len(numbers), _CHUNK):
            chunk = numbers[begin : begin + _CHUNK]
            if self._next <= _LOCK_PAGE < self._next + len(chunk):
                for number in chunk.tolist():
                    yield self._write(pages[number - 1].tobytes())
                continue
            self._put(self._next, pages[chunk - 1].tobytes())
            yield from range(self._next, self._next + len(chunk))
            self._next += len(chunk)

    def _put(self, number: int, pages: bytes) -> None:
        self._file.seek((number - 1) * PAGE_BYTES)
        self._file.write(pages)

    def _page(self, number: int) -> bytes:
        self._file.seek((number - 1) * PAGE_BYTES)
        return self._file.read(PAGE_BYTES)


def _leaves(pages: npt.NDArray[np.uint8], root: int) -> tuple[npt.NDArray[np.int64], list[bytes], bool]:
    """Return the leaves of a tree, what separates each from the next, and whether it is an index."""
    level, separators = [root], list[bytes]()
    while pages[level[0] - 1, 0] in (_ABOVE_INDEX, _ABOVE_TABLE):
        below: list[int] = []
        between: list[bytes] = []
        for place, number in enumerate(level):
            page = pages[number - 1].tobytes()
            is_index = page[0] == _ABOVE_INDEX
            for start in struct.unpack_from(f">{page[3] << 8 | page[4]}H", page, 12):
                below.append(int.from_bytes(page[start : start + 4], "big"))
                size, end = _varint(page, start + 4)
                between.append(page[start + 4 : end + size * is_index])
            below.append(int.from_bytes(page[8:12], "big"))
            if place < len(separators):
                between.append(separators[place])
        level, separators = below, between
    return np.array(level), separators, bool(pages[level[0] - 1, 0] == _LEAF_OF_INDEX)


def _cells(page: npt.NDArray[np.uint8], is_index: bool) -> list[bytes]:
    """Return the cells of a leaf, in order."""
    data = page.tobytes()
    cells = []
    for start in struct.unpack_from(f">{data[3] << 8 | data[4]}H", data, 8):
        size, end = _varint(data, start)
        if not is_index:
            _, end = _varint(data, end)
        if end + size > PAGE_BYTES:
            raise MetadataError("a row is too long for its page")
        cells.append(data[start : end + size])
    return cells


def _separate(held: list[bytes], first: list[bytes], is_index: bool) -> tuple[bytes, list[bytes]]:
    """Return what separates two leaves, and the cells of the second one; those of the first are changed.

    The entries above the leaves of an index are entries themselves, so one is taken from a leaf. Two leaves
    of one entry each become one; then nothing separates them.
    """
    if not is_index:
        cell = held[-1]
        _, start = _varint(cell, 0)
        return cell[start : _varint(cell, start)[1]], first
    if len(held) > 1:
        return held.pop(), first
    if len(first) > 1:
        return first[0], first[1:]
    return b"", held + first


def _leaf(cells: list[bytes], is_index: bool) -> bytes:
    return _page(_LEAF_OF_INDEX if is_index else _LEAF_OF_TABLE, cells, b"")


def _groups(children: list[_Child]) -> list[list[_Child]]:
    """Divide the pages of a level among those of the level above."""
    groups: list[list[_Child]] = []
    room = 0
    for child in children:
        size = len(child.separator) + 6  # with the page's number, and the place of the cell
        if room < size or not groups:
            groups.append([])
            room = PAGE_BYTES - 12
        groups[-1].append(child)
        room -= size
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-1].insert(0, groups[-2].pop())
    return groups


def _above(kind: int, group: list[_Child]) -> bytes:
    cells = [child.page.to_bytes(4, "big") + child.separator for child in group[:-1]]
    return _page(kind, cells, group[-1].page.to_bytes(4, "big"))


def _page(kind: int, cells: list[bytes], right: bytes) -> bytes:
    end, places = PAGE_BYTES, []
    for cell in cells:
        end -= len(cell)
        places.append(end)
    head = (
        struct.pack(">BHHHB", kind, 0, len(cells), end, 0) + right + struct.pack(f">{len(cells)}H", *places)
    )
    if len(head) > end:
        raise MetadataError("the rows do not fit a page")
    return head.ljust(end, b"\0") + b"".join(reversed(cells))


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = 0
    for end in range(start, start + 8):
        value = value << 7 | data[end] & 0x7F
        if data[end] < 0x80:
            return value, end + 1
    return value << 8 | data[start + 8], start + 9
