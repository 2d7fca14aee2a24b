"""Odd datasets that people really have: small folders of tars, each with what is whole in it.

``ODD_DATASETS`` has them by name. Each writes ``odd.tar`` (and others), usually beside ``good.tar``, which is
as tars should be. It returns the samples that are whole, by key, as those who made the tars meant them: links
are resolved, the last of two members with one name counts, and the parts of a sample belong together wherever
they are. ``read_with_webdataset`` and ``read_with_tarfile`` say what two other readers make of a folder.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import tarfile
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Parts = dict[str, bytes]
Samples = dict[str, Parts]

RECORD = 512
END = bytes(2 * RECORD)
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # of samples, as in webdataset
_FIRST_GOOD = 100


@dataclass(frozen=True)
class OddDataset:
    """A kind of odd dataset."""

    name: str
    what: str  # in words
    write: Callable[[Path], Samples]  # writes tars into a folder that exists, and returns their whole samples


@dataclass
class Reading:
    """What another reader makes of a folder of tars."""

    samples: list[tuple[str, Parts]] = field(default_factory=list)  # key and parts, in order, tar by tar
    errors: dict[str, str] = field(default_factory=dict)  # class of the error that ended it, by tar


ODD_DATASETS: dict[str, OddDataset] = {}


def _odd(write: Callable[[Path], Samples]) -> Callable[[Path], Samples]:
    name = write.__name__.strip("_")
    ODD_DATASETS[name] = OddDataset(name, (write.__doc__ or "").strip().rstrip("."), write)
    return write


def _also(name: str, what: str, write: Callable[[Path], Samples]) -> None:
    ODD_DATASETS[name] = OddDataset(name, what, write)


def read_with_webdataset(folder: Path) -> Reading:
    """Read the tars of a folder with webdataset's reader, one by one; it makes part names lower case."""
    import webdataset

    found = Reading()
    for path in sorted(folder.glob("*.tar")):
        try:
            for sample in webdataset.tariterators.tarfile_samples([{"url": str(path)}]):
                parts = {name: data for name, data in sample.items() if name not in ("__key__", "__url__")}
                found.samples.append((sample["__key__"], parts))
        except Exception as error:
            found.errors[path.name] = type(error).__name__
    return found


def read_with_tarfile(folder: Path) -> Reading:
    """Read the tars of a folder with ``tarfile``, which resolves links; members of one key are one sample."""
    found = Reading()
    for path in sorted(folder.glob("*.tar")):
        samples: Samples = {}
        try:
            with tarfile.open(path, errorlevel=0) as archive:
                for member in archive:
                    match = _NAME.match(member.name)
                    if match is None or not (member.isreg() or member.islnk() or member.issym()):
                        continue
                    try:
                        file = archive.extractfile(member)
                    except KeyError:  # a link to nowhere
                        continue
                    if file is not None:
                        samples.setdefault(match[1], {})[match[2]] = file.read()
        except Exception as error:
            found.errors[path.name] = type(error).__name__
        found.samples += samples.items()
    return found


# --- building -----------------------------------------------------------------------------------------------


@cache
def jpeg(number: int = 0) -> bytes:
    """Return a small JPEG file that depends on a number."""
    return encoded(picture(number), "JPEG", quality=90)


