"""A cache pool of files: fetches in the background and keeps files on local disk until the process ends.

Each process makes a folder and threads of its own at first use. Files that were read make room first; a file
that made room is read again from its store. The process that made the pool removes the folders of all
processes, so a killed worker leaves nothing.
"""

from __future__ import annotations

import glob
import itertools
import os
import pickle
import secrets
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Literal, TypeVar

from energon_stream.errors import ConfigError, EnergonStreamError, StorageError
from energon_stream.fork import PerProcess, pickled
from energon_stream.living import process_mark
from energon_stream.media.file_store import FileStore, add_source
from energon_stream.media.pool import CachePool, DataLazy, DirectLazy, Lazy
from energon_stream.samples import SourceInfo
from energon_stream.storage import Fetcher
from energon_stream.temporary_folders import remove_abandoned
from energon_stream.urls import absolute_path

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_Method = Literal["raw", "pickle"]
_AFTER_CHILDREN = -1  # priority for ``Finalize``: after the worker processes have ended


class FileStoreCachePool(CachePool):
    """Fetches files in the background and keeps them on local disk.

    Args:
        parent_cache_dir: Parent of the pool's folder; None for the system's folder of temporary files.
        num_workers: Files that each process fetches at the same time.
        max_cache_size_gbytes: Largest size of the files of one process, in 10**9 bytes.
        max_cache_count: Largest number of files of one process.
        method: ``"raw"`` keeps the bytes and decodes at ``get()``; ``"pickle"`` decodes in the background
            and keeps a pickle of the result.

    Raises:
        ConfigError: A limit is not positive, or the method is unknown.

    Example:
        >>> from energon_stream import FileStoreCachePool, SystemFileStore
        >>> pool = FileStoreCachePool()
        >>> lazy = pool.get_lazy(SystemFileStore("texts"), ".nv-meta/split.yaml")
        >>> lazy.get()[:12]
        b'split_parts:'
        >>> pool.close()
    """

    def __init__(
        self,
        parent_cache_dir: str | os.PathLike[str] | None = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 1024,
        max_cache_count: int = 10_000_000,
        method: _Method = "raw",
    ) -> None:
        if num_workers < 1 or max_cache_count < 1 or not max_cache_size_gbytes > 0:
            raise ConfigError(
                f"num_workers {num_workers}, max_cache_count {max_cache_count} and max_cache_size_gbytes "
                f"{max_cache_size_gbytes} must be positive",
                hint="use NoCachePool() to keep nothing",
            )
        if method not in ("raw", "pickle"):
            raise ConfigError(f"method is {method!r}", hint="use 'raw' or 'pickle'")
        parent = tempfile.gettempdir() if parent_cache_dir is None else os.fspath(parent_cache_dir)
        for old in glob.glob(os.path.join(glob.escape(absolute_path(parent)), "cache_*")):
            if remove_abandoned(old):
                with suppress(OSError):  # other processes have files there
                    os.rmdir(old)
        self._root = os.path.join(absolute_path(parent), f"cache_{secrets.token_hex(8)}")
        max_bytes = int(max_cache_size_gbytes * 1e9)
        make = partial(_PoolFolder, self._root, num_workers, max_bytes, max_cache_count, method)
        self._files = PerProcess(make, drop_inherited=True)
        Finalize(self, shutil.rmtree, (self._root, True), exitpriority=_AFTER_CHILDREN)

    def get_lazy(self, ds: FileStore[T_co], fname: str) -> FileCacheLazy[T_co]:
        """Begin to fetch a file in the background; ``get()`` waits for it."""
        return FileCacheLazy(ds, fname, self._files.get().fetch(ds, fname))

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Write a pickle of the data to disk, or keep the data in memory if the disk has no room."""
        return self._files.get().keep(data, name)

    def close(self) -> None:
        """End this process's fetches and remove its files."""
        files = self._files.pop()
        if files is not None:
            files.close()
        with suppress(OSError):  # other processes have files there, or no process ever had
            os.rmdir(self._root)


@dataclass(frozen=True, slots=True)
class FileCacheLazy(Lazy[T_co]):
    """Reads a file that a pool fetched. In another process it reads from the store. Pools make it.

    Attributes:
        store: Store that has the data.
        fname: Name of the data.
        file: The pool's file.

    Example:
        >>> from energon_stream import FileStoreCachePool, SystemFileStore
        >>> pool = FileStoreCachePool()
        >>> pool.get_lazy(SystemFileStore("."), "mix.yaml")
        FileCacheLazy(store=SystemFileStore(...), fname='mix.yaml')
        >>> pool.close()
    """

    store: FileStore[T_co]
    fname: str
    file: _PoolFile = field(compare=False, repr=False)

    def get(self, sample: Any = None) -> T_co:
        """Wait for the data; see :class:`Lazy`."""
        data, source = self.file.load(self.store, self.fname)
        add_source(sample, source)
        return data  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectLazy, (self.store, self.fname)


@dataclass(frozen=True, eq=False)
class StoredLazy(Lazy[T_co]):
    """Data that a pool wrote to disk. The file is removed with this object."""

    name: str
    read: Callable[[], T_co] = field(repr=False)

    def get(self, sample: Any = None) -> T_co:
        """Read the data."""
        return self.read()

    def __reduce__(self) -> tuple[Any, ...]:
        return DataLazy, (self.get(), self.name)


