"""Indices of tars that were not prepared, kept on this node.

Each version of a tar has a file below ``<directory>/v1/indexes/<root URL>/``, named by a hash. The file
holds, as little-endian 64-bit integers, a mark of the format, the number of samples, a checksum, and the
content of a ``.tar.idx`` file. The checksum is an XXH3 hash of the content and of the file's name, so a file
that was written in part, or for another tar, is not valid.

Missing indices are built at first use: several tars at a time, each tar once per node. A builder locks one
byte of the folder's ``lock`` file, which stands for the tar. Other processes that need the index wait. If the
builder dies, the kernel releases the lock, and the next process builds. A builder that hangs is abandoned
after the time that building might take. Processes begin with different tars, so those that start together
share the work. Where files cannot be locked, each process builds the indices that it does not find.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from energon_stream.cache import CachedStore, CacheLayer
from energon_stream.cache.config import node_directory
from energon_stream.cache.identity import root_name
from energon_stream.cache.locks import LockedFile, has_locks
from energon_stream.errors import (
    DuplicateKeyError,
    EmptyDatasetError,
    IndexMismatchError,
    NotPreparedError,
    StorageError,
)
from energon_stream.fork import PerProcess
from energon_stream.index.index_files import ENTRY_BYTES, decode_offsets, encode_offsets
from energon_stream.tar.scan import ShardScan, scan_shard

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.storage import ListEntry, Store, StoreSpec

_log = logging.getLogger(__name__)

_MARK = int.from_bytes(b"ES.idx.1", "little")
_HEADER = 3 * ENTRY_BYTES
_HINT = "remove it, and open the dataset again"

_SCANS = 32
_WINDOWS_AHEAD = 32  # of 2 MiB, of all scans together
_SLOWEST = 10e6  # bytes a second at which a builder reads a tar
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.1

_running = PerProcess(lambda: threading.BoundedSemaphore(_SCANS))  # shared by all datasets of the process


def index_directory(spec: StoreSpec) -> str:
    """Return the folder for the indices of a dataset: that of the dataset's cache, or else the user's."""
    if isinstance(spec.through, CacheLayer):
        return spec.through.config.directory
    return node_directory()


@dataclass(frozen=True, slots=True)
class PlainTars:
    """Tars of a dataset that was not prepared, and their indices on this node. A picklable value."""

    folder: str  # folder of the index files
    tars: tuple[ListEntry, ...] = ()  # with size and version, as they were when the dataset was opened

    @classmethod
    def of(cls, spec: StoreSpec, url: str, tars: Iterable[ListEntry]) -> PlainTars:
        """Return tars of the dataset with the root ``url``, which has no credentials."""
        return cls(os.path.join(index_directory(spec), "v1", "indexes", root_name(url)), tuple(tars))

    def path(self, tar: ListEntry) -> str:
        """Return the path of a tar's index, whether it exists or not."""
        identity = "\0".join((tar.path, tar.meta.etag or "", str(tar.meta.size)))
        name = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return os.path.join(self.folder, f"{name}.idx")

    def count(self, tar: ListEntry) -> int | None:
        """Verify the index of a tar, and return the number of samples; None if there is no index.

        Raises IndexMismatchError if the index is damaged.
        """
        path = self.path(tar)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:  # no such file, or one that writing will report
            return None
        if len(content) >= _HEADER:
            mark, count, check = np.frombuffer(content, dtype="<u8", count=3).tolist()
            whole = mark == _MARK and len(content) == _HEADER + (count + 1) * ENTRY_BYTES
            if whole and check == _checksum(path, count, content[_HEADER:]):
                return int(count)
        raise IndexMismatchError("the index is damaged", where=f"{path}, index of {tar.path}", hint=_HINT)

    def write(self, tar: ListEntry, offsets: list[int], *, suffix: str) -> None:
        """Keep the index of a tar. The file appears when it is complete.

        Raises OSError if the file cannot be written.
        """
        path, data, count = self.path(tar), encode_offsets(offsets), len(offsets) - 1
        header = np.array([_MARK, count, _checksum(path, count, data)], dtype="<u8").tobytes()
        with open(path + suffix, "wb") as file:
            file.write(header + data)
        os.replace(path + suffix, path)

    def read_offsets(self, tar: ListEntry, count: int, first: int, last: int) -> Int64Array:
        """Read entries of a tar's index; see :func:`energon_stream.index.index_files.read_offsets`.

        Raises NotPreparedError if the index was removed after the dataset was opened, and IndexMismatchError
        if the index is damaged, or has another number of samples.
        """
        where = f"{self.path(tar)}, index of {tar.path}"
        try:
            with open(self.path(tar), "rb") as file:
                file.seek(_HEADER + first * ENTRY_BYTES)
                data = file.read((last + 1 - first) * ENTRY_BYTES)
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError as error:
            raise NotPreparedError(
                "the index was removed while it was in use", where=where, hint="open the dataset again"
            ) from error
        if size != _HEADER + (count + 1) * ENTRY_BYTES or not 0 <= first <= last <= count:
            raise IndexMismatchError(
                f"the index has {size} bytes, and not entries {first} to {last} of {count} samples",
                where=where,
                hint=_HINT,
            )
        return decode_offsets(data, first, where)

    def versions(self) -> dict[str, str]:
        """Return the versions of the tars by path, without the tars whose store reports none."""
        return {tar.path: tar.meta.etag for tar in self.tars if tar.meta.etag is not None}

    def tell_versions(self, store: Store) -> None:
        """Pass size and version of the tars to the disk cache, if the store has one: it need not ask for
        them.
        """
        if isinstance(store, CachedStore):
            for tar in self.tars:
                store.remember(tar.path, tar.meta)


