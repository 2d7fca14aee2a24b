"""A store as a value: picklable, comparable, and printed without credentials."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from energon_stream.errors import ConfigError
from energon_stream.storage.local import LocalStore
from energon_stream.storage.managed import ManagedStore, RetryPolicy
from energon_stream.storage.transports import Transport, open_transport
from energon_stream.storage.url import is_local, join_url, strip_credentials

if TYPE_CHECKING:
    from energon_stream.storage.base import Store
    from energon_stream.storage.counters import StorageCounters


class StoreLayer(Protocol):
    """A wrapper around stores, such as a cache; a picklable value."""

    def __call__(self, store: Store, /) -> Store:
        """Return a store that reads through this layer."""


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Names a store; :meth:`open` makes it usable in this process.

    Attributes:
        url: Local path, or any URL that fsspec or obstore can open.
        storage_options: Credentials, endpoint and the like, spelled as fsspec spells them. Never printed.
        transport: ``auto`` uses obstore for S3, GCS, Azure and HTTP if it can honour the options, and fsspec
            for everything else; see :mod:`energon_stream.storage.transports`.
        through: A layer that reads of a remote store go through, or None.

    Example:
        >>> spec = StoreSpec("s3://data").join("captions/.nv-meta")
        >>> spec
        StoreSpec('s3://data/captions/.nv-meta', transport='auto')
        >>> spec.open().head("dataset.yaml").size > 0
        True
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
        """Return the store of a path below this one, or of ``relative`` itself if that is absolute.

        A local path gets no storage options.
        """
        url = join_url(self.url, relative)
        options = None if is_local(url) else self.storage_options
        return replace(self, url=url, storage_options=options)

    def open(self, *, policy: RetryPolicy | None = None, counters: StorageCounters | None = None) -> Store:
        """Open the store. This makes no request.

        A remote store retries and counts. All stores of one bucket with equal options share one client, which
        belongs to the process that makes the requests.

        Args:
            policy: Retries; default ``RetryPolicy()``.
            counters: Counters of the requests; default those of the process.

        Raises:
            ConfigError: Storage options for a local path.
            UnsupportedStoreError: No transport for the scheme, or the requested transport cannot honour an
                option.
        """
        if is_local(self.url):
            if self.storage_options:
                raise ConfigError(
                    f"local files have no storage options, got {sorted(self.storage_options)}", where=self.url
                )
            return LocalStore(self.url)
        opener = functools.partial(open_transport, self.url, dict(self.storage_options or {}), self.transport)
        store = ManagedStore(opener, policy or RetryPolicy(), counters)
        return store if self.through is None else self.through(store)
