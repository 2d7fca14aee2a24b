"""Exact counters of a measured run, from the server's access log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

TICK = 0.003  # the log's times are whole milliseconds, taken once per turn of nginx's event loop


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the server saw it; times in seconds since 1970."""

    start: float
    end: float
    method: str
    status: int
    nbytes: int
    path: str


class LogReader:
    """Hands out what was logged since the last call."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = 0

    def take(self) -> list[Request]:
        """Requests that ended since the last call, by start time."""
        with self._log.open() as file:
            file.seek(self._position)
            lines = file.readlines()
            self._position = file.tell()
        found = []
        for line in lines:
            end, taken, method, status, nbytes, _port, path = line.split(" ", 6)
            found.append(
                Request(float(end) - float(taken), float(end), method, int(status), int(nbytes), path.strip())
            )
        return sorted(found, key=lambda r: r.start)


def counts(requests: list[Request]) -> dict[str, int]:
    """Requests per method, bytes and the most that were under way at once."""
    methods = Counter(r.method for r in requests)
    edges = sorted([(r.start, 1) for r in requests] + [(r.end, -1) for r in requests])
    now = most = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return {
        "get": methods["GET"],
        "head": methods["HEAD"],
        "bytes": sum(r.nbytes for r in requests),
        "in_flight": most,
    }


def until(requests: list[Request], moment: float, latency: float) -> dict[str, float]:
    """Bytes requested and bytes received at a moment.

    Of an answer still under way the part that its time so far allows is counted as arrived.

    Returns:
        ``requests`` begun, ``asked`` bytes of these, ``arrived`` bytes, and ``round_trips``: the longest
        chain of requests each of which began after the one before had ended, all with their first byte by
        then.
    """
    begun = [r for r in requests if r.start <= moment]
    arrived = 0.0
    for r in begun:
        share = (moment - r.start - latency) / max(r.end - r.start - latency, 1e-3)
        arrived += r.nbytes * min(max(share, 0.0), 1.0)
    return {
        "requests": len(begun),
        "asked": sum(r.nbytes for r in begun),
        "arrived": round(arrived),
        "round_trips": longest_chain([r for r in begun if r.start + latency <= moment + TICK]),
    }


def longest_chain(requests: list[Request]) -> int:
    """Most requests that can be put one after another without overlap (earliest end first is optimal)."""
    chain, free = 0, float("-inf")
    for r in sorted(requests, key=lambda r: r.end):
        if r.start >= free - TICK:
            chain, free = chain + 1, r.end
    return chain


def between(requests: list[Request], low: float, high: float) -> tuple[float, float, float]:
    """Traffic in a span of time, as if every answer had been sent evenly over its request's time.

    Returns:
        Bytes sent, requests under way on average, and bytes asked for and not yet sent, on average.
    """
    sent = busy = pending = 0.0
    for r in requests:
        start, stop = max(low, r.start), min(high, r.end)
        if stop <= start:
            continue
        taken = max(r.end - r.start, 1e-3)
        sent += r.nbytes * (stop - start) / taken
        busy += (stop - start) / (high - low)
        left = 1 - ((start + stop) / 2 - r.start) / taken
        pending += r.nbytes * left * (stop - start) / (high - low)
    return sent, busy, pending
