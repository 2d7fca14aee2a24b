"""Bytes of parts for values of other formats: images, arrays, structs with bytes and path, lists of these."""

from __future__ import annotations

import datetime
import io
import json
import pickle
import posixpath
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from energon_stream.decode.images import IMAGE_EXTENSIONS, ORIENTATION, orientation
from energon_stream.decode.unpacking import check_pth
from energon_stream.imports import of_extra
from energon_stream.samples.tensors import map_tensors

_TEXTS = frozenset({"txt", "text", "transcript", "caption", "md", "csv", "html", "xml", "yaml", "srt", "vtt"})
_NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_OBJECTS = frozenset({"json", "jsn", "mp", "msg", "msgpack", "cbor"})
_LOSSY = frozenset({"JPEG", "WEBP", "AVIF"})

AUTO = "auto"
"""Part of a column whose extension is found out for each value."""

IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "avif"})
VIDEOS = frozenset({"mp4", "avi", "mov", "webm", "mkv"})
_SOUNDS = frozenset({"mp3", "wav", "flac", "ogg", "opus", "m4a", "aac"})
MEDIA = IMAGES | VIDEOS | _SOUNDS
_DOCUMENTS = frozenset({"pdf", "txt", "json", "npy", "npz", "pt", "html", "xml", "svg"})
_FILES = MEDIA | _DOCUMENTS
_OPTIONS: Mapping[Any, Any] = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True, "exact": True}}
_STRUCT = frozenset({"bytes", "path"})
_MAGIC = (
    (b"\xff\xd8\xff", 0, "jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, "png"),
    (b"GIF8", 0, "gif"),
    (b"WEBP", 8, "webp"),
    (b"WAVE", 8, "wav"),
    (b"AVI ", 8, "avi"),
    (b"BM", 0, "bmp"),
    (b"II*\0", 0, "tif"),
    (b"MM\0*", 0, "tif"),
    (b"ftypavif", 4, "avif"),
    (b"ftypM4A", 4, "m4a"),
    (b"ftypqt", 4, "mov"),
    (b"ftyp", 4, "mp4"),
    (b"\x1aE\xdf\xa3", 0, "mkv"),
    (b"fLaC", 0, "flac"),
    (b"OggS", 0, "ogg"),
    (b"ID3", 0, "mp3"),
    (b"\xff\xfb", 0, "mp3"),
    (b"%PDF-", 0, "pdf"),
    (b"\x93NUMPY", 0, "npy"),
)

Read = Callable[[str], bytes]
"""Reads a file that a row names by its path."""


def extension(path: str) -> str:
    """Return the extension of a path, in lower case and without the dot; empty without an extension."""
    return posixpath.splitext(path)[1][1:].lower()


def is_file_path(text: str, spaces: bool = False) -> bool:
    """Return True if a text looks like the path of a file that is a part, whose name may have ``spaces``.

    Example:
        >>> is_file_path("images/0001.JPG"), is_file_path("A dog. It runs"), is_file_path("see the e.jpg")
        (True, False, False)
    """
    known = extension(text) in _FILES and len(text) < 1024
    return known and not any(sign.isspace() for sign in (text.replace(" ", "") if spaces else text))


def find_extension(data: bytes) -> str:
    """Return the extension for a file's bytes; ``bin`` if unknown.

    Example:
        >>> find_extension(b"%PDF-1.7"), find_extension(b"text")
        ('pdf', 'bin')
    """
    head = bytes(data[:16])
    return next((name for magic, place, name in _MAGIC if head.startswith(magic, place)), "bin")


def is_struct(value: Any) -> bool:
    """Return True for ``{"bytes": …, "path": …}``, as Hugging Face keeps images and sounds."""
    return isinstance(value, Mapping) and "bytes" in value and set(value) <= _STRUCT


def is_image(value: Any) -> bool:
    """Return True for an image of Pillow."""
    return hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "save")


def _format(image: Any) -> str | None:
    """Return the format of an image's file; phones write JPEGs with more pictures, which Pillow calls MPO."""
    found = getattr(image, "format", None)
    return "JPEG" if found == "MPO" else found


def is_array(value: Any) -> bool:
    """Return True for an array of numpy, or a tensor."""
    return isinstance(value, np.ndarray) or (hasattr(value, "numpy") and hasattr(value, "dtype"))


