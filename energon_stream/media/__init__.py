"""File stores, which look up files by name beside the samples, and pools that fetch them ahead."""

from energon_stream.media.file_pool import FileCacheLazy, FileStoreCachePool
from energon_stream.media.file_store import (
    AuxStores,
    DecodeFileStore,
    Decoder,
    FileStore,
    FolderFileStore,
    PrimaryFileStore,
    key_in_shard,
)
from energon_stream.media.pool import (
    CachePool,
    DirectLazy,
    Lazy,
    MockLazy,
    NoCachePool,
    active_pool,
    use_pool,
)
from energon_stream.media.ranged_file import FilePlace, RangedFile, open_once
