"""Findings about a server that no signed request tells: its clock, and the region of a bucket."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from energon_stream.errors import EnergonStreamError
from energon_stream.storage import server_of
from energon_stream.tools.doctor.findings import Finding, Level

_SECONDS = 5.0
_SKEW_REFUSED, _SKEW_ODD = 300.0, 30.0
"""Seconds between two clocks at which signatures are refused, and at which that is near."""


def check_server(url: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what a server of S3 tells; nothing if it does not answer, or for other stores."""
    try:
        server = server_of(url, options)
    except EnergonStreamError:
        return
    if server is None:
        return
    begin = time.time()
    headers = _ask(server.endpoint, server.bucket)
    if headers is None:
        return
    date = headers.get("date")
    if date is not None:
        yield _check_clock(date, (begin + time.time()) / 2)
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


def _ask(endpoint: str, bucket: str) -> dict[str, str] | None:
    """Return the headers of the answer to an unsigned request for a bucket, with names in lower case."""
    parts = urlsplit(endpoint)
    if parts.hostname is None:
        return None
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_SECONDS)
    try:
        connection.request("HEAD", f"/{bucket}")
        return {name.lower(): value for name, value in connection.getresponse().getheaders()}
    except (OSError, HTTPException):
        return None  # the signed request says why
    finally:
        connection.close()


def _check_clock(date: str, now: float) -> Finding:
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
