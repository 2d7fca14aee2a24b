"""Parser of tar archives: members, their names, and the parts of a sample.

The functions are pure and do no I/O. They read ustar, GNU and PAX archives as ``tarfile`` does (POSIX.1-2001,
and "Basic Tar Format" in GNU tar's manual). Sparse members are refused.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from energon_stream.errors import CorruptTarError

T = TypeVar("T")

TAR_RECORD = 512
"""Unit of tar archives in bytes: headers take one tar record, and payloads are padded to whole ones."""

Read = Callable[[int, int], memoryview]
"""``read(offset, length)`` returns ``length`` bytes of the archive from ``offset``, fewer only at the end."""

_OLD_FILE, _DIRECTORY, _SPARSE = b"\0", b"5", b"S"
_FILES = frozenset({b"0", _OLD_FILE, b"7"})
_SYMBOLIC_LINK = b"2"
_LINKS = frozenset({b"1", _SYMBOLIC_LINK})
_NO_PAYLOAD = _LINKS | {b"3", b"4", _DIRECTORY, b"6"}  # devices, pipes
_LONG_NAME, _LONG_LINK, _PAX_GLOBAL = b"L", b"K", b"g"
_EXTENSIONS = frozenset({_LONG_NAME, _LONG_LINK, _PAX_GLOBAL, b"x", b"X"})
_GNU = frozenset({_LONG_NAME, _LONG_LINK, _SPARSE})  # have other data in the prefix field
_NAME_BYTES = 100
_MOST_OCTAL = 8**11 - 1  # a larger size is in another header
_MAX_EXTENSION = 1 << 20  # bytes of a long name or of PAX records; more means damage

_META_FOLDER = re.compile(r"__[^/]*__/")
is_system_file: Callable[[str], object] = re.compile(
    r"(?:^|/)(?:\._[^/]*$|\.DS_Store$|__MACOSX/|PaxHeaders?(?:\.[^/]*)?/)", re.DOTALL
).search
"""Finds names of files that macOS or an old tar program left beside the members: nobody's data."""
is_windows_file: Callable[[str], object] = re.compile(
    r"(?i)(?:^|/)(?:(?:eh)?thumbs\.db|desktop\.ini)$|(?:^|/)@eaDir/"
).search
"""Finds names of files that Windows or a NAS left beside others. Tars may have them as samples."""
pax_matters: Callable[[bytes | memoryview], object] = re.compile(
    rb"(?:path|size|sparse|charset)[^\n]*="
).search
"""Finds PAX records that change names or sizes."""

# name, size, checksum, type, magic, first byte of the prefix
_FAST_HEADER = struct.Struct("100s24x12s12x8sc100x5s83xc")
# name, size, checksum, type, name that a link leads to, prefix
_HEADER = struct.Struct("100s24x12s12x8sc100s88x155s12x")


class Member(NamedTuple):
    """A member of an archive."""

    name: str  # full name, as stored
    header_offset: int  # first byte of the first header, extended headers included
    data_offset: int  # first byte of the payload
    size: int  # length of the payload in bytes, without padding
    is_file: bool  # False for directories, links and devices
    link: str = ""  # the name that a link leads to, as a hard link has it

    @property
    def end(self) -> int:
        """First byte of the next header."""
        return self.data_offset + _padded(self.size)


