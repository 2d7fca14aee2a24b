"""Lets in who knows the token and asks this machine by its name; says what browsers may do with answers."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_HOSTS = frozenset({"127.0.0.1", "localhost"})

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_DATA_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""Of everything that comes from a dataset."""

_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses with status 403 what does not come from the page: ``/TOKEN/…`` at a name of this machine.

    The ``Host`` header is compared because of DNS rebinding: a page of a stranger's site may make its own
    name lead to this machine. The port may be any, so that a tunnel works. ``pages`` are the paths of the
    page itself; all others answer with data.
    """

    def __init__(self, app: App, token: str, pages: frozenset[str]) -> None:
        self._app, self._token, self._pages = app, token.encode(), pages

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        first, slash, rest = scope["path"][1:].partition("/")
        is_known = secrets.compare_digest(first.encode("utf-8", "replace"), self._token)
        if not (is_known and slash and is_own_host(scope["headers"])):
            await _refuse(send)
            return
        policy = _PAGE_POLICY if rest in self._pages else _DATA_POLICY
        extra = _headers(policy)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        path = f"/{rest}"
        await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, answer)


def is_own_host(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the only ``Host`` header names this machine, with any port.

    Example:
        >>> is_own_host([(b"host", b"127.0.0.1:8000")]), is_own_host([(b"host", b"evil.example")])
        (True, False)
    """
    hosts = [value for name, value in headers if name.lower() == b"host"]
    if len(hosts) != 1:
        return False
    try:
        parts = urlsplit(b"//" + hosts[0])
        host = (parts.hostname or b"").decode("ascii")
        return parts.netloc == hosts[0] and b"@" not in hosts[0] and host in _HOSTS
    except ValueError:
        return False


def _headers(policy: str) -> list[tuple[bytes, bytes]]:
    headers = _HEADERS | {"content-security-policy": policy}
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _refuse(send: Send) -> None:
    body = b"403: use the whole URL that the command printed\n"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    start = {"type": "http.response.start", "status": 403, "headers": headers + _headers(_DATA_POLICY)}
    await send(start)
    await send({"type": "http.response.body", "body": body})
