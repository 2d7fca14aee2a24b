"""Transports: one table that says which stores can open a URL, by its scheme."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal, TypeAlias

from energon_stream.errors import ConfigError, UnsupportedStoreError
from energon_stream.logs import log_once
from energon_stream.storage.base import Store
from energon_stream.storage.fork import obstore_usable
from energon_stream.storage.url import is_local, strip_credentials, url_scheme

_log = logging.getLogger(__name__)

Transport = Literal["auto", "fsspec", "obstore"]
StoreFactory: TypeAlias = Callable[[str, Mapping[str, Any]], Store]
"""Opens a store from URL and options; raises ``UnsupportedStoreError`` for options it cannot honour."""


def _lazy(module: str, name: str) -> StoreFactory:
    """Import a transport when it is used: fsspec, s3fs and obstore take long to import."""

    def open_store(url: str, options: Mapping[str, Any]) -> Store:
        store: Store = getattr(import_module(f"energon_stream.storage.{module}"), name)(url, options)
        return store

    return open_store


_obstore = _lazy("_obstore", "ObstoreStore")
_s3fs = _lazy("_s3fs", "S3fsStore")
_fsspec = _lazy("_fsspec", "FsspecStore")

_CLOUD: Mapping[str, StoreFactory] = {"obstore": _obstore, "fsspec": _fsspec}
_TABLE: dict[str, Mapping[str, StoreFactory]] = {
    "s3": {"obstore": _obstore, "fsspec": _s3fs},
    "s3a": {"obstore": _obstore, "fsspec": _s3fs},
    **dict.fromkeys(("gs", "gcs", "az", "abfs", "abfss", "http", "https"), _CLOUD),
}
"""Stores by scheme and transport. ``auto`` takes the first that supports the URL and the options. Schemes
that are not here belong to fsspec; local paths need no transport."""


def register_store(scheme: str, factory: StoreFactory) -> None:
    """Open URLs of a scheme with a store of your own, with ``transport="auto"``.

    Worker processes that are spawned must register it as well: call this where a module that they import is
    loaded.

    Args:
        scheme: Scheme of the URLs, such as ``"nas"`` for ``nas://…``. Known schemes may be replaced.
        factory: Called with the URL and the storage options, once per store and process. The library adds
            retries, counters and concurrency; see :mod:`energon_stream.storage.base`.

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
    """Open a remote store, without retries and counters.

    Raises:
        UnsupportedStoreError: No transport for the scheme, or the requested transport cannot honour an
            option.
    """
    row = _TABLE.get(url_scheme(url), {"fsspec": _fsspec})
    if transport != "auto":
        if transport not in row:
            raise UnsupportedStoreError(
                f"the {transport} transport does not know this kind of URL",
                where=strip_credentials(url),
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
