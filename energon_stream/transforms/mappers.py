"""The matrix of each step of ``torchvision.transforms`` and ``torchvision.transforms.v2``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

import energon_stream.transforms.homography as homography
from energon_stream.errors import ConfigError
from energon_stream.transforms.homography import Matrix, Size

TTransform = TypeVar("TTransform")  # a step of ``torchvision``
Fill = int | float | Sequence[int | float] | None
Applied = tuple[Matrix, np.ndarray[Any, Any], Any]
"""The new matrix, the new size ``(height, width)``, and a description of the step with its parameters."""


class TransformMapper(ABC, Generic[TTransform]):
    """Turns a step on images into a step on matrices.

    Example:
        >>> import numpy as np
        >>> from torchvision import transforms
        >>> mapper = CenterCropMapper(transforms.CenterCrop(10))
        >>> mapper.apply_transform(np.eye(3), np.array([20, 30]))[1].tolist()
        [10, 10]
    """

    antialias: bool = False  # whether a step that shrinks takes the mean of the pixels that it joins

    def __init__(self, transform: TTransform) -> None:
        self.transform: Any = transform

    @abstractmethod
    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        """Add the step to a matrix.

        Args:
            matrix: From places in the source to places in the image before this step, 3 x 3.
            dst_size: Height and width of the image before this step.

        Returns:
            The matrix and the size after the step, and the step's name and parameters.
        """

    @property
    def fill(self) -> Fill:
        """Value of the pixels beyond the image; None if the step does not fill."""
        return None

    @property
    def interpolation(self) -> InterpolationMode | None:
        """Interpolation of the step; None if it moves whole pixels."""
        return None

    translate: ClassVar[Callable[..., Matrix]] = staticmethod(homography.translate)
    rotate: ClassVar[Callable[..., Matrix]] = staticmethod(homography.rotate)
    scale: ClassVar[Callable[..., Matrix]] = staticmethod(homography.scale)
    shear: ClassVar[Callable[..., Matrix]] = staticmethod(homography.shear)
    hflip: ClassVar[Callable[..., Matrix]] = staticmethod(homography.hflip)
    vflip: ClassVar[Callable[..., Matrix]] = staticmethod(homography.vflip)

    def _size(self, dst_size: Any) -> Size:
        return int(dst_size[0]), int(dst_size[1])

    def _applied(self, matrix: Matrix, size: Size, *parameters: Any) -> Applied:
        return matrix, np.array(size), (type(self.transform).__name__, *parameters)


class _FilledMapper(TransformMapper[TTransform]):
    @property
    def fill(self) -> Fill:
        found = self.transform.fill
        if isinstance(found, Mapping):
            raise ConfigError(f"fill is {found!r:.80}", hint="use one fill for all kinds of images")
        return found  # type: ignore[no-any-return]


class _Interpolated(TransformMapper[TTransform]):
    def __init__(self, transform: TTransform) -> None:
        super().__init__(transform)
        self.antialias: bool = bool(getattr(transform, "antialias", False))

    @property
    def interpolation(self) -> InterpolationMode | None:
        return InterpolationMode(self.transform.interpolation)


def _stand_in(size: Size) -> torch.Tensor:
    """Return a tensor that has an image's size, and no memory for it."""
    return torch.empty(1, 1, 1).expand(1, *size)


def _make_params(transform: Any, size: Size) -> dict[str, Any]:
    """Draw the parameters of a step of ``torchvision.transforms.v2``."""
    draw = getattr(transform, "make_params", None) or transform._get_params  # before torchvision 0.21
    found: dict[str, Any] = draw([_stand_in(size)])
    return found


class ResizeMapper(_Interpolated[v1.Resize | v2.Resize]):
    """The matrix of ``Resize``."""

    source_type: ClassVar[Any] = v1.Resize

    def __init__(self, transform: v1.Resize | v2.Resize) -> None:
        super().__init__(transform)
        if transform.size is None:
            raise ConfigError("a Resize without a size cannot be merged", hint="give it a size")

    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        height, width = self._size(dst_size)
        size = homography.resized_size((height, width), self.transform.size, self.transform.max_size)
        return self._applied(homography.scale(size[1] / width, size[0] / height) @ matrix, size, size)


