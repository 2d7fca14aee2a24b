"""Connections of the stand-in S3 server: speed, faults, counters and log."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from energon_stream.errors import ConfigError
from energon_stream.testing._faults import Fate, Fault, FaultList, FaultyConnection, Rule
from energon_stream.testing._http import HttpReader, HttpRequest, Response, accept
from energon_stream.testing._s3api import S3Api, error_response

if TYPE_CHECKING:
    from socket import socket

CONTROL_PATH = "/_control/"  # no bucket can be named so
QUIET_HEADER = "x-energon-stream-quiet"  # of a request that is neither counted nor shaped


@dataclass(frozen=True, slots=True)
class Shaping:
    """Speed and random faults of a server. Faults hit reads of objects, speed shapes every request.

    Attributes:
        first_byte_latency: Seconds from the request to the first byte of the answer.
        rate: Bytes per second and connection; None for no limit.
        share_503: Share of object reads answered ``503 SlowDown``.
        share_reset: Share whose connection is reset (RST) within the body.
        share_truncate: Share whose connection is closed (FIN) within the body.
        slow_tail: Share that is slow, and the factor by which its latency is longer and its rate lower.
        seed: The same seed and order of requests lead to the same faults.
    """

    first_byte_latency: float = 0.0
    rate: float | None = None
    share_503: float = 0.0
    share_reset: float = 0.0
    share_truncate: float = 0.0
    slow_tail: tuple[float, float] = (0.0, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "slow_tail", tuple(self.slow_tail))  # JSON makes it a list
        shares = (self.share_503, self.share_reset, self.share_truncate)
        if min(*shares, self.slow_tail[0]) < 0 or sum(shares) > 1 or self.slow_tail[0] > 1:
            raise ConfigError(
                f"fault shares {shares} and slow tail {self.slow_tail} are no shares of one",
                hint="use numbers from 0 to 1, whose sum is at most 1",
            )
        if self.first_byte_latency < 0 or self.slow_tail[1] < 1 or (self.rate is not None and self.rate <= 0):
            raise ConfigError("latency must be >= 0, the slow factor >= 1, the rate > 0 or None")


class LogEntry(NamedTuple):
    """One answered request."""

    method: str
    key: str
    range: str | None
    status: int
    bytes: int  # of the body, as sent
    time: float  # ``time.monotonic()`` at its end


@dataclass(slots=True)
class ServerCounters:
    """Requests and bytes of a server since its start or the last reset.

    Attributes:
        requests: Requests per HTTP method; GETs that read no object (listings) count as ``LIST``.
        faults: Faults injected, per action of a :class:`Rule`, and ``slow``.
        bytes_sent: Bytes of bodies.
        bytes_received: Bytes of bodies.
        connections: Connections accepted.
        max_in_flight: Most requests that were being answered at one moment, never more than the clients had
            open. Without latency or rate, small answers are sent one after the other.
    """

    requests: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0
    max_in_flight: int = 0

    def __post_init__(self) -> None:
        # From JSON they come as plain dicts.
        self.requests, self.faults = Counter(self.requests), Counter(self.faults)

    @property
    def total(self) -> int:
        """All requests."""
        return self.requests.total()


class Traffic:
    """Decides the fate of each request, counts and logs; used by the event loop only."""

    def __init__(self, shaping: Shaping) -> None:
        self.shape(shaping)
        self.log: deque[LogEntry] = deque(maxlen=50_000)
        self.rules: FaultList[Rule] = FaultList((), 0)
        self.released = asyncio.Event()  # set unless answers are held
        self.released.set()
        self._in_flight = 0
        self.reset_counters()

    def reset_counters(self) -> None:
        self.counters = ServerCounters(max_in_flight=self._in_flight)
        self.log.clear()

    def hold(self) -> None:
        """Hold back answers from now on. Answers that were held before go out first."""
        self.released.set()
        self.released.clear()

    def shape(self, shaping: Shaping) -> None:
        """Change the options; the sequence of random faults starts again."""
        self.shaping = shaping
        faults = (
            Fault("503", shaping.share_503),
            Fault("reset", shaping.share_reset),
            Fault("truncate", shaping.share_truncate),
        )
        self._chances = FaultList(faults, shaping.seed)

    def begin(self, request: HttpRequest) -> Fate:
        """Count a request and decide its fate."""
        counters, method = self.counters, request.method
        counters.requests["LIST" if method == "GET" and not request.reads_object else method] += 1
        self._in_flight += 1
        counters.max_in_flight = max(counters.max_in_flight, self._in_flight)
        fate = Fate(latency=self.shaping.first_byte_latency, rate=self.shaping.rate)
        rule = self.rules.choose(request.path[1:], method)
        if rule is None:
            return self._by_chance(fate) if request.reads_object else fate
        counters.faults[rule.action] += 1
        return replace(
            fate,
            kind=rule.kind,
            seconds=rule.seconds,
            latency=fate.latency + (rule.seconds if rule.action == "delay" else 0),
            rate=rule.rate if rule.action == "trickle" else fate.rate,
        )

    def end(self, request: HttpRequest, status: int, sent: int) -> None:
        """Log that the answer was sent, or the share of it that its fate allows."""
        self._in_flight -= 1
        self.counters.bytes_sent += sent
        where = request.path[1:], request.headers.get("range")
        self.log.append(LogEntry(request.method, *where, status, sent, time.monotonic()))

    def _by_chance(self, fate: Fate) -> Fate:
        # Always three draws, so that one option's share does not move the others' sequence.
        fault = self._chances.choose("", "GET")
        at, slow = self._chances.dice.random(), self._chances.dice.random()
        share, factor = self.shaping.slow_tail
        if slow < share:
            self.counters.faults["slow"] += 1
            fate = replace(fate, latency=fate.latency * factor, rate=fate.rate and fate.rate / factor)
        if fault is None:
            return fate
        self.counters.faults["status" if fault.kind == "503" else fault.kind] += 1
        return replace(fate, kind=fault.kind, at=at)


class _S3Connection(FaultyConnection):
    def __init__(self, connection: socket, api: S3Api, traffic: Traffic) -> None:
        super().__init__(connection)
        self._api, self._traffic = api, traffic
        self._is_counted = False

    async def _serve(self, request: HttpRequest) -> None:
        if request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-") and request.body:
            body = await HttpReader(self._connection, bytearray(request.body)).chunks()
            request = replace(request, body=body)
        if request.path.startswith(CONTROL_PATH):
            await self._send(request, _control(self._traffic, request))
        elif QUIET_HEADER in request.headers:
            await self._send(request, self._api.handle(request))
        else:
            await self._serve_shaped(request)

    async def _serve_shaped(self, request: HttpRequest) -> None:
        traffic, status, sent = self._traffic, 0, 0
        traffic.counters.connections += not self._is_counted
        traffic.counters.bytes_received += len(request.body)
        self._is_counted = True
        fate = traffic.begin(request)
        try:
            await traffic.released.wait()
            asked = request
            if fate.kind == "whole":
                asked = replace(request, headers={**request.headers, "range": ","})
            status, sent = await self._respond(asked, fate)
        finally:
            traffic.end(request, status, sent)

    async def _answer(self, request: HttpRequest) -> Response:
        return self._api.handle(request)


def _control(traffic: Traffic, request: HttpRequest) -> Response:
    """Answer an S3Control: JSON in, JSON out."""
    argument: dict[str, Any] = json.loads(bytes(request.body) or b"{}")
    actions: dict[str, Callable[[], object]] = {
        "counters": lambda: {
            item.name: getattr(traffic.counters, item.name) for item in fields(ServerCounters)
        },
        "log": lambda: list(traffic.log),
        "reset": traffic.reset_counters,
        "shape": lambda: traffic.shape(Shaping(**argument)),
        "shaping": lambda: asdict(traffic.shaping),
        "rule": lambda: traffic.rules.faults.append(Rule(**argument)),
        "clear": traffic.rules.faults.clear,
        "hold": traffic.hold,
        "release": traffic.released.set,
    }
    action = actions.get(request.path.removeprefix(CONTROL_PATH))
    if action is None:
        return error_response(501, request.path)
    return Response(200, {"Content-Type": "application/json"}, json.dumps(action()).encode())


async def serve(listener: socket, api: S3Api, traffic: Traffic) -> None:
    """Accept and serve connections until cancelled."""
    await accept(listener, lambda connection: _S3Connection(connection, api, traffic).run())