def picture(number: int = 0, size: tuple[int, int] = (24, 16)) -> Image.Image:
    """Return a picture whose rows, columns and colours all differ."""
    across, down = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    pixels = np.stack([across, down, np.full_like(across, number * 37 % 256)], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8))


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """Return the file of a picture."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def sample(number: int) -> Parts:
    """Return the parts of a usual sample."""
    return {
        "jpg": jpeg(number),
        "txt": f"caption {number}".encode(),
        "json": json.dumps({"n": number}).encode(),
    }


def samples(first: int = 0, count: int = 4, *parts: str) -> Samples:
    """Return usual samples, whose keys are numbers, with all or some of the parts."""
    return {
        f"{number:04d}": {name: data for name, data in sample(number).items() if name in parts or not parts}
        for number in range(first, first + count)
    }


def members(found: Mapping[str, Mapping[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return names and bytes of the members of samples."""
    return [(f"{key}.{name}", data) for key, parts in found.items() for name, data in parts.items()]


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", **fields: Any
) -> bytes:
    """Return one member of a tar as bytes: headers, payload and padding."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    form = fields.pop("format", tarfile.GNU_FORMAT)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(form, "utf-8", "surrogateescape") + padded(data)


def padded(data: bytes) -> bytes:
    """Return bytes with zeros up to a whole tar record."""
    return data + bytes(-len(data) % RECORD)


def body(named: Iterable[tuple[str, bytes]], **fields: Any) -> bytes:
    """Return the members of a tar as bytes, without an end mark."""
    return b"".join(member(name, data, **fields) for name, data in named)


def header(
    name: bytes, size: int, *, kind: bytes = b"0", changes: Mapping[int, bytes] = {}, is_signed: bool = False
) -> bytes:
    """Return a header made by hand: ``changes`` are bytes by offset. Its checksum is right."""
    info = tarfile.TarInfo("x")
    info.size, info.type = size, kind
    raw = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    raw[:100] = name.ljust(100, b"\0")
    for offset, data in changes.items():
        raw[offset : offset + len(data)] = data
    raw[148:156] = b" " * 8
    total = sum(byte - 256 * (is_signed and byte > 127) for byte in raw)
    raw[148:156] = b"%06o\0 " % total
    return bytes(raw)


def _good(folder: Path) -> Samples:
    found = samples(_FIRST_GOOD, 2)
    (folder / "good.tar").write_bytes(body(members(found)) + END)
    return found


def _write(folder: Path, data: bytes, whole: Samples | None = None) -> Samples:
    """Write ``odd.tar`` beside a good one; return the whole samples of both."""
    (folder / "odd.tar").write_bytes(data)
    return _good(folder) | (whole or {})


def _members(what: str, name: str, found: Samples, **fields: Any) -> None:
    """Add a dataset that has samples under the names that they have."""
    _also(name, what, lambda folder: _write(folder, body(members(found), **fields) + END, found))


# --- how archives end ---------------------------------------------------------------------------------------


@_odd
def no_end_mark(folder: Path) -> Samples:
    """Writer not closed: no end mark."""
    return _write(folder, body(members(samples())), samples())


@_odd
def half_end_mark(folder: Path) -> Samples:
    """One record of zeros at the end, not two."""
    return _write(folder, body(members(samples())) + bytes(RECORD), samples())


@_odd
def crumbs_of_zeros(folder: Path) -> Samples:
    """A few zeros at the end, less than a record."""
    return _write(folder, body(members(samples())) + bytes(100), samples())


@_odd
def cut_between_parts(folder: Path) -> Samples:
    """Cut off between two parts of a sample."""
    return _write(
        folder, body(members(samples())[:-1]), samples(0, 3) | {"0003": dict([*sample(3).items()][:-1])}
    )


@_odd
def cut_in_header(folder: Path) -> Samples:
    """Cut off within a header."""
    whole = body(members(samples(0, 3)))
    return _write(folder, whole + member("0003.jpg", jpeg(3))[:300], samples(0, 3))


@_odd
def cut_in_payload(folder: Path) -> Samples:
    """Cut off within a payload."""
    whole = body(members(samples(0, 3)))
    return _write(folder, whole + member("0003.jpg", jpeg(3))[: RECORD + 200], samples(0, 3))


@_odd
def cut_in_later_part(folder: Path) -> Samples:
    """Cut off within the second part of a sample."""
    whole = body(members(samples(0, 3))) + member("0003.jpg", jpeg(3))
    return _write(folder, whole + member("0003.txt", b"caption" * 200)[: RECORD + 700], samples(0, 3))


@_odd
def cut_in_padding(folder: Path) -> Samples:
    """Cut off within the padding of the last part, which is whole itself."""
    whole = body(members(samples()))
    return _write(folder, whole[: -RECORD + 60], samples())


@_odd
def cut_in_long_name(folder: Path) -> Samples:
    """Cut off after the header of a long name."""
    whole = body(members(samples()))
    return _write(folder, whole + member("n" * 150 + ".txt", b"x")[: 2 * RECORD], samples())


@_odd
def empty_tar(folder: Path) -> Samples:
    """A tar that has only its end mark."""
    return _write(folder, bytes(20 * RECORD))


@_odd
def zero_byte_tar(folder: Path) -> Samples:
    """A tar of 0 bytes."""
    return _write(folder, b"")


@_odd
def only_empty_tars(folder: Path) -> Samples:
    """All tars are empty."""
    (folder / "odd.tar").write_bytes(END)
    (folder / "odder.tar").write_bytes(b"")
    return {}


@_odd
def no_samples(folder: Path) -> Samples:
    """A tar of files that are no samples."""
    return _write(folder, body([("README", b"about"), ("LICENSE", b"free")]) + END)


@_odd
def concatenated(folder: Path) -> Samples:
    """Two whole tars, joined with ``cat``."""
    first, second = (body(members(samples(begin))) + END for begin in (0, 4))
    return _write(folder, first + second, samples(0, 8))


@_odd
def concatenated_blocks(folder: Path) -> Samples:
    """Two tars of GNU tar, with 10,240 bytes blocks, joined with ``cat``."""
    first, second = (body(members(samples(begin))) for begin in (0, 4))
    return _write(folder, (first + bytes(-len(first) % 10240 + 10240)) + second + END, samples(0, 8))


@_odd
def much_padding(folder: Path) -> Samples:
    """A megabyte of zeros after the end mark."""
    return _write(folder, body(members(samples())) + bytes(1 << 20), samples())


@_odd
def garbage_after_end(folder: Path) -> Samples:
    """Other data after the end mark."""
    return _write(folder, body(members(samples())) + END + b"#!/bin/sh\necho made by hand\n" * 30, samples())


@_odd
def garbage_instead_of_end(folder: Path) -> Samples:
    """Other data where the end mark should be."""
    return _write(folder, body(members(samples())) + b"<html>504 Gateway Time-out</html>" * 40, samples())


@_odd
def damaged_header(folder: Path) -> Samples:
    """One bit of a header in the middle is flipped."""
    raw = bytearray(body(members(samples())))
    at = len(body(members(samples(0, 2))))
    raw[at + 3] ^= 4
    return _write(folder, bytes(raw) + END, {k: v for k, v in samples().items() if k != "0002"})


@_odd
def html_page(folder: Path) -> Samples:
    """An error page of a web server, saved as a tar."""
    return _write(folder, b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n" * 20)


@_odd
def lfs_pointer(folder: Path) -> Samples:
    """A pointer of Git LFS, in place of the tar."""
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d7a" * 16 + "\nsize 12345\n"
    return _write(folder, text.encode())


# --- compressed ---------------------------------------------------------------------------------------------


def _zstd(data: bytes) -> bytes:
    """Return a frame of Zstandard that holds the data as it is."""
    blocks, size = b"", 100 << 10
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        blocks += ((at + size >= len(data)) | len(piece) << 3).to_bytes(3, "little") + piece
    return b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little") + blocks


def _compressed(name: str, pack: Callable[[bytes], bytes]) -> None:
    def write(folder: Path) -> Samples:
        return _write(folder, pack(body(members(samples())) + END), samples())

    _also(f"{name}_as_tar", f"A tar packed by {name}, named ``.tar``", write)


_compressed("gzip", lambda data: gzip.compress(data, mtime=0))
_compressed("bzip2", bz2.compress)
_compressed("xz", lzma.compress)
_compressed("zstd", _zstd)


@_odd
def zip_as_tar(folder: Path) -> Samples:
    """A zip file named ``.tar``."""
    import zipfile

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members(samples()):
            archive.writestr(name, data)
    return _write(folder, file.getvalue(), samples())


@_odd
def gzip_beside(folder: Path) -> Samples:
    """A compressed tar beside a good one."""
    (folder / "odd.tar.gz").write_bytes(gzip.compress(body(members(samples())) + END, mtime=0))
    return _good(folder)


@_odd
def upper_case_tar(folder: Path) -> Samples:
    """A tar named ``.TAR`` beside a good one."""
    (folder / "odd.TAR").write_bytes(body(members(samples())) + END)
    return _good(folder)


# --- links and other kinds of members -----------------------------------------------------------------------


def _links(kind: bytes, target: str) -> tuple[bytes, Samples]:
    """Return a tar whose second picture is a link to ``target``, and its samples without that picture."""
    found = samples(0, 3)
    data = body(members(samples(0, 1))) + member("0001.jpg", kind=kind, link=target)
    data += body(members(samples(1, 1, "txt", "json"))) + body(members(samples(2, 1)))
    return data + END, found | {"0001": {k: v for k, v in sample(1).items() if k != "jpg"}}


def _linked(folder: Path, kind: bytes, target: str, to: int | None = None) -> Samples:
    data, found = _links(kind, target)
    if to is not None:
        found["0001"] = {"jpg": jpeg(to), **found["0001"]}
    return _write(folder, data, found)


@_odd
def hard_link(folder: Path) -> Samples:
    """A hard link to an earlier member, as GNU tar writes for equal inodes."""
    return _linked(folder, tarfile.LNKTYPE, "0000.jpg", 0)


@_odd
def hard_link_in_folder(folder: Path) -> Samples:
    """Hard links below a folder, written with ``./``."""
    data = body([("./d/0000.jpg", jpeg(0)), ("./d/0000.txt", b"a")])
    data += member("./d/0001.jpg", kind=tarfile.LNKTYPE, link="./d/0000.jpg") + member("./d/0001.txt", b"b")
    found = {"./d/0000": {"jpg": jpeg(0), "txt": b"a"}, "./d/0001": {"jpg": jpeg(0), "txt": b"b"}}
    return _write(folder, data + END, found)


@_odd
def hard_link_chain(folder: Path) -> Samples:
    """A hard link to a hard link."""
    data = body([("0000.jpg", jpeg(0)), ("0000.txt", b"a")])
    data += member("0001.jpg", kind=tarfile.LNKTYPE, link="0000.jpg") + member("0001.txt", b"b")
    data += member("0002.jpg", kind=tarfile.LNKTYPE, link="0001.jpg") + member("0002.txt", b"c")
    found = {f"000{i}": {"jpg": jpeg(0), "txt": b"abc"[i : i + 1]} for i in range(3)}
    return _write(folder, data + END, found)


@_odd
def hard_link_whole_sample(folder: Path) -> Samples:
    """A sample all of whose parts are hard links."""
    data = body(members(samples(0, 1)))
    for name in sample(0):
        data += member(f"0001.{name}", kind=tarfile.LNKTYPE, link=f"0000.{name}")
    return _write(folder, data + body(members(samples(2, 1))) + END, samples(0, 3) | {"0001": sample(0)})


@_odd
def hard_link_to_nowhere(folder: Path) -> Samples:
    """A hard link whose target is in no member, as of a tar that was split."""
    return _linked(folder, tarfile.LNKTYPE, "9999.jpg")


@_odd
def symlink(folder: Path) -> Samples:
    """A symbolic link to another member."""
    return _linked(folder, tarfile.SYMTYPE, "0000.jpg", 0)


@_odd
def symlink_forward(folder: Path) -> Samples:
    """A symbolic link to a later member."""
    return _linked(folder, tarfile.SYMTYPE, "0002.jpg", 2)


@_odd
def symlink_outside(folder: Path) -> Samples:
    """A symbolic link to a file outside of the tar."""
    return _linked(folder, tarfile.SYMTYPE, "/data/raw/0001.jpg")


@_odd
def symlink_to_other_tar(folder: Path) -> Samples:
    """A symbolic link to a member of another tar."""
    return _linked(folder, tarfile.SYMTYPE, f"{_FIRST_GOOD:04d}.jpg")


@_odd
def folders(folder: Path) -> Samples:
    """Folders as members, one of them with a dot in its name."""
    found = {f"set.v1/{key}": parts for key, parts in samples().items()}
    data = member("set.v1", kind=tarfile.DIRTYPE) + member("set.v1/sub.d", kind=tarfile.DIRTYPE)
    return _write(folder, data + body(members(found)) + END, found)


@_odd
def old_folders(folder: Path) -> Samples:
    """Folders as v7 tars have them: plain files whose names end in a slash."""
    found = {f"a.b/{key}": parts for key, parts in samples().items()}
    data = header(b"a.b/", 0, kind=b"\0", changes={257: bytes(8)})
    return _write(folder, data + body(members(found)) + END, found)


@_odd
def devices(folder: Path) -> Samples:
    """Pipes and devices, named like parts."""
    data = body(members(samples(0, 2)))
    data += member("0001.fifo", kind=tarfile.FIFOTYPE) + member("0001.dev", kind=tarfile.CHRTYPE)
    return _write(folder, data + body(members(samples(2, 2))) + END, samples())


@_odd
def volume_label(folder: Path) -> Samples:
    """The label of a volume as the first member (``tar -V``)."""
    data = header(b"label.of.volume", 0, kind=b"V") + body(members(samples()))
    return _write(folder, data + END, samples())


@_odd
def second_volume(folder: Path) -> Samples:
    """The second volume of a tar in several, which begins within a member."""
    rest = jpeg(0)[100:]
    data = header(b"0000.jpg", len(rest), kind=b"M") + padded(rest) + body(members(samples(1, 3)))
    return _write(folder, data + END, samples(1, 3))


@_odd
def contiguous(folder: Path) -> Samples:
    """Members of the kind 7, contiguous files."""
    return _write(folder, body(members(samples()), kind=tarfile.CONTTYPE) + END, samples())


@_odd
def old_sparse(folder: Path) -> Samples:
    """A sparse member of GNU tar (``tar -S``)."""
    text, size = b"sparse", 3 * RECORD + 6
    places = b"%011o\0%011o\0" % (3 * RECORD, 6) + b"%011o\0%011o\0" % (size, 0)
    raw = header(
        b"0001.bin", 6, kind=b"S",
        changes={257: b"ustar  \0", 345: bytes(155), 386: places, 483: b"%011o\0" % size},
    )  # fmt: skip
    data = body(members(samples(0, 1))) + raw + padded(text) + body(members(samples(2, 1)))
    return _write(
        folder, data + END, samples(0, 1) | {"0001": {"bin": bytes(3 * RECORD) + text}} | samples(2, 1)
    )


@_odd
def pax_sparse(folder: Path) -> Samples:
    """A sparse member in PAX's form 1.0."""
    content = padded(b"1\n1536\n6\n") + b"sparse"
    records = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "0001.bin",
               "GNU.sparse.realsize": "1542"}  # fmt: skip
    sparse = member("GNUSparseFile.0/0001.bin", content, format=tarfile.PAX_FORMAT, pax_headers=records)
    data = body(members(samples(0, 1))) + sparse + body(members(samples(2, 1))) + END
    return _write(folder, data, samples(0, 1) | {"0001": {"bin": bytes(1536) + b"sparse"}} | samples(2, 1))


