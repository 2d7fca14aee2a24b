"""A request-counting S3 stand-in on loopback, with adjustable speed and faults.

On the command line: ``python -m energon_stream.testing.s3server --port 9100 --root FOLDER --latency 0.05``.
It checks no signatures, and is for tests only.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from energon_stream.errors import ConfigError, StorageError
from energon_stream.testing._faults import Rule
from energon_stream.testing._http import LoopbackServer, run_in_thread, url_of
from energon_stream.testing._s3api import S3Api
from energon_stream.testing._s3objects import FolderObjects, MemoryObjects, Objects
from energon_stream.testing._s3traffic import (
    CONTROL_PATH,
    QUIET_HEADER,
    LogEntry,
    ServerCounters,
    Shaping,
    Traffic,
    serve,
)

__all__ = ["FolderObjects", "LogEntry", "Rule", "S3Control", "S3Server", "ServerCounters", "Shaping"]

_Root: TypeAlias = str | os.PathLike[str] | Objects | None


class S3Control:
    """Controls a running stand-in server, in any process; its own requests are neither counted nor shaped.

    Args:
        endpoint_url: ``http://127.0.0.1:PORT``.
    """

    def __init__(self, endpoint_url: str) -> None:
        self.endpoint_url: str = endpoint_url

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for fsspec's ``s3``. The server checks no keys, so any will do."""
        return {
            "key": "test",
            "secret": "test",
            "endpoint_url": self.endpoint_url,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def shaping(self) -> Shaping:
        """Return the present speed and random faults."""
        return Shaping(**self._control("shaping"))

    def shape(self, **changes: Any) -> None:
        """Change fields of :class:`Shaping`; the sequence of random faults starts again.

        Raises:
            ConfigError: An unknown field or an impossible value.
        """
        current = self.shaping()
        try:
            self._control("shape", asdict(replace(current, **changes)))
        except TypeError as error:
            raise ConfigError(str(error), hint=f"known are {', '.join(asdict(current))}") from error

    def add_rule(self, rule: Rule) -> None:
        """Add a targeted fault."""
        self._control("rule", asdict(rule))

    def fail_next(self, count: int, status: int = 503) -> None:
        """Answer the next ``count`` requests, of any kind, with an error."""
        self.add_rule(Rule("status", times=count, status=status))

    def clear_rules(self) -> None:
        """Remove all targeted faults."""
        self._control("clear")

    def hold(self) -> None:
        """Answer no request until :meth:`release`; requests of controls are answered all the same.

        Called again, it answers the requests that are held, and holds later ones: one round trip.
        """
        self._control("hold")

    def release(self) -> None:
        """Answer the requests that were held."""
        self._control("release")

    def counters(self) -> ServerCounters:
        """Return the counts since the start or the last reset."""
        return ServerCounters(**self._control("counters"))

    def reset_counters(self) -> None:
        """Start counting anew, and empty the log."""
        self._control("reset")

    def log(self) -> list[LogEntry]:
        """Return the last 50,000 answered requests, in the order in which their answers ended."""
        return [LogEntry(*entry) for entry in self._control("log")]

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket, unless it exists."""
        self._request("PUT", f"/{bucket}")

    def put(self, url: str, data: bytes | bytearray) -> None:
        """Store an object, or replace it; make the bucket if it is missing."""
        self.create_bucket(_split(url)[0])
        self._request("PUT", _path(url), data)

    def replace(self, url: str, data: bytes | bytearray) -> None:
        """Replace an object that exists, as another job may do in the middle of a run.

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
        with self._connection() as connection:
            for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                target = _path(f"{url.rstrip('/')}/{path.relative_to(folder).as_posix()}")
                with path.open("rb") as file:
                    _ask(connection, "PUT", target, file, path.stat().st_size)

    def _control(self, action: str, argument: dict[str, Any] | None = None) -> Any:
        return json.loads(self._request("POST", CONTROL_PATH + action, json.dumps(argument or {}).encode()))

    def _request(self, method: str, path: str, body: Any = None) -> bytes:
        with self._connection() as connection:
            return _ask(connection, method, path, body)

    def _connection(self) -> contextlib.closing[http.client.HTTPConnection]:
        address = urlsplit(self.endpoint_url).netloc
        return contextlib.closing(http.client.HTTPConnection(address, timeout=60.0, blocksize=1 << 20))


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    length: int | None = None,
) -> bytes:
    headers = {QUIET_HEADER: "1"} | ({} if length is None else {"Content-Length": str(length)})
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