@dataclass(slots=True, eq=False)
class _PoolFile:
    """A file of a store. Its fetch returns the source."""

    files: _PoolFolder
    path: str
    size: int = 0
    fetch: Future[SourceInfo] = field(init=False)

    def load(self, store: FileStore[Any], fname: str) -> tuple[Any, SourceInfo]:
        if self.files.pid != os.getpid():
            return store[fname]
        try:
            source = self.fetch.result()
            packed = Path(self.path).read_bytes()
        except (CancelledError, FileNotFoundError) as error:
            if isinstance(error, EnergonStreamError):  # the store's own error
                raise
            return store[fname]  # the file made room for others
        self.files.was_read((store, fname))
        data = pickle.loads(packed) if self.files.method == "pickle" else store.decode(fname, packed)
        return data, source


class _PoolFolder:
    """Files, threads and locks of the pool in one process."""

    def __init__(self, root: str, num_workers: int, max_bytes: int, max_count: int, method: _Method) -> None:
        self.pid: int = os.getpid()
        self.method = method
        with _named_errors(root):
            os.makedirs(root, mode=0o700, exist_ok=True)
            self._folder = folder = tempfile.mkdtemp(prefix=f"{process_mark()}-", dir=root)
        Finalize(self, shutil.rmtree, (self._folder, True), exitpriority=0)
        self._fetcher = Fetcher(num_workers)
        self._max_bytes, self._max_count = max_bytes, max_count
        self._lock = threading.RLock()  # a finalizer of a StoredLazy may run in a thread that holds it
        self._paths = (os.path.join(folder, str(number)) for number in itertools.count())
        self._bytes = 0
        self._unread: OrderedDict[tuple[FileStore[Any], str], _PoolFile] = OrderedDict()
        self._read: OrderedDict[tuple[FileStore[Any], str], _PoolFile] = OrderedDict()

    def fetch(self, store: FileStore[Any], fname: str) -> _PoolFile:
        """Return the file of a name, and begin to fetch it if it is new."""
        key = store, fname
        with self._lock:
            file = self._read.get(key) or self._unread.get(key)
            if file is None:
                self._unread[key] = file = _PoolFile(self, next(self._paths))
                file.fetch = self._fetcher.call(partial(self._run, file, store, fname))
                self._make_room()
        return file

    def keep(self, data: Any, name: str) -> Lazy[Any]:
        """Write data that comes from no store."""
        packed = pickled(data)
        if len(packed) > self._max_bytes:
            return DataLazy(data, name)
        with self._lock:
            self._bytes += len(packed)
            self._make_room()
            path = next(self._paths)
            if self._bytes > self._max_bytes:  # data like this alone fills the pool
                self._bytes -= len(packed)
                return DataLazy(data, name)
        _write(path, packed)
        lazy: StoredLazy[Any] = StoredLazy(name, partial(_unpickle, path))
        weakref.finalize(lazy, self._drop, path, len(packed)).atexit = False
        return lazy

    def was_read(self, key: tuple[FileStore[Any], str]) -> None:
        """Note that a file was read: it is now among the first to make room."""
        with self._lock:
            file = self._unread.pop(key, None) or self._read.pop(key, None)
            if file is not None:
                self._read[key] = file

    def close(self) -> None:
        """End the fetches and remove the files."""
        self._fetcher.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, file: _PoolFile, store: FileStore[Any], fname: str) -> SourceInfo:
        """Fetch a file, in a thread."""
        try:
            packed, source = self._packed(store, fname)
            if len(packed) <= self._max_bytes:
                _write(file.path, packed)
        except BaseException:
            with self._lock:  # the next one who asks tries again
                self._unread.pop((store, fname), None)
            raise
        with self._lock:
            if self._unread.get((store, fname)) is file and len(packed) <= self._max_bytes:
                file.size = len(packed)
                self._bytes += file.size
                self._make_room()
            else:  # the file made room for others while it was fetched
                _remove(file.path)
        return source

    def _packed(self, store: FileStore[Any], fname: str) -> tuple[Any, SourceInfo]:
        if self.method == "pickle":
            data, source = store[fname]
            return pickled(data), source
        data, source = store.read(fname)
        if not isinstance(data, bytes):
            raise ConfigError(
                f"the store returns {type(data).__name__}, and method='raw' keeps bytes",
                where=store.get_path(),
                hint="use method='pickle'",
            )
        return data, source

    def _make_room(self) -> None:
        """Remove files until the limits hold, read ones first."""
        while self._bytes > self._max_bytes or len(self._read) + len(self._unread) > self._max_count:
            files = self._read or self._unread
            if not files:
                return
            _, file = files.popitem(last=False)
            file.fetch.cancel()
            self._bytes -= file.size
            _remove(file.path)

    def _drop(self, path: str, size: int) -> None:
        if self.pid == os.getpid():
            with self._lock:
                self._bytes -= size
            _remove(path)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


@contextmanager
def _named_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the cache pool cannot write: {error.strerror}",
            where=path,
            hint="check parent_cache_dir and the room on its disk, or lower max_cache_size_gbytes",
        ) from error


def _write(path: str, data: bytes) -> None:
    with _named_errors(path):
        Path(path).write_bytes(data)


def _unpickle(path: str) -> Any:
    try:
        return pickle.loads(Path(path).read_bytes())  # written by this process
    except FileNotFoundError as error:
        raise StorageError(
            "data stored with to_cache() is gone", where=path, hint="call get() before closing the cache pool"
        ) from error
