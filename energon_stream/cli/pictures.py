"""Samples drawn in a terminal: images as half blocks, JSON and texts laid out, video and audio described.

Colours are the only control characters that are printed; control characters of data are written out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energon_stream.errors import EnergonStreamError
from energon_stream.printable import printable, printable_line

_COLUMNS, _ROWS = 48, 24
_MOST_LINES = 40
_RESET = "\x1b[0m"
_LONG_LINE = 100


def draw_value(value: Any, columns: int = _COLUMNS) -> Iterator[str]:
    r"""Yield lines that draw a value, of at most ``columns`` characters; none if its description says all.

    Draws images (of PIL, tensors, arrays), an ``AVDecoder``, texts, lists and mappings.

    Example:
        >>> list(draw_value({"a": ["b\x1b[2J"]}))
        ['{', '  "a": [', '    "b\\u001b[2J"', '  ]', '}']
        >>> list(draw_value(np.zeros((2, 1, 3), np.uint8)))
        ['\x1b[38;2;0;0;0;48;2;0;0;0m▀\x1b[0m']
    """
    if isinstance(value, str):
        if "\n" in value or len(value) > _LONG_LINE:
            yield from _cut(printable(value))
    elif isinstance(value, (Mapping, list)):
        text = _as_json(value)
        if text is not None and len(text) > 2:
            yield from _cut(printable(text))
    elif hasattr(value, "get_metadata") and hasattr(value, "get_video_clips"):
        yield from _draw_media(value, columns)
    else:
        pixels = _pixels(value)
        if pixels is not None:
            yield from half_blocks(pixels, columns)


def half_blocks(pixels: NDArray[np.uint8], columns: int = _COLUMNS) -> Iterator[str]:
    """Yield the rows of an image, ``uint8 [height, width, 3]``: each half of a character shows a pixel."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((columns, 2 * _ROWS))
    scaled = np.asarray(image)
    if len(scaled) % 2:
        scaled = np.concatenate([scaled, scaled[-1:]])
    for upper, lower in zip(scaled[::2].tolist(), scaled[1::2].tolist(), strict=True):
        cells = (
            "\x1b[38;2;{};{};{};48;2;{};{};{}m▀".format(*above, *below)
            for above, below in zip(upper, lower, strict=True)
        )
        yield "".join(cells) + _RESET


def _cut(text: str) -> Iterator[str]:
    lines = text.split("\n")
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"… ({len(lines)} lines)"


def _as_json(value: Any) -> str | None:
    try:
        return json.dumps(value, indent=2, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # it has tensors or bytes, or is too deep
        return None


def _draw_media(decoder: Any, columns: int) -> Iterator[str]:
    """Yield length and codecs of a video or audio, and a frame of its middle."""
    from energon_stream.media.av.container import first_stream, open_container

    try:
        with open_container(decoder.stream) as container:
            found = [(kind, first_stream(container, kind)) for kind in ("video", "audio")]
            codecs = [f"{kind} {stream.codec_context.name}" for kind, stream in found if stream is not None]
            has_video = found[0][1] is not None
        about = decoder.get_metadata(get_video_frame_count=False)
        length = about.video_duration if has_video else about.audio_duration
        yield printable_line(f"{length or 0:.2f} s, {', '.join(codecs)}")
        if has_video:
            middle = (length or 0) / 2
            clips, _ = decoder.get_video_clips([(middle, middle)])
            if clips:
                yield from half_blocks(clips[0][0].permute(1, 2, 0).numpy(), columns)
    except EnergonStreamError as error:  # the file is damaged, or PyAV is missing
        yield printable_line(str(error))


def _pixels(value: Any) -> NDArray[np.uint8] | None:
    """Return the pixels of an image as ``uint8 [height, width, 3]``; None for anything else."""
    if hasattr(value, "mode") and hasattr(value, "convert"):
        return np.asarray(value.convert("RGB"))
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return None
    array = np.asarray(value)
    if array.ndim == 3 and array.shape[0] in (3, 4) and type(value).__module__ == "torch":
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (3, 4) or 0 in array.shape:
        return None
    if array.dtype.kind == "f":
        array = np.nan_to_num(array.clip(0, 1)) * 255
    elif array.dtype != np.uint8:
        return None
    return np.ascontiguousarray(array[..., :3]).astype(np.uint8)