# --- what systems leave in tars -----------------------------------------------------------------------------

_MAC = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(100)


@_odd
def apple_double(folder: Path) -> Samples:
    """macOS wrote ``._x.jpg`` before each member, at the top."""
    named = [
        (f"{prefix}{name}", _MAC if prefix else data)
        for name, data in members(samples())
        for prefix in ("._", "")
    ]
    return _write(folder, body(named) + END, samples())


@_odd
def apple_double_in_folder(folder: Path) -> Samples:
    """macOS wrote ``d/._x.jpg`` before each member, below a folder."""
    named = [
        (f"d/{prefix}{name}", _MAC if prefix else data)
        for name, data in members(samples())
        for prefix in ("._", "")
    ]
    return _write(folder, body(named) + END, {f"d/{key}": parts for key, parts in samples().items()})


@_odd
def apple_double_once(folder: Path) -> Samples:
    """One ``d/._x.jpg``, within a sample."""
    found = {f"d/{key}": parts for key, parts in samples().items()}
    named = members(found)
    named.insert(4, ("d/._0001.txt", _MAC))
    return _write(folder, body(named) + END, found)


@_odd
def ds_store(folder: Path) -> Samples:
    """``.DS_Store``, at the top and in folders."""
    found = {f"{place}/{key}": parts for place in "ab" for key, parts in samples(0, 2).items()}
    named = [(".DS_Store", b"Bud1")]
    for place in "ab":
        named += [
            (f"{place}/.DS_Store", b"Bud1"),
            *members({k: v for k, v in found.items() if k[0] == place}),
        ]
    return _write(folder, body(named) + END, found)


