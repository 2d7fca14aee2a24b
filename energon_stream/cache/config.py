"""What users say about the cache."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from energon_stream.cache.records import LINE_BYTES
from energon_stream.errors import ConfigError

__all__ = ["CacheConfig", "parse_size"]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgtp])(i?)b?|b)?\s*", re.IGNORECASE)
_LARGEST_BLOCK = 1 << 30


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Where fetched bytes are kept on this node, and how many of them. Sizes may be given as ``"200GB"``.

    All processes of a node that name the same directory share it; it belongs on a local disk.

    Attributes:
        directory: Folder of the cache; made if it is absent. It may be moved, and deleted while nobody uses it.
        max_bytes: Bytes on disk that all processes together may use; None for all but ``min_free_bytes``.
        policy: ``"pin"``: what came first stays, and only what no running process uses makes room;
            best where data is read again and again in new orders. ``"lru"``: what was not used for longest goes.
        min_free_bytes: Bytes of the disk that are left free for others.
        block_bytes: Size of a block, the unit of eviction and a file each; a multiple of 128 KiB.
        wait_seconds: How long to wait for another process's download of the same bytes before fetching them
            again.
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
        directory = os.path.abspath(os.path.expanduser(self.directory))
        object.__setattr__(self, "directory", directory)
        if self.policy not in ("pin", "lru"):
            raise ConfigError(f"unknown cache policy {self.policy!r}", hint="Use 'pin' or 'lru'.")
        if self.max_bytes is not None:
            object.__setattr__(self, "max_bytes", parse_size(self.max_bytes, "max_bytes"))
        object.__setattr__(self, "min_free_bytes", parse_size(self.min_free_bytes, "min_free_bytes"))
        object.__setattr__(self, "block_bytes", parse_size(self.block_bytes, "block_bytes"))
        if not 0 < self.block <= _LARGEST_BLOCK or self.block % LINE_BYTES:
            raise ConfigError(
                f"block_bytes is {self.block_bytes}", hint="Use a multiple of 128 KiB, up to 1 GiB."
            )
        if self.quota is not None and self.quota < LINE_BYTES:
            raise ConfigError(
                f"max_bytes is {self.max_bytes}", hint="Leave room for some data, or use no cache."
            )
        if not 0 <= self.wait_seconds < math.inf:
            raise ConfigError(f"wait_seconds is {self.wait_seconds}", hint="Use 0 or more seconds.")

    @property
    def quota(self) -> int | None:
        """``max_bytes`` as a number."""
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
        """What ``ENERGON_STREAM_CACHE_DIR`` and ``ENERGON_STREAM_CACHE_SIZE`` say.

        Returns:
            None where no directory is named.

        Raises:
            ConfigError: A size without a directory, or one that is no size.
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


def parse_size(size: int | str, name: str = "size") -> int:
    """Bytes of a number, or of a text such as ``"200GB"`` (10⁹) or ``"1.5GiB"`` (2³⁰).

    Args:
        size: The number or text; not negative.
        name: What it is, for the message.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match:
            power = " kmgtp".index((match[2] or " ").lower())
            return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    elif isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    raise ConfigError(
        f"{name} is {size!r}", hint="Use a number of bytes, or a text such as '200GB' or '1.5GiB'."
    )