def value_extension(value: Any) -> str | None:
    """Return the extension of a value that is a file, image, array or list of these; None for others."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return find_extension(bytes(value[:16]))
    if is_struct(value):
        found = "bin" if value["bytes"] is None else find_extension(value["bytes"])
        return extension(value.get("path") or "") or found if found == "bin" else found
    if is_image(value):
        return "jpg" if _format(value) == "JPEG" else "png"
    if is_array(value):
        return "npy"
    if isinstance(value, list) and value and all(_is_file(AUTO, item) for item in value):
        return value_extension(value[0])
    return None


def parts_of_value(part: str, value: Any, read: Read) -> Iterator[tuple[str, bytes]]:
    """Yield the parts that a column's value becomes: none for None, else those of :func:`numbered`.

    Raises what :func:`encode_part` raises.
    """
    for name, item in numbered(part, value):
        if item is None or (is_struct(item) and item["bytes"] is None and not item.get("path")):
            continue
        if name.rpartition(".")[2].lower() == AUTO:
            found = value_extension(item) or ("txt" if isinstance(item, str) else "json")
            name = name[: -len(AUTO)] + found
        yield name, bytes(encode_part(name, item, read=read))


def numbered(part: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a part and its value: several, with numbers, for a list of files or images."""
    kinds = (list, tuple) if (kind := part.rpartition(".")[2].lower()) in IMAGE_EXTENSIONS else (list,)
    files = kind not in _OBJECTS and isinstance(value, kinds) and all(_is_file(kind, item) for item in value)
    if files and len(value):
        yield from ((f"{number}.{part}", item) for number, item in enumerate(value))
    else:
        yield part, value


def _is_file(kind: str, value: Any) -> bool:
    is_picture = is_image(value) or (is_array(value) and kind in IMAGE_EXTENSIONS)
    return isinstance(value, (bytes, Path)) or is_struct(value) or is_picture


def _refuse_path(path: str) -> bytes:
    raise TypeError(f"it names the file {path!r:.80}, and has no bytes")


