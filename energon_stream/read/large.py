"""Reads samples that are too large for one fetch: each part streams into its own bytes.

A range is requested in pieces, several ahead. So the sample is in memory once, beside a few pieces.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from energon_stream.errors import ChecksumError, IndexMismatchError, RangeError
from energon_stream.index.objects import as_errors_of_shards
from energon_stream.read.range_stream import RangeStream, piece_sizes
from energon_stream.storage import ByteRange, Fetcher

if TYPE_CHECKING:
    from energon_stream.read.locator import Locator, RawSample
    from energon_stream.read.read_options import ReadOptions

_log = logging.getLogger(__name__)


def read_large_sample(
    locator: Locator,
    sample: int,
    ranges: Sequence[tuple[int, int, int]],
    *,
    fetcher: Fetcher,
    options: ReadOptions,
) -> RawSample | None:
    """Read one sample alone, each part into a ``bytes`` object of its own; None if it is excluded.

    ``ranges`` are object, first byte, and one past the last byte, from :meth:`Locator.locate`. Raises
    IndexMismatchError if a range does not hold one sample or lies beyond the end of its object,
    ObjectNotFoundError or ObjectChangedError if an object was deleted or replaced, and ChecksumError if the
    bytes are wrong after a second request, too.
    """
    try:
        return _read_once(locator, sample, ranges, fetcher, options)
    except (ChecksumError, IndexMismatchError) as error:
        if locator.index_is_local or isinstance(error.__cause__, RangeError):
            raise
        _log.warning("bytes that disagree with the index are requested again: %s", error)
        for number, start, stop in ranges:
            locator.object(number).forget(ByteRange(start, stop))
        return _read_once(locator, sample, ranges, fetcher, options)


def _read_once(
    locator: Locator,
    sample: int,
    ranges: Sequence[tuple[int, int, int]],
    fetcher: Fetcher,
    options: ReadOptions,
) -> RawSample | None:
    pieces = piece_sizes(sum(stop - start for _, start, stop in ranges), options)
    with ExitStack() as stack, as_errors_of_shards():
        streams = []
        for number, start, stop in ranges:
            stream = RangeStream(locator.object(number), ByteRange(start, stop), pieces, fetcher)
            streams.append((number, stack.enter_context(closing(stream))))
        return locator.cut_streams(sample, streams)