@_odd
def macosx_folder(folder: Path) -> Samples:
    """The folder ``__MACOSX`` of a zip file that was packed again."""
    named = [*members(samples()), *((f"__MACOSX/._{name}", _MAC) for name, _ in members(samples()))]
    return _write(folder, body(named) + END, samples())


@_odd
def pax_header_files(folder: Path) -> Samples:
    """PAX headers that an old program unpacked as files, and packed again."""
    named = [
        *((f"PaxHeaders.123/{name}", b"30 mtime=1700000000.123456789\n") for name, _ in members(samples()))
    ]
    return _write(folder, body([*named, *members(samples())]) + END, samples())


@_odd
def windows_files(folder: Path) -> Samples:
    """``Thumbs.db`` and ``desktop.ini`` between the samples."""
    extra = {"Thumbs": {"db": b"\xd0\xcf"}, "desktop": {"ini": b"[.ShellClassInfo]"}}
    found = samples(0, 2) | extra | samples(2, 2)
    return _write(folder, body(members(found)) + END, found)


@_odd
def notes_beside(folder: Path) -> Samples:
    """``README.md`` and ``LICENSE`` before the samples."""
    found = {"README": {"md": b"# about"}} | samples()
    return _write(
        folder, body([("README.md", b"# about"), ("LICENSE", b"free"), *members(samples())]) + END, found
    )


