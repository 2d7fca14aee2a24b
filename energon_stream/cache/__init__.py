"""The disk cache of a node: keeps fetched bytes by blocks. It knows objects and ranges, and nothing of datasets."""

from energon_stream.cache.block_cache import BlockCache
from energon_stream.cache.cached_store import CachedStore
from energon_stream.cache.config import CacheConfig
from energon_stream.cache.counters import CacheSnapshot
from energon_stream.cache.identity import ObjectIdentity
from energon_stream.cache.layer import CacheLayer, shared_cache
from energon_stream.cache.policy import plan_shares

__all__ = [
    "BlockCache",
    "CacheConfig",
    "CacheLayer",
    "CacheSnapshot",
    "CachedStore",
    "ObjectIdentity",
    "plan_shares",
    "shared_cache",
]
