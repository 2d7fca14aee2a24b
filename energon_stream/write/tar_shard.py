"""One tar that grows by samples: its bytes depend on the samples only."""

from __future__ import annotations

import contextlib
import tarfile
import zlib
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import xxhash

from energon_stream.errors import DuplicateKeyError, SampleError
from energon_stream.prepare.shard_records import ShardRecord
from energon_stream.storage.local import named_errors
from energon_stream.tar.format import TAR_RECORD, split_name
from energon_stream.tar.scan import HEAD_BYTES, ShardScan, hash_head
from energon_stream.write.part_values import encode_part, numbered, takes

if TYPE_CHECKING:
    from energon_stream.write.typed_samples import TypedSamples

MAX_SIZE = 1_000_000_000  # bytes of a tar, by default
_MOST_NAME = 100  # bytes; a longer name is in a PAX header
_MOST_SIZE = 8**11 - 1
_JOINED = 1 << 18  # a smaller sample is joined before it is written, which costs less than many calls
_BUFFER = 1 << 20
_END = bytes(2 * TAR_RECORD)
_MODE = b"0000644\0" + 2 * b"0000000\0"  # mode, user and group
_MIDDLE = b"00000000000\0" + 8 * b" "  # time, and the checksum while it is computed
_REST = (b"0" + bytes(100) + b"ustar\00000").ljust(TAR_RECORD - 156, b"\0")
_CHECKSUM = slice(148, 156)
_PADDING = [bytes(-size % TAR_RECORD) for size in range(TAR_RECORD)]


class Encoded:
    """A sample as it will be in a tar."""

    __slots__ = ("key", "parts", "pieces", "size")

    def __init__(self, key: str, contents: list[tuple[str, bytes | memoryview]]) -> None:
        self.key: str = key
        self.pieces: list[bytes | memoryview] = []  # headers, payloads and padding, in order
        self.parts: list[
            tuple[str, int, int]
        ] = []  # name, first byte in the sample, and size of each payload
        position = 0
        for name, content in contents:
            header, length = _header(f"{key}.{name}", len(content)), len(content)
            position += len(header)
            self.parts.append((name, position, length))
            self.pieces += (header, content, _PADDING[length % TAR_RECORD])
            position += length + -length % TAR_RECORD
        self.size: int = position


class SampleEncoder:
    """Turns samples into members of a tar, parts in sorted order, and checks their names.

    ``quality`` is that of lossy images, and ``typed`` says what readers need.
    """

    def __init__(self, quality: int | None = None, typed: TypedSamples | None = None) -> None:
        self._quality, self._typed = quality, typed
        self._names: set[str] = set()  # names of parts that are good

    def encode(self, sample: Any) -> Encoded:
        """Return a sample's members. Keys that begin with ``__`` are no parts."""
        typed = self._typed
        if not isinstance(sample, Mapping):
            if typed is None or not isinstance(sample, typed.type):
                wanted = "a sample_type" if typed is None else typed.type.__name__
                problem = f"a {type(sample).__name__} is no dict with '__key__' and parts, and no instance of {wanted}"
                raise SampleError(problem, hint="give sample_type=")
            sample = typed.parts(sample)
        key = sample.get("__key__")
        if not isinstance(key, str):
            problem = f"the '__key__' of a sample is {key!r:.80}"
            raise SampleError(problem, hint="give each sample a string that is its key")
        _check_key(key)
        names = sorted(name for name in sample if not name.startswith("__"))
        if not names:
            raise SampleError(f"the sample {key!r:.80} has no parts", hint="leave it out")
        contents: list[tuple[str, bytes | memoryview]] = []
        pairs = [pair for name in names for pair in numbered(name, sample[name])]
        for name, value in sorted(pairs, key=itemgetter(0)):
            if name not in self._names:
                _check_part(key, name)
                self._names.add(name)
            if contents and name == contents[-1][0]:
                raise SampleError(f"sample {key!r:.80}: the part {name!r:.80} is there twice")
            contents.append((name, self._encode(key, name, value)))
        if typed is not None:
            typed.check(key, [name for name, _ in contents])
        return Encoded(key, contents)

    def _encode(self, key: str, name: str, value: Any) -> bytes | memoryview:
        if isinstance(value, bytes):
            return value
        try:
            return encode_part(name, value, quality=self._quality)
        except (TypeError, ValueError, ArithmeticError, RuntimeError, OSError) as error:
            raise SampleError(
                f"sample {key!r:.80}: {error} (the part {name!r:.80} got a {type(value).__name__})",
                hint=takes(name),
            ) from error


