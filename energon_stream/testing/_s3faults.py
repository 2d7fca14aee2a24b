"""Traffic of the stand-in S3 server: shaping, faults, counters, log."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from random import Random
from typing import Literal, NamedTuple, get_args

from energon_stream.errors import ConfigError

Oddity = Literal["html", "whole", "no_etag", "no_length"]
Action = Literal["status", "reset", "truncate", "delay", "stall", "trickle"] | Oddity
ODDITIES: tuple[str, ...] = get_args(Oddity)
_ACTIONS = (*get_args(get_args(Action)[0]), *ODDITIES)

_LOG_LENGTH = 50_000


@dataclass(frozen=True, slots=True)
class Shaping:
    """Speed and random faults of a server. Faults hit reads of objects, speed shapes every request.

    Attributes:
        first_byte_latency: Seconds from the request to the first byte of the answer.
        rate: Bytes per second and connection; None for no limit.
        share_503: Share of object reads answered ``503 SlowDown``.
        share_reset: Share of object reads whose connection is reset (RST) within the body.
        share_truncate: Share of object reads whose connection is closed (FIN) within the body.
        slow_tail: Share of object reads that are slow, and the factor by which their latency is
            longer and their rate lower.
        seed: Seed of the faults; the same seed and order of requests lead to the same faults.
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A targeted fault. Rules are tried in the order in which they were added, before the shares.

    Attributes:
        action: ``status`` answers with an error, ``reset`` and ``truncate`` end the connection halfway
            through the body, ``delay`` waits before the first byte, ``stall`` halfway. ``trickle`` sends
            the body slowly. ``html`` answers with a page and status 200, ``whole`` with the whole object to
            a request for a range, ``no_etag`` and ``no_length`` without this header.
        pattern: Shell pattern of ``bucket/key``.
        method: Method of the requests; None for all.
        times: Number of requests that the rule is for; None for no limit.
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

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise ConfigError(f"unknown fault {self.action!r}", hint=f"use one of {_ACTIONS}")


@dataclass(frozen=True, slots=True)
class Fate:
    """Speed and fault of one request. ``at`` is the share of the body before a reset, truncation or stall."""

    latency: float = 0.0
    rate: float | None = None
    status: int | None = None
    cut: Literal["reset", "truncate"] | None = None
    stall: float = 0.0
    at: float = 0.5
    odd: str | None = None  # one of the oddities


class LogEntry(NamedTuple):
    """One answered request. ``bytes`` counts the body as sent, ``time`` is ``time.monotonic()`` at its
    end."""

    method: str
    key: str
    range: str | None
    status: int
    bytes: int
    time: float


class Tally(dict[str, int]):
    """Counts by name; 0 for names that did not occur."""

    def __missing__(self, name: str) -> int:
        return 0


@dataclass(slots=True)
class ServerCounters:
    """Requests and bytes of a server since its start or the last reset.

    Attributes:
        requests: Requests per HTTP method; GETs that read no object (listings) count as ``LIST``.
        faults: Faults injected, per kind: ``status``, ``reset``, ``truncate``, ``delay``, ``stall``,
            ``slow``, and those of :class:`Rule`.
        bytes_sent: Body bytes sent.
        bytes_received: Body bytes received.
        connections: Connections accepted.
        max_in_flight: Most requests that were being answered at one moment, never more than the clients had
            open. Without latency or rate, small answers are sent one after the other.
    """

    requests: Tally = field(default_factory=Tally)
    faults: Tally = field(default_factory=Tally)
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0
    max_in_flight: int = 0

    def __post_init__(self) -> None:
        # From JSON they come as plain dicts.
        self.requests, self.faults = Tally(self.requests), Tally(self.faults)

    @property
    def total(self) -> int:
        """All requests."""
        return sum(self.requests.values())


class Traffic:
    """Decides the fate of each request, counts and logs; used by the event loop only."""

    def __init__(self, shaping: Shaping) -> None:
        self.shape(shaping)
        self.log: deque[LogEntry] = deque(maxlen=_LOG_LENGTH)
        self.rules: list[Rule] = []
        self.released = asyncio.Event()  # set unless answers are held
        self.released.set()
        self._in_flight = 0
        self.reset_counters()

    def reset_counters(self) -> None:
        """Start counting anew."""
        self.counters = ServerCounters(max_in_flight=self._in_flight)
        self.log.clear()

    def shape(self, shaping: Shaping) -> None:
        """Change the options; the sequence of random faults starts again."""
        self.shaping = shaping
        self._dice = Random(shaping.seed)

    def begin(self, method: str, key: str, *, reads_object: bool) -> Fate:
        """Count a request and decide its fate."""
        counters = self.counters
        counters.requests["LIST" if method == "GET" and not reads_object else method] += 1
        self._in_flight += 1
        counters.max_in_flight = max(counters.max_in_flight, self._in_flight)
        fate = Fate(self.shaping.first_byte_latency, self.shaping.rate)
        for place, rule in enumerate(self.rules):
            if rule.times is not None and rule.times < 1:
                continue
            if rule.method in (None, method) and fnmatchcase(key, rule.pattern):
                if rule.times is not None:
                    self.rules[place] = replace(rule, times=rule.times - 1)
                counters.faults[rule.action] += 1
                return _ruled(fate, rule)
        return self._rolled(fate) if reads_object else fate

    def end(self, method: str, key: str, byte_range: str | None, status: int, sent: int) -> None:
        """Log that the answer was sent, or the share of it that its fate allows."""
        self._in_flight -= 1
        self.counters.bytes_sent += sent
        self.log.append(LogEntry(method, key, byte_range, status, sent, time.monotonic()))

    def _rolled(self, fate: Fate) -> Fate:
        shaping, faults = self.shaping, self.counters.faults
        # Always three draws, so that one option's share does not move the others' sequence.
        kind, place, slow = self._dice.random(), self._dice.random(), self._dice.random()
        if slow < shaping.slow_tail[0]:
            faults["slow"] += 1
            factor = shaping.slow_tail[1]
            fate = replace(fate, latency=fate.latency * factor, rate=fate.rate and fate.rate / factor)
        if kind < shaping.share_503:
            faults["status"] += 1
            return replace(fate, status=503)
        kind -= shaping.share_503
        if kind < shaping.share_reset + shaping.share_truncate:
            cut: Literal["reset", "truncate"] = "reset" if kind < shaping.share_reset else "truncate"
            faults[cut] += 1
            return replace(fate, cut=cut, at=place)
        return fate


def _ruled(fate: Fate, rule: Rule) -> Fate:
    if rule.action == "status":
        return replace(fate, status=rule.status)
    if rule.action == "delay":
        return replace(fate, latency=fate.latency + rule.seconds)
    if rule.action == "stall":
        return replace(fate, stall=rule.seconds)
    if rule.action == "trickle":
        return replace(fate, rate=rule.rate)
    if rule.action == "reset" or rule.action == "truncate":
        return replace(fate, cut=rule.action)
    return replace(fate, odd=rule.action)
