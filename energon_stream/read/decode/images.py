"""Decodes images to arrays, tensors or PIL images, in WebDataset's 17 modes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from energon_stream.imports import LazyModule

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

IMAGE_EXTENSIONS: frozenset[str] = frozenset({
    "apng", "blp", "bmp", "bw", "cur", "dcx", "dds", "dib", "emf", "eps", "fit", "fits", "flc", "fli",
    "ftc", "ftu", "gbr", "gif", "icb", "icns", "ico", "iim", "im", "j2c", "j2k", "jfif", "jp2", "jpc",
    "jpe", "jpeg", "jpf", "jpg", "jpx", "msp", "pbm", "pcd", "pcx", "pgm", "png", "pnm", "ppm", "ps",
    "psd", "pxr", "ras", "rgb", "rgba", "sgi", "tga", "tif", "tiff", "vda", "vst", "webp", "wmf", "xbm",
    "xpm",
})  # fmt: skip
"""Extensions that are decoded as images: WebDataset's, without formats that Pillow knows by name only."""


@dataclass(frozen=True, slots=True)
class ImageMode:
    """Result of an image mode."""

    # ``numpy`` has shape (height, width, colours), ``torch`` (colours, height, width); both have (height,
    # width) for grey images. ``pil`` is a ``PIL.Image.Image``.
    container: Literal["numpy", "torch", "pil"]
    colours: Literal["L", "RGB", "RGBA"]  # pillow's mode, to which every image is converted
    floating: bool = False  # ``float32`` in [0, 1] instead of ``uint8``


IMAGE_MODES: Mapping[str, ImageMode] = {
    "l8": ImageMode("numpy", "L"),
    "rgb8": ImageMode("numpy", "RGB"),
    "rgba8": ImageMode("numpy", "RGBA"),
    "l": ImageMode("numpy", "L", True),
    "rgb": ImageMode("numpy", "RGB", True),
    "rgba": ImageMode("numpy", "RGBA", True),
    "torchl8": ImageMode("torch", "L"),
    "torchrgb8": ImageMode("torch", "RGB"),
    "torchrgba8": ImageMode("torch", "RGBA"),
    "torchl": ImageMode("torch", "L", True),
    "torchrgb": ImageMode("torch", "RGB", True),
    "torch": ImageMode("torch", "RGB", True),
    "torchrgba": ImageMode("torch", "RGBA", True),
    "pill": ImageMode("pil", "L"),
    "pil": ImageMode("pil", "RGB"),
    "pilrgb": ImageMode("pil", "RGB"),
    "pilrgba": ImageMode("pil", "RGBA"),
}
"""Modes of ``image_decode``."""


class ImageTooLargeError(Exception):
    """An image has more pixels than allowed. Its pixels were not decoded."""


class UnsafeImageError(Exception):
    """Pillow would start another program to draw the image, of a format that is a program itself."""


_PROGRAMS = frozenset({"EPS", "WMF"})
"""Formats that Pillow draws by Ghostscript or Windows."""


def decode_image(data: bytes, mode: ImageMode, most_pixels: int, trusted: bool = False) -> Any:
    """Decode an image file.

    Args:
        data: The file.
        mode: Form of the result.
        most_pixels: Largest number of pixels.
        trusted: Whether formats are decoded for which Pillow starts another program.

    Returns:
        ``numpy.ndarray``, ``torch.Tensor`` or ``PIL.Image.Image`` ; see :class:`ImageMode`.

    Raises:
        ImageTooLargeError: The image has more pixels.
        UnsafeImageError: Another program would decode it, and it is not trusted.
        Exception: Pillow's error for a file that it cannot read.
    """
    from PIL import Image

    try:
        opened = Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as error:  # Pillow's own limit, which the process sets
        raise ImageTooLargeError(str(error)) from error
    with opened:
        width, height = opened.size  # from the header
        if width * height > most_pixels:
            raise ImageTooLargeError(f"the image has {width:,} x {height:,} pixels")
        if opened.format in _PROGRAMS and not trusted:
            raise UnsafeImageError(str(opened.format))
        image = opened.convert(mode.colours)
    if mode.container == "pil":
        return image
    # NumPy does the arithmetic, because waking torch's threads for each image costs more.
    pixels = np.asarray(image)  # read-only; one of the next steps copies it
    if mode.container == "torch" and pixels.ndim == 3:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if mode.floating:
        pixels = np.divide(pixels, np.float32(255), dtype=np.float32)
    elif not pixels.flags.writeable:
        pixels = pixels.copy()
    return pixels if mode.container == "numpy" else torch.from_numpy(pixels)