@_odd
def global_header(folder: Path) -> Samples:
    """A global PAX header with a comment (``git archive``)."""
    record = b"52 comment=0123456789abcdef0123456789abcdef01234567\n"
    data = header(b"pax_global_header", len(record), kind=b"g") + padded(record) + body(members(samples()))
    return _write(folder, data + END, samples())


@_odd
def foreign_records(folder: Path) -> Samples:
    """PAX records of other programs: Schily's attributes, negative and fractional times."""
    records = {"SCHILY.xattr.user.note": "kept", "mtime": "-12.5", "LIBARCHIVE.creationtime": "1.25"}
    data = body(members(samples()), format=tarfile.PAX_FORMAT, pax_headers=records)
    return _write(folder, data + END, samples())


# --- numbers and forms of headers ---------------------------------------------------------------------------


def _headers(name: str, what: str, changes: Mapping[int, bytes], **options: Any) -> None:
    def write(folder: Path) -> Samples:
        data = b"".join(
            header(title.encode(), len(part), changes=changes, **options) + padded(part)
            for title, part in members(samples())
        )
        return _write(folder, data + END, samples())

    _also(name, what, write)


_headers("huge_ids", "Numbers of user and group in base 256", {108: b"\x80\0\0\0\x7f\xff\xff\xff" * 2})
_headers("negative_time", "Times before 1970, in base 256", {136: b"\xff" * 11 + b"\x9c"})
_headers(
    "spaces_in_numbers",
    "Numbers with spaces, as old programs wrote them",
    {100: b"   644 \0", 108: b"     0 \0"},
)
_headers("v7", "The format v7, without a magic number", {257: bytes(255)}, kind=b"\0")
_headers("empty_ids", "Fields of numbers that are empty", {100: bytes(24), 136: bytes(12), 329: bytes(16)})
_headers(
    "signed_checksum", "Checksums of signed bytes, as of old Sun systems", {265: b"J\xf6rg"}, is_signed=True
)


