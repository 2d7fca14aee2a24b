"""Building the indices that a dataset lacks: several tars at a time, each once on a node.

Who builds an index locks the byte of the folder's ``lock`` file that stands for it. Others who want it wait; when the builder
dies the kernel gives the lock back, and the next one builds. One that hangs is waited for as long as it might take. All
start at places of their own, so that processes that come at the same time share the work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from energon_stream.cache.locks import LockedFile, require_locks
from energon_stream.errors import (
    ConfigError,
    DuplicateKeyError,
    EmptyDatasetError,
    IndexMismatchError,
    StorageError,
)
from energon_stream.index.kept_index import KeptIndices
from energon_stream.index.scan import ShardScan, scan_shard
from energon_stream.storage import ListEntry, Store
from energon_stream.storage.fork import PerProcess

__all__ = ["sample_counts"]

_log = logging.getLogger(__name__)

_SCANS = 32
_WINDOWS_AHEAD = 32  # of 2 MiB, of all scans together
_PATIENCE, _SLOWEST = 60.0, 10e6  # seconds, and bytes per second, that a builder may take
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.1
_BETWEEN_LINES = 10.0

_running = PerProcess(lambda: threading.BoundedSemaphore(_SCANS))  # however many datasets are opened at once


def sample_counts(store: Store, tars: Sequence[ListEntry], indices: KeptIndices) -> list[int]:
    """Samples of each tar, by its index; indices that are not there are built and kept.

    Args:
        store: The dataset's root.
        tars: The tars as they are now.
        indices: Where the indices are kept.

    Raises:
        CorruptTarError: A tar is damaged or cut off; names tar and offset.
        DuplicateKeyError: The parts of a sample do not lie together, or two samples of a tar share a key.
        EmptyDatasetError: A tar without samples.
        StorageError: The store does not deliver, or indices cannot be written.
    """
    counts: dict[str, int] = {}
    missing, damaged = [], 0
    for tar in tars:
        try:
            count = indices.count(tar)
        except IndexMismatchError:
            count, damaged = None, damaged + 1
        if count is None:
            missing.append(tar)
        else:
            counts[tar.path] = count
    if damaged:
        _log.warning("%d indices of %s in %s are damaged, and made again", damaged, store.url, indices.folder)
    if missing:
        counts |= _build(store, missing, indices)
    return [counts[tar.path] for tar in tars]


def _build(store: Store, missing: Sequence[ListEntry], indices: KeptIndices) -> dict[str, int]:
    counts: dict[str, int] = {}
    begin = random.randrange(len(missing))
    lines = _Lines(store, missing, indices)
    with (
        _writing(indices),
        _Builder(store, indices, max(1, _WINDOWS_AHEAD // len(missing))) as builder,
        ThreadPoolExecutor(min(_SCANS, len(missing)), thread_name_prefix="energon-index") as pool,
    ):
        futures = {pool.submit(builder.count, tar): tar for tar in (*missing[begin:], *missing[:begin])}
        try:
            for future in as_completed(futures):
                counts[futures[future].path] = future.result()
                lines.add(future.result())
        except BaseException:
            builder.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    lines.end()
    return counts


@contextlib.contextmanager
def _writing(indices: KeptIndices) -> Iterator[None]:
    try:
        os.makedirs(indices.folder, exist_ok=True)
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"indices of tars that were not prepared cannot be kept: {error.strerror or error}",
            where=indices.folder,
            hint="Name a folder that can be written by cache= or ENERGON_STREAM_CACHE_DIR, or prepare the dataset.",
        ) from error


class _Builder:
    """Builds indices, or waits for others who do.

    Args:
        store: The dataset's root.
        indices: Where the indices are kept.
        ahead: Windows that each scan reads ahead.
    """

    def __init__(self, store: Store, indices: KeptIndices, ahead: int) -> None:
        self._store, self._indices, self._ahead = store, indices, ahead
        self._stopped = threading.Event()
        self._lock = _lock_file(indices)

    def __enter__(self) -> _Builder:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def stop(self) -> None:
        """Let all that is under way end with an error, soon."""
        self._stopped.set()

    def count(self, tar: ListEntry) -> int:
        """Samples of one tar; builds its index, or waits until it is there."""
        limit = time.monotonic() + _PATIENCE + tar.meta.size / _SLOWEST
        wait = _FIRST_WAIT
        while self._lock is not None and time.monotonic() < limit:
            with _running.get(), self._locked(self._lock, tar) as is_mine:
                with contextlib.suppress(IndexMismatchError):
                    count = self._indices.count(tar)
                    if count is not None:
                        return count
                if is_mine:
                    return self._scan(tar, ".new")
            self._stopped.wait(wait)
            self._check()
            wait = min(2 * wait, _LONGEST_WAIT)
        if self._lock is not None:
            _log.warning("%s/%s: whoever builds its index takes too long", self._store.url, tar.path)
        with _running.get():
            return self._scan(tar, f".{os.getpid()}.new")

    def _check(self) -> None:
        if self._stopped.is_set():
            raise StorageError("indexing was stopped", where=self._store.url)

    @contextlib.contextmanager
    def _locked(self, lock: LockedFile, tar: ListEntry) -> Iterator[bool]:
        """Lock what stands for a tar; tells whether that was possible at once."""
        byte = zlib.crc32(os.path.basename(self._indices.path(tar)).encode())
        is_mine = lock.try_lock(byte, byte + 1)
        try:
            yield is_mine
        finally:
            if is_mine:
                lock.unlock(byte, byte + 1)

    def _scan(self, tar: ListEntry, suffix: str) -> int:
        scan = scan_shard(self._store, tar, ahead=self._ahead, check=self._check)
        where = f"{self._store.url}/{tar.path}"
        if not scan.keys:
            raise EmptyDatasetError(
                "the tar has no samples", where=where, hint="Leave it out of the path, or remove it."
            )
        _check_keys(scan, where)
        self._indices.write(tar, scan.offsets, suffix=suffix)
        return len(scan.keys)


def _lock_file(indices: KeptIndices) -> LockedFile | None:
    """What is locked; None where there are no such locks, so that everybody builds what is not there."""
    try:
        require_locks()
        lock = LockedFile(os.path.join(indices.folder, "lock"), os.O_RDWR | os.O_CREAT)
    except ConfigError:
        return None
    try:
        lock.try_lock(0, 1, shared=True)
        lock.unlock(0, 1)
    except OSError as error:
        _log.info("%s: files there cannot be locked (%s)", indices.folder, error)
        lock.close()
        return None
    return lock


def _check_keys(scan: ShardScan, where: str) -> None:
    first: dict[str, int] = {}
    for key, offset in zip(scan.keys, scan.offsets, strict=False):
        if key in first:
            raise DuplicateKeyError(
                f"the parts of sample {key!r} do not lie together: some begin at byte {first[key]}, others at "
                f"{offset}",
                where=f"{where} at byte {offset}",
                hint="Write the tar with its members sorted by name, each sample once.",
            )
        first[key] = offset


class _Lines:
    """Says how far it is, not too often."""

    def __init__(self, store: Store, tars: Sequence[ListEntry], indices: KeptIndices) -> None:
        self._url, self._tars, self._folder = store.url, len(tars), indices.folder
        self._bytes = sum(tar.meta.size for tar in tars)
        self._done = self._samples = 0
        self._begun = self._said = time.monotonic()
        self._level = logging.WARNING  # of the first line: most programs show nothing less

    def add(self, count: int) -> None:
        """One more is there."""
        self._done, self._samples = self._done + 1, self._samples + count
        now = time.monotonic()
        if now - self._said > _BETWEEN_LINES and self._done < self._tars:
            _log.log(
                self._level,
                "%s is not prepared and is indexed now, once: %d of %d tars, %d samples in %.0f s",
                *(self._url, self._done, self._tars, self._samples, now - self._begun),
            )
            self._said, self._level = now, logging.INFO

    def end(self) -> None:
        """All are there."""
        _log.info(
            "%s: %d tars of %d bytes with %d samples were indexed in %.1f s; kept in %s",
            *(self._url, self._done, self._bytes, self._samples, time.monotonic() - self._begun),
            self._folder,
        )
