"""Progress of prewarming."""

from __future__ import annotations

from collections.abc import Iterator

from energon_stream.prewarming.planner import FetchPlanner, PlannedFetch
from energon_stream.progress import Progress

__all__ = ["estimated", "shown"]


def estimated(requests: FetchPlanner, samples: int, progress: Progress) -> Iterator[list[PlannedFetch]]:
    """Yield windows of requests, and estimate the bytes of all of them from the samples that were looked at.

    Args:
        requests: The requests.
        samples: Samples of all of them.
        progress: Progress in bytes.
    """
    for window in requests.windows():
        if requests.samples:
            progress.total = (requests.bytes - requests.cached_bytes) * samples / requests.samples
        yield window


def shown(requests: FetchPlanner, samples: int, enabled: bool | None) -> Iterator[list[PlannedFetch]]:
    """Yield windows of requests, and show how many samples were looked at."""
    with Progress(samples, unit="samples", enabled=enabled) as progress:
        for window in requests.windows():
            progress.reach(requests.samples)
            yield window