class RandomResizedCropMapper(_Interpolated[v1.RandomResizedCrop | v2.RandomResizedCrop]):
    """The matrix of ``RandomResizedCrop``."""

    source_type: ClassVar[Any] = v1.RandomResizedCrop

    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        step, size = self.transform, self._size(dst_size)
        if isinstance(step, v2.RandomResizedCrop):
            drawn = _make_params(step, size)
            top, left, height, width = (drawn[name] for name in ("top", "left", "height", "width"))
        else:
            top, left, height, width = step.get_params(_stand_in(size), step.scale, step.ratio)
        wanted = self._size(step.size)
        moved = homography.translate(-left, -top) @ matrix
        matrix = homography.scale(wanted[1] / width, wanted[0] / height) @ moved
        return self._applied(matrix, wanted, (top, left, height, width))


class CenterCropMapper(TransformMapper[v1.CenterCrop | v2.CenterCrop]):
    """The matrix of ``CenterCrop``."""

    source_type: ClassVar[Any] = v1.CenterCrop

    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        wanted = self._size(self.transform.size)
        pairs = zip(self._size(dst_size), wanted, strict=True)
        top, left = (round((a - b) / 2) if a >= b else -((b - a) // 2) for a, b in pairs)
        return self._applied(homography.translate(-left, -top) @ matrix, wanted, (top, left, *wanted))


class RandomCropMapper(_FilledMapper[v1.RandomCrop | v2.RandomCrop]):
    """The matrix of ``RandomCrop``."""

    source_type: ClassVar[Any] = v1.RandomCrop

    def __init__(self, transform: v1.RandomCrop | v2.RandomCrop) -> None:
        super().__init__(transform)
        if transform.padding_mode != "constant":
            raise ConfigError(
                f"padding_mode is {transform.padding_mode!r}", hint="only 'constant' can be merged"
            )

    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        step, size, wanted = self.transform, self._size(dst_size), self._size(self.transform.size)
        if isinstance(step, v2.RandomCrop):
            drawn = _make_params(step, size)
            left, top = (drawn["left"], drawn["top"])
            if drawn["needs_pad"]:
                left, top = left - drawn["padding"][0], top - drawn["padding"][1]
        else:
            before = [0, 0]
            (height, width), padding = size, step.padding
            if padding is not None:
                sides = [padding] * 4 if isinstance(padding, int) else list(padding) * (4 // len(padding))
                before = [sides[0], sides[1]]
                height, width = height + sides[1] + sides[3], width + sides[0] + sides[2]
            if step.pad_if_needed and width < wanted[1]:
                before[0], width = before[0] + wanted[1] - width, 2 * wanted[1] - width
            if step.pad_if_needed and height < wanted[0]:
                before[1], height = before[1] + wanted[0] - height, 2 * wanted[0] - height
            top, left, *_ = step.get_params(_stand_in((height, width)), wanted)
            left, top = left - before[0], top - before[1]
        return self._applied(homography.translate(-left, -top) @ matrix, wanted, (top, left, *wanted))


class RandomHorizontalFlipMapper(TransformMapper[v1.RandomHorizontalFlip | v2.RandomHorizontalFlip]):
    """The matrix of ``RandomHorizontalFlip``."""

    source_type: ClassVar[Any] = v1.RandomHorizontalFlip

    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        flips, size = bool(torch.rand(1) < self.transform.p), self._size(dst_size)
        if flips:
            matrix = self._mirrored(size) @ matrix
        return self._applied(matrix, size, flips)

    def _mirrored(self, size: Size) -> Matrix:
        return homography.translate(size[1], 0) @ homography.hflip()


class RandomVerticalFlipMapper(RandomHorizontalFlipMapper):
    """The matrix of ``RandomVerticalFlip``."""

    source_type: ClassVar[Any] = v1.RandomVerticalFlip

    def _mirrored(self, size: Size) -> Matrix:
        return homography.translate(0, size[0]) @ homography.vflip()


class RandomRotationMapper(_Interpolated[v1.RandomRotation | v2.RandomRotation], _FilledMapper[Any]):
    """The matrix of ``RandomRotation``."""

    source_type: ClassVar[Any] = v1.RandomRotation

    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        step, size = self.transform, self._size(dst_size)
        is_v2 = isinstance(step, v2.RandomRotation)
        angle = _make_params(step, size)["angle"] if is_v2 else step.get_params(step.degrees)
        x, y = (size[1] / 2, size[0] / 2) if step.center is None or step.expand else step.center
        turned = homography.about(homography.rotate(np.radians(angle)), x, y)
        if step.expand:
            wanted = homography.rotated_size(turned, size)
            turned = homography.translate((wanted[1] - size[1]) / 2, (wanted[0] - size[0]) / 2) @ turned
            size = wanted
        return self._applied(turned @ matrix, size, angle)


class RandomAffineMapper(_Interpolated[v1.RandomAffine | v2.RandomAffine], _FilledMapper[Any]):
    """The matrix of ``RandomAffine``."""

    source_type: ClassVar[Any] = v1.RandomAffine

    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        step, size = self.transform, self._size(dst_size)
        if isinstance(step, v2.RandomAffine):
            drawn = _make_params(step, size)
            angle, moved, scaling, shears = (drawn[name] for name in ("angle", "translate", "scale", "shear"))
        else:
            angle, moved, scaling, shears = step.get_params(
                step.degrees, step.translate, step.scale, step.shear, [size[1], size[0]]
            )
        x, y = (size[1] / 2, size[0] / 2) if step.center is None else step.center
        turned = homography.about(homography.affine(angle, scaling, shears), x, y)
        matrix = homography.translate(*moved) @ turned @ matrix
        return self._applied(matrix, size, (angle, moved, scaling, shears))


class RandomPerspectiveMapper(_Interpolated[v1.RandomPerspective | v2.RandomPerspective], _FilledMapper[Any]):
    """The matrix of ``RandomPerspective``."""

    source_type: ClassVar[Any] = v1.RandomPerspective

    compute_homography: ClassVar[Callable[..., Matrix]] = staticmethod(homography.homography)

    def apply_transform(self, matrix: Matrix, dst_size: np.ndarray[Any, Any]) -> Applied:
        step, size = self.transform, self._size(dst_size)
        if torch.rand(1) >= step.p:
            return self._applied(matrix, size, None)
        if isinstance(step, v2.RandomPerspective):
            drawn = _make_params(step, size)["coefficients"]
            return self._applied(np.linalg.inv(np.append(drawn, 1.0).reshape(3, 3)) @ matrix, size, drawn)
        start, end = step.get_params(size[1], size[0], step.distortion_scale)
        return self._applied(homography.homography(start, end) @ matrix, size, start, end)


class CustomTransform(TransformMapper[TTransform]):
    """A geometric step of your own for :class:`MergeTransform`. Derive, and override ``apply_transform``.

    Example:
        >>> import torch
        >>> class Mirror(CustomTransform):
        ...     def __init__(self):
        ...         super().__init__(self)
        ...     def apply_transform(self, matrix, dst_size):
        ...         mirrored = self.translate(dst_size[1], 0) @ self.hflip() @ matrix
        ...         return mirrored, dst_size, ("Mirror",)
        >>> from energon_stream.transforms import MergeTransform
        >>> MergeTransform([Mirror()])(torch.tensor([[[1, 2, 3]]]))
        tensor([[[3, 2, 1]]])
    """


MAPPERS: tuple[tuple[Any, type[TransformMapper[Any]]], ...] = (
    ((v1.Resize, v2.Resize), ResizeMapper),
    ((v1.RandomResizedCrop, v2.RandomResizedCrop), RandomResizedCropMapper),
    ((v1.CenterCrop, v2.CenterCrop), CenterCropMapper),
    ((v1.RandomCrop, v2.RandomCrop), RandomCropMapper),
    ((v1.RandomHorizontalFlip, v2.RandomHorizontalFlip), RandomHorizontalFlipMapper),
    ((v1.RandomVerticalFlip, v2.RandomVerticalFlip), RandomVerticalFlipMapper),
    ((v1.RandomRotation, v2.RandomRotation), RandomRotationMapper),
    ((v1.RandomAffine, v2.RandomAffine), RandomAffineMapper),
    ((v1.RandomPerspective, v2.RandomPerspective), RandomPerspectiveMapper),
)
"""Steps that can be merged, and their mappers."""


def mapper_of(transform: Any) -> TransformMapper[Any]:
    """Return the mapper of a step. Raises ConfigError if the step cannot be merged."""
    if isinstance(transform, TransformMapper):
        return transform
    for types, mapper in MAPPERS:
        if isinstance(transform, types):
            return mapper(transform)
    raise ConfigError(
        f"{type(transform).__qualname__} cannot be merged: it is no geometric step that is known",
        hint="put it before or after MergeTransform, or derive a CustomTransform",
    )
