"""Cache pools: who fetches what cookers will need, and where it waits until then."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from energon_stream.media.file_store import FileStore
from energon_stream.media.lazy import DataLazy, DirectLazy, Lazy

__all__ = ["CachePool", "NoCachePool", "active_pool", "use_pool"]


class CachePool(ABC):
    """Gives data of file stores now or later; pass one to ``get_loader(cache_pool=…)``."""

    def get(self, store: FileStore[Any], fname: str, sample: Any = None) -> Any:
        """The data of a name, now; its source is added to ``sample``."""
        return self.get_lazy(store, fname).get(sample)

    @abstractmethod
    def get_lazy(self, store: FileStore[Any], fname: str) -> Lazy[Any]:
        """The data of a name, when it is asked for."""

    @abstractmethod
    def to_cache(self, data: Any, name: str) -> Lazy[Any]:
        """Put data away that is wanted again later.

        Args:
            data: Anything that can be pickled.
            name: What to call it.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the pool holds in this process. It may be used again."""


class NoCachePool(CachePool):
    """Keeps nothing: data is read when it is asked for. What cookers get where the loader has no pool."""

    def get_lazy(self, store: FileStore[Any], fname: str) -> DirectLazy[Any]:
        """Read at ``get()``."""
        return DirectLazy(store, fname)

    def to_cache(self, data: Any, name: str) -> DataLazy[Any]:
        """Stays in memory."""
        return DataLazy(data, name)

    def close(self) -> None:
        """Nothing to give back."""


_NONE = NoCachePool()
_active: CachePool = _NONE


def active_pool() -> CachePool:
    """The pool of the loader that is running."""
    return _active


@contextmanager
def use_pool(pool: CachePool | None) -> Iterator[None]:
    """Make a pool the active one for the length of the block; None for one that keeps nothing."""
    global _active
    outer, _active = _active, pool or _NONE
    try:
        yield
    finally:
        _active = outer