def _checksum(path: str, count: int, data: bytes) -> int:
    name = os.path.basename(path).encode()
    return xxhash.xxh3_64_intdigest(data, seed=xxhash.xxh3_64_intdigest(name, seed=count))


def sample_counts(store: Store, plain: PlainTars, patience: float, log_seconds: float) -> list[int]:
    """Return the number of samples in each tar, from its index. Missing indices are built and kept.

    Raises:
        CorruptTarError: A tar is damaged or cut off; names tar and offset.
        DuplicateKeyError: A sample's parts are not adjacent, or two samples of a tar have the same key.
        EmptyDatasetError: A tar has no samples.
        StorageError: The store did not deliver, or indices cannot be written.
    """
    counts: dict[str, int] = {}
    missing, damaged = [], 0
    for tar in plain.tars:
        try:
            count = plain.count(tar)
        except IndexMismatchError:
            count, damaged = None, damaged + 1
        if count is None:
            missing.append(tar)
        else:
            counts[tar.path] = count
    if damaged:
        _log.warning(
            "%d indices of %s in %s are damaged; they are built again", damaged, store.url, plain.folder
        )
    if missing:
        log = _ProgressLog(store.url, missing, plain.folder, log_seconds)
        for tar, count in _build(store, missing, plain, patience):
            counts[tar.path] = count
            log.add(count)
    return [counts[tar.path] for tar in plain.tars]


