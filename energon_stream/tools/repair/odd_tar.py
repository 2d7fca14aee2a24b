"""Reads tars however odd: compressed, cut off, joined, damaged. It says what is odd, and loses nothing else.

``tarfile`` reads the headers. What it skips without a word is found here: damage, and what follows it.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import mmap
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from tarfile import HeaderError
from typing import IO, Any, Literal, NamedTuple, Self, cast

from energon_stream.errors import EnergonStreamError, MissingPackageError, SourceError
from energon_stream.limits import Limits
from energon_stream.storage.local import named_errors
from energon_stream.tar.format import TAR_RECORD
from energon_stream.tar.scan import OTHER_KINDS

_PIECE = 1 << 20
_MOST_HEADER = 4 << 20  # bytes that the headers of one member may have; more means damage
_MOST_HEADERS = 16  # extended headers of one member
_MOST_LAYERS = 3  # compressions of a compressed file
_MAPPED = 64 << 20  # a larger payload is mapped, not read
_MAGIC, _MAGIC_PLACE = b"ustar", 257
_KIND_PLACE, _EXTENDED = 156, (b"x", b"X", b"L", b"K")  # of extended headers
_is_extended = re.compile(rb"(?:^|/)PaxHeaders?[./]|\./@(?:LongLink|PaxHeader)").search  # by its name

MemberKind = Literal["file", "symlink", "hardlink", "continued", "special"]
"""``continued`` is the rest of a file that began in another volume."""


class OddMember(NamedTuple):
    """A member of a tar, folders excepted."""

    name: str  # as stored; bytes that are not UTF-8 are surrogates
    start: int  # first byte of the payload
    size: int
    kind: MemberKind
    link: str = ""  # name of the target
    sparse: tarfile.TarInfo | None = None  # for a file with holes, which the tar leaves out


@dataclass(slots=True)
class OddTar:
    """The members of a tar, and what is odd about it."""

    members: list[OddMember] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)  # numbers of members whose payload is not whole
    # Numbers of members beside damage, or at an end without a mark: parts of their samples may be lost.
    beside_gaps: set[int] = field(default_factory=set)
    oddities: list[tuple[str, str]] = field(default_factory=list)  # kind and text


class _HeaderFile:
    """A file from which ``tarfile`` reads the headers of one member: never without end, nor all of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self._left = file, 0
        self.headers = 0  # of the member so far

    def read_member(self, archive: tarfile.TarFile, position: int) -> tarfile.TarInfo | None:
        """Return the member at a position, and set ``archive.offset`` to its end; None for damage."""
        self.seek(position)
        self._left, self.headers = _MOST_HEADER, 0
        try:
            info = _ForgivingHeader.fromtarfile(archive)
        except (OSError, MemoryError):
            raise
        except Exception:  # of any kind, because numbers and texts of bad headers are not checked
            return None
        return info if info.size >= 0 and archive.offset > position else None

    def read(self, size: int) -> bytes:
        data = self.file.read(size) if 0 <= size <= self._left else b""
        self._left -= size
        if len(data) < size:
            raise HeaderError("the headers end early, or are too long")
        return data

    def seek(self, position: int) -> int:
        return self.file.seek(position)

    def tell(self) -> int:
        return self.file.tell()


class _ForgivingHeader(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, tarfile: Any) -> Self:  # calls itself for each extended header
        tarfile.fileobj.headers += 1
        if tarfile.fileobj.headers > _MOST_HEADERS:
            raise HeaderError("there are too many extended headers")
        return super().fromtarfile(tarfile)


def _open_tarfile(file: object) -> tarfile.TarFile:
    archive = tarfile.TarFile(
        fileobj=io.BytesIO(bytes(2 * TAR_RECORD)), encoding="utf-8", errors="surrogateescape"
    )
    archive.fileobj = cast("Any", file)
    return archive


