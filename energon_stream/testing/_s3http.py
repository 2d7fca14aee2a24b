"""HTTP/1.1 for the stand-in S3 server, on bare sockets of an asyncio loop.

Bare sockets allow to end connections the way networks end them: by RST or by FIN, in the middle of a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any

from energon_stream.testing._s3api import HttpRequest, Response, S3Api, error_response
from energon_stream.testing._s3faults import Fate, Rule, Shaping, Traffic

CONTROL_PATH = "/_control/"  # no bucket can be named so
QUIET_HEADER = "x-energon-stream-quiet"
"""Requests with this header are neither counted nor shaped: tests use it to look at the server's objects."""

_PACE_SECONDS = 0.005
_TRICKLE = 8192  # bytes per second; slower bodies come byte by byte
_MAX_HEAD = 64 * 1024


class _Reader:
    """Buffered reads from one connection."""

    def __init__(self, connection: socket.socket, begun: bytearray | None = None) -> None:
        self._loop, self._connection = asyncio.get_running_loop(), connection
        self._buffer = begun or bytearray()

    async def until(self, mark: bytes) -> bytes:
        """Read up to a mark, which is dropped. Raises ``EOFError`` at the end of the connection."""
        while (position := self._buffer.find(mark)) < 0:
            data = await self._loop.sock_recv(self._connection, _MAX_HEAD)
            if not data or len(self._buffer) > _MAX_HEAD:
                raise EOFError
            self._buffer += data
        found = bytes(self._buffer[:position])
        del self._buffer[: position + len(mark)]
        return found

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


async def _read_chunks(reader: _Reader) -> bytearray:
    """Read a chunked body, of HTTP or of ``aws-chunked``; signatures and trailers are skipped."""
    body = bytearray()
    while size := int((await reader.until(b"\r\n")).partition(b";")[0], 16):
        body += await reader.exactly(size)
        await reader.until(b"\r\n")
    while await reader.until(b"\r\n"):
        pass
    return body


class _Connection:
    """Serves the requests of one connection, one after the other."""

    def __init__(self, connection: socket.socket, api: S3Api, traffic: Traffic) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection, self._api, self._traffic = connection, api, traffic
        self._reader = _Reader(connection)
        self._counted = False

    async def run(self) -> None:
        """Serve until the client closes the connection, or a fault ends it."""
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A ValueError is a request that cannot be parsed; clients of S3 send none.
        with self._connection, contextlib.suppress(EOFError, ConnectionError, ValueError):
            while await self._serve_one():
                pass

    async def _serve_one(self) -> bool:
        """Serve a request; return False to end the connection."""
        head = (await self._reader.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        pairs = (line.partition(":") for line in head[1:])
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        request = await self._with_body(HttpRequest.parse(method, target, headers))
        if request.path.startswith(CONTROL_PATH):
            await self._send(_control(self._traffic, request), Fate(), request)
        elif QUIET_HEADER in headers:
            await self._send(self._api.handle(request), Fate(), request)
        else:
            if not self._counted:
                self._counted = True
                self._traffic.counters.connections += 1
            self._traffic.counters.bytes_received += len(request.body)
            if not await self._serve_shaped(request):
                return False
        return headers.get("connection", "").lower() != "close"

    async def _with_body(self, request: HttpRequest) -> HttpRequest:
        headers = request.headers
        length = int(headers.get("content-length", "0"))
        chunked = "chunked" in headers.get("transfer-encoding", "")
        if not length and not chunked:
            return request
        if headers.get("expect", "").lower() == "100-continue":
            await self._loop.sock_sendall(self._connection, b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _read_chunks(self._reader) if chunked else await self._reader.exactly(length)
        if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            body = await _read_chunks(_Reader(self._connection, body))
        return replace(request, body=body)

    async def _serve_shaped(self, request: HttpRequest) -> bool:
        name, status, sent = request.path[1:], 0, 0
        fate = self._traffic.begin(request.method, name, reads_object=request.reads_object)
        try:
            if fate.latency:
                await asyncio.sleep(fate.latency)
            await self._traffic.released.wait()
            if fate.odd == "html":
                response = Response(200, {"Content-Type": "text/html"}, b"<html><body>Sign in</body></html>")
            elif fate.status is None:
                asked = request
                if fate.odd == "whole":
                    asked = replace(
                        request, headers={k: v for k, v in request.headers.items() if k != "range"}
                    )
                response = self._api.handle(asked)
                if fate.odd == "no_etag":
                    response.headers.pop("ETag", None)
            else:
                response = error_response(fate.status, request.path)
            status = response.status
            sent = await self._send(response, fate, request)
        finally:
            self._traffic.end(request.method, name, request.headers.get("range"), status, sent)
        return fate.cut is None and fate.odd != "no_length"

    async def _send(self, response: Response, fate: Fate, request: HttpRequest) -> int:
        """Send a response, or the share of it that the fate allows; return the number of body bytes sent."""
        body = memoryview(response.body)
        length = len(body) if response.length is None else response.length
        lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        if fate.odd != "no_length":
            lines.append(f"Content-Length: {length}")
        lines += ["x-amz-request-id: 0", "", ""]
        head = "\r\n".join(lines).encode("latin-1")
        await self._loop.sock_sendall(self._connection, head)
        if request.method == "HEAD":
            return 0
        stop = length if fate.cut is None and not fate.stall else int(length * fate.at)
        await self._send_paced(body[:stop], fate.rate)
        if fate.stall:
            await asyncio.sleep(fate.stall)
            await self._send_paced(body[stop:], fate.rate)
            return length
        if fate.cut == "reset":
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif fate.cut == "truncate":
            self._connection.shutdown(socket.SHUT_WR)
        return stop

    async def _send_paced(self, body: memoryview, rate: float | None) -> None:
        least = 1 if rate is not None and rate < _TRICKLE else 4096
        start, step = self._loop.time(), len(body) if rate is None else max(least, int(rate * _PACE_SECONDS))
        for begin in range(0, len(body), max(1, step)):
            piece = body[begin : begin + step]
            if rate is not None:
                # A piece goes out when its last byte is due, so that a body never comes early.
                await asyncio.sleep(start + (begin + len(piece)) / rate - self._loop.time())
            await self._loop.sock_sendall(self._connection, piece)


def _control(traffic: Traffic, request: HttpRequest) -> Response:
    """Answer an S3Control: JSON in, JSON out."""
    argument: dict[str, Any] = json.loads(bytes(request.body) or b"{}")
    actions: dict[str, Callable[[], object]] = {
        "counters": lambda: asdict(traffic.counters),
        "log": lambda: list(traffic.log),
        "reset": traffic.reset_counters,
        "shape": lambda: traffic.shape(Shaping(**argument)),
        "shaping": lambda: asdict(traffic.shaping),
        "rule": lambda: traffic.rules.append(Rule(**argument)),
        "clear": traffic.rules.clear,
        "hold": traffic.released.clear,
        "release": traffic.released.set,
    }
    action = actions.get(request.path.removeprefix(CONTROL_PATH))
    if action is None:
        return error_response(501, request.path)
    return Response(200, {"Content-Type": "application/json"}, json.dumps(action()).encode())


async def serve(listener: socket.socket, api: S3Api, traffic: Traffic) -> None:
    """Accept and serve connections until cancelled."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    tasks: set[asyncio.Task[None]] = set()
    try:
        while True:
            connection, _ = await loop.sock_accept(listener)
            task = loop.create_task(_Connection(connection, api, traffic).run())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
