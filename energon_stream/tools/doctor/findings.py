"""Findings about a server that no signed request tells, and about this machine."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Literal
from urllib.parse import urlsplit

from energon_stream.cache import BlockCache, CacheConfig
from energon_stream.errors import EnergonStreamError
from energon_stream.printable import as_sentence
from energon_stream.storage import server_of

_SECONDS = 5.0
_SKEW_REFUSED, _SKEW_ODD = 300.0, 30.0
"""Seconds between two clocks at which signatures are refused, and at which that is near."""
_FEW_FILES = 4096
"""Descriptors below which a process with many workers, connections and cached blocks may run out."""
_SMALL_SHARED_MEMORY = 256 << 20

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    name: str  # what was looked at, such as ``clock``
    level: Level  # ``ok``, ``warning`` (it works, but not well) or ``error`` (training cannot work)
    text: str  # what was found
    hint: str = ""  # what to do about it; empty if nothing is to be done

    def __str__(self) -> str:
        hint = f". {as_sentence(self.hint)}" if self.hint else ""
        return f"{self.level:8}{self.name}: {self.text}{hint}"

    @classmethod
    def of(cls, name: str, error: EnergonStreamError) -> Finding:
        """Return what an error says."""
        return cls(name, "error", error.what, error.hint or "")


def check_server(url: str, options: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield what a server of S3 tells; nothing if it does not answer, or for other stores."""
    server = find_server(url, options)
    if server is None:
        return
    begin = time.time()
    headers = _ask(server.endpoint, server.bucket)
    date = headers.get("date")
    if date is not None:
        yield check_clock(date, (begin + time.time()) / 2)
    region = headers.get("x-amz-bucket-region")
    if region is not None and region != server.region:
        yield Finding(
            "region",
            "error",
            f"the bucket {server.bucket} is in {region}, and requests go to {server.region}",
            f"Set AWS_REGION={region}.",
        )
    elif region is not None:
        yield Finding("region", "ok", region)


def find_server(url: str, options: Mapping[str, Any] | None) -> Any:
    """Return the server of S3 that a URL and its options name; None if there is none."""
    try:
        return server_of(url, options or {})
    except EnergonStreamError:
        return None


def _ask(endpoint: str, bucket: str) -> dict[str, str]:
    """Return the reply headers of an unsigned request for a bucket, with names in lower case."""
    parts = urlsplit(endpoint)
    if parts.hostname is None:
        return {}
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_SECONDS)
    try:
        connection.request("HEAD", f"/{bucket}")
        return {name.lower(): value for name, value in connection.getresponse().getheaders()}
    except (OSError, HTTPException):
        return {}  # the signed request says why
    finally:
        connection.close()


def check_clock(date: str, now: float) -> Finding:
    """Compare a ``Date`` header with this machine's time."""
    try:
        skew = now - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return Finding("clock", "warning", "the server's Date header is no date")
    if abs(skew) < _SKEW_ODD:
        return Finding("clock", "ok", "this machine's clock agrees with the server's")
    ahead = "ahead of" if skew > 0 else "behind"
    level: Level = "error" if abs(skew) >= _SKEW_REFUSED else "warning"
    text = f"this machine's clock is {abs(skew):,.0f} s {ahead} the server's"
    return Finding("clock", level, text, "Set it, by NTP: stores refuse signatures that are minutes off.")


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
        return Finding.of(name, error)
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