class S3Server(S3Control, LoopbackServer):
    """A stand-in server that runs during a ``with`` block.

    Args:
        root: Folder whose subfolders are the buckets, or a :class:`FolderObjects`; None keeps objects in
            memory.
        port: TCP port; 0 takes a free one.
        own_process: Run in a process, not in a thread, so that the server's CPU time is not the client's.
        **shaping: First values of the fields of :class:`Shaping`.

    Example:
        >>> from energon_stream.testing.s3server import S3Server
        >>> with S3Server(first_byte_latency=0.001) as server:
        ...     server.put("s3://bucket/key", b"data")
        ...     server.fail_next(2, status=503)
        ...     server.get("s3://bucket/key"), server.counters().total
        (b'data', 0)
    """

    def __init__(
        self, root: _Root = None, *, port: int = 0, own_process: bool = False, **shaping: Any
    ) -> None:
        super().__init__("")
        self._root, self._port, self._own_process = root, port, own_process
        self._shaping = Shaping(**shaping)
        self._stop: Callable[[], None] | None = None

    def start(self) -> None:
        if self._stop is not None:
            raise ConfigError("the server runs already", where=self.endpoint_url, hint="call stop() first")
        self.endpoint_url, self._stop = self._start_process() if self._own_process else self._start_thread()

    def stop(self) -> None:
        """Stop serving, and drop objects in memory. Stopping twice is fine."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _start_thread(self) -> tuple[str, Callable[[], None]]:
        listener = socket.create_server(("127.0.0.1", self._port), backlog=1024)
        _, stop = run_in_thread(partial(_serve, listener, self._root, self._shaping), "s3-stand-in")
        return url_of(listener), stop

    def _start_process(self) -> tuple[str, Callable[[], None]]:
        command = [sys.executable, "-m", "energon_stream.testing.s3server", "--until-stdin-closes"]
        command += ["--port", str(self._port)]
        if isinstance(self._root, (str, os.PathLike)):
            command += ["--root", os.fspath(self._root)]
        elif self._root is not None:
            raise ConfigError("a server in a process of its own needs a folder", hint="use own_process=False")
        # This pipe to stdin closes however this process ends, so the server never outlives it.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline().strip() if process.stdout else ""
        if not line.startswith("http://"):
            process.kill()
            raise StorageError("the stand-in server did not start", hint="see its error on stderr")

        def stop() -> None:
            with process:  # closes the pipes, and waits
                process.kill()

        S3Control(line).shape(**asdict(self._shaping))
        return line, stop


async def _serve(listener: socket.socket, root: _Root, shaping: Shaping) -> None:
    objects = FolderObjects(root) if isinstance(root, (str, os.PathLike)) else root or MemoryObjects()
    await serve(listener, S3Api(objects), Traffic(shaping))


def main() -> None:
    """Serve until interrupted; the first line of standard output is the endpoint's URL."""
    parser = argparse.ArgumentParser(description="S3 stand-in for tests, on 127.0.0.1")
    parser.add_argument("--port", type=int, default=9100, help="0 takes a free port")
    parser.add_argument("--root", help="folder of buckets; default: objects in memory")
    parser.add_argument(
        "--latency", dest="first_byte_latency", type=float, default=0.0, help="seconds to the first byte"
    )
    parser.add_argument("--rate", type=float, help="bytes per second and connection")
    for fault in ("503", "reset", "truncate"):
        parser.add_argument(f"--share-{fault}", type=float, default=0.0, help="share of object reads")
    parser.add_argument("--slow-tail", type=float, nargs=2, default=(0.0, 1.0), metavar=("SHARE", "FACTOR"))
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--until-stdin-closes", action="store_true", help="stop at the end of standard input")
    options = parser.parse_args()
    shaping = {field.name: getattr(options, field.name) for field in fields(Shaping)}
    server = S3Server(options.root, port=options.port, **shaping)
    server.serve(sys.stdin.read if options.until_stdin_closes else None)


if __name__ == "__main__":
    main()
