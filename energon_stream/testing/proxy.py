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
from functools import partial
from typing import Literal, get_args
from urllib.parse import urlsplit

from energon_stream.errors import ConfigError
from energon_stream.testing._faults import (
    NO_FAULT,
    OUTAGES,
    Fate,
    Fault,
    FaultKind,
    FaultList,
    FaultyConnection,
    all_faults,
)
from energon_stream.testing._http import (
    HttpReader,
    HttpRequest,
    LoopbackServer,
    Response,
    accept,
    keeps_open,
    reset_on_close,
    run_in_thread,
    url_of,
)

__all__ = ["Fault", "FaultKind", "FaultProxy", "all_faults"]

_OF_ONE_CONNECTION = ("expect", "transfer-encoding", "content-length")


class FaultProxy(LoopbackServer):
    """A proxy with faults before an HTTP server, which runs in a thread during a ``with`` block.

    The host of a request is passed on as it came, so signatures stay valid.

    Args:
        target: URL of the server, ``http://HOST:PORT``.
        faults: Faults to add. At most one of them hits a request.
        seed: With the order of the requests, it decides which of them have a fault.
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
        self._port, self._seed = port, seed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._place: socket.socket | None = None
        self._counts = Counter[str]()
        self.requests: int = 0
        self.set_faults(faults)

    def start(self) -> None:
        # This socket keeps the port while the proxy refuses connections.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", self._port))
        self._port = self._place.getsockname()[1]
        self.endpoint_url: str = url_of(self._place)
        self._loop, self._stop = run_in_thread(partial(self._serve, self._listener()), "fault-proxy")

    def stop(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = self._loop = None
        if self._place is not None:
            self._place.close()
            self._place = None

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the faults; the sequence of random faults starts again."""
        if sum(fault.share for fault in faults if fault.times is None) > 1 + 1e-9:
            raise ConfigError("the shares of the faults add up to more than 1", hint="use smaller shares")
        self._drops = FaultList((fault for fault in faults if fault.kind == "drop"), self._seed)
        self._faults = FaultList((fault for fault in faults if fault.kind != "drop"), self._seed + 1)

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
        try:
            if self._drops.choose("", "GET") is None:
                await _ProxiedConnection(self, connection, self._target).run()
            else:
                self.count("drop")
                reset_on_close(connection)
        except asyncio.CancelledError:
            reset_on_close(connection)
            raise

    def draw(self, path: str, method: str) -> Fate:
        """Return the fate of a request; begin an outage if that is its fault."""
        self.requests += 1
        fault = self._faults.choose(path, method)
        if fault is None:
            return NO_FAULT
        if fault.kind in OUTAGES:
            self._begin_outage(fault)
            return NO_FAULT
        latency = fault.seconds if fault.kind == "late" else 0.0
        return Fate(fault.kind, fault.seconds, self._faults.dice.random(), latency)

    def count(self, kind: str) -> None:
        """Count a fault that happened."""
        self._counts[kind] += 1

    async def flow(self) -> None:
        """Wait for the end of a freeze."""
        await self._flowing.wait()


class _ProxiedConnection(FaultyConnection):
    """The requests of one connection, passed on by one connection to the server."""

    def __init__(self, proxy: FaultProxy, connection: socket.socket, target: tuple[str, int]) -> None:
        super().__init__(connection)
        self._proxy, self._target = proxy, target
        self._server: socket.socket | None = None

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._server is not None:
                self._server.close()

    async def _serve(self, request: HttpRequest) -> None:
        fate = self._proxy.draw(request.path[1:], request.method)
        await self._proxy.flow()
        await self._respond(request, fate)

    def _happens(self, fault: str) -> None:
        self._proxy.count(fault)

    async def _answer(self, request: HttpRequest) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in _OF_ONE_CONNECTION}
        if request.body or len(headers) < len(request.headers):
            headers["content-length"] = str(len(request.body))
        lines = [f"{request.method} {request.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = "\r\n".join([*lines, "", ""]).encode("latin-1") + request.body
        while True:
            is_new = self._server is None
            if self._server is None:
                self._server = socket.socket()
                self._server.setblocking(False)
                self._server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._loop.sock_connect(self._server, self._target)
            try:
                await self._loop.sock_sendall(self._server, data)
                response = await HttpReader(self._server).response(request.method)
            except (EOFError, OSError):  # the server had closed an idle connection
                self._server.close()
                self._server = None
                if is_new:
                    raise
            else:
                self._is_open = self._is_open and keeps_open(response.headers)
                return response

    async def _write(self, data: memoryview) -> None:
        for start in range(0, len(data), 1 << 18):
            await self._proxy.flow()
            await super()._write(data[start : start + (1 << 18)])


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
    proxy = FaultProxy(options.target, options.fault, seed=options.seed, port=options.port)
    proxy.serve()
    for kind, count in sorted(proxy.counts().items()):
        sys.stderr.write(f"{kind}: {count}\n")


if __name__ == "__main__":
    main()
