"""Decodes images to arrays, tensors or PIL images, in WebDataset's 17 modes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from energon_stream.decode.jpeg import Pixels, decode_jpeg, is_for_gpu, read_jpeg_header, reduction_to
from energon_stream.imports import LazyModule
from energon_stream.samples.encoded_images import EncodedImages

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image as PILImage
    from PIL.ImageFile import ImageFile
else:
    torch = LazyModule("torch")

IMAGE_EXTENSIONS: frozenset[str] = frozenset({
    "apng", "avif", "blp", "bmp", "bw", "cur", "dcx", "dds", "dib", "emf", "eps", "fit", "fits", "flc", "fli",
    "ftc", "ftu", "gbr", "gif", "icb", "icns", "ico", "iim", "im", "j2c", "j2k", "jfif", "jp2", "jpc",
    "jpe", "jpeg", "jpf", "jpg", "jpx", "msp", "pbm", "pcd", "pcx", "pgm", "png", "pnm", "ppm", "ps",
    "psd", "pxr", "ras", "rgb", "rgba", "sgi", "tga", "tif", "tiff", "vda", "vst", "webp", "wmf", "xbm",
    "xpm",
})  # fmt: skip
"""Extensions that are decoded as images: WebDataset's, without formats that Pillow knows by name only, and
``avif``, which Pillow reads from version 11.3 on.
"""

ORIENTATION = 0x0112  # tag of EXIF
_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap height and width


@dataclass(frozen=True, slots=True)
class ImageMode:
    """Result of an image mode."""

    # ``numpy`` has shape (height, width, colours), ``torch`` (colours, height, width); both have (height,
    # width) for grey images. ``pil`` is a ``PIL.Image.Image``.
    container: Literal["numpy", "torch", "pil"]
    colours: Literal["L", "RGB", "RGBA"]  # pillow's mode, to which every image is converted
    floating: bool = False  # ``float32`` in [0, 1] instead of ``uint8``


# The modes of ``image_decode``.
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


class ImageTooLargeError(Exception):
    """An image has more pixels than allowed. Its pixels were not decoded."""


class UnsafeImageError(Exception):
    """Pillow would start another program to draw the image, of a format that is a program itself."""


def decode_image(
    data: bytes,
    mode: ImageMode,
    most_pixels: int,
    trusted: bool = False,
    backend: str = "pillow",
    least_size: tuple[int, int] | None = None,
    orients: bool = False,
    scales: bool = False,
) -> Any:
    """Decode an image file to the form of a mode.

    ``most_pixels`` holds for the file, before it is reduced. ``trusted`` allows formats for which Pillow
    starts another program. ``backend`` decodes JPEG files, which keep the height and width ``least_size``;
    larger ones are reduced. ``orients`` turns the image as its EXIF data says, and ``scales`` makes 8 bits of
    grey values of 16. Raises ImageTooLargeError, UnsafeImageError, or Pillow's error for a bad file.
    """
    if backend == "nvjpeg":
        return _for_gpu(data, mode, most_pixels, trusted, orients, scales)
    if backend != "pillow":
        pixels = _decode_fast(data, mode, most_pixels, backend, least_size, orients)
        if pixels is not None:
            return pixels
    with _open_image(data, most_pixels, trusted, least_size, orients) as opened:
        image = _meant(opened, orients, scales) if orients or scales else opened
        if mode.container == "pil":
            return image.convert(mode.colours)
        pixels = np.asarray(image if image.mode == mode.colours else image.convert(mode.colours))
    return _contained(pixels, mode)


def _for_gpu(
    data: bytes, mode: ImageMode, most_pixels: int, trusted: bool, orients: bool, scales: bool
) -> EncodedImages:
    """Return a JPEG file as it is, and the pixels of any other image."""
    from PIL import Image

    header, most = read_jpeg_header(data), min(most_pixels, Image.MAX_IMAGE_PIXELS or most_pixels)
    is_turned = header is not None and orients and header.has_metadata
    fits = header is not None and header.height * header.width <= most and not is_turned
    if header and fits and is_for_gpu(data, header):
        found, colours, size = np.frombuffer(data, np.uint8), 0, (header.height, header.width)
    else:
        bytes_mode = ImageMode("numpy", mode.colours)
        pixels = decode_image(data, bytes_mode, most_pixels, trusted, orients=orients, scales=scales)
        found, colours, size = pixels.transpose(2, 0, 1).reshape(-1), pixels.shape[2], pixels.shape[:2]
    about = torch.tensor([[len(found), colours, *size, int(mode.floating)]])
    return EncodedImages(torch.from_numpy(found.copy()), about)


def _meant(image: PILImage, orients: bool, scales: bool) -> PILImage:
    """Return an image turned as its EXIF data says, and with 8 bits, as far as that is wanted."""
    from PIL import Image, ImageOps

    if orients and orientation(image) != 1:
        image = ImageOps.exif_transpose(image)
    if scales and image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image


def orientation(image: PILImage) -> int:
    """Return how an image is to be turned, as EXIF numbers it; 1 if it is upright."""
    found: object = image.getexif().get(ORIENTATION, 1)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def image_remarks(data: bytes) -> list[str]:
    """Return what an image file has that decoding leaves out. Raises Pillow's error for a bad file."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        has = {
            "several frames, of which the first is decoded": getattr(image, "n_frames", 1) > 1,
            "an EXIF orientation, which apply_exif_orientation applies": orientation(image) != 1,
            "grey values of 16 bits, which scale_16_bit scales to 8; without it those above 255 become white": (
                image.mode.startswith("I;16")
            ),
            "values of 32 bits, of which those above 255 become white": image.mode in ("I", "F"),
        }
    return [what for what, is_there in has.items() if is_there]


