"""HTTP/1.1 on bare sockets of an asyncio loop, for the stand-in S3 server and the fault proxy.

Bare sockets can end a connection the way networks do: by RST or by FIN, in the middle of a body. They also
cost the least: with aiohttp's server and its parser in C, an answer of 40 kB takes 1.7 times the CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, unquote

_RECEIVE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. Header names are in lower case; ``target`` is as sent, ``path`` is decoded.

    At the root ``bucket`` is ``""``, and of a bucket itself ``key`` is.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | bytearray = b""
    path: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", unquote(self.target.partition("?")[0]))

    @property
    def query(self) -> Mapping[str, str]:
        query = self.target.partition("?")[2]
        return {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}

    @property
    def bucket(self) -> str:
        return self.path[1:].partition("/")[0]

    @property
    def key(self) -> str:
        return self.path[1:].partition("/")[2]

    @property
    def reads_object(self) -> bool:
        return self.method == "GET" and self.key != ""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. Its headers have no ``Content-Length``, except in an answer to HEAD."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | bytearray | memoryview = b""


def keeps_open(headers: Mapping[str, str]) -> bool:
    """True unless the headers, with names in lower case, announce the end of the connection."""
    return headers.get("connection", "").lower() != "close"


class HttpReader:
    """Buffered reads from one connection, each of which raises ``EOFError`` at its end."""

    def __init__(self, connection: socket.socket, begun: bytearray | None = None) -> None:
        self._loop, self._connection = asyncio.get_running_loop(), connection
        self._buffer = begun or bytearray()

    async def request(self) -> HttpRequest:
        """Read a request, with ``100 Continue`` if the client waits for it."""
        (method, target, *_), headers = await self._head()
        if headers.get("expect", "").lower() == "100-continue":
            await self._loop.sock_sendall(self._connection, b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return HttpRequest(method, target, headers, await self.chunks())
        length = int(headers.get("content-length", 0))
        return HttpRequest(method, target, headers, await self._exactly(length) if length else b"")

    async def response(self, method: str) -> Response:
        """Read the reply to a request of this method, without the headers about the form of the body."""
        (_, status, *_), headers = await self._head()
        if method == "HEAD" or status in ("204", "304"):
            return Response(int(status), headers)
        length = headers.pop("content-length", None)
        if "chunked" in headers.pop("transfer-encoding", "").lower():
            body = await self.chunks()
        else:
            body = await (self._rest() if length is None else self._exactly(int(length)))
        return Response(int(status), headers, body)

    async def chunks(self) -> bytearray:
        """Read a chunked body, of HTTP or of ``aws-chunked``; signatures and trailers are skipped."""
        body = bytearray()
        while size := int((await self._until(b"\r\n")).partition(b";")[0], 16):
            body += await self._exactly(size)
            await self._until(b"\r\n")
        while await self._until(b"\r\n"):
            pass
        return body

    async def _head(self) -> tuple[list[str], dict[str, str]]:
        """Read the words of the first line, and header values by name in lower case."""
        first, *lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return first.split(" ", 2), {name.lower(): value.strip() for name, _, value in pairs}

    async def _until(self, mark: bytes) -> bytes:
        while (position := self._buffer.find(mark)) < 0:
            data = await self._loop.sock_recv(self._connection, _RECEIVE_BYTES)
            if not data or len(self._buffer) > _RECEIVE_BYTES:
                raise EOFError
            self._buffer += data
        found = bytes(self._buffer[:position])
        del self._buffer[: position + len(mark)]
        return found

    async def _exactly(self, length: int) -> bytearray:
        result = bytearray(length)
        view, filled = memoryview(result), min(length, len(self._buffer))
        view[:filled] = self._buffer[:filled]
        del self._buffer[:filled]
        while filled < length:
            count = await self._loop.sock_recv_into(self._connection, view[filled:])
            if not count:
                raise EOFError
            filled += count
        return result

    async def _rest(self) -> bytearray:
        body, self._buffer = self._buffer, bytearray()
        while data := await self._loop.sock_recv(self._connection, _RECEIVE_BYTES):
            body += data
        return body


def reset_on_close(connection: socket.socket) -> None:
    """Make a connection end by RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def accept(
    listener: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]
) -> None:
    """Accept connections and serve each in a task, until cancelled; close them and the listener then."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()

    async def serve_and_close(connection: socket.socket) -> None:
        with connection:
            await serve(connection)

    # Not sock_accept(), which loses a connection that comes while it is cancelled.
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                while True:
                    connection, _ = listener.accept()
                    connection.setblocking(False)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    task = loop.create_task(serve_and_close(connection))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
    finally:
        loop.remove_reader(listener)
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LoopbackServer(ABC):
    """A server on loopback that runs during a ``with`` block."""

    endpoint_url: str = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start serving; return when requests are answered."""

    @abstractmethod
    def stop(self) -> None:
        """Stop serving, and end all connections. Stopping twice is fine."""

    def serve(self, wait: Callable[[], object] | None = None) -> None:
        """Write the URL to standard output, and serve until ``wait`` returns or an interrupt comes."""
        with self, contextlib.suppress(KeyboardInterrupt):
            sys.stdout.write(f"{self.endpoint_url}\n")
            sys.stdout.flush()
            (wait or threading.Event().wait)()


def url_of(listener: socket.socket) -> str:
    return "http://{}:{}".format(*listener.getsockname())


def run_in_thread(
    main: Callable[[], Coroutine[Any, Any, None]], name: str
) -> tuple[asyncio.AbstractEventLoop, Callable[[], None]]:
    """Run a coroutine in a thread of its own; return its loop, and a function that stops it."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def run() -> None:
        task = asyncio.ensure_future(main())
        started.set_result((asyncio.get_running_loop(), task))
        with contextlib.suppress(asyncio.CancelledError):
            await task

    thread = threading.Thread(target=asyncio.run, args=(run(),), name=name, daemon=True)
    thread.start()
    loop, task = started.result()

    def stop() -> None:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()

    return loop, stop
