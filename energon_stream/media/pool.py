"""Cache pools: fetch data that cookers need, and keep it until they use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from energon_stream.media.lazy import DataLazy, DirectLazy, Lazy

if TYPE_CHECKING:
    from energon_stream.media.file_store import FileStore


class CachePool(ABC):
    """Fetches data of file stores, now or in the background. Pass one to ``get_loader(cache_pool=…)``.

    Example:
        >>> from energon_stream import NoCachePool, SystemFileStore
        >>> pool = NoCachePool()
        >>> pool.get(SystemFileStore("."), "mix.yaml")[:10]
        b'__module__'
    """

    def get(self, store: FileStore[Any], fname: str, sample: Any = None) -> Any:
        """Return the data of a name, and add its source to ``sample``."""
        return self.get_lazy(store, fname).get(sample)

    @abstractmethod
    def get_lazy(self, store: FileStore[Any], fname: str) -> Lazy[Any]:
        """Return a handle of the data of a name."""

    @abstractmethod
    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
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

    def get_lazy(self, store: FileStore[Any], fname: str) -> DirectLazy[Any]:
        """Return a handle that reads at ``get()``."""
        return DirectLazy(store, fname)

    def to_cache(self, data: Any, name: str) -> DataLazy[Any]:
        """Keep the data in memory."""
        return DataLazy(data, name)

    def close(self) -> None:
        """Do nothing."""


_NONE = NoCachePool()
_active: CachePool = _NONE


def active_pool() -> CachePool:
    """Return the pool of the running loader."""
    return _active


@contextmanager
def use_pool(pool: CachePool | None) -> Iterator[None]:
    """Make a pool the active one within a ``with`` block; None for one that keeps nothing."""
    global _active
    outer, _active = _active, pool or _NONE
    try:
        yield
    finally:
        _active = outer