def reads_avif() -> bool:
    """Return whether the installed Pillow reads AVIF files."""
    from PIL import features

    return "avif" in features.modules and features.check_module("avif")


def _open_image(
    data: bytes, most_pixels: int, trusted: bool, least_size: tuple[int, int] | None, orients: bool
) -> ImageFile:
    from PIL import Image

    try:
        opened = Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as error:  # Pillow's own limit, which the process sets
        raise ImageTooLargeError(str(error)) from error
    width, height = opened.size  # from the header
    if width * height > most_pixels:
        raise ImageTooLargeError(f"the image has {width:,} x {height:,} pixels")
    if opened.format in ("EPS", "WMF") and not trusted:  # drawn by Ghostscript or Windows
        raise UnsafeImageError(str(opened.format))
    is_sideways = orients and least_size is not None and orientation(opened) in _SIDEWAYS
    reduction = reduction_to((width, height) if is_sideways else (height, width), least_size)
    if reduction > 1 and opened.format == "JPEG":
        opened.draft(None, (width // reduction, height // reduction))
    return opened


def _decode_fast(
    data: bytes,
    mode: ImageMode,
    most_pixels: int,
    backend: str,
    least_size: tuple[int, int] | None,
    orients: bool,
) -> Any:
    """Decode a JPEG file with another package than Pillow; return None if Pillow has to decode the file."""
    from PIL import Image

    header = read_jpeg_header(data)
    # Pillow's own limit, which the process sets, holds for all backends.
    most_pixels = min(most_pixels, Image.MAX_IMAGE_PIXELS or most_pixels)
    if header is None or header.height * header.width > most_pixels:
        return None
    if header.has_metadata and (orients or mode.container == "pil"):  # which Pillow takes into account
        return None
    # Pillow makes grey of decoded colours, and not of the file's luminance.
    colours = "RGB" if mode.colours == "L" and header.components == 3 else mode.colours
    reduction = reduction_to(header[:2], least_size)
    pixels = decode_jpeg(backend, data, header, reduction, colours)
    if pixels is None:
        return None
    if mode.container != "pil" and colours == mode.colours:
        return _contained(pixels, mode)
    image = Image.fromarray(pixels)
    image = image if colours == mode.colours else image.convert(mode.colours)
    return image if mode.container == "pil" else _contained(np.asarray(image), mode)


def _contained(pixels: Pixels, mode: ImageMode) -> Any:
    """Return pixels of shape ``(height, width)`` or ``(height, width, colours)`` in the form of a mode."""
    # NumPy does the arithmetic, because waking torch's threads for each image costs more.
    if mode.container == "torch" and pixels.ndim == 3:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if mode.floating:
        floating = pixels.astype(np.float32, "C")
        floating /= np.float32(255)
        return floating if mode.container == "numpy" else torch.from_numpy(floating)
    if not (pixels.flags.writeable and pixels.flags.c_contiguous):
        pixels = pixels.copy("C")
    return pixels if mode.container == "numpy" else torch.from_numpy(pixels)
