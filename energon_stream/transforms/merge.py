"""Several geometric steps as one: their matrices are multiplied, and the image is interpolated once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

import energon_stream.transforms.homography as homography
from energon_stream.errors import ConfigError
from energon_stream.transforms.homography import Clip, Matrix, Size
from energon_stream.transforms.mappers import Fill, TransformMapper, mapper_of

_MODES = {
    InterpolationMode.NEAREST: "nearest",
    InterpolationMode.NEAREST_EXACT: "nearest",
    InterpolationMode.BILINEAR: "bilinear",
    InterpolationMode.BICUBIC: "bicubic",
}
"""Interpolations, from the coarsest to the finest."""


class MergeTransform(torch.nn.Module):
    """Applies geometric steps as one warp, so that an image is interpolated once.

    The steps draw their random parameters as they do one by one: with the same seed, they are the same. Steps
    that only crop, resize and flip have the very pixels of a crop, an antialiased resize and a flip. Others
    are warped by their common homography, after an antialiased reduction if the image shrinks. Pixels that a
    step moves out of its image are lost, as one by one.

    Args:
        transforms: ``Resize``, ``RandomResizedCrop``, ``CenterCrop``, ``RandomCrop``, ``RandomRotation``,
            ``RandomAffine``, ``RandomPerspective`` and random flips, of ``torchvision.transforms`` or its
            ``v2``; and :class:`CustomTransform` steps.

    Raises:
        ConfigError: A step cannot be merged, or the steps have different fills.

    Example:
        >>> import torch
        >>> from torchvision import transforms
        >>> from energon_stream.transforms import MergeTransform
        >>> steps = [transforms.RandomRotation(10), transforms.Resize(64), transforms.CenterCrop(48)]
        >>> MergeTransform(steps)(torch.zeros(3, 100, 200)).shape
        torch.Size([3, 48, 48])
    """

    def __init__(self, transforms: Sequence[torch.nn.Module | TransformMapper[Any]]) -> None:
        super().__init__()
        self.transforms: list[torch.nn.Module | TransformMapper[Any]] = list(transforms)
        self._mappers = [mapper_of(transform) for transform in transforms]
        fills = {str(fill): fill for mapper in self._mappers if (fill := mapper.fill) is not None}
        if len(fills) > 1:
            raise ConfigError(
                f"the steps fill with {' and '.join(fills)}",
                hint="give them the same fill, or merge them separately",
            )
        self._fill: Fill = next(iter(fills.values()), None)
        used = [mapper.interpolation for mapper in self._mappers if mapper.interpolation is not None]
        unknown = [mode for mode in used if mode not in _MODES]
        if unknown:
            raise ConfigError(
                f"interpolation by {unknown[0].value} cannot be merged",
                hint=f"use one of {', '.join(mode.value for mode in _MODES)}",
            )
        self._interpolation = max(used, key=list(_MODES).index, default=InterpolationMode.NEAREST)
        self._antialias = any(mapper.antialias for mapper in self._mappers)

    def forward(self, x: Any) -> Any:
        """Apply the steps to a ``PIL.Image.Image`` or a tensor of shape ``(…, height, width)``.

        The result is of the same kind, and its pixels of the same type.
        """
        source: Size = tuple(F.get_size(x))  # two numbers
        matrix: homography.Matrix = np.eye(3)
        size = np.array(source)
        clips = []
        for mapper in self._mappers:
            clips.append(Clip(matrix, (int(size[0]), int(size[1]))))
            matrix, size, _ = mapper.apply_transform(matrix, size)
        wanted = int(size[0]), int(size[1])
        needed = homography.needed_clips(clips, matrix, wanted)
        box = None if needed else homography.source_box(matrix, wanted)
        if box is not None:
            return self._resized(x, box, wanted)
        pixels = F.pil_to_tensor(x) if isinstance(x, Image.Image) else x
        warped = self._warped(pixels.float(), source, matrix, wanted, needed)
        if not pixels.dtype.is_floating_point:
            known = None if pixels.dtype is torch.bool else torch.iinfo(pixels.dtype)
            low, high = (known.min, known.max) if known else (0, 1)
            warped = warped.round_().clamp_(low, high)
        warped = warped.to(pixels.dtype)
        return F.to_pil_image(warped, x.mode) if isinstance(x, Image.Image) else warped

    def _resized(self, x: Any, box: homography.SourceBox, wanted: Size) -> Any:
        cropped = F.crop(x, box.top, box.left, box.height, box.width)
        if (box.height, box.width) != wanted:
            cropped = F.resize(cropped, list(wanted), self._interpolation, antialias=self._antialias)
        cropped = F.horizontal_flip(cropped) if box.hflip else cropped
        return F.vertical_flip(cropped) if box.vflip else cropped

    def _warped(
        self, pixels: torch.Tensor, source: Size, matrix: Matrix, wanted: Size, clips: Sequence[Clip]
    ) -> torch.Tensor:
        height, width = source
        if self._antialias:
            factors = homography.shrinking(matrix, source)
            height, width = (max(1, round(n * f)) for n, f in zip(source, factors, strict=True))
            if (height, width) != source:
                pixels = F.resize(pixels, [height, width], self._interpolation, antialias=True)
        rows, columns = np.mgrid[0 : wanted[0], 0 : wanted[1]] + 0.5
        seen = homography.places(np.linalg.inv(matrix), np.stack([columns, rows], -1))
        inside = np.ones(wanted, dtype=bool)
        for clip in clips:
            place = homography.places(clip.matrix, seen)
            inside &= ((place >= 0) & (place <= [clip.size[1], clip.size[0]])).all(-1)
        grid = torch.from_numpy(2 * seen / [source[1], source[0]] - 1).to(pixels.dtype)
        planes = pixels.reshape(1, -1, height, width)
        mode = _MODES[self._interpolation]
        warped = torch.nn.functional.grid_sample(
            planes, grid[None].to(pixels.device), mode, padding_mode="border", align_corners=False
        ).reshape(*pixels.shape[:-2], *wanted)
        if clips:
            fill = torch.as_tensor(self._fill or 0, dtype=warped.dtype, device=warped.device)
            fill = fill.reshape(-1, 1, 1) if fill.ndim else fill
            warped = torch.where(torch.from_numpy(inside).to(warped.device), warped, fill)
        return warped

    def extra_repr(self) -> str:
        """Return the steps, for ``repr``."""
        return ", ".join(type(transform).__name__ for transform in self.transforms)