def read_members(file: IO[bytes]) -> OddTar:
    """Find the members of a tar from its begin to its end, over end marks and damage.

    All bytes are read: if a tar was cut off and a second tar was appended, the payload that was cut seems to
    have the members that follow.
    """
    size, headers = file.seek(0, io.SEEK_END), _HeaderFile(file)
    archive, found = _open_tarfile(headers), OddTar()
    members = found.members
    position, passed = 0, 0  # there is no header before ``passed`` that was not seen
    has_ended = after_gap = is_described = False  # by an extended header that is damaged
    while position < size:
        file.seek(position)
        record = file.read(TAR_RECORD)
        if not record.strip(b"\0"):
            position, has_ended = _skip_zeros(file, position), True
            continue
        info = headers.read_member(archive, position)
        last = members[-1] if members else None
        if info is None:
            found.beside_gaps.update([len(members) - 1] if members else [])
            # If the last member was cut off, what follows is within its payload.
            start = position if last is None or has_ended or _is_tar(last) else last.start
            following = _find_header(file, max(start, passed), size)
            if last is not None and following is not None and following < position:
                _note_cut(found, following)
                position, after_gap = following, True
                continue
            following, passed = _find_header(file, position + 1, size), position + 1
            if has_ended and members and following is None:
                found.oddities.append(("trailing_data", f"from byte {position}"))
                break
            stop = size if following is None else following
            if stop - position >= TAR_RECORD or following is not None:
                found.oddities.append(("damaged", f"bytes {position} to {stop}"))
            is_described = record[_KIND_PLACE : _KIND_PLACE + 1] in _EXTENDED or bool(
                _is_extended(record[:100])
            )
            position, after_gap, has_ended = stop, True, False
            continue
        if has_ended and members:
            found.oddities.append(("joined", f"at byte {position}"))
        is_lost = (
            is_described and info.offset_data == position + TAR_RECORD
        )  # its name was in the other header
        has_ended, is_described, position = False, False, archive.offset
        if info.isdir() or is_lost:
            continue
        found.beside_gaps.update([len(members)] if after_gap else [])
        after_gap = False
        members.append(_member(info))
        if members[-1].kind == "file":
            end = position - TAR_RECORD + 1 if info.issparse() else info.offset_data + info.size
            following = _appended(archive, headers, members[-1], position, size)
            if end > size or following is not None:
                position = size if following is None else following
                _note_cut(found, position)
    if not has_ended and members:
        found.beside_gaps.add(len(members) - 1)
        found.oddities.append(("no_end_mark", f"at byte {size}"))
    if not members:
        found.oddities = [("unreadable_tar", _describe(file, size))]
    return found


def _appended(
    archive: tarfile.TarFile, headers: _HeaderFile, member: OddMember, end: int, size: int
) -> int | None:
    """Return the first header of a tar that begins within the payload of a member and goes on to its end."""
    file = headers.file
    first = None if _is_tar(member) else _find_header(file, member.start, min(end, size))
    if first is None:
        return None
    if end > size:  # the payload may be a tar itself, which has lost its end mark by the cut
        file.seek(max(0, size - 2 * TAR_RECORD))
        return None if first == member.start and file.read().strip(b"\0") else first
    following: int = first
    while following < end:
        if headers.read_member(archive, following) is None:  # also at an end mark
            return None
        following = archive.offset
    return first


def _note_cut(found: OddTar, stop: int) -> None:
    """Note that the last member ends at a byte: within its payload, or in what fills the record up."""
    number, last = len(found.members) - 1, found.members[-1]
    found.beside_gaps.add(number)
    if stop < last.start + last.size or last.sparse is not None:
        found.cut.add(number)
        found.oddities.append(("cut_off_member", last.name))


def _member(info: tarfile.TarInfo) -> OddMember:
    tests: tuple[tuple[bool, MemberKind], ...] = (
        (info.isreg(), "file"),
        (info.issym(), "symlink"),
        (info.islnk(), "hardlink"),
        (info.type == b"M", "continued"),
    )
    kind: MemberKind = next((kind for is_kind, kind in tests if is_kind), "special")
    sparse = info if info.issparse() else None
    return OddMember(info.name, info.offset_data, info.size, kind, info.linkname, sparse)


def _skip_zeros(file: IO[bytes], position: int) -> int:
    """Return the first tar record from a position that is not all zeros, or the end."""
    file.seek(position)
    while piece := file.read(_PIECE):
        rest = piece.lstrip(b"\0")
        if rest:
            return position + (len(piece) - len(rest)) // TAR_RECORD * TAR_RECORD
        position += len(piece)
    return position


def _is_header(file: IO[bytes], position: int) -> bool:
    file.seek(position)
    with suppress(HeaderError, ValueError, OverflowError):
        tarfile.TarInfo.frombuf(file.read(TAR_RECORD), "utf-8", "surrogateescape")
        return True
    return False


def _find_header(file: IO[bytes], position: int, stop: int) -> int | None:
    """Return the first header from a position that has a magic number and the right checksum."""
    length = _PIECE >> 7
    while position < stop:
        wanted = min(length, stop - position + TAR_RECORD)
        file.seek(position)
        piece = file.read(wanted)
        at = piece.find(_MAGIC, _MAGIC_PLACE)
        while at >= 0 and (header := position + at - _MAGIC_PLACE) < stop:
            if _is_header(file, header):
                return header
            at = piece.find(_MAGIC, at + 1)
        if len(piece) < wanted or position + wanted >= stop + TAR_RECORD:
            return None
        position += wanted - _MAGIC_PLACE - len(_MAGIC) + 1
        length = min(4 * length, _PIECE)
    return None


