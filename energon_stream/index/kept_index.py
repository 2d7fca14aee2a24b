"""Indices of tars that were not prepared, kept on this node.

Each version of a tar has a kept file with the content of a ``.tar.idx`` file, and its mark, as of
:mod:`energon_stream.index.shard_marks`. Missing ones are built at first
use, once per node. A builder locks its tar, and other processes that need the index wait: until it is there,
the builder dies, or for the time that building might take. Processes begin with different tars, and so share
the work.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from energon_stream.arrays import Int64Array
from energon_stream.cache import CachedStore, CacheLayer
from energon_stream.cache.config import node_directory
from energon_stream.cache.kept_files import KeptFiles, kept_name
from energon_stream.cache.object_identity import root_name
from energon_stream.errors import (
    CorruptTarError,
    DatasetError,
    DuplicateKeyError,
    EmptyDatasetError,
    IndexMismatchError,
    NotPreparedError,
    StorageError,
)
from energon_stream.fork import PerProcess
from energon_stream.index.index_files import ENTRY_BYTES, decode_offsets, encode_offsets
from energon_stream.index.shard_marks import shard_mark
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.tar.remarks import Remarks, merge_remarks
from energon_stream.tar.scan import ShardScan, scan_shard

_log = logging.getLogger(__name__)

_SCANS = 32
_WINDOWS_AHEAD = 32  # of 2 MiB, of all scans together
_SLOWEST = 10e6  # bytes a second at which a builder reads a tar
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.1

_running = PerProcess(lambda: threading.BoundedSemaphore(_SCANS))  # shared by all datasets of the process


def index_directory(spec: StoreSpec) -> str:
    """Return the cache directory for what is kept of a dataset: that of its cache, or else the user's."""
    if isinstance(spec.through, CacheLayer):
        return spec.through.config.directory
    return node_directory()


@dataclass(frozen=True, slots=True)
class PlainTars:
    """Tars of a dataset that was not prepared, and their indices on this node. A picklable value."""

    kept: KeptFiles
    root: str  # name of the dataset's folder there
    tars: tuple[ListEntry, ...] = ()  # with size and version, as they were when the dataset was opened

    @classmethod
    def of(cls, spec: StoreSpec, url: str, tars: Iterable[ListEntry]) -> PlainTars:
        """Return tars of the dataset with the root ``url``, which has no credentials."""
        return cls(KeptFiles(index_directory(spec), "indexes"), root_name(url), tuple(tars))

    @property
    def folder(self) -> str:
        """Folder of the index files."""
        return self.kept.path(self.root)

    def name(self, tar: ListEntry) -> str:
        """Return the name of a tar's index among the kept files."""
        return f"{self.root}/{kept_name(tar.path, tar.meta.etag or '', str(tar.meta.size))}.marked.idx"

    def count(self, tar: ListEntry) -> int | None:
        """Verify the index of a tar, and return the number of samples; None if it has no index."""
        content = self.kept.read(self.name(tar))
        return None if content is None else len(content) // ENTRY_BYTES - 2

    def mark(self, tar: ListEntry, count: int) -> int:
        """Return the mark of a tar with a number of samples; 0 if it has no index, as a bad one."""
        try:
            data, _ = self.kept.read_part(self.name(tar), (count + 1) * ENTRY_BYTES, ENTRY_BYTES)
        except FileNotFoundError:
            return 0
        return int.from_bytes(data, "little")

    def remarks(self) -> Iterator[tuple[str, Remarks]]:
        """Yield what was odd about tars when they were indexed, with their paths."""
        for tar in self.tars:
            content = self.kept.read(self._remarks_name(tar))
            if content is not None:
                yield tar.path, json.loads(bytes(content))

    def keep(self, tar: ListEntry, scan: ShardScan, *, alone: bool) -> None:
        """Keep the index of a tar, and what is odd about it."""
        if scan.remarks:
            self.kept.write(self._remarks_name(tar), json.dumps(scan.remarks).encode(), alone=alone)
        content = encode_offsets([*scan.offsets, shard_mark(scan) or 0])
        self.kept.write(self.name(tar), content, alone=alone)

    def _remarks_name(self, tar: ListEntry) -> str:
        return f"{self.name(tar).removesuffix('.idx')}.remarks"

    def read_offsets(self, tar: ListEntry, count: int, first: int, last: int) -> Int64Array:
        """Read entries of a tar's index; see :func:`energon_stream.index.index_files.read_offsets`."""
        where = f"{self.kept.path(self.name(tar))}, index of {tar.path}"
        begin, stop = first * ENTRY_BYTES, (last + 1) * ENTRY_BYTES
        try:
            data, size = self.kept.read_part(self.name(tar), begin, stop - begin)
        except FileNotFoundError as error:
            raise NotPreparedError(
                "the index was removed while it was in use", where=where, hint="open the dataset again"
            ) from error
        if size != (count + 2) * ENTRY_BYTES or not 0 <= first <= last <= count:
            raise IndexMismatchError(
                f"the index has {size} bytes, and not entries {first} to {last} of {count} samples",
                where=where,
                hint="remove it, and open the dataset again",
            )
        return decode_offsets(data, first, where)

    def versions(self) -> dict[str, str]:
        """Return the versions of the tars by path, without the tars whose store reports none."""
        return {tar.path: tar.meta.etag for tar in self.tars if tar.meta.etag is not None}

    def tell_versions(self, store: Store) -> None:
        """Pass size and version of the tars to the store's disk cache, if any, which then need not ask."""
        if isinstance(store, CachedStore):
            for tar in self.tars:
                store.remember(tar.path, tar.meta)


