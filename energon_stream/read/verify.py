"""Compares the bytes of samples with the checksums that ``prepare --checksums`` wrote."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from energon_stream.cache import CachedStore
from energon_stream.errors import NotPreparedError
from energon_stream.index.checksums import CHECKSUMS, checksum_error, digest, find_checksums
from energon_stream.logs import log_once
from energon_stream.read.index_entries import OffsetCache, RowPages
from energon_stream.rng import derive_key, uniform

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.errors import ChecksumError
    from energon_stream.index.dataset import WebDatasetIndex
    from energon_stream.read.locator import Load
    from energon_stream.read.objects import ShardObject
    from energon_stream.read.options import Verify
    from energon_stream.storage import Body, ByteRange, Store

_log = logging.getLogger(__name__)

SAMPLED_SHARE = 0.01
_KEY = derive_key("verify")
_KEPT_BYTES = 8 << 20  # of checksums, in memory


class Verifier:
    """Compares samples of one leaf with their checksums. Use :func:`open_verifier`."""

    def __init__(self, leaf: int, index: WebDatasetIndex, pages: RowPages, share: float) -> None:
        if index.every is None:
            raise TypeError("the index has no numbers of all samples; please report this bug")
        self._index, self._pages, self._share = index, pages, share
        self._shift = index.every.first - index.shard_starts[:-1]

    def chooses(self, samples: Int64Array) -> Int64Array:
        """Return the places of those samples that are compared, ``int64``: always the same samples."""
        if self._share == 1:
            return np.arange(len(samples))
        return np.flatnonzero(uniform(_KEY, self._rows(samples)) < self._share)

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of the checksums that will be needed, and are missing."""
        chosen = samples[self.chooses(samples)]
        return self._pages.claim_loads(self._rows(chosen)) if len(chosen) else []

    def expected(self, samples: Int64Array) -> list[int]:
        """Return the checksums of samples."""
        return list(self._pages.take(self._rows(samples))[:, 0].astype(np.uint64).tolist())

    def wrong(
        self, samples: Int64Array, data: memoryview, starts: Int64Array, stops: Int64Array
    ) -> dict[int, ChecksumError]:
        """Return an error for each sample that has other bytes than its checksum says, by place.

        Args:
            samples: Sample numbers.
            data: Bytes that have all samples.
            starts: ``int64``, first byte of each sample in ``data``.
            stops: ``int64``, one past the last byte.
        """
        chosen = self.chooses(samples)
        if not len(chosen):
            return {}
        spans = zip(starts[chosen].tolist(), stops[chosen].tolist(), strict=True)
        found = [digest(data[start:stop]) for start, stop in spans]
        expected = self.expected(samples[chosen])
        if found == expected:
            return {}
        pairs = zip(chosen.tolist(), found, expected, strict=True)
        return {place: self.error(int(samples[place])) for place, mine, other in pairs if mine != other}

    def error(self, sample: int) -> ChecksumError:
        """Return the error for a sample with other bytes."""
        index = self._index
        shard = int(np.searchsorted(index.shard_starts, sample, side="right")) - 1
        where = f"{index.spec.url}/{index.shard_paths[shard]}"
        return checksum_error(where, sample - int(index.shard_starts[shard]))

    def _rows(self, samples: Int64Array) -> Int64Array:
        shards = np.searchsorted(self._index.shard_starts, samples, side="right") - 1
        return samples + self._shift[shards]


def open_verifier(leaf: int, index: WebDatasetIndex, store: Store, verify: Verify) -> Verifier | None:
    """Return what compares the samples of a dataset; None if none are compared.

    Raises:
        NotPreparedError: All samples are to be compared, and the dataset has no checksums.
        IndexMismatchError: The checksums are damaged, or of another preparation.
    """
    if verify == "never":
        return None
    file = None if index.every is None else find_checksums(index.spec, store, index.every)
    if file is not None:
        pages = RowPages(leaf, file, OffsetCache(_KEPT_BYTES))
        return Verifier(leaf, index, pages, 1 if verify == "always" else SAMPLED_SHARE)
    if verify == "always":
        raise NotPreparedError(
            f"verify='always' needs {CHECKSUMS}",
            where=store.url,
            hint="run `energon-stream prepare --checksums`, or pass verify='sampled', which reads datasets "
            "without checksums, too",
        )
    log_once(_log, "%s has no checksums, so its samples are not compared", store.url)
    return None


def forget(shard: ShardObject, byte_range: ByteRange) -> None:
    """Drop the blocks of the disk cache that have bytes of a shard."""
    if isinstance(shard.store, CachedStore):
        shard.store.forget(shard.path, byte_range)


def read_again(shard: ShardObject, byte_range: ByteRange) -> Body:
    """Request bytes of a shard anew, after an answer with wrong ones."""
    forget(shard, byte_range)
    body = shard.store.get_range(shard.path, byte_range, etag=shard.etag)
    shard.observe(body.etag)
    return body