@_odd
def binary_sizes(folder: Path) -> Samples:
    """Sizes in base 256, though they are small."""
    data = b"".join(
        header(name.encode(), 0, changes={124: b"\x80" + len(part).to_bytes(11, "big")}) + padded(part)
        for name, part in members(samples())
    )
    return _write(folder, data + END, samples())


@_odd
def prefixes(folder: Path) -> Samples:
    """Long names of ustar, in two fields."""
    found = {"p" * 80 + "/" + "q" * 70 + f"/{key}": parts for key, parts in samples().items()}
    return _write(folder, body(members(found), format=tarfile.USTAR_FORMAT) + END, found)


# --- names --------------------------------------------------------------------------------------------------

_long = {"n" * 150 + f"/{key}": parts for key, parts in samples().items()}
_members("Long names of GNU tar", "gnu_long_names", _long)
_members("Long names in PAX headers", "pax_long_names", _long, format=tarfile.PAX_FORMAT)
_members("Names that begin with ``./``", "dot_slash", {f"./{k}": v for k, v in samples().items()})
_members("Absolute names", "absolute", {f"/data/{k}": v for k, v in samples().items()})
_members("Names with ``..``", "parent_folder", {f"../{k}": v for k, v in samples().items()})
_members("Names with spaces", "spaces", {f"my pictures/image {k}": v for k, v in samples().items()})
_members("Names with backslashes, of Windows", "backslashes", {f"set\\{k}": v for k, v in samples().items()})
_members(
    "Names with a newline and a tab", "control_characters", {f"a\n\t{k}": v for k, v in samples().items()}
)
_members("Names with other signs", "signs", {f"a:b%20#?*{{1..2}}/{k}": v for k, v in samples().items()})
_members("Keys of several scripts", "scripts", {f"図\U0001f436ñ/{k}": v for k, v in samples().items()})
_members("Names in decomposed Unicode, as macOS writes them", "decomposed",
         {unicodedata.normalize("NFD", f"é/{k}"): v for k, v in samples().items()})  # fmt: skip
_members("Composed and decomposed Unicode in one tar", "both_unicode_forms",
         {unicodedata.normalize(form, f"café{n}"): sample(n) for n in range(2) for form in ("NFC", "NFD")})  # fmt: skip
_members("Names in Latin-1", "latin_1", {f"caf\udce9/{k}": v for k, v in samples().items()})
_members("Names in Shift JIS", "shift_jis",
         {"図".encode("shift_jis").decode("utf-8", "surrogateescape") + k: v for k, v in samples().items()})  # fmt: skip
_members("Names in GBK", "gbk",
         {"图誠".encode("gbk").decode("utf-8", "surrogateescape") + k: v for k, v in samples().items()})  # fmt: skip
_members("Names of bytes in PAX headers, with ``hdrcharset=BINARY``", "pax_binary",
         {f"caf\udce9/{'long' * 40}{k}": v for k, v in samples().items()}, format=tarfile.PAX_FORMAT)  # fmt: skip
_members("An extension that is not UTF-8", "latin_1_extension",
         {k: {**v, "caf\udce9": b"coffee"} for k, v in samples().items()})  # fmt: skip
_members("Names with signs of private use", "private_use",
         {f"\U0010fee9/{k}": v for k, v in samples().items()})  # fmt: skip
_members("Extensions in upper case", "upper_case",
         {k: {"JPG": v["jpg"], "TXT": v["txt"]} for k, v in samples().items()})  # fmt: skip
_members("``.JPG`` in one sample and ``.jpg`` in the next", "mixed_case",
         {k: {("JPG" if n % 2 else "Jpg" if n else "jpg"): v["jpg"], "txt": v["txt"]}
          for n, (k, v) in enumerate(samples().items())})  # fmt: skip
_members("``x.jpg`` and ``x.JPG`` in one sample", "both_cases",
         {k: {"jpg": v["jpg"], "JPG": jpeg(9), "txt": v["txt"]} for k, v in samples().items()})  # fmt: skip
_members("Keys that differ in case alone", "keys_differ_in_case",
         {key: sample(n) for n, key in enumerate(("a", "A", "b", "B"))})  # fmt: skip
_members("Keys with dots, of numbers, with one part each", "dotted_numbers",
         {f"22.{n:02d}": {"png": encoded(picture(n), "PNG")} for n in range(4)})  # fmt: skip
_members("Keys with dots, with two parts each", "dotted_pairs",
         {f"{n}.5": {"jpg": jpeg(n), "txt": b"half"} for n in range(4)})  # fmt: skip
