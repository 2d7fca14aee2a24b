"""Connections of the stand-in S3 server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any

from energon_stream.testing._http import HttpReader, accept, reset_on_close
from energon_stream.testing._s3api import HttpRequest, Response, S3Api, error_response
from energon_stream.testing._s3faults import Fate, Rule, Shaping, Traffic

CONTROL_PATH = "/_control/"  # no bucket can be named so
QUIET_HEADER = "x-energon-stream-quiet"
"""Requests with this header are neither counted nor shaped: tests use it to look at the server's objects."""

_PACE_SECONDS = 0.005
_TRICKLE = 8192  # bytes per second; slower bodies come byte by byte


class _Connection:
    """Serves the requests of one connection, one after the other."""

    def __init__(self, connection: socket.socket, api: S3Api, traffic: Traffic) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection, self._api, self._traffic = connection, api, traffic
        self._reader = HttpReader(connection)
        self._counted = False

    async def run(self) -> None:
        """Serve until the client closes the connection, or a fault ends it."""
        # A ValueError is a request that cannot be parsed; clients of S3 send none.
        with self._connection, contextlib.suppress(EOFError, ConnectionError, ValueError):
            while await self._serve_one():
                pass

    async def _serve_one(self) -> bool:
        """Serve a request; return False to end the connection."""
        head = await self._reader.head()
        method, target, _ = head.first.split(" ", 2)
        request = HttpRequest.parse(method, target, head.fields)
        body = await self._reader.request_body(head)
        if body and request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            body = await HttpReader(self._connection, body).chunks()
        request = replace(request, body=body)
        if request.path.startswith(CONTROL_PATH):
            await self._send(_control(self._traffic, request), Fate(), request)
        elif QUIET_HEADER in request.headers:
            await self._send(self._api.handle(request), Fate(), request)
        else:
            if not self._counted:
                self._counted = True
                self._traffic.counters.connections += 1
            self._traffic.counters.bytes_received += len(request.body)
            if not await self._serve_shaped(request):
                return False
        return head.keeps_open

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
            reset_on_close(self._connection)
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
    await accept(listener, lambda connection: _Connection(connection, api, traffic).run())