def _fitting(kind: str, value: Any, read: Read, quality: int | None) -> Any:
    """Return a value that the encoder of parts knows."""
    if isinstance(value, Path):
        return value.read_bytes()
    if is_struct(value) and kind not in _OBJECTS:
        return read(value["path"]) if value["bytes"] is None else value["bytes"]
    if is_image(value) or (is_array(value) and kind in IMAGE_EXTENSIONS):
        return _image_bytes(kind, value if is_image(value) else _picture(value), quality)
    if is_array(value) and kind not in _TORCH | _OBJECTS:
        value = _array(value)
    if kind in _TEXTS | _NUMBERS and isinstance(value, (np.number, np.bool_, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if kind in _NUMBERS and isinstance(value, str):
        return int(value)
    if kind not in _OBJECTS and isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return value


def _array(value: Any) -> Any:
    """Return the array of a tensor, wherever it is; an array as it is."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("an array would lose its mask: give array and mask as two parts")
    if not is_array(value) or isinstance(value, np.ndarray):
        return value
    return value.numpy(force=True) if hasattr(value, "detach") else value.numpy()


def _picture(value: Any) -> Any:
    """Return the image of an array ``[height, width, colours]`` or a tensor ``[colours, height, width]``."""
    from PIL import Image

    is_tensor = hasattr(value, "detach")
    array = _array(value.float() if is_tensor and value.is_floating_point() else value)
    if array.dtype.kind == "f" and array.size:
        if not (array.min() >= -0.001 and array.max() <= 1.001):  # as webdataset; NaN is neither
            raise ValueError(f"an image has values from {array.min()} to {array.max()}, and not from 0 to 1")
        array = np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
    pixels = np.moveaxis(array, 0, -1) if is_tensor and array.ndim == 3 else array
    pixels = pixels[..., 0] if pixels.shape[2:] == (1,) else pixels
    pixels = pixels.astype(pixels.dtype.newbyteorder("="), copy=False)
    flat = (np.uint8, np.bool_, np.uint16) if pixels.ndim == 2 else (np.uint8,)
    if pixels.dtype not in flat or not pixels.size or pixels.shape[2:] not in ((), (2,), (3,), (4,)):
        raise TypeError(f"{value.dtype} of shape {tuple(value.shape)} is no image")
    return Image.fromarray(np.ascontiguousarray(pixels))


def _image_bytes(kind: str, image: Any, quality: int | None) -> bytes:
    """Return an image's file: as it was read if the format fits, else encoded without loss where possible."""
    from PIL import Image

    name = Image.registered_extensions().get(f".{kind}")
    if name not in Image.SAVE:
        raise TypeError(f"the part {kind!r:.40} cannot hold an image")
    options: dict[str, Any] = _OPTIONS.get(name, {})
    if name in _LOSSY and quality is not None:
        options = {"quality": quality}
    elif _format(image) == name and (data := _untouched_file(image)):
        return data
    buffer = io.BytesIO()
    try:
        image.load()  # which turns a TIFF
        wanted, exif = _has(image), Image.Exif()
        if wanted["the EXIF orientation"] != 1:
            exif[ORIENTATION] = wanted["the EXIF orientation"]
            options = {**options, "exif": exif}
        profile = image.info.get("icc_profile") or b""  # that of other colours stays after convert()
        if profile[16:19] == _COLOURS.get(image.mode[0]):
            options = {**options, "icc_profile": profile}
        image.save(buffer, name, **options)
    except (OSError, SyntaxError, MemoryError, struct.error) as error:  # such as no pixels, or too many
        raise TypeError(f"the part {kind!r:.40} cannot hold the image: {error}") from error
    if name == "GIF" and Image.open(buffer).convert("RGB").tobytes() != image.convert("RGB").tobytes():
        raise TypeError(f"the part {kind!r:.40} would lose colours: it has 256, so give image.quantize()")
    if wanted != _NOTHING_MORE:
        found = _has(Image.open(buffer))
        if lost := [what for what in wanted if found[what] != wanted[what]]:
            raise TypeError(f"the part {kind!r:.40} would lose {lost[0]} of mode {image.mode}")
    return buffer.getvalue()


_COLOURS = {"R": b"RGB", "L": b"GRA", "C": b"CMY"}
_NOTHING_MORE = {"the transparency": False, "the depth": False, "the EXIF orientation": 1}


def _has(image: Any) -> dict[str, int]:
    """Return what an image has that its pixels in 8 bits have not."""
    clear = getattr(image, "has_transparency_data", False) and image.convert("RGBA").getextrema()[3][0] < 255
    return dict(zip(_NOTHING_MORE, (clear, image.mode[0] in "IF", orientation(image)), strict=True))


def _untouched_file(image: Any) -> bytes | None:
    """Return the file of an image that was opened, and neither loaded nor changed."""
    from PIL import Image

    file = getattr(image, "fp", None)
    is_loaded = not image.tile and getattr(image, "_im", image) is not None  # WebP has no tile before
    if file is None or file.closed or is_loaded or image.tell():
        return None
    place = file.tell()
    file.seek(0)
    data: bytes = file.read()
    file.seek(place)
    with Image.open(io.BytesIO(data)) as whole:  # draft() makes an image smaller before it is loaded
        return data if (whole.size, whole.mode) == (image.size, image.mode) else None


def encode_part(
    name: str, value: Any, *, read: Read = _refuse_path, quality: int | None = None
) -> bytes | memoryview:
    """Return the bytes of a part.

    Bytes are taken as they are. The extension, which is what follows the last dot of the part's name, decides
    on other values, see :func:`takes`. ``read`` reads the file of a struct without bytes, and ``quality`` is
    that of lossy images. Raises TypeError or ValueError if the part cannot hold the value, OSError for a file
    that cannot be read, and RuntimeError of torch.

    Example:
        >>> encode_part("json", {"width": 3}), encode_part("txt", "naïve"), encode_part("cls", 7)
        (b'{"width": 3}', b'na\\xc3\\xafve', b'7')
    """
    extension = name.rpartition(".")[2].lower()
    value = value if isinstance(value, bytes) else _fitting(extension, value, read, quality)
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return memoryview(value).cast("B")
    encode: Callable[[Any], bytes]
    types, _, encode = _ENCODERS.get(extension, _NOTHING)
    if not isinstance(value, types):
        raise TypeError(f"the part {name!r:.80} cannot hold a value of type {type(value).__name__}")
    return encode(value)


def takes(name: str) -> str:
    """Return what a part takes, for messages."""
    what = _ENCODERS.get(name.rpartition(".")[2].lower(), _NOTHING)[1]
    return f"the part {name!r:.80} takes bytes, a pathlib.Path of a file, {what}"


def _plain(value: Any) -> Any:
    """Return a value for JSON: of an array or a number of numpy, of a date."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind == "M":  # tolist() makes numbers of nanoseconds
        texts = np.array(value.astype(str), dtype=object)
        texts[np.isnat(value)] = None
        return texts.tolist()
    if (is_array(value) or isinstance(value, np.generic)) and kind != "m":
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"it cannot hold a value of type {type(value).__name__}")


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise TypeError(f"two keys are {max(names, key=names.count)!r} in JSON")


def _encode_json(value: Any) -> bytes:
    text = json.dumps(value, default=_plain)
    json.loads(text, object_pairs_hook=_distinct)  # 1 and "1" are one key there
    return text.encode()


def _encode_cbor(value: Any) -> bytes:
    with of_extra("decode"):
        import cbor2
    try:
        return bytes(cbor2.dumps(value, default=lambda encoder, inner: encoder.encode(_plain(inner))))
    except cbor2.CBORError as error:
        cure = ": give it one by replace(tzinfo=UTC), or write isoformat()"
        text = f"a time in it has no zone{cure}" if "naive" in str(error) else str(error)
        raise TypeError(text) from error


def _encode_msgpack(value: Any) -> bytes:
    data: bytes = msgpack.packb(value, default=_plain)
    msgpack.unpackb(data, strict_map_key=False)  # a tuple can be a key here, but not where it is read
    return data


def _encode_text(value: Any) -> bytes:
    return (value if isinstance(value, str) else str(value)).encode()


def _save(save: Callable[..., None], values: dict[str, Any]) -> bytes:
    arrays, buffer = {name: np.asarray(_array(value)) for name, value in values.items()}, io.BytesIO()
    if any(array.dtype.hasobject for array in arrays.values()):
        raise TypeError("an array of Python objects cannot be written without a pickle")
    if taken := {"file", "allow_pickle"} & arrays.keys():
        raise ValueError(f"NumPy's savez takes {min(taken)!r} for an option: name the array otherwise")
    save(buffer, **arrays)
    return buffer.getvalue()


def _encode_torch(value: Any) -> bytes:
    import torch

    buffer = io.BytesIO()
    try:  # clones, because a view would bring all that it is a view of
        torch.save(map_tensors(lambda tensor: tensor.detach().cpu().clone(), value), buffer)
        check_pth(buffer.getvalue(), sys.maxsize)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except (AttributeError, pickle.PickleError) as error:
        raise TypeError(
            "torch.load(weights_only=True) could not read it: it has more than tensors"
        ) from error
    return buffer.getvalue()


_TORCH = frozenset({"pth", "pt"})
_ARRAYS = (np.ndarray, np.generic, list)
_IMAGE = (
    "an image of Pillow in a mode that the format has, such as image.convert('RGB') (png has 16 bits and "
    "transparency), an array [height, width, colours] or a tensor [colours, height, width] of uint8 or floats "
    "in 0 to 1, or a list of these"
)
_JSON = "what JSON can hold, and arrays and dates in it; make others str, float or dict before"
_ARRAY = "an array, list or tensor that NumPy has a type for, so give .float() of bfloat16, or use pth"
_ROWS: tuple[tuple[Iterable[str], Any, str, Callable[[Any], bytes]], ...] = (
    (IMAGE_EXTENSIONS, (), _IMAGE, bytes),
    (("pkl", "pickle", "pyd"), (), "no objects: pickles can run code; use json, npy, npz or pth", bytes),
    (("json", "jsn"), object, _JSON, _encode_json),
    (("mp", "msg", "msgpack"), object, _JSON, _encode_msgpack),
    (("cbor",), object, _JSON, _encode_cbor),
    (("npy",), _ARRAYS, _ARRAY, lambda value: _save(np.save, {"arr": value})),
    (("npz",), dict, "a dict of arrays", lambda value: _save(np.savez_compressed, value)),
    (_TORCH, object, "tensors, and dicts and lists of them", _encode_torch),
    (_TEXTS, (str, int, float), "a str or a number", _encode_text),
    (_NUMBERS, int, "an int", lambda value: str(int(value)).encode()),
)
_ENCODERS: Mapping[str, tuple[Any, str, Callable[[Any], bytes]]] = {
    kind: (types, what, encode) for kinds, types, what, encode in _ROWS for kind in kinds
}
_NOTHING: tuple[Any, str, Any] = (
    (),
    "and nothing else: other values need an extension such as jpg, txt, cls, json, npy or pth",
    None,
)
