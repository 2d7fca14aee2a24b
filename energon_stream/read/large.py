"""Samples that are too large to be fetched as one fetch: streamed, each part to its own bytes.

A range is requested in pieces, several ahead, and copied in order to where its bytes belong, so that there is
the sample once, and a small set of pieces besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial

from energon_stream.read.locator import Locator, RawSample
from energon_stream.read.options import ReadOptions
from energon_stream.read.range_stream import RangeStream, piece_sizes
from energon_stream.storage import ByteRange, Fetcher

__all__ = ["read_large_sample"]


def read_large_sample(
    locator: Locator,
    sample: int,
    ranges: Sequence[tuple[int, int, int]],
    *,
    fetcher: Fetcher,
    options: ReadOptions,
    deadline: int = 0,
) -> RawSample | None:
    """Read one sample, alone; may be run by the fetcher itself.

    Memory: the sample, and :func:`piece_sizes` besides. Each part is all of a ``bytes`` object.

    Args:
        locator: The dataset.
        sample: Sample number.
        ranges: Object, first byte, and one past the last byte, as :meth:`Locator.locate` gave them.
        fetcher: Runs the requests.
        options: Limits.
        deadline: Rank of the requests in the fetcher's queue.

    Returns:
        The sample; None when it is excluded.

    Raises:
        IndexMismatchError: A range does not hold one sample.
        ObjectChangedError: An object was replaced while it was read.
    """
    pieces = piece_sizes(sum(stop - start for _, start, stop in ranges), options)

    def opened(number: int, start: int, stop: int) -> RangeStream:
        store, path = locator.place(number)
        return RangeStream(
            store,
            path,
            ByteRange(start, stop),
            pieces=pieces,
            fetcher=fetcher,
            etag=partial(locator.etag, number),
            observe=partial(locator.observe, number),
            deadline=deadline,
        )

    with ExitStack() as stack:
        streams = [
            (number, stack.enter_context(closing(opened(number, *place)))) for number, *place in ranges
        ]
        return locator.cut_streams(sample, streams)