def _build(
    store: Store, missing: Sequence[ListEntry], plain: PlainTars, patience: float
) -> Iterator[tuple[ListEntry, int]]:
    """Build indices; yield each tar with the number of samples, in the order in which they are done."""
    begin = random.randrange(len(missing))
    with (
        _writing(plain),
        _lock_file(plain) or contextlib.nullcontext() as lock,
        ThreadPoolExecutor(min(_SCANS, len(missing)), thread_name_prefix="energon-index") as pool,
    ):
        builder = _Builder(store, plain, max(1, _WINDOWS_AHEAD // len(missing)), lock, patience)
        futures = {pool.submit(builder.count, tar): tar for tar in (*missing[begin:], *missing[:begin])}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            builder.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def _writing(plain: PlainTars) -> Iterator[None]:
    try:
        os.makedirs(plain.folder, exist_ok=True)
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"indices of tars that were not prepared cannot be kept: {error.strerror or error}",
            where=plain.folder,
            hint="pass cache= or set ENERGON_STREAM_CACHE_DIR to a writable folder, or prepare the dataset",
        ) from error


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds indices, or waits for other processes that build them."""

    store: Store
    plain: PlainTars
    ahead: int  # windows that a scan reads ahead
    lock: LockedFile | None
    patience: float
    stopped: threading.Event = field(default_factory=threading.Event)  # ends scans and waits by an error

    def count(self, tar: ListEntry) -> int:
        """Build the index of a tar, or wait until another process has; return the number of samples."""
        limit = time.monotonic() + self.patience + tar.meta.size / _SLOWEST
        wait = _FIRST_WAIT
        while self.lock is not None and time.monotonic() < limit:
            with _running.get(), self._locked(self.lock, tar) as is_mine:
                with contextlib.suppress(IndexMismatchError):
                    count = self.plain.count(tar)
                    if count is not None:
                        return count
                if is_mine:
                    return self._scan(tar, ".new")
            self.stopped.wait(wait)
            self._check()
            wait = min(2 * wait, _LONGEST_WAIT)
        if self.lock is not None:
            _log.warning("%s/%s: another process takes too long to build the index", self.store.url, tar.path)
        with _running.get():
            return self._scan(tar, f".{os.getpid()}.new")

    def _check(self) -> None:
        if self.stopped.is_set():
            raise StorageError("indexing was stopped", where=self.store.url)

    @contextlib.contextmanager
    def _locked(self, lock: LockedFile, tar: ListEntry) -> Iterator[bool]:
        """Lock the byte of a tar, and yield True; yield False if another process has locked it."""
        byte = zlib.crc32(os.path.basename(self.plain.path(tar)).encode())
        is_mine = lock.try_lock(byte, byte + 1)
        try:
            yield is_mine
        finally:
            if is_mine:
                lock.unlock(byte, byte + 1)

    def _scan(self, tar: ListEntry, suffix: str) -> int:
        scan = scan_shard(self.store, tar, ahead=self.ahead, check=self._check)
        where = f"{self.store.url}/{tar.path}"
        if not scan.keys:
            raise EmptyDatasetError(
                "the tar has no samples", where=where, hint="leave it out of the path, or remove it"
            )
        _check_keys(scan, where)
        self.plain.write(tar, scan.offsets, suffix=suffix)
        return len(scan.keys)


def _lock_file(plain: PlainTars) -> LockedFile | None:
    """Open the file whose bytes are locked; return None where this system or the folder has no such locks."""
    if not has_locks():
        return None
    lock = LockedFile(os.path.join(plain.folder, "lock"), os.O_RDWR | os.O_CREAT)
    try:
        lock.try_lock(0, 1, shared=True)
        lock.unlock(0, 1)
    except OSError as error:
        _log.info("%s: files there cannot be locked (%s)", plain.folder, error)
        lock.close()
        return None
    return lock


def _check_keys(scan: ShardScan, where: str) -> None:
    first: dict[str, int] = {}
    for key, offset in zip(scan.keys, scan.offsets, strict=False):
        if key in first:
            raise DuplicateKeyError(
                f"the parts of sample {key!r} are not adjacent: some begin at byte {first[key]}, others at {offset}",
                where=f"{where} at byte {offset}",
                hint="write the tar with its members sorted by name, each sample once",
            )
        first[key] = offset


class _ProgressLog:
    """Logs how many tars are indexed, at most every so many seconds, and the totals."""

    def __init__(self, url: str, tars: Sequence[ListEntry], folder: str, seconds: float) -> None:
        self._url, self._tars, self._folder, self._seconds = url, len(tars), folder, seconds
        self._bytes = sum(tar.meta.size for tar in tars)
        self._done = self._samples = 0
        self._begun = self._logged = time.monotonic()
        self._level = logging.WARNING  # of the first message, because most programs show no lower level

    def add(self, count: int) -> None:
        """Count one more tar."""
        self._done, self._samples = self._done + 1, self._samples + count
        now = time.monotonic()
        if self._done == self._tars:
            _log.info(
                "%s: %d tars of %d bytes with %d samples were indexed in %.1f s; the indices are in %s",
                *(self._url, self._done, self._bytes, self._samples, now - self._begun, self._folder),
            )
        elif now - self._logged > self._seconds:
            _log.log(
                self._level,
                "%s is not prepared and is indexed now, once: %d of %d tars, %d samples in %.0f s",
                *(self._url, self._done, self._tars, self._samples, now - self._begun),
            )
            self._logged, self._level = now, logging.INFO
