"""The server that an S3 URL names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from energon_stream.storage._obstore_config import resolve_config


class Server(NamedTuple):
    """The server that gets the requests for an S3 URL."""

    endpoint: str  # URL of the server
    bucket: str
    region: str  # region that requests are signed for


def server_of(url: str, options: Mapping[str, Any]) -> Server | None:
    """Return the server of an S3 URL with storage options; None for other URLs.

    Raises:
        UnsupportedStoreError: An option is unknown, or the URL is of another kind.

    Example:
        >>> from energon_stream.storage import server_of
        >>> server_of("s3://data/captions", {"endpoint_url": "http://127.0.0.1:4566"})
        Server(endpoint='http://127.0.0.1:4566', bucket='data', region='us-east-1')
    """
    if not url.startswith(("s3://", "s3a://")):
        return None
    config, _ = resolve_config(url, options)
    region = str(dict(config.settings)["region"])
    endpoint = config.endpoint if "://" in config.endpoint else f"https://s3.{region}.amazonaws.com"
    return Server(endpoint, config.root, region)