class SampleParts(NamedTuple):
    """Key of a sample, and names and byte ranges of its parts."""

    key: str  # sample key
    names: list[str]  # part names, in the order of the archive
    starts: list[int]  # first byte of each part
    stops: list[int]  # one past the last byte of each part
    links: Sequence[str] = ()  # names of parts that are links, whose bytes are elsewhere


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into sample key and part name; return None if the member belongs to no sample.

    The rule is ``^((?:.*/|)[^.]+)[.]([^/]*)$``: split at the first dot of the last path component. Members in
    a top-level folder ``__like_this__`` are metadata.

    Example:
        >>> split_name("images/0001.left.jpg")
        ('images/0001', 'left.jpg')
    """
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    if dot < 0 or (dot == slash + 1 and (slash < 1 or "." in name[:slash])):
        return None
    if name.startswith("__") and _META_FOLDER.match(name):
        return None
    return name[:dot], name[dot + 1 :]


def walk_members(read: Read, start: int, stop: int) -> Iterator[Member]:
    """Yield the members of an archive from the header at ``start`` to ``stop``, or to a tar record of zeros,
    which ends archives. Reads headers only, never payloads.

    Zeros that are less than a tar record end it, too. Raises CorruptTarError, to which the caller adds the
    archive, if a header is damaged, or a payload reaches beyond ``stop``.
    """
    defaults: dict[str, str] = {}
    position = start
    while position < stop:
        member = _read_member(read, position, stop, defaults)
        if member is None:
            return
        yield member
        position = member.end


def check_header(record: memoryview, name: str, size: int) -> None:
    """Raise CorruptTarError unless a header is that of the member ``name`` with ``size`` bytes.

    A long name, and one with other characters than ASCII, may be in another header; it is not compared.
    """
    header = _read_header(lambda offset, length: record[offset : offset + length], 0)
    if header is None or header.kind not in _FILES:
        raise CorruptTarError("it is not the header of a file")
    if header.size != size and size <= _MOST_OCTAL:
        raise CorruptTarError(f"the header of {header.name!r} has {header.size} bytes, the index {size}")
    if header.name != name and name.isascii() and len(name) <= _NAME_BYTES:
        raise CorruptTarError(f"the header is that of {header.name!r}")


class _Header(NamedTuple):
    position: int
    name: str
    size: int
    kind: bytes
    link: str


def _read_member(read: Read, first: int, stop: int, defaults: dict[str, str]) -> Member | None:
    """Return the member whose first header is at ``first``; ``defaults`` collects global PAX records."""
    long_name: str | None = None
    long_link: str | None = None
    records: dict[str, str] = {}
    header = _read_header(read, first)
    while header is not None and header.kind in _EXTENSIONS:
        payload = _extension(read, header)
        if header.kind == _LONG_NAME:
            long_name = _text(payload)
        elif header.kind == _PAX_GLOBAL:
            defaults.update(_pax_records(payload, header.position))
        elif header.kind == _LONG_LINK:
            long_link = _text(payload)
        else:
            records = _pax_records(payload, header.position)
        position = header.position + TAR_RECORD + _padded(header.size)
        header = _read_header(read, position)
        if header is None:
            raise CorruptTarError(
                f"the archive ends at byte {position}, after an extended header without its member"
            )
    if header is None:
        return None
    if long_link is not None:
        header = header._replace(link=long_link)
    return _member(header, first, stop, long_name, {**defaults, **records})


def _read_header(read: Read, position: int) -> _Header | None:
    """Return the header at ``position``; None for a tar record of zeros."""
    record = bytes(read(position, TAR_RECORD))
    if not record.strip(b"\0"):
        return None
    if len(record) < TAR_RECORD:
        raise CorruptTarError(f"the archive ends inside the header at byte {position}")
    name, size, checksum, kind, link, prefix = _HEADER.unpack(record)
    _verify_checksum(record, checksum, position)
    text = f"{_text(prefix)}/{_text(name)}" if prefix[0] and kind not in _GNU else _text(name)
    return _Header(position, text, _number(size, position), kind, _text(link))


def _extension(read: Read, header: _Header) -> bytes:
    """Return the payload of an extended header, which describes the next header."""
    if header.size > _MAX_EXTENSION:
        raise CorruptTarError(f"the extended header at byte {header.position} claims {header.size} bytes")
    payload = bytes(read(header.position + TAR_RECORD, header.size))
    if len(payload) < header.size:
        raise CorruptTarError(f"the archive ends inside the extended header at byte {header.position}")
    return payload


def _member(header: _Header, first: int, stop: int, long_name: str | None, records: dict[str, str]) -> Member:
    kind, size = header.kind, header.size
    if kind == _SPARSE or any(keyword.startswith("GNU.sparse") for keyword in records):
        raise CorruptTarError(f"the sparse member at byte {first} cannot be read")
    name = records.get("path", header.name if long_name is None else long_name)
    if kind == _OLD_FILE and header.name.endswith("/"):
        kind = _DIRECTORY
    if "size" in records:
        size = _number(records["size"].encode(), header.position, base=10)
    if kind in _NO_PAYLOAD:
        size = 0
    data = header.position + TAR_RECORD
    if data + _padded(size) > stop:
        raise CorruptTarError(
            f"the payload of {name!r} (header at byte {header.position}) ends at byte {data + _padded(size)}, "
            f"beyond the end at byte {stop}"
        )
    link = records.get("linkpath", header.link) if kind in _LINKS else ""
    if kind == _SYMBOLIC_LINK:  # it is relative to its folder
        link = f"{name.rpartition('/')[0]}/{link}".lstrip("/") if not link.startswith("/") else link
    return Member(name, first, data, size, kind in _FILES, link)


def _padded(size: int) -> int:
    return -(-size // TAR_RECORD) * TAR_RECORD


_ASCII = bytes(range(128))


def _verify_checksum(header: bytes, field: bytes, position: int) -> None:
    """Compare the sum of all bytes, the checksum field as spaces. Some old writers summed signed bytes."""
    expected = _number(field, position)
    unsigned = sum(header) - sum(field) + 8 * 0x20
    if expected != unsigned and expected != unsigned - 256 * len(header.translate(None, _ASCII)):
        raise CorruptTarError(f"damaged tar header at byte {position}: the checksum does not match")


def _number(field: bytes, position: int, base: int = 8) -> int:
    if field[0] & 0x80:  # GNU: big-endian binary; negative numbers make no sense here
        value = int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    else:
        digits = field.partition(b"\0")[0].strip()
        value = -1 if digits.strip(b"0123456789"[:base]) else int(digits or b"0", base)
    if value < 0:
        raise CorruptTarError(f"damaged tar header at byte {position}: {field!r} is not a number")
    return value


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax_records(payload: bytes, position: int) -> dict[str, str]:
    """Parse records ``"<length> <keyword>=<value>\\n"``."""
    records: dict[str, str] = {}
    at = 0
    while at < len(payload) and payload[at]:
        length, space, _ = payload[at : at + 20].partition(b" ")
        end = at + int(length) if space and length.isdigit() else at
        keyword, equals, value = payload[at + len(length) + 1 : end - 1].partition(b"=")
        if not equals or not at < end <= len(payload) or payload[end - 1] != 0x0A:
            raise CorruptTarError(f"damaged PAX header at byte {position}")
        name, text = (field.decode("utf-8", "surrogateescape") for field in (keyword, value))
        records[name] = text.rstrip("/") if name == "path" else text
        at = end
    return records


@lru_cache(maxsize=1 << 12)
def _adler_of(checksum: bytes) -> int:
    """Return the low half of a header's Adler-32, given the checksum field in its usual form.

    This half is 1 plus the sum of all bytes, modulo 65521. Python sums bytes 20 times more slowly.
    """
    return (1 + int(checksum[:6], 8) + sum(checksum) - 8 * 0x20) % 65521


def sample_parts(buffer: memoryview, start: int, stop: int) -> SampleParts:
    """Find the parts of the one sample in ``buffer[start:stop]``.

    Plain ustar headers take a fast path. Any other header, and one with a wrong checksum, sends the whole
    sample through :func:`walk_sample`, which raises the errors.
    """
    key = ""
    names: list[str] = []
    starts: list[int] = []
    stops: list[int] = []
    position = start
    unpack, adler32, adler_of = _FAST_HEADER.unpack_from, zlib.adler32, _adler_of
    try:
        while position < stop:
            raw_name, raw_size, checksum, kind, magic, prefix = unpack(buffer, position)
            size = int(raw_size[:11], 8)
            data = position + 512
            if adler32(buffer[position:data]) & 0xFFFF != adler_of(checksum):
                return _walk_sample(buffer, start, stop)
            position = data + (size + 511) // 512 * 512
            if kind != b"0" or prefix != b"\0" or magic != b"ustar":
                # WebDataset's writer puts a PAX header with the modification time before each member.
                if kind == b"x" and 0 < size < 512 and not pax_matters(buffer[data : data + size]):
                    continue
                return _walk_sample(buffer, start, stop)
            name = raw_name.partition(b"\0")[0].decode("utf-8", "surrogateescape")
            slash = name.rfind("/")
            dot = name.find(".", slash + 1)
            if size < 0 or position > stop or dot == slash + 1 or dot < 0 or name[:2] == "__":
                return _walk_sample(buffer, start, stop)
            if name[:dot] != key:
                if key:
                    return _walk_sample(buffer, start, stop)
                key = name[:dot]
            names.append(name[dot + 1 :])
            starts.append(data)
            stops.append(data + size)
    except (ValueError, struct.error):
        return _walk_sample(buffer, start, stop)
    if not names or position - stops[-1] >= TAR_RECORD:  # no part, or a PAX header without its member
        return _walk_sample(buffer, start, stop)
    return SampleParts(key, names, starts, stops)


def walk_sample(
    read: Read, start: int, stop: int, take: Callable[[Member], T], links: list[str] | None = None
) -> tuple[str, list[tuple[str, T]]]:
    """Find the parts of the one sample in a range of an archive, member by member.

    Return the sample's key, and for each part its name and the result of ``take``, which is called before
    the next header is read. Files that systems left are parts only if there is nothing else: other
    programs index them. Names of parts that are links are added to ``links``.
    """
    found: dict[bool, tuple[str, list[tuple[str, T]]]] = {}  # key and parts, of a system's files or not
    linked: list[tuple[str, str]] = []
    position = start
    for member in walk_members(read, start, stop):
        position = member.end
        name = split_name(member.name) if member.is_file or member.link else None
        if name is None:
            continue
        if member.link:
            linked.append(name)
            continue
        is_left = is_system_file(member.name) is not None
        key, parts = found.setdefault(is_left, (name[0], []))
        if key != name[0] and not is_left:
            raise CorruptTarError(
                f"bytes {start} to {stop} hold more than one sample: {key!r} and {name[0]!r}"
            )
        parts.append((name[1], take(member)))
    if not found or position != stop:
        raise CorruptTarError(f"bytes {start} to {stop} do not hold exactly one sample")
    key, parts = found.get(False) or found[True]
    if links is not None:
        links += [part for of_key, part in linked if of_key == key]
    return key, parts


def _walk_sample(buffer: memoryview, start: int, stop: int) -> SampleParts:
    def read(offset: int, length: int) -> memoryview:
        return buffer[offset : min(offset + length, stop)]

    links: list[str] = []
    key, parts = walk_sample(read, start, stop, lambda member: member, links)
    names = [name for name, _ in parts]
    starts = [member.data_offset for _, member in parts]
    return SampleParts(
        key, names, starts, [member.data_offset + member.size for _, member in parts], tuple(links)
    )
