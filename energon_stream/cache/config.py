"""Configuration of the disk cache."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from energon_stream.cache.records import LARGEST_BLOCK, LINE_BYTES
from energon_stream.errors import ConfigError
from energon_stream.quantities import parse_size
from energon_stream.urls import absolute_path


def node_directory() -> str:
    """Return ``ENERGON_STREAM_CACHE_DIR``, else ``energon_stream`` in ``XDG_CACHE_HOME`` (``~/.cache``).

    A process without a home folder gets one in the system's folder for temporary files, by its user's number.
    """
    named = os.environ.get("ENERGON_STREAM_CACHE_DIR")
    if not named:
        named = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "energon_stream")
        if os.path.expanduser(named).startswith("~"):
            named = os.path.join(tempfile.gettempdir(), f"energon_stream-{os.getuid()}")
    return absolute_path(named)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Directory, size and policy of the disk cache of a node. Sizes are numbers of bytes or texts such as
    ``"200GB"``.

    All processes of a node that name the same directory share one cache. The directory belongs on a local
    disk.

    Attributes:
        directory: Folder of the cache; made if it is absent. You may move it, or delete it while no process
            uses it.
        max_bytes: Disk space for all processes together; None for all but ``min_free_bytes``.
        policy: ``"pin"``: data that came first stays, and only data that no running process uses makes room.
            Best for data that is read again and again in new orders. ``"lru"``: the least recently used data
            makes room.
        min_free_bytes: Bytes of the disk that stay free for others.
        block_bytes: Size of a block, which is one file and is evicted as a whole; a multiple of 128 KiB.
        wait_seconds: How long to wait for another process that is downloading the same bytes, before
            downloading them as well.

    Raises:
        ConfigError: A value cannot be used; the message names it.

    Example:
        >>> from energon_stream import CacheConfig
        >>> CacheConfig("/tmp/cache", "1.5GiB").quota
        1610612736
    """

    directory: str
    max_bytes: int | str | None = None
    policy: Literal["pin", "lru"] = "pin"
    min_free_bytes: int | str = 5_000_000_000
    block_bytes: int | str = 32 << 20
    wait_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.directory, (str, os.PathLike)) or not os.fspath(self.directory):
            raise ConfigError(f"the cache directory is {self.directory!r}", hint="Name a folder.")
        directory = absolute_path(os.fspath(self.directory))
        object.__setattr__(self, "directory", directory)
        if self.policy not in ("pin", "lru"):
            raise ConfigError(f"unknown cache policy {self.policy!r}", hint="Use 'pin' or 'lru'.")
        if self.max_bytes is not None:
            object.__setattr__(self, "max_bytes", parse_size(self.max_bytes, "max_bytes"))
        object.__setattr__(self, "min_free_bytes", parse_size(self.min_free_bytes, "min_free_bytes"))
        object.__setattr__(self, "block_bytes", parse_size(self.block_bytes, "block_bytes"))
        if not 0 < self.block <= LARGEST_BLOCK or self.block % LINE_BYTES:
            raise ConfigError(
                f"block_bytes is {self.block_bytes}", hint="Use a multiple of 128 KiB, up to 1 GiB."
            )
        if self.quota is not None and self.quota < LINE_BYTES:
            raise ConfigError(f"max_bytes is {self.max_bytes}", hint="Use at least 128 KiB, or no cache.")
        if not 0 <= self.wait_seconds < math.inf:
            raise ConfigError(f"wait_seconds is {self.wait_seconds}", hint="Use 0 or more seconds.")

    @property
    def quota(self) -> int | None:
        """``max_bytes`` as a number; None for no limit."""
        return cast("int | None", self.max_bytes)

    @property
    def floor(self) -> int:
        """``min_free_bytes`` as a number."""
        return cast("int", self.min_free_bytes)

    @property
    def block(self) -> int:
        """``block_bytes`` as a number."""
        return cast("int", self.block_bytes)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> CacheConfig | None:
        """Return the configuration in ``ENERGON_STREAM_CACHE_DIR`` and ``ENERGON_STREAM_CACHE_SIZE``.

        Returns:
            None if the first one is not set.

        Raises:
            ConfigError: Only the size is set, or it is not a size.
        """
        directory = environment.get("ENERGON_STREAM_CACHE_DIR")
        size = environment.get("ENERGON_STREAM_CACHE_SIZE") or None
        if directory:
            return cls(directory, size)
        if size:
            raise ConfigError(
                "ENERGON_STREAM_CACHE_SIZE is set and ENERGON_STREAM_CACHE_DIR is not",
                hint="Set both, or neither.",
            )
        return None
