"""The protocol of locators, which find the byte ranges of samples and cut samples out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.errors import ChecksumError
    from energon_stream.read.objects import ShardObject
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.storage import Store


@dataclass(slots=True)
class RawSample:
    """A sample's parts as they are in the dataset."""

    leaf: int  # number of the leaf
    index: int  # sample within the leaf's split part
    key: str  # sample key without the shard
    shard: str | None  # path of the tar, relative to the dataset; None for datasets without shards
    # Part name to bytes. The views keep the whole fetch in memory: copy parts that are kept.
    parts: dict[str, memoryview]
    # Samples of a join, None for a missing one; the sample itself comes first. Empty outside of joins.
    members: tuple[RawSample | None, ...] = ()

    @property
    def name(self) -> str:
        """Shard and key, unique within a dataset."""
        return self.key if self.shard is None else f"{self.shard}/{self.key}"


@dataclass(frozen=True, slots=True)
class Load:
    """Index entries to be loaded.

    Attributes:
        store: Store of the index.
        read: Requests the entries from this store, or from one that reports to a fetcher, and keeps them.
    """

    store: Store
    read: Callable[[Store], object]

    def run(self) -> None:
        """Load the entries on this thread."""
        self.read(self.store)


class Cutter(Protocol):
    """Cuts samples out of one fetch."""

    def cut(self, sample: int, number: int, /) -> RawSample | None:
        """Cut a range into parts.

        Args:
            sample: Sample number.
            number: Number of the range within the fetch.

        Returns:
            The sample; None if it is excluded.

        Raises:
            IndexMismatchError: The range does not hold one sample.
        """


class Locator(Protocol):
    """Finds the byte ranges of one leaf's samples, and cuts samples out of them.

    The leaf's bytes lie in objects, usually shards, which the locator numbers from 0.
    """

    @property
    def width(self) -> int:
        """Largest number of byte ranges of a sample."""

    @property
    def index_is_local(self) -> bool:
        """True if the loads of :meth:`claim_loads` run at memory speed."""

    @property
    def skips_bytes(self) -> bool:
        """True if :meth:`locate` leaves out parts of samples."""

    @property
    def opening(self) -> Locator:
        """Locator of a reader's first samples: itself, unless it takes long to find out what to read."""

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of index entries that are missing. The caller runs each, because nobody else gets it.

        :meth:`locate` needs them. They may run in any order, also at the same time.
        """

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the byte ranges of samples whose index entries have been loaded.

        Returns:
            ``int64 [len(samples), width]`` arrays: object, first byte, one past the last byte. Object -1
            means no range; each sample has at least one.
        """

    def object(self, number: int, /) -> ShardObject:
        """Return the object of a number."""

    def split(
        self, number: int, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> Cutter:
        """Prepare a fetch for cutting. Work that is cheaper for many samples at once is done here.

        Args:
            number: Number of the object.
            data: Bytes of the fetch.
            start: First byte of the fetch in the object.
            starts: ``int64``, first byte of each range, in the object.
            stops: ``int64``, one past the last byte of each.
        """

    def wrong_ranges(
        self, samples: Int64Array, data: memoryview, start: int, starts: Int64Array, stops: Int64Array
    ) -> dict[int, ChecksumError]:
        """Compare samples of a fetch with their checksums, if they have any and the user wants it.

        Args:
            samples: ``int64``, sample that each range belongs to.
            data: Bytes of the fetch.
            start: First byte of the fetch in the object.
            starts: ``int64``, first byte of each range, in the object.
            stops: ``int64``, one past the last byte of each.

        Returns:
            An error for each range whose bytes are wrong, by the number of the range.
        """

    def merge(self, sample: int, found: Sequence[tuple[int, RawSample | None]], /) -> RawSample | None:
        """Merge the pieces of a sample. Called only if :attr:`width` is not 1.

        Args:
            sample: Sample number.
            found: Object number and piece of each range, in the order of :meth:`locate`.

        Returns:
            The sample; None if it is excluded.

        Raises:
            IndexMismatchError: The pieces do not belong together.
        """

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        """Cut and merge ranges that are too large to be in memory beside their parts.

        This may run in the fetcher's threads.

        Args:
            sample: Sample number.
            streams: Object number and bytes of each range, in the order of :meth:`locate`.

        Returns:
            The sample, each part in a ``bytes`` object of its own; None if it is excluded.
        """
