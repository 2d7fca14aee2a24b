"""Geometric transforms of ``torchvision`` that are merged to one warp; needs the extra ``transforms``.

``homography`` has the arithmetic, and needs no ``torchvision``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from energon_stream.errors import MissingPackageError

if TYPE_CHECKING:
    from energon_stream.transforms.mappers import (
        CenterCropMapper,
        CustomTransform,
        RandomAffineMapper,
        RandomCropMapper,
        RandomHorizontalFlipMapper,
        RandomPerspectiveMapper,
        RandomResizedCropMapper,
        RandomRotationMapper,
        RandomVerticalFlipMapper,
        ResizeMapper,
        TransformMapper,
    )
    from energon_stream.transforms.merge import MergeTransform

__all__ = [
    "CenterCropMapper",
    "CustomTransform",
    "MergeTransform",
    "RandomAffineMapper",
    "RandomCropMapper",
    "RandomHorizontalFlipMapper",
    "RandomPerspectiveMapper",
    "RandomResizedCropMapper",
    "RandomRotationMapper",
    "RandomVerticalFlipMapper",
    "ResizeMapper",
    "TransformMapper",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "merge" if name == "MergeTransform" else "mappers"
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except (ImportError, RuntimeError, OSError) as error:  # also beside another PyTorch than its own
        raise MissingPackageError(
            f"{name} needs torchvision, which cannot be imported: {error}",
            hint="run `pip install 'energon-stream[transforms]'`",
        ) from error
