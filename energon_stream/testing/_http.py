"""HTTP/1.1 on bare sockets of an asyncio loop, for the stand-in S3 server and the fault proxy.

Bare sockets allow to end connections the way networks end them: by RST or by FIN, in the middle of a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

RECEIVE_BYTES = 64 * 1024


class Head(NamedTuple):
    """First line and header lines of a request or an answer, as they came."""

    first: str
    lines: list[str]

    @property
    def fields(self) -> Mapping[str, str]:
        """Header values by name in lower case."""
        pairs = (line.partition(":") for line in self.lines)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def is_chunked(self) -> bool:
        """True if the body comes in chunks."""
        return "chunked" in self.fields.get("transfer-encoding", "").lower()

    @property
    def length(self) -> int | None:
        """Length of the body; None if no header tells it."""
        text = self.fields.get("content-length")
        return None if text is None else int(text)

    @property
    def keeps_open(self) -> bool:
        """True if the connection is used again."""
        return self.fields.get("connection", "").lower() != "close"

    def changed(self, **fields: str | None) -> Head:
        """Return a copy with other header values; None removes a header. ``_`` stands for ``-``."""
        named = {name.replace("_", "-").lower(): value for name, value in fields.items()}
        kept = [line for line in self.lines if line.partition(":")[0].lower() not in named]
        return Head(self.first, kept + [f"{name}: {value}" for name, value in named.items() if value])

    def encode(self) -> bytes:
        """Return the bytes for the wire."""
        return "\r\n".join([self.first, *self.lines, "", ""]).encode("latin-1")


class HttpReader:
    """Buffered reads from one connection."""

    def __init__(self, connection: socket.socket, begun: bytearray | None = None) -> None:
        self._loop, self._connection = asyncio.get_running_loop(), connection
        self._buffer = begun or bytearray()

    async def until(self, mark: bytes) -> bytes:
        """Read up to a mark, which is dropped. Raises ``EOFError`` at the end of the connection."""
        while (position := self._buffer.find(mark)) < 0:
            data = await self._loop.sock_recv(self._connection, RECEIVE_BYTES)
            if not data or len(self._buffer) > RECEIVE_BYTES:
                raise EOFError
            self._buffer += data
        found = bytes(self._buffer[:position])
        del self._buffer[: position + len(mark)]
        return found

    async def head(self) -> Head:
        """Read a request line or status line, and the header lines."""
        first, *lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        return Head(first, lines)

    async def exactly(self, length: int) -> bytearray:
        """Read ``length`` bytes, straight into the result."""
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

    async def chunks(self) -> bytearray:
        """Read a chunked body, of HTTP or of ``aws-chunked``; signatures and trailers are skipped."""
        body = bytearray()
        while size := int((await self.until(b"\r\n")).partition(b";")[0], 16):
            body += await self.exactly(size)
            await self.until(b"\r\n")
        while await self.until(b"\r\n"):
            pass
        return body

    async def rest(self) -> bytearray:
        """Read up to the end of the connection."""
        body, self._buffer = self._buffer, bytearray()
        while data := await self._loop.sock_recv(self._connection, RECEIVE_BYTES):
            body += data
        return body

    async def request_body(self, head: Head) -> bytearray:
        """Read the body of a request, after ``100 Continue`` if the client waits for it."""
        length = head.length or 0
        if not length and not head.is_chunked:
            return bytearray()
        if head.fields.get("expect", "").lower() == "100-continue":
            await self._loop.sock_sendall(self._connection, b"HTTP/1.1 100 Continue\r\n\r\n")
        return await self.chunks() if head.is_chunked else await self.exactly(length)


def reset_on_close(connection: socket.socket) -> None:
    """Make the connection end by RST when it is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def accept(
    listener: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]
) -> None:
    """Accept connections and serve each in a task, until cancelled; close the listener then."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()
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
                    task = loop.create_task(serve(connection))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
    finally:
        loop.remove_reader(listener)
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
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
