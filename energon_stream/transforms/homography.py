"""Matrices of geometric steps, and what follows from their product. Arithmetic only.

A matrix is a homography of 3 x 3 numbers. It maps places in the source image to places in the result, as
columns ``(x, y, 1)``. Places are in pixels from the upper left corner, so the centre of the first pixel is
``(0.5, 0.5)``. Sizes are ``(height, width)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.floating[Any]]
Size = tuple[int, int]

_NEAR = 1e-6
"""Pixels by which places may differ by rounding."""


def translate(x: float, y: float) -> Matrix:
    """Return the matrix that moves by ``(x, y)`` pixels."""
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def rotate(angle: float) -> Matrix:
    """Return the matrix that rotates about the origin by an angle in radians, counter-clockwise as seen."""
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])


def scale(x: float, y: float) -> Matrix:
    """Return the matrix that stretches by factors."""
    return np.diag([x, y, 1.0])


def shear(x: float, y: float) -> Matrix:
    """Return the matrix that adds ``x`` times y to x, and ``y`` times x to y."""
    return np.array([[1.0, x, 0.0], [y, 1.0, 0.0], [0.0, 0.0, 1.0]])


def hflip() -> Matrix:
    """Return the matrix that mirrors left and right at the origin."""
    return scale(-1.0, 1.0)


def vflip() -> Matrix:
    """Return the matrix that mirrors top and bottom at the origin."""
    return scale(1.0, -1.0)


def about(matrix: Matrix, x: float, y: float) -> Matrix:
    """Return a matrix as applied about a centre."""
    return translate(x, y) @ matrix @ translate(-x, -y)


def affine(angle: float, scaling: float, shears: Sequence[float]) -> Matrix:
    """Return the matrix of ``torchvision``'s affine step about the origin; angles are clockwise degrees."""
    turn, x, y = math.radians(angle), math.radians(shears[0]), math.radians(shears[1])
    lean, rise = shear(-math.tan(x), 0.0), shear(0.0, -math.tan(y))
    found: Matrix = scale(scaling, scaling) @ rotate(-turn) @ rise @ lean
    return found


def homography(start: Sequence[Sequence[float]], end: Sequence[Sequence[float]]) -> Matrix:
    """Return the matrix that maps four places to four others."""
    rows, values = [], []
    for (x, y), (u, v) in zip(start, end, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved = np.linalg.solve(np.array(rows, float), np.array(values, float))
    return np.append(solved, 1.0).reshape(3, 3)


def places(matrix: Matrix, points: Matrix) -> Matrix:
    """Return the places of points, an array of shape ``(..., 2)``."""
    mapped = points @ matrix[:, :2].T + matrix[:, 2]
    found: Matrix = mapped[..., :2] / mapped[..., 2:]
    return found


def corners(size: Size) -> Matrix:
    """Return the corners of an image, from the upper left one on, clockwise."""
    height, width = size
    return np.array([[0.0, 0.0], [width, 0.0], [width, height], [0.0, height]])


def rotated_size(matrix: Matrix, size: Size) -> Size:
    """Return the size that holds a whole image after a step, as ``torchvision`` computes it."""
    middle = np.array([size[1] / 2, size[0] / 2])
    found = places(matrix, corners(size)) - places(matrix, middle) + middle
    low, high = (np.trunc(edge / 1e-4) * 1e-4 for edge in (found.min(0), found.max(0)))
    width, height = np.ceil(high) - np.floor(low)
    return int(height), int(width)


def resized_size(size: Size, wanted: int | Sequence[int], longest: int | None = None) -> Size:
    """Return the size of an image resized to a height and width, or to a shorter side in proportion.

    ``longest`` is the largest longer side.
    """
    if not isinstance(wanted, int) and len(wanted) == 2:
        return wanted[0], wanted[1]
    shorter = wanted if isinstance(wanted, int) else wanted[0]
    longer = int(shorter * max(size) / min(size))
    if longest is not None and longer > longest:
        shorter, longer = int(longest * shorter / longer), longest
    return (shorter, longer) if size[0] <= size[1] else (longer, shorter)


class Clip(NamedTuple):
    """The frame of an intermediate image, beyond which its pixels are lost."""

    matrix: Matrix  # from the source to the intermediate image
    size: Size


def needed_clips(clips: Sequence[Clip], matrix: Matrix, size: Size) -> list[Clip]:
    """Return the frames of source and intermediate images within which the result does not lie whole.

    ``matrix`` leads from the source to the result, which has the size.
    """
    back = np.linalg.inv(matrix)
    needed = []
    for clip in clips:
        seen = places(clip.matrix @ back, corners(size))
        height, width = clip.size
        if seen.min() < -_NEAR or (seen - [width, height]).max() > _NEAR:
            needed.append(clip)
    return needed


def shrinking(matrix: Matrix, size: Size) -> tuple[float, float]:
    """Return the factors, at most 1, by which height and width shrink in the middle of the source."""
    middle = np.array([size[1] / 2, size[0] / 2])
    ends = places(matrix, middle + np.array([[0.0, 0.5], [0.0, -0.5], [0.5, 0.0], [-0.5, 0.0]]))
    return tuple(min(1.0, float(np.hypot(*(ends[i] - ends[i + 1])))) for i in (0, 2))  # type: ignore[return-value]


class SourceBox(NamedTuple):
    """A part of the source that is resized, and then mirrored."""

    top: int
    left: int
    height: int
    width: int
    hflip: bool
    vflip: bool


def source_box(matrix: Matrix, size: Size) -> SourceBox | None:
    """Return the box of whole pixels that becomes the result by resizing and mirroring; None if none does.

    It takes the arguments of :func:`needed_clips`.
    """
    turned = np.array([matrix[0, 1], matrix[1, 0], matrix[2, 0], matrix[2, 1]])
    if np.abs(turned).max() > 1e-12 or 0 in (matrix[0, 0], matrix[1, 1]):
        return None
    ends = places(np.linalg.inv(matrix), np.array([[0.0, 0.0], [size[1], size[0]]]))
    whole = np.rint(ends)
    if np.abs(ends - whole).max() > _NEAR:
        return None
    (left, top), (right, bottom) = np.sort(whole, axis=0).astype(int).tolist()
    return SourceBox(top, left, bottom - top, right - left, bool(matrix[0, 0] < 0), bool(matrix[1, 1] < 0))