_members("Keys with dots, of versions", "dotted_versions",
         {f"img.v{n}.0001": {"jpg": jpeg(n), "txt": b"one"} for n in range(4)})  # fmt: skip
_members("Parts with two extensions", "double_extensions",
         {k: {"left.jpg": v["jpg"], "seg.png": encoded(picture(7), "PNG"), "cls": b"3"} for k, v in samples().items()})  # fmt: skip
_members("Parts named like the reader's own fields", "reader_fields",
         {k: {"jpg": v["jpg"], "__url__": b"http://example.com/x.jpg"} for k, v in samples().items()})  # fmt: skip
_members("Parts named ``__key__``", "key_field",
         {k: {"jpg": v["jpg"], "__key__": b"other"} for k, v in samples().items()})  # fmt: skip
_members("Part names that are used in Python", "python_names",
         {k: {"class": b"1", "self": b"x", "txt": v["txt"]} for k, v in samples().items()})  # fmt: skip
_members("Unequal parts: some samples lack one", "missing_parts",
         {k: {p: d for p, d in v.items() if n % 2 or p != "txt"} for n, (k, v) in enumerate(samples().items())})  # fmt: skip


@_odd
def meta_members(folder: Path) -> Samples:
    """Members of metadata: ``__info__``, ``__meta__/x.json``."""
    named = [("__info__", b"about"), ("__meta__/x.json", b"{}"), *members(samples())]
    return _write(folder, body(named) + END, samples())


@_odd
def bare_extensions(folder: Path) -> Samples:
    """Members with nothing before the dot (``.jpg``), hidden files, and names without a dot."""
    named = [(".jpg", jpeg(8)), (".hidden.txt", b"x"), ("Makefile", b"all:"), *members(samples())]
    return _write(folder, body(named) + END, samples())


@_odd
def trailing_dots(folder: Path) -> Samples:
    """Names that end in a dot."""
    found = {key: {"": b"empty", "txt": parts["txt"]} for key, parts in samples().items()}
    return _write(folder, body(members(found)) + END, found)


@_odd
def hidden_folder(folder: Path) -> Samples:
    """Samples below a hidden folder."""
    found = {f".cache/{key}": parts for key, parts in samples().items()}
    return _write(folder, body(members(found)) + END, found)


# --- which members are there, and in which order ------------------------------------------------------------


@_odd
def name_twice(folder: Path) -> Samples:
    """A name twice in one sample; the last one counts."""
    named = members(samples())
    named.insert(2, ("0000.txt", b"newer"))
    return _write(folder, body(named) + END, samples() | {"0000": sample(0) | {"txt": b"newer"}})


@_odd
def appended_again(folder: Path) -> Samples:
    """A member that ``tar -r`` added again at the end."""
    data = body([*members(samples()), ("0001.txt", b"newer")])
    return _write(folder, data + END, samples() | {"0001": sample(1) | {"txt": b"newer"}})


@_odd
def sample_twice(folder: Path) -> Samples:
    """A sample twice in one tar, not adjacent."""
    return _write(folder, body([*members(samples()), *members(samples(1, 1))]) + END, samples())


@_odd
def key_in_two_tars(folder: Path) -> Samples:
    """Two tars with the same keys, as counters per tar give them."""
    (folder / "odd.tar").write_bytes(body(members(samples())) + END)
    (folder / "same.tar").write_bytes(body(members(samples())) + END)
    return samples()


@_odd
def part_by_part(folder: Path) -> Samples:
    """All pictures first, then all texts."""
    named = sorted(members(samples()), key=lambda pair: pair[0].rpartition(".")[2])
    return _write(folder, body(named) + END, samples())


@_odd
def folders_by_part(folder: Path) -> Samples:
    """Pictures in one folder, texts in another."""
    found = {f"images/{key}": {"jpg": parts["jpg"]} for key, parts in samples().items()}
    found |= {f"labels/{key}": {"txt": parts["txt"]} for key, parts in samples().items()}
    return _write(folder, body(members(found)) + END, found)


@_odd
def unsorted(folder: Path) -> Samples:
    """Members in any order."""
    named = members(samples())
    return _write(
        folder, body([named[place] for place in (5, 0, 7, 10, 2, 9, 1, 3, 11, 4, 8, 6)]) + END, samples()
    )


@_odd
def one_stray_part(folder: Path) -> Samples:
    """One part far from its sample."""
    named = members(samples())
    return _write(folder, body([*named[:1], *named[2:], named[1]]) + END, samples())


@_odd
def split_over_tars(folder: Path) -> Samples:
    """A sample whose parts are in two tars."""
    named = members(samples())
    (folder / "odd-0.tar").write_bytes(body(named[:5]) + END)
    (folder / "odd-1.tar").write_bytes(body(named[5:]) + END)
    return samples()


