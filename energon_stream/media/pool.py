"""Cache pools, which fetch data that cookers need and keep it until they use it, and handles of such data."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from energon_stream.active_call import activated_pool
from energon_stream.threads import WorkerThread

if TYPE_CHECKING:
    from energon_stream.media.file_store import FileStore

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Lazy(ABC, Generic[T_co]):
    """A handle of data. A sample may hold it through buffers, until the data itself is needed.

    Example:
        >>> from energon_stream import NoCachePool, SystemFileStore
        >>> lazy = NoCachePool().get_lazy(SystemFileStore("s3://data"), "mix.yaml")
        >>> lazy.get()[:10]
        b'__module__'
    """

    @abstractmethod
    def get(self, sample: Any = None) -> T_co:
        """Return the data. Each call returns a value of its own.

        Args:
            sample: A sample or dict to whose ``__sources__`` the source is added.

        Raises:
            EnergonStreamError: The data could not be read or decoded, also in the background.
        """


@dataclass(frozen=True, slots=True)
class DirectLazy(Lazy[T_co]):
    """Reads the data at each call.

    Attributes:
        store: Store that has the data.
        fname: Name of the data.

    Example:
        >>> from energon_stream import DirectLazy, SystemFileStore
        >>> DirectLazy(SystemFileStore("."), "mix.yaml").get()[:10]
        b'__module__'
    """

    store: FileStore[T_co]
    fname: str

    def get(self, sample: Any = None) -> T_co:
        """Read the data; see :class:`Lazy`."""
        return self.store.get(self.fname, sample)


@dataclass(frozen=True, slots=True, eq=False)
class DataLazy(Lazy[T_co]):
    """Data in memory."""

    data: T_co = field(repr=False)
    name: str

    def get(self, sample: Any = None) -> T_co:
        """Return the data."""
        return self.data


@dataclass(frozen=True, slots=True)
class MockLazy(Lazy[T_co]):
    """Calls a function; for tests, and for data that needs no pool.

    Attributes:
        fname: Name of the data.
        get_fn: Called with the name.

    Example:
        >>> from energon_stream import MockLazy
        >>> MockLazy("a.txt", lambda name: f"text of {name}").get()
        'text of a.txt'
    """

    fname: str
    get_fn: Callable[[str], T_co]

    def get(self, sample: Any = None) -> T_co:
        """Call the function."""
        return self.get_fn(self.fname)


class CachePool(ABC):
    """Fetches data of file stores, now or in the background. Pass one to ``get_loader(cache_pool=…)``.

    Example:
        >>> from energon_stream import NoCachePool, SystemFileStore
        >>> pool = NoCachePool()
        >>> pool.get(SystemFileStore("."), "mix.yaml")[:10]
        b'__module__'
    """

    def get(self, ds: FileStore[T_co], fname: str, sample: Any = None) -> T_co:
        """Return the data of a name, and add its source to ``sample``."""
        return self.get_lazy(ds, fname).get(sample)

    @abstractmethod
    def get_lazy(self, ds: FileStore[T_co], fname: str) -> Lazy[T_co]:
        """Return a handle of the data of a name."""

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Store data for later use.

        Args:
            data: Any picklable value.
            name: Name of the data.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the files and threads of this process. The pool may be used again."""


class NoCachePool(CachePool):
    """Keeps nothing and reads data when it is needed. The default of loaders.

    Example:
        >>> from energon_stream import NoCachePool, SystemFileStore
        >>> NoCachePool().get_lazy(SystemFileStore("."), "mix.yaml").get()[:10]
        b'__module__'
    """

    def get_lazy(self, ds: FileStore[T_co], fname: str) -> DirectLazy[T_co]:
        """Return a handle that reads at ``get()``."""
        return DirectLazy(ds, fname)

    def to_cache(self, data: T, name: str) -> DataLazy[T]:
        """Keep the data in memory."""
        return DataLazy(data, name)

    def close(self) -> None:
        """Do nothing."""


_NONE = NoCachePool()
_active: CachePool = _NONE


def active_pool() -> CachePool:
    """Return the pool that ``WorkerConfig.worker_activate`` was given, else that of the running loader."""
    thread = threading.current_thread()
    return activated_pool() or (thread.cache_pool if isinstance(thread, WorkerThread) else None) or _active


@contextmanager
def use_pool(pool: CachePool | None) -> Iterator[None]:
    """Make a pool the active one within a ``with`` block; None for one that keeps nothing."""
    global _active
    outer, _active = _active, pool or _NONE
    try:
        yield
    finally:
        _active = outer
