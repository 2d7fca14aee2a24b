"""What all opened datasets have in common, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from energon_stream.arrays import Int64Array
from energon_stream.storage import StoreSpec

__all__ = ["DatasetIndex"]


class DatasetIndex(Protocol):
    """An opened dataset: a numbered sequence of samples in shards."""

    @property
    def spec(self) -> StoreSpec:
        """Where it lies."""

    @property
    def split_part(self) -> str:
        """Name of the split part."""

    @property
    def num_samples(self) -> int:
        """Its samples, excluded ones included."""

    @property
    def shard_paths(self) -> tuple[str, ...]:
        """Names of what holds the samples."""

    @property
    def shard_counts(self) -> Int64Array:
        """``int64``: samples of each shard."""

    @property
    def shard_starts(self) -> Int64Array:
        """``int64``: first sample of each shard, and the total."""

    @property
    def excluded(self) -> Mapping[str, frozenset[str]]:
        """Shard path to keys of its samples that are not to be used."""
