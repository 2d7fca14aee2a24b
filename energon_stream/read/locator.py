"""The protocol of locators, which find the byte ranges of samples and cut samples out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.errors import ChecksumError
    from energon_stream.index.entries import Load
    from energon_stream.index.objects import ShardObject
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request


@dataclass(slots=True)
class RawSample:
    """A sample's parts as they are in the dataset."""

    leaf: int
    index: int  # sample within the leaf's split part
    key: str  # without the shard
    shard: str | None  # path of the tar, relative to the dataset; None for datasets without shards
    # Part name to bytes. Views keep the whole answer in memory: copy the parts that you keep.
    parts: dict[str, bytes | memoryview]
    # Samples of a join, None for a missing one; the sample itself comes first. Empty outside of joins.
    members: tuple[RawSample | None, ...] = ()

    @property
    def name(self) -> str:
        """Shard and key, unique within a dataset."""
        return self.key if self.shard is None else f"{self.shard}/{self.key}"


Cut: TypeAlias = "Callable[[int, int], RawSample | None]"
"""Cuts a sample out of an answer, given its number and that of its range; returns None for an excluded one.
Raises IndexMismatchError if the range does not hold one sample."""


class Locator(Protocol):
    """Finds the byte ranges of one leaf's samples, and cuts samples out of them. Derive from it.

    The leaf's bytes lie in objects, usually shards, which the locator numbers from 0.
    """

    @property
    def width(self) -> int:
        """Largest number of byte ranges of a sample."""
        return 1

    @property
    def index_is_local(self) -> bool:
        """True if the loads of :meth:`claim_loads` run at memory speed."""

    @property
    def is_sparse(self) -> bool:
        """True if a view has only some of the samples, so that others lie between them."""
        return False

    @property
    def skips_bytes(self) -> bool:
        """True if :meth:`locate` leaves out parts of samples."""
        return False

    @property
    def opening(self) -> Locator:
        """Locator of a reader's first samples: itself, unless it takes long to find out what to read."""
        return self

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of index entries that are missing. The caller must run each: no other caller gets it.

        :meth:`locate` needs them. They may run in any order, also at the same time.
        """

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return object, first byte, and one past the last byte of samples whose index entries are loaded.

        The arrays are ``[len(samples), n]``, where ``n`` is at most ``width``. Object -1 means no range; each
        sample has at least one.
        """

    def with_neighbours(self, request: Request) -> Request:
        """Return a request with the bytes around, if a leaf's first sample is to be compared with them."""
        return request

    def object(self, number: int, /) -> ShardObject:
        """Return the object of a number."""

    def split(self, request: Request, data: memoryview) -> Cut:
        """Prepare the answer of a request for cutting. Work that is cheaper for many samples is done here."""

    def wrong_ranges(self, request: Request, data: memoryview) -> dict[int, ChecksumError]:
        """Compare the samples of an answer with their checksums, if they have any and the user wants it.

        Return an error for each range whose bytes are wrong, by the number of the range.
        """
        return {}

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]], /) -> RawSample | None:
        """Merge the pieces of a sample; return None if it is excluded. Called only if :attr:`width` is not 1.

        ``found`` has the object number and piece of each range, in the order of :meth:`locate`. Raises
        IndexMismatchError if the pieces do not belong together.
        """
        return found[0][1]

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Cut and merge ranges that are too large to be in memory beside their parts, as :meth:`merge`.

        Each part of the sample is in a ``bytes`` object of its own.
        """
