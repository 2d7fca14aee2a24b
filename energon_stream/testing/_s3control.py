"""A handle on a running stand-in S3 server, in whichever process it runs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from energon_stream.errors import ConfigError, StorageError
from energon_stream.testing._s3faults import LogEntry, Rule, ServerCounters, Shaping
from energon_stream.testing._s3http import CONTROL_PATH, QUIET_HEADER

__all__ = ["S3Control"]

_SECONDS = 60.0
_SEND_BLOCK = 1 << 20


class S3Control:
    """A handle on a running stand-in server, in whichever process it runs.

    What is done through the handle is neither counted nor shaped.

    Args:
        endpoint_url: ``http://127.0.0.1:PORT``.
    """

    def __init__(self, endpoint_url: str) -> None:
        self.endpoint_url = endpoint_url

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for fsspec's ``s3``; the keys are made up, because nobody checks them."""
        return {
            "key": "test",
            "secret": "test",
            "endpoint_url": self.endpoint_url,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def shaping(self) -> Shaping:
        """The speed and the random faults in force."""
        return Shaping(**self._control("shaping"))

    def shape(self, **changes: Any) -> None:
        """Change fields of :class:`Shaping`; the sequence of random faults starts again.

        Raises:
            ConfigError: An unknown field or an impossible value.
        """
        current = self.shaping()
        try:
            wanted = replace(current, **changes)
        except TypeError as error:
            raise ConfigError(str(error), hint=f"known are {', '.join(asdict(current))}") from error
        self._control("shape", asdict(wanted))

    def add_rule(self, rule: Rule) -> None:
        """Add a targeted fault."""
        self._control("rule", asdict(rule))

    def fail_next(self, count: int, status: int = 503) -> None:
        """Answer the next ``count`` requests, of any kind, with an error."""
        self.add_rule(Rule("status", times=count, status=status))

    def clear_rules(self) -> None:
        """Remove all targeted faults."""
        self._control("clear")

    def counters(self) -> ServerCounters:
        """What was counted since the start or the last reset."""
        return ServerCounters(**self._control("counters"))

    def reset_counters(self) -> None:
        """Start counting anew; the log is emptied too."""
        self._control("reset")

    def log(self) -> list[LogEntry]:
        """The answered requests, the last 50,000 of them, in the order of their ends."""
        return [LogEntry(*entry) for entry in self._control("log")]

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; an existing one stays."""
        self._request("PUT", f"/{bucket}")

    def put(self, url: str, data: bytes | bytearray) -> None:
        """Store an object, replacing what is there; a missing bucket is made."""
        self.create_bucket(_split(url)[0])
        self._request("PUT", _path(url), data)

    def replace(self, url: str, data: bytes | bytearray) -> None:
        """Put new content where an object is, as another job may do in the middle of a run.

        Raises:
            StorageError: There is no such object.
        """
        self.get(url)
        self.put(url, data)

    def get(self, url: str) -> bytes:
        """Read an object."""
        return self._request("GET", _path(url))

    def delete(self, url: str) -> None:
        """Remove an object."""
        self._request("DELETE", _path(url))

    def upload_folder(self, folder: str | os.PathLike[str], url: str) -> None:
        """Store every file below a folder under ``url``, with its relative path."""
        self.create_bucket(_split(url)[0])
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    target = _path(f"{url.rstrip('/')}/{path.relative_to(folder).as_posix()}")
                    self._request("PUT", target, file, path.stat().st_size)

    def _control(self, action: str, argument: dict[str, Any] | None = None) -> Any:
        return json.loads(self._request("POST", CONTROL_PATH + action, json.dumps(argument or {}).encode()))

    def _request(self, method: str, path: str, body: Any = None, length: int | None = None) -> bytes:
        parts = urlsplit(self.endpoint_url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=_SECONDS, blocksize=_SEND_BLOCK)
        headers = {QUIET_HEADER: "1"}
        if length is not None:
            headers["Content-Length"] = str(length)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
        if response.status >= 300:
            raise StorageError(f"the stand-in server answered {response.status}: {data!r}", where=path)
        return data


def _split(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not bucket:
        raise ConfigError(f"not an S3 URL: {url!r}", hint="write s3://bucket/key")
    return bucket, key


def _path(url: str) -> str:
    return quote("/{}/{}".format(*_split(url)))
