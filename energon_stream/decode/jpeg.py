"""JPEG files by faster decoders than Pillow, and at reduced sizes."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from energon_stream.errors import ConfigError, MissingPackageError
from energon_stream.imports import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

Pixels = npt.NDArray[np.uint8]

IMAGE_BACKENDS = ("pillow", "simplejpeg", "torchvision", "nvjpeg")
"""Packages that decode JPEG files. Pillow decodes everything else, and is the reference for the pixels."""

_MODULES = {"simplejpeg": "simplejpeg", "torchvision": "torchvision.io"}
_EXTRAS = {"simplejpeg": "fast-images", "torchvision": "transforms"}
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, with Huffman codes
_METADATA_SEGMENTS = frozenset({0xFE, *range(0xE1, 0xF0)}) - {0xEE}  # JFIF's and Adobe's are of the coding
_OTHER_SEGMENTS = _METADATA_SEGMENTS | {0xC4, 0xDB, 0xDD, 0xE0, 0xEE}
_SCAN, _END = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # none of coded pixels
_RGB = re.compile(rb"\xff\xee\x00\x0eAdobe|\xff[\xc0-\xc2]..\x08....\x03R..G..B", re.DOTALL)  # or may be
_LARGEST = 65_500  # height and width of libjpeg


class JpegHeader(NamedTuple):
    """Size and components of a JPEG file."""

    height: int
    width: int
    components: int  # 1 for grey, 3 for colours
    has_metadata: bool  # orientation, colour profile, comments: what a PIL image knows beside pixels


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Return the header of a JPEG file of 8 bits, grey or of three components; None for any other file."""
    if data[:2] != b"\xff\xd8":
        return None
    at, end, has_metadata = 2, len(data) - 10, False
    while at < end and data[at] == 0xFF:
        kind, length = data[at + 1], data[at + 2] << 8 | data[at + 3]
        if kind in _FRAMES:
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            bits, components = data[at + 4], data[at + 9]
            fits = bits == 8 and components in (1, 3) and height and width
            return JpegHeader(height, width, components, has_metadata) if fits else None
        if kind not in _OTHER_SEGMENTS or length < 2:
            return None
        has_metadata = has_metadata or kind in _METADATA_SEGMENTS
        at += 2 + length
    return None


def is_for_gpu(data: bytes, header: JpegHeader) -> bool:
    """Return whether a GPU decodes a file as Pillow does: it is whole and sound, with the usual colours.

    Pillow decodes damaged pixels, and refuses damaged segments. So these are all that is tried here.
    """
    segments = _segments(data) if max(header[:2]) <= _LARGEST else None
    return segments is not None and _is_usual(segments)


def _segments(data: bytes) -> bytes | None:
    """Return a file of 16 x 16 pixels without any, coded like another; None if that is cut off or goes on."""
    found, at, scans = [data[:2]], 2, False
    while (marker := _MARKER.search(data, at)) and (scans or marker.start() == at):
        at, kind = marker.start(), data[marker.start() + 1]
        if kind == _END:
            return b"".join((*found, marker[0])) if at + 2 == len(data) else None
        segment = data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]
        at, scans = at + len(segment), scans or kind == _SCAN
        if kind in _FRAMES:
            segment = segment[:5] + b"\0\x10\0\x10" + segment[9:]
        if kind not in _METADATA_SEGMENTS:
            found.append(segment)
    return None


@lru_cache(maxsize=256)
def _is_usual(file: bytes) -> bool:
    from PIL import Image

    if _RGB.search(file):
        return False
    try:
        with Image.open(io.BytesIO(file)) as image:
            image.load()
    except Exception:  # it is Pillow's to say what
        return False
    return True


def reduction_to(size: tuple[int, int], least: tuple[int, int] | None) -> int:
    """Return by how much an image may shrink, 1, 2, 4 or 8, so that it has at least a height and a width.

    Example:
        >>> reduction_to((1000, 800), (200, 200)), reduction_to((1000, 800), (600, 200))
        (4, 1)
    """
    if least is not None:
        for reduction in (8, 4, 2):
            if size[0] >= least[0] * reduction and size[1] >= least[1] * reduction:
                return reduction
    return 1


def check_backend(backend: str) -> None:
    """Import the package of a backend. Raises MissingPackageError if that is impossible."""
    if backend not in IMAGE_BACKENDS:
        raise ConfigError(f"image_backend is {backend!r}", hint=f"use one of {', '.join(IMAGE_BACKENDS)}")
    if backend not in _MODULES:  # the GPU's is needed where the batch goes
        return
    try:
        importlib.import_module(_MODULES[backend]).decode_jpeg  # noqa: B018 # torchvision will remove it
    except (ImportError, AttributeError, RuntimeError, OSError) as error:  # also beside another PyTorch
        raise MissingPackageError(
            f"image_backend={backend!r} cannot be used: {error}",
            hint=f"run `pip install 'energon-stream[{_EXTRAS[backend]}]'`, or leave image_backend out",
        ) from error


def decode_jpeg(backend: str, data: bytes, header: JpegHeader, reduction: int, colours: str) -> Pixels | None:
    """Decode a JPEG file with another package than Pillow, to the very pixels that Pillow would give.

    ``colours`` is ``"L"`` (of grey files alone), ``"RGB"`` or ``"RGBA"``. Returns unsigned bytes of shape
    ``(height, width)`` or ``(height, width, colours)``; None if the package cannot decode the file, or not in
    the same way.
    """
    return _BACKENDS[backend](data, header, reduction, colours)


def _simplejpeg(data: bytes, header: JpegHeader, reduction: int, colours: str) -> Pixels | None:
    import simplejpeg

    least_height, least_width = 0, 0
    if reduction > 1:
        if max(header.height, header.width) < 8:  # Pillow's reduction would differ
            return None
        least_height, least_width = -(-header.height // reduction), -(-header.width // reduction)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, "GRAY" if colours == "L" else colours, min_height=least_height, min_width=least_width
        )
    except ValueError:  # damaged; what Pillow makes of it counts
        return None
    return pixels[:, :, 0] if colours == "L" else pixels


def _torchvision(data: bytes, header: JpegHeader, reduction: int, colours: str) -> Pixels | None:
    from torchvision.io import ImageReadMode, decode_jpeg

    if reduction > 1 or colours == "RGBA":
        return None
    encoded = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    try:
        pixels = decode_jpeg(encoded, ImageReadMode.GRAY if colours == "L" else ImageReadMode.RGB)
    except RuntimeError:  # damaged; what Pillow makes of it counts
        return None
    found: Pixels = pixels[0].numpy() if colours == "L" else pixels.permute(1, 2, 0).numpy()
    return found


_BACKENDS: Mapping[str, Callable[[bytes, JpegHeader, int, str], Pixels | None]] = {
    "simplejpeg": _simplejpeg,
    "torchvision": _torchvision,
}
