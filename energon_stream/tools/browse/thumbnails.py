"""Small pictures of image parts, drawn by the server within the limits of the library."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

from energon_stream.decode.images import IMAGE_MODES, ImageTooLargeError, UnsafeImageError, decode_image
from energon_stream.errors import DecodeError, PartLimitError

if TYPE_CHECKING:
    from energon_stream.limits import Limits

_AT_ONCE = threading.BoundedSemaphore(4)
"""A decoded image takes up to 20 bytes for each of its pixels."""
_QUALITY = 85


def draw(data: bytes, side: int, limits: Limits, where: str) -> bytes:
    """Return an image as a JPEG file that fits a square of ``side`` pixels.

    Raises PartLimitError if it has more pixels than the limits allow, and DecodeError if it is damaged or a
    program.

    Example:
        >>> from PIL import Image
        >>> from energon_stream.limits import Limits
        >>> buffer = io.BytesIO()
        >>> Image.new("RGB", (640, 320)).save(buffer, "PNG")
        >>> Image.open(io.BytesIO(draw(buffer.getvalue(), 100, Limits(), "here"))).size
        (100, 50)
    """
    try:
        with _AT_ONCE:
            image = decode_image(data, IMAGE_MODES["pilrgb"], limits.image_pixels, least_size=(side, side))
            image.thumbnail((side, side))
    except ImageTooLargeError as error:
        raise PartLimitError(**limits.exceeded("image_pixels", str(error)), where=where) from error
    except UnsafeImageError as error:
        raise DecodeError(f"{error} images are programs, which are not run", where=where) from error
    except Exception as error:  # whatever Pillow raises for a damaged file
        raise DecodeError(f"the image cannot be decoded: {error}", where=where) from error
    drawn = io.BytesIO()
    image.save(drawn, "JPEG", quality=_QUALITY)
    return drawn.getvalue()
