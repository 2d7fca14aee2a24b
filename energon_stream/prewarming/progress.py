"""Progress bars, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from energon_stream.prewarming.requests import Request, Requests

__all__ = ["byte_bar", "estimated", "shown"]


def byte_bar(progress: bool | None, total: int | None = None) -> tqdm[Any]:
    """A bar of bytes; shown where ``progress`` says so, or, if it is None, where standard error is a terminal."""
    disable = None if progress is None else not progress
    return tqdm(total=total, unit="B", unit_scale=True, disable=disable)


def estimated(requests: Requests, samples: int, bar: tqdm[Any]) -> Iterator[list[Request]]:
    """The windows of some requests; tells a bar what they amount to, by the samples that were looked at so far.

    Args:
        requests: The requests.
        samples: Samples of all of them.
        bar: The bar.
    """
    for window in requests.windows():
        if requests.samples:
            bar.total = (requests.bytes - requests.cached_bytes) * samples / requests.samples
        yield window


def shown(requests: Requests, samples: int, progress: bool | None) -> Iterator[list[Request]]:
    """The windows of some requests, with a bar of the samples that were looked at."""
    disable = None if progress is None else not progress
    with tqdm(total=samples, unit=" samples", unit_scale=True, disable=disable) as bar:
        for window in requests.windows():
            bar.update(requests.samples - bar.n)
            yield window
