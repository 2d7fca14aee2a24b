"""The rule by which several datasets become one sequence."""

from __future__ import annotations

from enum import Enum


class DatasetBlendMode(Enum):
    """The rule by which several datasets become one sequence.

    Attributes:
        NONE: One dataset, or one after the other.
        DATASET_WEIGHT: Weighted draws.
        SAMPLE_REPETITIONS: Each sample a number of times in an epoch.

    Example:
        >>> from energon_stream import DatasetBlendMode
        >>> DatasetBlendMode("dataset_weight")
        <DatasetBlendMode.DATASET_WEIGHT: 'dataset_weight'>
    """

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"