def _is_tar(member: OddMember) -> bool:
    """Return True if a member is a tar itself, whose members are not those of this one."""
    return member.name.lower().endswith(".tar")


def payload(file: IO[bytes], member: OddMember) -> bytes | memoryview:
    """Return the payload of a member. Raises SourceError if it is not there."""
    data: bytes | memoryview
    if member.sparse is not None:
        expanded = _open_tarfile(file).extractfile(member.sparse)
        data = b"" if expanded is None else expanded.read()
    elif member.size < _MAPPED:
        file.seek(member.start)
        data = file.read(member.size)
    else:
        begin = member.start % mmap.ALLOCATIONGRANULARITY
        length = begin + member.size
        access = mmap.ACCESS_READ
        data = memoryview(mmap.mmap(file.fileno(), length, access=access, offset=member.start - begin))
        data = data[begin:]
    if len(data) != member.size:
        raise SourceError(f"the member {member.name!r:.80} is shorter than when it was found")
    return data


def is_too_large(member: OddMember) -> bool:
    """Return True for a file whose holes would take more memory than a part may have unpacked."""
    return member.sparse is not None and member.size > Limits.from_environment().part_bytes


# --- compressed tars ----------------------------------------------------------------------------------------


def _open_zstd(file: IO[bytes]) -> Any:
    with suppress(ImportError):
        return importlib.import_module("compression.zstd").ZstdFile(file)
    with suppress(ImportError):
        decompressor = importlib.import_module("zstandard").ZstdDecompressor()
        return decompressor.stream_reader(file, read_across_frames=True)
    return _open_with_arrow(file, "zstd")


def _open_with_arrow(file: IO[bytes], name: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        problem = f"a tar is compressed with {name}, which no installed package can read"
        raise MissingPackageError(problem, hint="run `pip install pyarrow`") from None
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file), name)


_OPEN: Mapping[str, Callable[[IO[bytes]], Any]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "Zstandard": _open_zstd,
    "LZ4": lambda file: _open_with_arrow(file, "lz4"),
}
_BAD_DATA = (zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def _kind(file: IO[bytes]) -> str | None:
    """Return what a file is that is no tar; None if it is unknown, or a tar."""
    if _is_header(file, 0):
        return None
    file.seek(0)
    head = file.read(TAR_RECORD)
    return next((kind for magic, kind in OTHER_KINDS.items() if head.lstrip().startswith(magic)), None)


@contextmanager
def unpacked(path: str, tmp_path: str | None) -> Iterator[tuple[IO[bytes], list[tuple[str, str]]]]:
    """Open a local tar, which may be compressed; yields a file of plain bytes, and what was unpacked.

    Compressed bytes are unpacked to a temporary file. Where they are damaged, the file ends.
    """
    oddities: list[tuple[str, str]] = []
    folder = tmp_path or tempfile.gettempdir()
    with ExitStack() as stack:
        with named_errors(path):
            file: IO[bytes] = stack.enter_context(open(path, "rb"))
        for _ in range(_MOST_LAYERS):
            kind = _kind(file)
            if kind is None or (kind not in _OPEN and not (kind == "zip" and zipfile.is_zipfile(file))):
                break
            file.seek(0)
            plain = stack.enter_context(tempfile.TemporaryFile(prefix="energon-tar-", dir=folder))
            oddities.append(("unpacked", kind))
            try:
                pieces = iter(_reader(_OPEN[kind](file)), b"") if kind in _OPEN else _zip_as_tar(file)
                for piece in pieces:
                    with named_errors(folder):
                        plain.write(piece)
            except EnergonStreamError:
                raise
            except (EOFError, OSError, RuntimeError, ValueError, *_BAD_DATA) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                oddities.append(("damaged_compression", str(error) or type(error).__name__))
            with named_errors(folder):
                plain.flush()
            file = plain
        yield file, oddities


def _reader(file: Any) -> Callable[[], bytes]:
    """Return a function that returns the next bytes, and loses none before an error."""
    read = getattr(file, "read1", file.read)
    return lambda: read(_PIECE)


def _zip_as_tar(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the files of a zip archive as a tar."""
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if not entry.is_dir():
                info = tarfile.TarInfo(entry.filename)
                info.size = entry.file_size
                yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                with archive.open(entry) as content:
                    yield from iter(_reader(content), b"")
                yield bytes(-entry.file_size % TAR_RECORD)
    yield bytes(2 * TAR_RECORD)


def _describe(file: IO[bytes], size: int) -> str:
    """Return why a file has no members."""
    if not size:
        return "it has 0 bytes"
    if _skip_zeros(file, 0) >= size:
        return "it is an empty tar: zeros only"
    kind = _kind(file)
    return "it has no tar header" if kind is None else f"it is {kind}, and no tar"
