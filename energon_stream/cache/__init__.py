"""The disk cache of a node. It keeps byte ranges of objects in blocks, and knows nothing of datasets."""

from energon_stream.cache.block_cache import BlockCache, CacheSnapshot
from energon_stream.cache.cached_store import CachedStore, CacheLayer, cache_counters, shared_cache
from energon_stream.cache.config import CacheConfig
from energon_stream.cache.eviction import plan_shares
from energon_stream.cache.object_identity import ObjectIdentity
