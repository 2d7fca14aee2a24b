"""Faults of the stand-in S3 server and the proxy: which request has one, and what it does to the answer."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from http.client import responses
from random import Random
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar, get_args

from energon_stream.errors import ConfigError
from energon_stream.testing._http import HttpReader, HttpRequest, Response, keeps_open, reset_on_close
from energon_stream.testing._s3api import error_response

if TYPE_CHECKING:
    import socket

FaultKind = Literal[
    "500", "503", "416", "html", "no-answer", "reset", "truncate", "stall", "trickle", "late", "no-length",
    "wrong-etag", "drop", "refuse", "freeze",
]  # fmt: skip
"""Kinds of faults; see :class:`Fault`."""

Action = Literal[
    "status", "reset", "truncate", "delay", "stall", "trickle", "html", "whole", "no_etag", "no_length",
    "zeros", "shifted", "short"
]  # fmt: skip

OUTAGES = ("refuse", "freeze")  # of all connections
_IN_BODY = ("reset", "truncate", "stall", "trickle")
_WRONG_BODIES: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda body: bytes(len(body)),
    "shifted": lambda body: body[7:] + body[:7],
    "short": lambda body: body[: len(body) * 3 // 4],
}
_PACE_SECONDS = 0.005
_SLOW_RATE = 8192  # bytes per second; slower bodies are sent byte by byte


def _check_kind(kind: str, known: tuple[str, ...]) -> None:
    if kind not in known:
        raise ConfigError(f"unknown fault {kind!r}", hint=f"use one of {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and how often it happens.

    ================  ==================================================================================
    ``500``, ``503``  an S3 error instead of the answer
    ``416``           ``InvalidRange``, though the range is good
    ``html``          a web page with status 200, as a misconfigured gateway sends it
    ``no-answer``     the connection is reset before the answer
    ``reset``         the connection is reset (RST) within the body
    ``truncate``      the connection is closed (FIN) within the body
    ``stall``         the body stops for ``seconds``
    ``trickle``       the body takes ``seconds`` longer, in small pieces
    ``late``          the first byte comes ``seconds`` later
    ``no-length``     the answer has no ``Content-Length``; its end is the end of the connection
    ``wrong-etag``    the answer has another ETag
    ``drop``          a new connection is reset at once
    ``refuse``        an outage of ``seconds``: connections are reset, new ones refused
    ``freeze``        an outage of ``seconds``: nothing is received or sent
    ================  ==================================================================================

    Attributes:
        kind: One of these.
        share: Share, from 0 to 1, of the requests that have the fault, or at which an outage begins; for
            ``drop``, of the connections.
        seconds: Length of the fault, where it has one.
        pattern: Shell pattern of the requested path (``bucket/key``).
        method: HTTP method of the requests; None for all.
        times: Number of times that the fault happens; None for no limit.

    Raises:
        ConfigError: The kind is unknown, or a number is out of range.

    Example:
        >>> from energon_stream.testing.proxy import Fault
        >>> Fault("stall", share=0.01, seconds=2.0)
        Fault(kind='stall', share=0.01, seconds=2.0, pattern='*', method='GET', times=None)
    """

    kind: FaultKind
    share: float = 1.0
    seconds: float = 1.0
    pattern: str = "*"
    method: str | None = "GET"
    times: int | None = None

    def __post_init__(self) -> None:
        _check_kind(self.kind, get_args(FaultKind))
        if not 0 <= self.share <= 1 or self.seconds < 0:
            raise ConfigError(f"{self} is impossible", hint="use a share from 0 to 1, and 0 or more seconds")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse ``KIND=SHARE`` or ``KIND=SHARE,SECONDS``.

        Raises:
            ConfigError: The text has another form.
        """
        kind, _, numbers = text.partition("=")
        try:
            return cls(kind, *(float(number) for number in numbers.split(",")))  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            hint = "write KIND=SHARE or KIND=SHARE,SECONDS"
            raise ConfigError(f"{text!r} is not a fault", hint=hint) from error


@dataclass(frozen=True, slots=True)
class Rule:
    """A targeted fault. Rules are tried in the order in which they were added, before the shares.

    Attributes:
        action: ``reset``, ``truncate``, ``stall`` (halfway through the body), ``html`` and ``no_length`` as
            of a :class:`Fault`. ``status`` answers with an error, ``delay`` waits before the first byte,
            ``trickle`` sends the body slowly, ``whole`` answers a request for a range with the whole object,
            ``no_etag`` sends no ETag. The header stays right where the body is ``zeros``, ``shifted`` by
            some bytes, or ``short`` of its last quarter.
        pattern: Shell pattern of ``bucket/key``.
        method: HTTP method of the requests; None for all.
        times: Number of times that the fault happens; None for no limit.
        status: HTTP status for ``status``.
        seconds: Length of a ``delay`` or ``stall``.
        rate: Bytes per second of a ``trickle``.

    Example:
        >>> from energon_stream.testing.s3server import Rule
        >>> once = Rule("reset", pattern="data/*.tar", times=1)
    """

    action: Action
    pattern: str = "*"
    method: str | None = None
    times: int | None = None
    status: int = 503
    seconds: float = 0.0
    rate: float = 100.0

    share: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _check_kind(self.action, get_args(Action))

    @property
    def kind(self) -> str:
        """The fault's name as a :class:`Fault` has it."""
        return str(self.status) if self.action == "status" else self.action.replace("_length", "-length")


