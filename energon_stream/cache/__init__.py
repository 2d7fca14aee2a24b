"""Data beside the samples: file stores that look it up by name, and pools that fetch it ahead."""

from energon_stream.cache.file_pool import FileStoreCachePool
from energon_stream.cache.file_store import (
    DecodeFileStore,
    Decoder,
    FileStore,
    PrimaryFileStore,
    SystemFileStore,
    open_once,
)
from energon_stream.cache.lazy import DirectLazy, FileCacheLazy, Lazy, MockLazy
from energon_stream.cache.leaf_stores import LeafStores
from energon_stream.cache.pool import CachePool, NoCachePool, active_pool, use_pool

__all__ = [
    "CachePool",
    "DecodeFileStore",
    "Decoder",
    "DirectLazy",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "Lazy",
    "LeafStores",
    "MockLazy",
    "NoCachePool",
    "PrimaryFileStore",
    "SystemFileStore",
    "active_pool",
    "open_once",
    "use_pool",
]
