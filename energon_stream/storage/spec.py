"""A store as a value: what to open, picklable, with credentials that do not show."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from energon_stream.errors import ConfigError, UnsupportedStoreError
from energon_stream.logs import log_once
from energon_stream.storage.base import Store
from energon_stream.storage.counters import StorageCounters
from energon_stream.storage.fork import obstore_usable
from energon_stream.storage.local import LocalStore
from energon_stream.storage.managed import ManagedStore
from energon_stream.storage.retry import RetryPolicy
from energon_stream.storage.url import is_local, join_url, strip_credentials

__all__ = ["StoreLayer", "StoreSpec", "Transport"]

_log = logging.getLogger(__name__)

Transport = Literal["auto", "fsspec", "obstore"]


class StoreLayer(Protocol):
    """What reads go through on their way to a store, such as a cache; a value that travels to other processes."""

    def __call__(self, store: Store, /) -> Store:
        """A store that reads the given one."""


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Names a store; ``open`` makes it usable in this process.

    Attributes:
        url: Local path or any URL that fsspec or obstore knows.
        storage_options: Credentials, endpoint and the like, spelled as fsspec spells them. Never
            shown.
        transport: ``auto`` takes obstore for S3, GCS, Azure and HTTP where it can honour the
            options, and fsspec for everything else.
        through: What reads of a remote store go through; None for nothing.
    """

    url: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    transport: Transport = "auto"
    through: StoreLayer | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.transport not in ("auto", "fsspec", "obstore"):
            raise ConfigError(
                f"unknown transport {self.transport!r}", hint="Use 'auto', 'fsspec' or 'obstore'."
            )

    def __repr__(self) -> str:
        return f"StoreSpec({strip_credentials(self.url)!r}, transport={self.transport!r})"

    def join(self, relative: str) -> StoreSpec:
        """The store of a path below this one, or of ``relative`` itself where it is absolute.

        Storage options do not follow to a local path, which has none.
        """
        url = join_url(self.url, relative)
        options = None if is_local(url) else self.storage_options
        return replace(self, url=url, storage_options=options)

    def open(self, *, policy: RetryPolicy | None = None, counters: StorageCounters | None = None) -> Store:
        """The store, ready for use; cheap, and without a connection until the first request.

        Remote stores come with retries and counters. All stores of one bucket with equal options
        share one client, which belongs to the process that makes the request.

        Args:
            policy: Retries; default ``RetryPolicy()``.
            counters: Where to count; default the counters of the process.

        Raises:
            UnsupportedStoreError: No file system for the scheme, or ``transport="obstore"`` cannot
                honour an option.
        """
        if is_local(self.url):
            if self.storage_options:
                raise ConfigError(
                    f"local files have no storage options, got {sorted(self.storage_options)}", where=self.url
                )
            return LocalStore(self.url)
        store = ManagedStore(functools.partial(_open_backend, self), policy or RetryPolicy(), counters)
        return store if self.through is None else self.through(store)


def _open_backend(spec: StoreSpec) -> Store:
    from energon_stream.storage._fsspec import open_fsspec
    from energon_stream.storage._obstore import open_obstore

    options = dict(spec.storage_options or {})
    if spec.transport == "fsspec":
        return open_fsspec(spec.url, options)
    try:
        return open_obstore(spec.url, options)
    except UnsupportedStoreError:
        if spec.transport == "obstore":
            raise
        if not obstore_usable():
            log_once(
                _log,
                "process %d reads through fsspec, which costs more CPU: its parent had used obstore before the fork. "
                "Make the parent's requests with run_isolated(), or start workers with 'spawn'.",
                os.getpid(),
            )
        return open_fsspec(spec.url, options)
