"""Checksums of the samples of a prepared dataset, in ``.nv-meta/checksums.xxh3``.

The file has a header, and then the XXH3-64 hash of each sample, in the order of ``.info.json``, as
little-endian 64-bit integers, so that a range request reads those of any samples. A hash is of all bytes that
a reader fetches for the sample, with headers and padding. The hash of ``.info.json`` in the header keeps the
checksums of an earlier preparation from being used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from energon_stream.arrays import Int64Array, UInt64Array
from energon_stream.errors import (
    AccessDeniedError,
    ChecksumError,
    IndexMismatchError,
    ObjectNotFoundError,
    RangeError,
)
from energon_stream.index.index_files import ENTRY_BYTES, RowFile
from energon_stream.index.info_files import META_FOLDER
from energon_stream.storage import ByteRange, ListEntry, Store, StoreSpec
from energon_stream.storage.in_order import stream_object

CHECKSUMS = f"{META_FOLDER}/checksums.xxh3"

digest: Callable[[bytes | memoryview], int] = xxhash.xxh3_64_intdigest  # of bytes
new_digest = xxhash.xxh3_64  # makes the checksum of bytes that come in pieces

_HEADER = struct.Struct("<8sQQQ")  # mark, samples, hash of .info.json, hash of the hashes
_MARK = b"ES.sums1"
_PIECE = 2 << 20  # bytes of a request; several tars are read at a time
_HINT = "run `energon-stream prepare --checksums` again"


@dataclass(frozen=True, slots=True, eq=False)
class AllSamples:
    """The samples of a whole dataset, of which a split part has some."""

    samples: int  # number of all samples
    info_digest: int  # hash of ``.info.json``
    first: Int64Array  # ``int64``, number of the first sample of each shard of the split part


def digest_samples(store: Store, entry: ListEntry, offsets: Sequence[int]) -> list[int]:
    """Return the checksum of each sample of a tar as it was listed, given its ``.tar.idx``."""
    ends, digests, begin = offsets[1:], list[int](), 0
    hasher = new_digest()
    for piece in stream_object(store, entry.path, _PIECE, etag=entry.meta.etag):
        done = 0
        while done < len(piece) and len(digests) < len(ends):
            stop = min(len(piece), ends[len(digests)] - begin)
            hasher.update(piece[done:stop])
            done = stop
            if begin + stop == ends[len(digests)]:
                digests.append(hasher.intdigest())
                hasher.reset()
        begin += len(piece)
    return digests


def encode_checksums(shards: Iterable[Sequence[int] | UInt64Array], info: bytes) -> bytes:
    """Return the content of the file, given the checksums of each shard and the content of ``.info.json``."""
    data = np.concatenate([np.array(shard, dtype="<u8") for shard in shards]).tobytes()
    return _HEADER.pack(_MARK, len(data) // ENTRY_BYTES, digest(info), digest(data)) + data


def find_checksums(spec: StoreSpec, store: Store, every: AllSamples) -> RowFile | None:
    """Return the checksums of a dataset as a file of rows; None without the file. This takes one request."""
    try:
        header = store.get_range(CHECKSUMS, ByteRange(0, _HEADER.size)).data
    except (ObjectNotFoundError, AccessDeniedError):  # stores may deny access to what does not exist
        return None
    except RangeError as error:
        raise _mismatch("the file is too short", store) from error
    _check(bytes(header), store, every.samples, every.info_digest)
    place = replace(spec, url=f"{spec.url.rstrip('/')}/{CHECKSUMS}")
    return RowFile(place, _HEADER.size, 1, every.samples)


def read_checksums(store: Store, samples: int, info_digest: int) -> UInt64Array | None:
    """Return all checksums of a dataset, ``uint64``; None without the file.

    Raises IndexMismatchError if the file is damaged, or of another preparation.
    """
    try:
        data = bytes(store.get_suffix(CHECKSUMS, _HEADER.size + samples * ENTRY_BYTES + 1).data)
    except ObjectNotFoundError:
        return None
    content = _check(data, store, samples, info_digest)
    if digest(data[_HEADER.size :]) != content or len(data) != _HEADER.size + samples * ENTRY_BYTES:
        raise _mismatch("the file is damaged", store)
    return np.frombuffer(data, dtype="<u8", offset=_HEADER.size)


def checksum_error(where: str, sample: int, name: str | None = None) -> ChecksumError:
    """Return the error for a sample of a shard that has other bytes, or another sample's ``name``."""
    found = "do not have their checksum"
    if name is not None:
        found = f"begin with {name!r:.80}, which is another sample's"
    return ChecksumError(
        f"the bytes of sample {sample} of the shard {found}",
        where=where,
        hint="a proxy, a cache or the store answered with other bytes, or the shard was changed or damaged after it "
        "was prepared; compare the shard with its original, or run `energon-stream prepare` again",
    )


def _check(header: bytes, store: Store, samples: int, info_digest: int) -> int:
    """Check a header; return the hash of the hashes."""
    if len(header) < _HEADER.size:
        raise _mismatch("the file is too short", store)
    mark, *about, content = _HEADER.unpack(header[: _HEADER.size])
    if mark != _MARK:
        raise _mismatch("the file has another format", store)
    if about != [samples, info_digest]:
        raise _mismatch("the checksums are those of another preparation", store)
    return int(content)


def _mismatch(what: str, store: Store) -> IndexMismatchError:
    return IndexMismatchError(what, where=f"{store.url}/{CHECKSUMS}", hint=f"remove the file, or {_HINT}")
