"""botocore's descriptions of services: read once, though every file system of s3fs has a session of its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

__all__ = ["botocore_session", "load_models"]

# What a client of S3 is made of, as botocore.client and botocore.session ask for it.
_SERVICE_FILES = ("service-2", "endpoint-rule-set-1")
_FILES = ("endpoints", "partitions", "sdk-default-configuration", "_retry")


def botocore_session(arguments: Mapping[str, Any]) -> Any:
    """A session such as s3fs makes, but for the shared descriptions."""
    from aiobotocore.session import AioSession

    session = AioSession(**arguments)
    # As botocore does it: not before the first client, because the lookup reads the user's configuration.
    session._components.lazy_register_component(
        "data_loader", lambda: _loader(session.get_config_variable("data_path"))
    )
    return session


def load_models() -> None:
    """Read now what the first client of S3 would read."""
    loader = _loader(None)
    for name in _SERVICE_FILES:
        loader.load_service_model("s3", name, api_version=None)
    for name in _FILES:
        loader.load_data(name)


@functools.lru_cache(maxsize=4)
def _loader(data_path: str | None) -> Any:
    """Reads JSON files and keeps them: nothing but data, which may cross a fork."""
    from botocore.loaders import create_loader

    return create_loader(data_path)
