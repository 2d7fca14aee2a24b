"""The HTTP side: which path answers what. All of it reads only, and no request names a file."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError, EnergonStreamError, ObjectNotFoundError, RangeError
from energon_stream.imports import LazyModule
from energon_stream.printable import printable
from energon_stream.storage import ByteRange
from energon_stream.tools.browse.guard import Guard
from energon_stream.tools.browse.memory_budget import ANSWERS, CLIENT_LEFT
from energon_stream.tools.browse.shown_parts import DOWNLOAD, media_type

if TYPE_CHECKING:
    import starlette.applications as applications
    import starlette.concurrency as concurrency
    import starlette.responses as responses
    import starlette.routing as routing
    from starlette.requests import Request
    from starlette.responses import Response

    from energon_stream.tools.browse.pages import Pages
else:
    applications = LazyModule("starlette.applications", "browse")
    concurrency = LazyModule("starlette.concurrency", "browse")
    responses = LazyModule("starlette.responses", "browse")
    routing = LazyModule("starlette.routing", "browse")

_FILES: Mapping[str, tuple[str, str]] = {
    "": ("index.html", "text/html; charset=utf-8"),
    "browse.js": ("browse.js", "text/javascript; charset=utf-8"),
    "browse.css": ("browse.css", "text/css; charset=utf-8"),
}
"""The page itself: file and media type by path."""

_JSON_BYTES = 128 << 20
"""What the samples of an answer take."""
_ONE_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


def make_app(pages: Pages, token: str) -> Guard:
    """Return the ASGI application of a page, whose paths begin with ``token``.

    Raises MissingPackageError if starlette is not installed.
    """
    asked: dict[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {
        "samples": pages.samples,
        "step": pages.step,
        "search": pages.search,
        "sample": pages.sample,
        "catalog": lambda _: pages.catalog(),
    }
    folder = resources.files("energon_stream.tools.browse") / "static"
    routes = [
        routing.Route(f"/{path}", _constant((folder / name).read_bytes(), kind))
        for path, (name, kind) in _FILES.items()
    ]
    routes += [routing.Route(f"/api/{name}", _json(function)) for name, function in asked.items()]
    routes += [
        routing.Route("/picture", _while_awaited(lambda request: _picture(pages, request))),
        routing.Route("/part", lambda request: _part(pages, request)),
    ]
    app = applications.Starlette(
        routes=routes, exception_handlers={EnergonStreamError: _error, Exception: _bug}
    )
    return Guard(app, token, frozenset(_FILES))


def _constant(content: bytes, kind: str) -> Callable[[Request], Response]:
    return lambda request: responses.Response(content, headers={"content-type": kind})


def _while_awaited(make: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Return what makes an answer on a thread, which learns whether the client has left."""

    async def answer(request: Request) -> Response:
        left = threading.Event()
        CLIENT_LEFT.set(left)

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            left.set()

        watching = asyncio.create_task(watch())
        try:
            return await concurrency.run_in_threadpool(make, request)
        finally:
            watching.cancel()

    return answer


def _json(
    function: Callable[[Mapping[str, str]], dict[str, Any]],
) -> Callable[[Request], Awaitable[Response]]:
    def answer(request: Request) -> Response:
        with ANSWERS.taken(_JSON_BYTES):
            return responses.JSONResponse(function(request.query_params))

    return _while_awaited(answer)


def _picture(pages: Pages, request: Request) -> Response:
    return responses.Response(pages.picture(request.query_params), media_type="image/jpeg")


def _part(pages: Pages, request: Request) -> Response:
    """Send a part's bytes: to be played if its name says so, else as a download."""
    _, part = pages.part(request.query_params)
    wanted = requested_range(request.headers.get("range"), part.size)
    kind = media_type(part.name)
    headers = {"accept-ranges": "bytes"}
    if kind == DOWNLOAD or "download" in request.query_params:
        kind, headers["content-disposition"] = DOWNLOAD, f'attachment; filename="{_file_name(part.name)}"'
    sent = ByteRange(0, part.size) if wanted is None else wanted
    if wanted is not None:
        headers["content-range"] = f"bytes {sent.start}-{sent.stop - 1}/{part.size}"
    headers |= {"content-length": str(len(sent)), "content-type": kind}
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return responses.Response(None, status, headers)
    return responses.StreamingResponse(part.stream(sent), status, headers)


def requested_range(header: str | None, size: int) -> ByteRange | None:
    """Return the bytes that a ``Range`` header asks for; None for the whole.

    Headers with several ranges, or of another form, are ignored, as HTTP allows.

    Example:
        >>> requested_range("bytes=10-19", 100), requested_range("bytes=-5", 100)
        (ByteRange(start=10, stop=20), ByteRange(start=95, stop=100))
    """
    match = _ONE_RANGE.fullmatch((header or "").strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= stop:
        raise RangeError(f"{header!r:.80} has no byte of the {size:,}", hint="ask for bytes within the part")
    return ByteRange(start, stop)


def _file_name(part: str) -> str:
    """Return a name for a download, of plain letters only.

    Example:
        >>> _file_name('a"/../b.html')
        'part.a__.._b.html'
    """
    return "part." + "".join(
        sign if sign.isascii() and (sign.isalnum() or sign in ".-") else "_" for sign in part
    )


def _error(request: Request, error: Exception) -> Response:
    kinds = ((ConfigError, 400), (ObjectNotFoundError, 404), (RangeError, 416))
    status = next((number for kind, number in kinds if isinstance(error, kind)), 502)
    return responses.JSONResponse({"error": printable(str(error))}, status)


def _bug(request: Request, error: Exception) -> Response:
    problem = f"{type(error).__name__}: {error!s:.400}; please report this bug"
    return responses.JSONResponse({"error": printable(problem)}, 500)
