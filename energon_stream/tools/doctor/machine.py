"""Findings about this machine: the cache's disk, descriptors, shared memory."""

from __future__ import annotations

import os
import resource
import shutil
from typing import TYPE_CHECKING

from energon_stream.cache import BlockCache
from energon_stream.errors import EnergonStreamError
from energon_stream.tools.doctor.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from energon_stream.cache import CacheConfig

_FEW_FILES = 4096
"""Descriptors below which a process with many workers, connections and cached blocks may run out."""
_SMALL_SHARED_MEMORY = 256 << 20


def check_machine(cache: CacheConfig | None) -> Iterator[Finding]:
    """Yield the findings."""
    yield _check_cache(cache)
    yield _check_files()
    yield _check_shared_memory()


def _check_cache(config: CacheConfig | None) -> Finding:
    name = "cache"
    if config is None:
        return Finding(
            name,
            "ok",
            "no cache is configured",
            "Data that is read more than once can be kept: set ENERGON_STREAM_CACHE_DIR.",
        )
    try:
        BlockCache(config).counters()
    except EnergonStreamError as error:
        return Finding(name, "error", error.what, error.hint or "")
    disk = shutil.disk_usage(config.directory)
    room = disk.free - config.floor
    shown = (
        f"{config.directory} has {disk.free / 1e9:,.1f} GB free, of which {config.floor / 1e9:,.1f} stay free"
    )
    if room <= 0:
        return Finding(
            name,
            "error",
            f"{shown}: nothing more is kept",
            "Free the disk, name a folder on another one, or lower min_free_bytes.",
        )
    if config.quota is not None and room < config.quota:
        return Finding(
            name,
            "warning",
            f"{shown}, and the cache may use {config.quota / 1e9:,.1f} GB",
            "The disk is full before the cache is: free it, or lower ENERGON_STREAM_CACHE_SIZE.",
        )
    return Finding(name, "ok", shown)


def _check_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _FEW_FILES:
        return Finding(
            "open files",
            "warning",
            f"this process may open {soft:,}",
            f"Raise the limit to {_FEW_FILES:,} or more: `ulimit -n`; the system allows {hard:,}.",
        )
    return Finding("open files", "ok", f"this process may open {soft:,}")


def _check_shared_memory() -> Finding:
    name, folder = "shared memory", "/dev/shm"
    if not os.path.isdir(folder):
        return Finding(name, "ok", f"this system has no {folder}")
    size = shutil.disk_usage(folder)
    shown = f"{folder} has {size.free / 1e6:,.0f} MB free of {size.total / 1e6:,.0f} MB"
    if size.free < _SMALL_SHARED_MEMORY:
        return Finding(
            name,
            "warning",
            shown,
            "Batches do not need it, but PyTorch's own loaders and NCCL do: start containers with --shm-size=1g.",
        )
    return Finding(name, "ok", shown)
