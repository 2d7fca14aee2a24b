"""Figures of one run, and the names that several groups share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import nginx_s3
import request_log

if TYPE_CHECKING:
    from bench import Run

RAW = {"raw 16": 16, "raw 32": 32, "raw 64": 64}
MOST = {"raw 64": 64}  # so far away, fewer requests in flight are no limit
REMOTE_PEERS = ("webdataset", "mosaicml", "litdata", "s3torch")
WHERE = {0: "in process", 1: "one worker"}
CUTS = {"d40x8": "8 shards of 21 MB", "d40x64": "64 shards of 2.6 MB"}
H50 = nginx_s3.PROFILES["H50"].latency


def cold(run: Run) -> float:
    """Samples a second of the first epoch, opening included."""
    return run.dataset.samples / (run.result["ends"][0] - run.result["begin"])


def steady(run: Run) -> float | None:
    """Samples a second from the end of the first epoch on."""
    ends = run.result["ends"]
    return run.dataset.samples * (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else None


def first(run: Run) -> float:
    """Seconds to the first batch."""
    return run.result["first"] - run.result["begin"]


def before(what: str, unit: float = 1) -> Callable[[Run], float]:
    """Requests and bytes that the server had seen or sent when the first batch was complete."""
    return lambda r: request_log.until(r.requests, r.result["first"], H50)[what] / unit


def count(what: str) -> Callable[[Run], float]:
    """A counter of the whole run."""
    return lambda r: request_log.counts(r.requests)[what]


def bytes_a_payload_byte(run: Run) -> float:
    """Bytes that the server sent for each byte of a part, in a run of one epoch."""
    return request_log.counts(run.requests)["bytes"] / run.dataset.total


def bytes_of_the_data(run: Run) -> float:
    """Bytes that the server sent for each byte of the tars."""
    return request_log.counts(run.requests)["bytes"] / (run.dataset.samples * run.dataset.tar_bytes)


def requests_a_sample(run: Run) -> float:
    """In a run of whole epochs without look-ahead beyond them."""
    return len(run.requests) / run.result["samples"]


def later_requests(run: Run) -> float | None:
    """Requests a sample fetched after the first epoch; look-ahead fetches more than is consumed."""
    if len(run.result["ends"]) < 2:
        return None
    later = [r for r in run.requests if r.start > run.result["ends"][0]]
    return len(later) * run.dataset.tar_bytes / max(1, sum(r.nbytes for r in later))


def later_heads(run: Run) -> float:
    """HEADs after the first batch."""
    return sum(q.method == "HEAD" and q.start > run.result["first"] for q in run.requests)
