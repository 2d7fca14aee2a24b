"""A cache as what reads go through: a value that travels to the processes that read."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from energon_stream.cache.block_cache import BlockCache
from energon_stream.cache.cached_store import CachedStore
from energon_stream.cache.config import CacheConfig
from energon_stream.cache.versions import Versions
from energon_stream.storage import Store
from energon_stream.storage.fork import PerProcess

__all__ = ["CacheLayer", "shared_cache"]

_CACHES: PerProcess[BlockCache] = PerProcess()


def shared_cache(config: CacheConfig) -> BlockCache:
    """The one cache of this process with this configuration; not to be closed by one of its users."""
    return _CACHES.map(config, lambda: BlockCache(config))


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """Reads stores through a cache.

    Attributes:
        config: The cache.
        since: When the run began, in seconds since the epoch: objects have the versions that they had then or later.
    """

    config: CacheConfig
    since: float = field(default_factory=time.time)

    def __call__(self, store: Store) -> Store:
        """A store that reads the given one through the cache."""
        cache = shared_cache(self.config)
        return CachedStore(store, cache, Versions(self.config.directory, store, self.since))
