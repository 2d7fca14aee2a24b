"""Targets to obstore's clients."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from energon_stream.storage._obstore_target import Target

__all__ = ["make_client"]


def make_client(target: Target) -> Any:
    """A client; no request is made."""
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    client_options: Any = dict(target.client_options)
    if "default_headers" in client_options:
        client_options["default_headers"] = dict(client_options["default_headers"])
    # One retry layer, ours. (obstore's would also repeat without our counting it.)
    common: Any = {
        "client_options": client_options,
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(minutes=3)},
    }
    config: Any = dict(target.config)
    if target.kind == "http":
        return HTTPStore.from_url(target.root, **common)
    if target.kind == "gcs":
        return GCSStore(target.root, config=config, **common)
    if target.kind == "azure":
        return AzureStore(target.root, config=config, **common)
    provider: Any = target.credentials
    return S3Store(target.root, config=config, credential_provider=provider, **common)
