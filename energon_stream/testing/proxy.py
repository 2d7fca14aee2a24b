"""A proxy on loopback that adds faults between a client and any HTTP server, such as an S3 store.

On the command line: ``python -m energon_stream.testing.proxy http://127.0.0.1:9000 --fault 503=0.05
--fault stall=0.01,2``. It is for tests only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from threading import Event
from typing import Literal, get_args
from urllib.parse import unquote, urlsplit

from energon_stream.errors import ConfigError
from energon_stream.testing._http import Head, HttpReader, accept, reset_on_close, run_in_thread, url_of
from energon_stream.testing._proxyfaults import OUTAGES, Fault, FaultKind, all_faults
from energon_stream.testing._s3api import HttpRequest, error_response

__all__ = ["Fault", "FaultKind", "FaultProxy", "all_faults"]

_INSTEAD = ("500", "503", "416", "html", "no-answer")
_ENDING = ("reset", "truncate", "no-length")
_WRONG_ETAG = '"0123456789abcdef0123456789abcdef"'
_PIECES = 20
_PIECE_BYTES = 256 * 1024


class FaultProxy:
    """A proxy with faults before an HTTP server, which runs in a thread during a ``with`` block.

    The host of a request is passed on as it came, so signatures stay valid. Which requests have a fault
    depends on the seed and on the order of the requests alone.

    Args:
        target: URL of the server, ``http://HOST:PORT``.
        faults: Faults to add. At most one of them hits a request.
        seed: Seed of the choice.
        port: TCP port of the proxy; 0 takes a free one.

    Raises:
        ConfigError: The target is no plain HTTP URL, or the shares add up to more than one.

    Example:
        >>> from energon_stream.storage import StoreSpec
        >>> from energon_stream.testing.proxy import Fault, FaultProxy
        >>> from energon_stream.testing.s3server import S3Control, S3Server
        >>> with S3Server() as server, FaultProxy(server.endpoint_url, [Fault("503", times=2)]) as proxy:
        ...     server.put("s3://bucket/key", b"data")
        ...     options = S3Control(proxy.endpoint_url).storage_options
        ...     bytes(StoreSpec("s3://bucket", options).open().get("key").data), proxy.counts()
        (b'data', {'503': 2})
    """

    def __init__(self, target: str, faults: Sequence[Fault] = (), *, seed: int = 0, port: int = 0) -> None:
        parts = urlsplit(target)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"the proxy's target is {target!r}", hint="use http://HOST:PORT")
        self._target = parts.hostname, parts.port or 80
        self._port = port
        self._dice = Random(seed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._place: socket.socket | None = None
        self._counts = Counter[str]()
        self.requests: int = 0
        self.endpoint_url: str = ""
        self.set_faults(faults)

    def __enter__(self) -> FaultProxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start to accept connections."""
        # This socket keeps the port while the proxy refuses connections.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", self._port))
        self._port = self._place.getsockname()[1]
        self.endpoint_url = url_of(self._place)
        self._loop, self._stop = run_in_thread(partial(self._serve, self._listener()), "fault-proxy")

    def stop(self) -> None:
        """End all connections. Stopping twice is fine."""
        if self._stop is not None:
            self._stop()
            self._stop = self._loop = None
        if self._place is not None:
            self._place.close()
            self._place = None

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the faults."""
        if sum(fault.share for fault in faults if fault.times is None) > 1 + 1e-9:
            raise ConfigError("the shares of the faults add up to more than 1", hint="use smaller shares")
        self._faults = list(faults)

    def counts(self) -> dict[str, int]:
        """Return how many faults of each kind happened."""
        return dict(self._counts)

    def outage(self, kind: Literal["refuse", "freeze"], seconds: float) -> None:
        """Begin an outage now; see :class:`Fault`."""
        if self._loop is None:
            raise ConfigError("the proxy does not run", hint="call start() first")
        self._loop.call_soon_threadsafe(self._begin_outage, Fault(kind, seconds=seconds))

    # From here on, in the thread of the loop.

    def _listener(self) -> socket.socket:
        return socket.create_server(("127.0.0.1", self._port), backlog=1024)

    async def _serve(self, listener: socket.socket) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._outages = asyncio.Queue[Fault]()
        self._in_outage = False
        accepting = asyncio.ensure_future(accept(listener, self._connect))
        try:
            while True:
                fault = await self._outages.get()
                if fault.kind == "freeze":
                    self._flowing.clear()
                    await asyncio.sleep(fault.seconds)
                    self._flowing.set()
                else:
                    await _cancel(accepting)
                    await asyncio.sleep(fault.seconds)
                    accepting = asyncio.ensure_future(accept(self._listener(), self._connect))
                self._in_outage = False
        finally:
            await _cancel(accepting)

    def _begin_outage(self, fault: Fault) -> None:
        if not self._in_outage:
            self._in_outage = True
            self._counts[fault.kind] += 1
            self._outages.put_nowait(fault)

    async def _connect(self, connection: socket.socket) -> None:
        with connection:
            try:
                if self._draw("drop", "", "GET") is None:
                    await _Exchange(self, connection, self._target).run()
                    return
            except asyncio.CancelledError:
                reset_on_close(connection)
                raise
            reset_on_close(connection)

    def _draw(self, only: str | None, path: str, method: str) -> Fault | None:
        """Return the fault of a new connection (``drop``), or of a request; None for most of them."""
        dice = self._dice.random()
        for place, fault in enumerate(self._faults):
            is_candidate = (fault.kind == "drop") == (only == "drop") and fault.times != 0
            if not is_candidate or fault.method not in (None, method):
                continue
            if only is None and not fnmatchcase(path, fault.pattern):
                continue
            if dice < fault.share:
                if fault.times is not None:
                    self._faults[place] = replace(fault, times=fault.times - 1)
                if fault.kind == "drop":
                    self.count(fault)
                return fault
            dice -= fault.share
        return None

    def draw(self, path: str, method: str) -> Fault | None:
        """Return the fault of a request, and begin an outage if it is one."""
        self.requests += 1
        fault = self._draw(None, path, method)
        if fault is not None and fault.kind in OUTAGES:
            self._begin_outage(fault)
            return None
        return fault

    def count(self, fault: Fault) -> None:
        """Count a fault that happened."""
        self._counts[fault.kind] += 1

    def position(self, length: int) -> int:
        """Return a position in a body of so many bytes, at which a fault happens."""
        return int(self._dice.random() * length)

    async def flow(self) -> None:
        """Wait for the end of a freeze."""
        await self._flowing.wait()


class _Exchange:
    """The requests of one connection, passed on by one connection to the server."""

    def __init__(self, proxy: FaultProxy, connection: socket.socket, target: tuple[str, int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._proxy, self._connection, self._target = proxy, connection, target
        self._server: socket.socket | None = None

    async def run(self) -> None:
        """Serve until one side closes its connection, or a fault ends it."""
        reader = HttpReader(self._connection)
        # A ValueError is a message that cannot be parsed.
        with contextlib.suppress(EOFError, OSError, ValueError):
            try:
                while await self._serve_one(reader):
                    pass
            finally:
                if self._server is not None:
                    self._server.close()

    async def _serve_one(self, reader: HttpReader) -> bool:
        """Pass one request on; return False to end the connection."""
        head = await reader.head()
        await self._proxy.flow()
        method, target, _ = head.first.split(" ", 2)
        path = unquote(target.partition("?")[0])
        fault = self._proxy.draw(path[1:], method)
        body = await reader.request_body(head)
        await self._proxy.flow()
        if fault is not None and fault.kind in _INSTEAD:
            self._proxy.count(fault)
            return await self._answer_instead(fault, HttpRequest(method, path, {}, head.fields))
        answer, content = await self._ask(head, body, method)
        goes_on = await self._deliver(fault, answer, content)
        return goes_on and head.keeps_open and answer.keeps_open

    async def _ask(self, head: Head, body: bytearray, method: str) -> tuple[Head, bytes]:
        """Send a request to the server, and return its answer."""
        length = str(len(body)) if body or head.is_chunked or head.length is not None else None
        sent = head.changed(expect=None, transfer_encoding=None, content_length=length)
        for attempt in range(2):
            is_new = self._server is None
            if self._server is None:
                self._server = socket.socket()
                self._server.setblocking(False)
                self._server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._loop.sock_connect(self._server, self._target)
            try:
                await self._loop.sock_sendall(self._server, sent.encode() + body)
                return await self._receive(HttpReader(self._server), method)
            except (EOFError, OSError):  # the server had closed an idle connection
                self._server.close()
                self._server = None
                if is_new or attempt:
                    raise
        raise EOFError

    async def _receive(self, reader: HttpReader, method: str) -> tuple[Head, bytes]:
        answer = await reader.head()
        status = answer.first.split(" ", 2)[1]
        if method == "HEAD" or status in ("204", "304"):
            return answer, b""
        if answer.is_chunked:
            body = await reader.chunks()
            length = str(len(body))
            return answer.changed(transfer_encoding=None, content_length=length), bytes(body)
        body = await (reader.rest() if answer.length is None else reader.exactly(answer.length))
        return answer, bytes(body)

    async def _answer_instead(self, fault: Fault, request: HttpRequest) -> bool:
        if fault.kind == "no-answer":
            reset_on_close(self._connection)
            return False
        status, kind, content = 200, "text/html", b"<html><body>Please log in.</body></html>"
        if fault.kind != "html":
            response = error_response(int(fault.kind), request.path)
            status, kind, content = response.status, "application/xml", bytes(response.body)
        lines = [f"Content-Type: {kind}", f"Content-Length: {len(content)}"]
        head = Head(f"HTTP/1.1 {status} Fault", lines)
        await self._send(head.encode() + (b"" if request.method == "HEAD" else content))
        return True

    async def _deliver(self, fault: Fault | None, answer: Head, content: bytes) -> bool:
        """Send an answer with its fault; return False if that ends the connection."""
        if fault is None or not _applies(fault.kind, answer, content):
            await self._send(answer.encode() + content)
            return True
        self._proxy.count(fault)
        kind, at = fault.kind, len(content)
        if kind == "late":
            await asyncio.sleep(fault.seconds)
        elif kind == "wrong-etag":
            answer = answer.changed(etag=_WRONG_ETAG)
        elif kind == "no-length":
            answer = answer.changed(content_length=None, connection="close")
        else:
            at = self._proxy.position(len(content))
        await self._send(answer.encode() + content[:at])
        if kind == "reset":
            reset_on_close(self._connection)
        elif kind in ("truncate", "no-length"):
            self._connection.shutdown(socket.SHUT_WR)
        if kind in _ENDING:
            return False
        step = max(1, -(-(len(content) - at) // (_PIECES if kind == "trickle" else 1)))
        for start in range(at, len(content), step):
            await asyncio.sleep(fault.seconds * step / (len(content) - at))
            await self._send(content[start : start + step])
        return True

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _PIECE_BYTES):
            await self._proxy.flow()
            await self._loop.sock_sendall(self._connection, view[start : start + _PIECE_BYTES])


def _applies(kind: FaultKind, answer: Head, content: bytes) -> bool:
    if kind == "wrong-etag":
        return "etag" in answer.fields
    return kind == "late" or content != b""


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> None:
    """Serve until interrupted; the first line of standard output is the proxy's URL."""
    parser = argparse.ArgumentParser(description="Fault proxy for tests, on 127.0.0.1")
    parser.add_argument("target", help="URL of the server, http://HOST:PORT")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument(
        "--fault",
        type=Fault.parse,
        action="append",
        default=[],
        metavar="KIND=SHARE[,SECONDS]",
        help=f"any number of times; kinds: {', '.join(get_args(FaultKind))}",
    )
    options = parser.parse_args()
    with FaultProxy(options.target, options.fault, seed=options.seed, port=options.port) as proxy:
        sys.stdout.write(f"{proxy.endpoint_url}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            Event().wait()
        for kind, count in sorted(proxy.counts().items()):
            sys.stderr.write(f"{kind}: {count}\n")


if __name__ == "__main__":
    main()