def all_faults(share: float, *, seconds: float = 1.0) -> list[Fault]:
    """Return all kinds of faults, each with the same share.

    Args:
        share: Share of the requests that have each fault. Outages begin at a twentieth of it.
        seconds: Length of the faults that have one.
    """
    faults = [Fault(kind, share, seconds) for kind in get_args(FaultKind)]
    return [replace(fault, share=share / 20) if fault.kind in OUTAGES else fault for fault in faults]


AnyFault = TypeVar("AnyFault", Fault, Rule)


class FaultList(Generic[AnyFault]):
    """Faults in order, of which each request has at most one, as seeded dice and their shares decide."""

    def __init__(self, faults: Iterable[AnyFault], seed: int) -> None:
        self.faults: list[AnyFault] = list(faults)
        self.dice = Random(seed)

    def choose(self, path: str, method: str) -> AnyFault | None:
        """Return the fault of a request, which then happens once less."""
        drawn = self.dice.random()
        for number, fault in enumerate(self.faults):
            if fault.times is not None and fault.times < 1:
                continue
            if fault.method not in (None, method) or not fnmatchcase(path, fault.pattern):
                continue
            if drawn < fault.share:
                if fault.times is not None:
                    self.faults[number] = replace(fault, times=fault.times - 1)
                return fault
            drawn -= fault.share
        return None


@dataclass(frozen=True, slots=True)
class Fate:
    """The faults and the speed of one answer."""

    kind: str = ""  # of the fault; empty for none
    seconds: float = 0.0  # length of a stall or trickle
    at: float = 0.5  # share of the body that is sent before a reset, truncation or stall
    latency: float = 0.0  # seconds before the first byte
    rate: float | None = None  # bytes per second of the body; None for no limit


NO_FAULT = Fate()


class FaultyConnection(ABC):
    """Answers the requests of one connection, one after the other, each as its fate says."""

    def __init__(self, connection: socket.socket) -> None:
        self._loop, self._connection = asyncio.get_running_loop(), connection
        self._is_open = True

    async def run(self) -> None:
        """Serve until the client closes the connection, or a fault ends it."""
        reader = HttpReader(self._connection)
        # A ValueError is a message that cannot be parsed; clients of S3 send none.
        with contextlib.suppress(EOFError, OSError, ValueError):
            while self._is_open:
                request = await reader.request()
                self._is_open = keeps_open(request.headers)
                await self._serve(request)

    @abstractmethod
    async def _serve(self, request: HttpRequest) -> None:
        """Answer a request, by :meth:`_respond`."""

    @abstractmethod
    async def _answer(self, request: HttpRequest) -> Response:
        """Return the right answer to a request."""

    def _happens(self, fault: str) -> None:  # noqa: B027 (not all count these)
        """Note that a fault showed in the answer; some have nothing to change."""

    async def _respond(self, request: HttpRequest, fate: Fate) -> tuple[int, int]:
        """Send an answer as its fate says; return its status, and how many bytes of its body were sent."""
        kind = fate.kind
        if fate.latency:
            await asyncio.sleep(fate.latency)
        if kind == "no-answer":
            self._happens(kind)
            self._is_open = False
            reset_on_close(self._connection)
            return 0, 0
        if kind == "html":
            page = b"<html><body>Please log in.</body></html>"
            response = Response(200, {"Content-Type": "text/html"}, page)
        elif kind.isdigit():
            response = error_response(int(kind), request.path)
        else:
            response = await self._answer(request)
        if kind == "no_etag":
            response.headers.pop("ETag", None)
        elif kind == "wrong-etag" and "etag" in response.headers:
            response.headers["etag"] = '"0123456789abcdef0123456789abcdef"'
        elif kind in _WRONG_BODIES and response.status < 300:
            response = replace(response, body=_WRONG_BODIES[kind](bytes(response.body)))
        elif kind == "wrong-etag" or (kind in _IN_BODY and not response.body):
            fate = NO_FAULT
        if fate.kind:
            self._happens(kind)
        return response.status, await self._send(request, response, fate)

    async def _send(self, request: HttpRequest, response: Response, fate: Fate = NO_FAULT) -> int:
        """Send a response, or the share of it that its fate allows; return the number of body bytes sent."""
        body, kind, rate = memoryview(response.body), fate.kind, fate.rate
        lines = [f"HTTP/1.1 {response.status} {responses.get(response.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        if kind == "no-length":
            lines = [line for line in lines if not line.lower().startswith("content-length:")]
        elif body or request.method != "HEAD":
            lines.append(f"Content-Length: {len(body)}")
        await self._write(memoryview("\r\n".join([*lines, "", ""]).encode("latin-1")))
        if request.method == "HEAD":
            return 0
        if kind == "trickle" and rate is None:
            rate = len(body) / max(fate.seconds, 1e-9)
        stop = int(len(body) * fate.at) if kind in ("reset", "truncate", "stall") else len(body)
        await self._send_paced(body[:stop], rate)
        if kind == "stall":
            await asyncio.sleep(fate.seconds)
            await self._send_paced(body[stop:], rate)
            return len(body)
        if kind in ("reset", "truncate", "no-length"):
            self._is_open = False
        if kind == "reset":
            reset_on_close(self._connection)
        return stop

    async def _send_paced(self, body: memoryview, rate: float | None) -> None:
        if rate is None:
            await self._write(body)
            return
        start, step = self._loop.time(), max(1 if rate < _SLOW_RATE else 4096, int(rate * _PACE_SECONDS))
        for begin in range(0, len(body), step):
            piece = body[begin : begin + step]
            # A piece goes out when its last byte is due, so that a body never comes early.
            await asyncio.sleep(start + (begin + len(piece)) / rate - self._loop.time())
            await self._write(piece)

    async def _write(self, data: memoryview) -> None:
        await self._loop.sock_sendall(self._connection, data)
