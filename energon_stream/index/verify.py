"""Compares the bytes of samples with the checksums that ``prepare --checksums`` wrote, and with names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from energon_stream.errors import ChecksumError, NotPreparedError
from energon_stream.index.checksums import CHECKSUMS, checksum_error, digest, find_checksums
from energon_stream.index.entries import EntryPages, Load, OffsetCache
from energon_stream.index.sample_names import hash_names, other_names
from energon_stream.logs import log_once
from energon_stream.rng import derive_key, uniform

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.index.dataset import WebDatasetIndex
    from energon_stream.storage import Store

_log = logging.getLogger(__name__)

Verify: TypeAlias = Literal["never", "sampled", "always"]
"""Samples whose bytes are compared with checksums."""

SAMPLED_SHARE = 0.01
_KEY = derive_key("verify")
_KEPT_BYTES = 8 << 20  # of checksums, in memory


class Verifier:
    """Compares samples of one leaf with their checksums. Use :func:`open_verifier`."""

    def __init__(self, index: WebDatasetIndex, pages: EntryPages, share: float) -> None:
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
        return list(self._pages.rows(self._rows(samples), 1)[:, 0].astype(np.uint64).tolist())

    def wrong(
        self, samples: Int64Array, data: memoryview, starts: Int64Array, stops: Int64Array
    ) -> dict[int, ChecksumError]:
        """Return an error for each sample that has other bytes than its checksum says, by place.

        ``data`` has the bytes of all samples, from ``starts`` to ``stops``.
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
        return checksum_error(*_place(self._index, sample))

    def _rows(self, samples: Int64Array) -> Int64Array:
        return samples + self._shift[self._index.shard_of(samples)]


def open_verifier(index: WebDatasetIndex, store: Store, verify: Verify) -> Verifier | None:
    """Return what compares the samples of a dataset; None if none are compared."""
    if verify == "never":
        return None
    file = None if index.every is None else find_checksums(index.spec, store, index.every)
    if file is not None:
        pages = EntryPages.of_file(file, OffsetCache(_KEPT_BYTES))
        return Verifier(index, pages, 1 if verify == "always" else SAMPLED_SHARE)
    if verify == "always":
        raise NotPreparedError(
            f"verify='always' needs {CHECKSUMS}",
            where=store.url,
            hint="run `energon-stream prepare --checksums`, or pass verify='sampled', which reads datasets "
            "without checksums, too",
        )
    log_once(_log, "%s has no checksums, so its samples are not compared", store.url)
    return None


def wrong_names(
    index: WebDatasetIndex, samples: Int64Array, data: memoryview, starts: Int64Array, stops: Int64Array
) -> dict[int, ChecksumError]:
    """Return an error for each sample with the bytes of another; see :meth:`Verifier.wrong`."""
    if index.names is None:
        return {}
    found = other_names(index.names[samples], data, starts, stops)
    return {place: checksum_error(*_place(index, int(samples[place])), name) for place, name in found.items()}


def check_name(index: WebDatasetIndex, sample: int, key: str, parts: Sequence[tuple[str, object]]) -> None:
    """Raise ChecksumError if a sample with this key and these parts is not the one that the index knows."""
    name = f"{key}.{parts[0][0]}"
    if index.names is not None and hash_names([name])[0] != index.names[sample]:
        raise checksum_error(*_place(index, sample), name)


def _place(index: WebDatasetIndex, sample: int) -> tuple[str, int]:
    """Return the URL of a sample's shard, and the sample's number there."""
    shard = int(index.shard_of(np.array(sample)))
    return f"{index.spec.url}/{index.shard_paths[shard]}", sample - int(index.shard_starts[shard])