# --- parts that decoders may not take -----------------------------------------------------------------------


def _part(name: str, what: str, part: str, data: bytes) -> None:
    """Add a dataset with one odd part, which is whole as far as tars are concerned."""
    _members(
        what, name, {k: v | ({part: data} if n == 1 else {}) for n, (k, v) in enumerate(samples().items())}
    )


def _npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


_part("json_with_bom", "JSON with a byte order mark", "json", b"\xef\xbb\xbf" + b'{"n": 1}')
_part("json_utf_16", "JSON in UTF-16", "json", '{"n": 1}'.encode("utf-16"))
_part("json_lines", "JSON lines in a ``.json``", "json", b'{"n": 1}\n{"n": 2}\n')
_part("json_nan", "NaN in JSON", "json", b'{"n": NaN}')
_part("empty_json", "JSON of 0 bytes", "json", b"")
_part("text_with_bom", "A text with a byte order mark", "txt", b"\xef\xbb\xbfcaption 1")
_part("text_latin_1", "A text in Latin-1", "txt", "café".encode("latin-1"))
_part("text_crlf", "A text with a line end of Windows", "txt", b"caption 1\r\n")
_part("class_with_newline", "A number with a newline", "cls", b"7\n")
_part("class_float", "A class that is no whole number", "cls", b"7.0")
_part(
    "pickled_npy", "An array of pickled objects, which nobody uses", "npy", _npy(np.array([{}], dtype=object))
)
_part("npz", "Arrays in an ``npz``", "npz", _npz(a=np.arange(3), b=np.ones((2, 2), np.float32)))
_part("pickle", "A pickle", "pkl", pickle.dumps({"n": 1}))

_TURNED = Image.Exif()
_TURNED[0x0112] = 6
_grey16 = np.linspace(0, 65535, 24 * 16).reshape(16, 24).astype(np.uint16)
_palette = picture().convert("P", palette=Image.Palette.ADAPTIVE)
_frames = [picture(number) for number in (0, 3, 6)]

PICTURES: dict[str, tuple[str, str, bytes]] = {  # what, extension, file
    "exif_orientation": ("A JPEG file that is to be turned", "jpg", encoded(picture(), "JPEG", exif=_TURNED)),
    "exif_in_png": ("A PNG file that is to be turned", "png", encoded(picture(), "PNG", exif=_TURNED)),
    "grey_16_png": ("A grey PNG file of 16 bits", "png", encoded(Image.fromarray(_grey16), "PNG")),
    "grey_16_tiff": ("A grey TIFF file of 16 bits", "tif", encoded(Image.fromarray(_grey16), "TIFF")),
    "float_tiff": ("A TIFF file of floats", "tif", encoded(Image.fromarray(_grey16.astype(np.float32)), "TIFF")),
    "frames_tiff": ("A TIFF file of three pages", "tiff",
                    encoded(_frames[0], "TIFF", save_all=True, append_images=_frames[1:])),
    "frames_gif": ("A GIF file that moves", "gif",
                   encoded(_frames[0], "GIF", save_all=True, append_images=_frames[1:])),
    "frames_webp": ("A WebP file that moves", "webp",
                    encoded(_frames[0], "WEBP", save_all=True, append_images=_frames[1:], lossless=True)),
    "frames_png": ("A PNG file that moves", "png",
                   encoded(_frames[0], "PNG", save_all=True, append_images=_frames[1:])),
    "cmyk_jpeg": ("A JPEG file in CMYK", "jpg", encoded(picture().convert("CMYK"), "JPEG")),
    "palette_png": ("A PNG file with a palette and a transparent colour", "png", encoded(_palette, "PNG", transparency=3)),
    "alpha_png": ("A PNG file with alpha", "png", encoded(picture().convert("RGBA").rotate(9), "PNG")),
    "one_bit_png": ("A PNG file of one bit", "png", encoded(picture().convert("1"), "PNG")),
    "avif": ("An AVIF file", "avif", encoded(picture(), "AVIF")),
    "truncated_jpeg": ("A JPEG file that is cut off", "jpg", jpeg(1)[:-120]),
    "truncated_png": ("A PNG file that is cut off", "png", encoded(picture(), "PNG")[:-60]),
    "jpeg_as_png": ("A JPEG file named ``.png``", "png", jpeg(1)),
    "empty_picture": ("A picture of 0 bytes", "jpg", b""),
    "html_as_jpeg": ("An error page named ``.jpg``", "jpg", b"<html>403 Forbidden</html>"),
}  # fmt: skip
"""Odd pictures. ``ODD_DATASETS`` has a dataset of each."""

for _name, (_what, _extension, _file) in PICTURES.items():
    _part(_name, _what, _extension, _file)
