"""Stores as values, and one table that says which transports can open a URL, by its scheme."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, TypeAlias

from energon_stream.errors import ConfigError, UnsupportedStoreError
from energon_stream.logs import log_once
from energon_stream.printable import strip_credentials
from energon_stream.storage.contact import known_stores
from energon_stream.storage.counters import StorageCounters
from energon_stream.storage.local import LocalStore
from energon_stream.storage.managed import ManagedStore
from energon_stream.storage.obstore_use import obstore_usable
from energon_stream.storage.retry import RetryPolicy, retry_deadline
from energon_stream.storage.store import Store
from energon_stream.urls import is_local, join_url, path_text, url_scheme

_log = logging.getLogger(__name__)

Transport = Literal["auto", "fsspec", "obstore"]
StoreFactory: TypeAlias = Callable[[str, Mapping[str, Any]], Store]
"""Opens a store from URL and options; raises ``UnsupportedStoreError`` for options it cannot honour."""
StoreLayer: TypeAlias = Callable[[Store], Store]
"""Returns a store that reads through a layer, such as a cache; a picklable value."""


def _lazy(module: str, name: str) -> StoreFactory:
    """Import a transport when it is used: fsspec, s3fs and obstore take long to import."""

    def open_store(url: str, options: Mapping[str, Any]) -> Store:
        try:
            found = import_module(f"energon_stream.storage.{module}")
        except ModuleNotFoundError as error:  # obstore has no wheels for each Python
            raise UnsupportedStoreError(
                f"{error.name} is not installed", where=url, hint="Install it, or use transport='auto'."
            ) from error
        store: Store = getattr(found, name)(url, options)
        return store

    return open_store


_obstore = _lazy("_obstore", "ObstoreStore")
_s3fs = _lazy("_s3fs", "S3fsStore")
_fsspec = _lazy("_fsspec", "FsspecStore")
_hf = _lazy("_hf", "HfStore")

_OF_SCHEMES = ("gs", "gcs", "az", "abfs", "abfss", "http", "https")
_TABLE: dict[str, Mapping[str, StoreFactory]] = {
    **{scheme: {"obstore": _obstore, "fsspec": _s3fs} for scheme in ("s3", "s3a")},
    **{scheme: {"obstore": _obstore, "fsspec": _fsspec} for scheme in _OF_SCHEMES},
    "hf": {"fsspec": _hf},
}
"""Stores by scheme and transport. ``auto`` takes the first that supports the URL and the options. Schemes
that are not here belong to fsspec; local paths need no transport."""


@functools.cache
def _other_stores(scheme: str) -> Mapping[str, StoreFactory]:
    """Return the row of a scheme that is not in the table: an installed package's store, or else fsspec's."""
    for found in entry_points(group="energon_stream.stores", name=scheme):
        try:
            return {"registered": found.load()}
        except (ImportError, AttributeError) as error:
            raise UnsupportedStoreError(
                f"the store for {scheme}:// URLs cannot be imported: {found.value} ({error})",
                hint="Repair or remove the package that offers it.",
            ) from error
    return {"fsspec": _fsspec}


def register_store(scheme: str, factory: StoreFactory) -> None:
    """Open URLs of a scheme with a store of your own, with ``transport="auto"``.

    Worker processes that are spawned must register it as well: call this where a module that they import is
    loaded. An installed package can name its store by an entry point of the group ``energon_stream.stores``
    instead, such as ``nas = "my_package:open_nas"``; it is imported when a URL of the scheme is opened.

    Args:
        scheme: Scheme of the URLs, such as ``"nas"`` for ``nas://…``. Known schemes may be replaced.
        factory: Called with the URL and the storage options, once per store and process. The library adds
            retries, counters and concurrency; see :mod:`energon_stream.storage.store`.

    Raises:
        ConfigError: The scheme is ``file`` or ``local``.

    Example:
        >>> from energon_stream.storage import LocalStore, StoreSpec, register_store
        >>> register_store("nas", lambda url, options: LocalStore(url.removeprefix("nas://")))
        >>> bytes(StoreSpec("nas://captions/.nv-meta").open().get("dataset.yaml").data)[:11]
        b'sample_type'
    """
    if is_local(f"{scheme}://"):
        raise ConfigError(
            f"{scheme}:// URLs name local files, which need no store", hint="Choose another scheme."
        )
    _TABLE[scheme.lower()] = {"registered": factory}


def open_transport(url: str, options: Mapping[str, Any], transport: Transport = "auto") -> Store:
    """Open a remote store, without retries and counters."""
    scheme = url_scheme(url)
    row = _TABLE.get(scheme) or _other_stores(scheme)
    if transport != "auto":
        if transport not in row:
            raise UnsupportedStoreError(
                f"the {transport} transport does not know this kind of URL",
                where=url,
                hint="Use transport='auto'.",
            )
        return row[transport](url, options)
    *first_choices, last_choice = row.items()
    for name, factory in first_choices:
        try:
            return factory(url, options)
        except UnsupportedStoreError as error:
            _log.debug("%s is not read through %s: %s", strip_credentials(url), name, error)
            if not obstore_usable():
                log_once(
                    _log,
                    "process %d reads through fsspec, which costs more CPU: its parent had used obstore before "
                    "the fork. Make the parent's requests with run_isolated(), or start workers with 'spawn'.",
                    os.getpid(),
                )
    return last_choice[1](url, options)


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Names a store; :meth:`open` makes it usable in this process.

    A pickled copy carries whether the store has answered: a process that gets it waits for a store that is
    down, where one that knows nothing of the store would suppose that it does not exist.

    Example:
        >>> spec = StoreSpec("s3://data").join("captions/.nv-meta")
        >>> spec
        StoreSpec('s3://data/captions/.nv-meta', transport='auto')
        >>> spec.open().head("dataset.yaml").size > 0
        True
    """

    url: str  # local path, or any URL that fsspec or obstore can open
    # Credentials, endpoint and so on, spelled as fsspec spells them. Never printed.
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)
    transport: Transport = "auto"  # the faster one of those that can honour the options
    through: StoreLayer | None = field(default=None, repr=False, compare=False)  # of remote reads
    # Seconds from a request's first failure to its last attempt; None: see :func:`retry_deadline`.
    retry_deadline: float | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", path_text(self.url))
        if self.transport not in ("auto", "fsspec", "obstore"):
            raise ConfigError(
                f"unknown transport {self.transport!r}", hint="Use 'auto', 'fsspec' or 'obstore'."
            )

    def __repr__(self) -> str:
        return f"StoreSpec({strip_credentials(self.url)!r}, transport={self.transport!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        values = self.url, self.storage_options, self.transport, self.through, self.retry_deadline
        return _unpickled, (values, _contact_key(self) in known_stores)

    def join(self, relative: str) -> StoreSpec:
        """Return the store of a path below this one, or of ``relative`` itself if that is absolute."""
        url = join_url(self.url, relative)
        return replace(self, url=url, storage_options=None if is_local(url) else self.storage_options)

    def open(self, *, policy: RetryPolicy | None = None, counters: StorageCounters | None = None) -> Store:
        """Open the store. This makes no request.

        A remote store retries by ``policy``, by default with the deadline of the store, and counts in
        ``counters``, by default the process's. All stores of one bucket with equal options share one client,
        which belongs to the process that makes the requests.

        Raises ConfigError if a local path has storage options, or the deadline is impossible, and
        UnsupportedStoreError if no transport, or not the requested one, can open the URL with the options.
        """
        if is_local(self.url):
            if self.storage_options:
                raise ConfigError(
                    f"local files have no storage options, got {sorted(self.storage_options)}", where=self.url
                )
            return LocalStore(self.url)
        opener = partial(open_transport, self.url, dict(self.storage_options or {}), self.transport)
        policy = policy or RetryPolicy(deadline=retry_deadline(self.retry_deadline))
        store = ManagedStore(opener, policy, counters, _contact_key(self))
        return store if self.through is None else self.through(store)


def _contact_key(spec: StoreSpec) -> str:
    """Return a name for bucket, server and credentials of a store, in which nothing of them can be read."""
    scheme, _, rest = spec.url.partition("://")
    options = json.dumps(dict(spec.storage_options or {}), sort_keys=True, default=repr)
    variables = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_CONNECTION_STRING"]
    variables += ["GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST"]
    parts = scheme, rest.partition("/")[0], options, *map(os.environ.get, variables)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _unpickled(values: tuple[Any, ...], has_answered: bool) -> StoreSpec:
    spec = StoreSpec(*values)
    if has_answered:
        known_stores.add(_contact_key(spec))
    return spec