class TarShard:
    """A tar under way in a local file, and what an index must know of it."""

    def __init__(self, path: str, local_path: str) -> None:
        self.scan: ShardScan = ShardScan(path)  # the samples, as ``scan_shard`` would find them
        self.digests: list[int] = []  # checksum of each sample
        self.local_path = local_path
        self.size: int = 0  # bytes so far, without the end mark
        self._keys: set[str] = set()
        with named_errors(local_path):
            self._file = open(local_path, "wb", buffering=_BUFFER)  # noqa: SIM115 - closed by close()

    def add(self, sample: Encoded) -> None:
        """Append a sample. Raises DuplicateKeyError if its key is there, StorageError if the disk fails."""
        scan = self.scan
        if sample.key in self._keys:
            raise DuplicateKeyError(
                f"the sample key {sample.key!r:.80} appears twice: samples {scan.keys.index(sample.key)} and "
                f"{len(scan.keys)} of {scan.path}",
                hint="give each sample of the dataset a key of its own",
            )
        with named_errors(self.local_path):
            if sample.size < _JOINED:
                data = b"".join(sample.pieces)
                self._file.write(data)
                self.digests.append(xxhash.xxh3_64_intdigest(data))
            else:
                hasher = xxhash.xxh3_64()
                for piece in sample.pieces:
                    self._file.write(piece)
                    hasher.update(piece)
                self.digests.append(hasher.intdigest())
        number, begin = len(scan.keys), self.size
        self._keys.add(sample.key)
        scan.keys.append(sample.key)
        scan.offsets.append(begin)
        scan.parts += [(number, name, begin + start, size) for name, start, size in sample.parts]
        self.size += sample.size

    @property
    def record(self) -> ShardRecord:
        """The record that is kept of a complete shard."""
        return ShardRecord(self.scan, self.digests)

    def close(self) -> None:
        """Write the end mark. Raises StorageError if the disk fails."""
        self.scan.offsets.append(self.size)
        with named_errors(self.local_path), self._file:
            self._file.write(_END)
            self._file.flush()
            with open(self.local_path, "rb") as file:
                self.scan.head = hash_head(file.read(HEAD_BYTES))

    def drop(self) -> None:
        """Close the file of a tar that will not be used."""
        with contextlib.suppress(OSError):  # the disk is full: what was buffered is lost, as it may be
            self._file.close()


def _header(name: str, size: int) -> bytes:
    raw = name.encode()
    if len(raw) > _MOST_NAME or size > _MOST_SIZE:
        member = tarfile.TarInfo(name)
        member.size = size
        return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    header = b"".join((raw.ljust(_MOST_NAME, b"\0"), _MODE, b"%011o\0" % size, _MIDDLE, _REST))
    # The low half of an Adler-32 is 1 plus the sum of all bytes; no such header reaches its modulus.
    total = (zlib.adler32(header) & 0xFFFF) - 1
    return b"".join((header[: _CHECKSUM.start], b"%06o\0 " % total, header[_CHECKSUM.stop :]))


def _check_key(key: str) -> None:
    wrong = split_name(f"{key}.x") != (key, "x") or "\0" in key or key.endswith("/")
    if wrong or ("/" in key and (key[0] == "/" or ".." in key.split("/"))):
        raise SampleError(
            f"{key!r:.80} cannot be a sample key",
            hint="the last component of a key has no dot, and a key does not leave its folder",
        )
    if not key.isascii():
        check_utf8("sample key", key)


def _check_part(key: str, name: str) -> None:
    if not is_part_name(name):
        raise SampleError(
            f"sample {key!r:.80}: {name!r:.80} cannot be the name of a part",
            hint="use an extension such as jpg or left.png",
        )
    check_utf8("part name", name)


def is_part_name(name: str) -> bool:
    """Return True if a part can have a name: what follows the first dot of a file's name."""
    return bool(name) and "\0" not in name and split_name(f"k.{name}") == ("k", name)


def check_utf8(what: str, name: str) -> None:
    """Raise SampleError if a name is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SampleError(f"the {what} {name!r:.80} is not UTF-8", hint="rename it") from None
