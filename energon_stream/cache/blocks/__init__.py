"""Fetched bytes, kept on a node's disk by blocks; knows objects and bytes, nothing of datasets."""

from energon_stream.cache.blocks.block_cache import BlockCache
from energon_stream.cache.blocks.cached_store import CachedStore
from energon_stream.cache.blocks.config import CacheConfig
from energon_stream.cache.blocks.counters import CacheSnapshot
from energon_stream.cache.blocks.identity import ObjectIdentity
from energon_stream.cache.blocks.layer import CacheLayer, shared_cache
from energon_stream.cache.blocks.policy import plan_shares

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
