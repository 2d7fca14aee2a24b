"""Names that Megatron-Energon has beside its transforms."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

TTransform = TypeVar("TTransform")
"""A step of ``torchvision``."""


class Sampling(Enum):
    """Interpolations by Pillow's numbers.

    Example:
        >>> Sampling.BILINEAR.value
        2
    """

    NEAREST = 0
    BILINEAR = 2