def sample_counts(
    store: Store, plain: PlainTars, patience: float, log_seconds: float, skip_bad: bool
) -> list[int]:
    """Return the number of samples in each tar, from its index. Missing indices are built and kept.

    Logs what is odd about the tars. ``skip_bad`` takes a tar that cannot be used for one without samples.

    Raises CorruptTarError for a damaged tar, DuplicateKeyError if a tar has a key twice or a sample's parts
    are not adjacent, EmptyDatasetError if no tar has samples, and StorageError if indices cannot be kept.
    """
    plain.kept.use(plain.root)
    counts = {tar.path: count for tar in plain.tars if (count := plain.count(tar)) is not None}
    missing = [tar for tar in plain.tars if tar.path not in counts]
    begun = logged = time.monotonic()
    samples, level = 0, logging.WARNING  # of the first message, because most programs show no lower level
    bad: dict[str, str] = {}
    with contextlib.closing(_build(store, missing, plain, patience)) as built:
        for done, (tar, result) in enumerate(built, start=1):
            if isinstance(result, DatasetError):
                if not skip_bad:
                    raise result
                bad[tar.path], result = result.what, 0
            counts[tar.path] = result
            samples += result
            now = time.monotonic()
            if done < len(missing) and now - logged > log_seconds:
                message = "%s is not prepared and is indexed now, once: %d of %d tars, %d samples in %.0f s"
                _log.log(level, message, store.url, done, len(missing), samples, now - begun)
                logged, level = now, logging.INFO
    if missing:
        total = sum(tar.meta.size for tar in missing)
        message = "%s: %d tars of %d bytes with %d samples were indexed in %.1f s; the indices are in %s"
        _log.info(message, store.url, len(missing), total, samples, time.monotonic() - begun, plain.folder)
    for text in merge_remarks(plain.remarks()):
        _log.warning("%s: %s", store.url, text)
    if bad:
        message = "%s: %d of %d tars cannot be used, and are left out, such as %s: %s"
        _log.warning(message, store.url, len(bad), len(plain.tars), *next(iter(bad.items())))
    if not any(counts.values()):
        raise EmptyDatasetError("no tar has samples", where=store.url, hint="check the path")
    return [counts[tar.path] for tar in plain.tars]


def _build(
    store: Store, missing: Sequence[ListEntry], plain: PlainTars, patience: float
) -> Generator[tuple[ListEntry, int | DatasetError]]:
    """Build indices; yield each tar with its number of samples or its error, in the order in which they are
    done.
    """
    if not missing:
        return
    begin = random.randrange(len(missing))
    with (
        _writing(plain),
        ThreadPoolExecutor(min(_SCANS, len(missing)), thread_name_prefix="energon-index") as pool,
    ):
        builder = _Builder(store, plain, max(1, _WINDOWS_AHEAD // len(missing)), patience)
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
    patience: float
    stopped: threading.Event = field(default_factory=threading.Event)  # ends scans and waits by an error

    def count(self, tar: ListEntry) -> int | DatasetError:
        """Build the index of a tar, or wait until another process has; return the number of samples, or the
        error of a tar that cannot be used.
        """
        limit = time.monotonic() + self.patience + tar.meta.size / _SLOWEST
        wait = _FIRST_WAIT
        while time.monotonic() < limit:
            with _running.get(), self.plain.kept.making(self.plain.name(tar)) as is_mine:
                count = self.plain.count(tar)
                if count is not None:
                    return count
                if is_mine is not False:
                    return self._scan(tar, alone=bool(is_mine))
            self.stopped.wait(wait)
            self._check()
            wait = min(2 * wait, _LONGEST_WAIT)
        _log.warning("%s/%s: another process takes too long to build the index", self.store.url, tar.path)
        with _running.get():
            return self._scan(tar)

    def _check(self) -> None:
        if self.stopped.is_set():
            raise StorageError("indexing was stopped", where=self.store.url)

    def _scan(self, tar: ListEntry, *, alone: bool = False) -> int | DatasetError:
        try:
            scan = scan_shard(self.store, tar, ahead=self.ahead, check=self._check)
            _check_keys(scan, f"{self.store.url}/{tar.path}")
        except (CorruptTarError, DuplicateKeyError) as error:
            return error
        self.plain.keep(tar, scan, alone=alone)
        return len(scan.keys)


def _check_keys(scan: ShardScan, where: str) -> None:
    first: dict[str, int] = {}
    for key, offset in zip(scan.keys, scan.offsets, strict=False):
        if key in first:
            raise DuplicateKeyError(
                f"the parts of sample {key!r} are not adjacent: some begin at byte {first[key]}, others at {offset}",
                where=f"{where} at byte {offset}",
                hint="`energon-stream repair` writes a dataset in which they are; or write the tar with its members "
                "sorted by name, each sample once",
            )
        first[key] = offset
