"""The decoder of samples, which goes by the extensions of parts."""

from __future__ import annotations

import copy
import importlib
import io
import json
import operator
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import msgpack

from energon_stream.arrays import as_bytes, as_view, python_value
from energon_stream.decode.images import (
    IMAGE_EXTENSIONS,
    IMAGE_MODES,
    ImageTooLargeError,
    UnsafeImageError,
    decode_image,
    reads_avif,
)
from energon_stream.decode.jpeg import check_backend
from energon_stream.decode.unpacking import (
    PickledArrayError,
    TooLargeError,
    check_pth,
    check_tensors,
    gunzip,
    read_npy,
    read_npz,
)
from energon_stream.errors import (
    ConfigError,
    DecodeError,
    EnergonStreamError,
    PartLimitError,
    UntrustedPickleError,
)
from energon_stream.imports import LazyModule
from energon_stream.limits import TRUST_VARIABLE, Limits, is_trusted
from energon_stream.media.av import AV_EXTENSIONS, AV_MODES, AVDecoderType, decode_av

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

_PICKLE_EXTENSIONS = frozenset({"pkl", "pickle", "pyd"})


class FileStoreDecoder(ABC):
    """Turns the bytes of a part or a file into a value. Derive from it for a decoder of your own.

    Example:
        >>> from energon_stream import FileStoreDecoder
        >>> class Upper(FileStoreDecoder):
        ...     def decode(self, fname, data):
        ...         return bytes(data).decode().upper() if fname.endswith("txt") else data
        >>> Upper().decode("txt", b"a dog")
        'A DOG'
    """

    thread_safe: ClassVar[bool] = False
    """Whether several threads may call ``decode`` at the same time, as ``decode_threads`` of loaders do."""

    def __init_subclass__(cls) -> None:
        if "decode" in vars(cls) and "thread_safe" not in vars(cls):
            cls.thread_safe = False

    @abstractmethod
    def decode(self, fname: str, data: bytes | memoryview) -> Any:
        """Decode one part.

        Args:
            fname: Part name (``jpg``, ``left.jpg``) or file name.
            data: The bytes. The result must not refer to them.

        Raises:
            DecodeError: The bytes do not fit the name.
        """

    def refusal(self, fname: str) -> DecodeError | None:
        """Return the error of a part that is refused by its name alone; None if it may be decoded."""
        return None


def _optional(package: str, purpose: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        hint = "run `pip install energon-stream[decode]`"
        raise ConfigError(f"{purpose} needs the package {package}", hint=hint) from error


def _tenbin(data: bytes) -> Any:
    from webdataset import tenbin

    return tenbin.decode_buffer(data)


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    **dict.fromkeys(("ten", "tb"), _tenbin),
    **dict.fromkeys(("mp", "msg"), partial(msgpack.unpackb, strict_map_key=False)),
    "cbor": lambda data: _optional("cbor2", "decoding .cbor parts").loads(data),
}
_KNOWN = {*_DECODERS, *IMAGE_EXTENSIONS, *AV_EXTENSIONS, *_PICKLE_EXTENSIONS, "npy", "npz", "pth"}


@dataclass(frozen=True, slots=True)
class SampleDecoder(FileStoreDecoder):
    """Decodes a part by its extension, the text after the last dot, in upper or lower case.

    =============================== ======================================================
    images                          see ``image_decode``
    video and audio                 see ``av_decode``
    txt text transcript             ``str`` (UTF-8)
    cls cls2 index inx id           ``int``
    json jsn                        parsed
    npy; npz                        array; dict of arrays (pickled objects only with ``allow_pickle``)
    pth                             ``torch.load(weights_only=True)`` on the CPU
    mp msg; cbor                    msgpack; CBOR (with the package ``cbor2``)
    ten tb                          list of arrays in WebDataset's tensor format
    pkl pickle pyd                  only with ``allow_pickle``
    gz                              unpacked within limits, then by the name without ``.gz``
    everything else                 ``bytes``
    =============================== ======================================================

    Attributes:
        image_decode: One of :data:`IMAGE_MODES`; None leaves images as bytes.
        av_decode: Form of video and audio, for which the extra ``av`` is needed. ``"AVDecoder"``: an
            :class:`AVDecoder <energon_stream.media.av.AVDecoder>` with methods for clips and frames.
            ``"torch"``: ``AVData`` with all frames, or all samples of audio files. ``"pyav"``: an
            open ``av.container.InputContainer``. None leaves the bytes.
        video_decode_audio: Whether ``"torch"`` decodes the audio of videos as well.
        guess_content: Whether to recognise parts with unknown extensions by their first bytes (with the
            package ``filetype``).
        allow_pickle: Whether to unpickle, and to load ``pth`` with ``weights_only=False``. A pickle can run
            any code: allow it only for data that you made yourself. None: if
            ``ENERGON_STREAM_TRUST_DATASET_CODE`` is 1.
        limits: Bounds on unpacked bytes and on pixels. None: those of the dataset that the decoder decodes
            for, else those of ``ENERGON_STREAM_LIMITS``.
        image_backend: Package that decodes JPEG files: ``"pillow"``, ``"simplejpeg"`` (faster) or
            ``"torchvision"``. The pixels are the same. Pillow decodes what another package cannot, and all
            other formats. ``"nvjpeg"`` leaves JPEG files to ``prefetch_to_device``, which decodes them on the
            GPU: hooks see ``EncodedImages``, and pixels are close to Pillow's.
        image_min_size: Height and width, in pixels, that the task needs. JPEG files that are larger by a
            factor of 2, 4 or 8 are decoded at a half, a quarter or an eighth of their size, which is faster.
            None for full size.
        apply_exif_orientation: Whether images are turned as their EXIF data says, as cameras store them. By
            default they are decoded as they are stored, as in WebDataset and Megatron-Energon.
        scale_16_bit: Whether grey images of 16 bits are scaled to 8. By default Pillow converts them, as in
            WebDataset and Megatron-Energon: all values above 255 become white.

    Raises:
        ConfigError: A mode or a backend is unknown, or a size is not positive.
        MissingPackageError: A package is not installed.

    Example:
        >>> from energon_stream import SampleDecoder
        >>> SampleDecoder(image_decode="pil").decode("json", b'{"caption": "a dog"}')
        {'caption': 'a dog'}
    """

    thread_safe: ClassVar[bool] = True

    image_decode: str | None = "torchrgb"
    av_decode: AVDecoderType | None = "AVDecoder"
    video_decode_audio: bool = False
    guess_content: bool = False
    allow_pickle: bool | None = None
    limits: Limits | None = None
    image_backend: str = "pillow"
    image_min_size: tuple[int, int] | None = None
    apply_exif_orientation: bool = False
    scale_16_bit: bool = False
    # True if parts that stay as they are become memoryviews.
    _gives_memoryviews: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_choice("image_decode", self.image_decode, IMAGE_MODES)
        _check_choice("av_decode", self.av_decode, AV_MODES)
        check_backend(self.image_backend)
        if self.image_backend == "nvjpeg" and (
            self.image_decode not in ("torchrgb8", "torchrgb", "torch") or self.image_min_size is not None
        ):
            what = f"image_decode={self.image_decode!r}, image_min_size={self.image_min_size}"
            hint = "use image_decode='torchrgb8' or 'torchrgb', without image_min_size"
            raise ConfigError(f"image_backend='nvjpeg' does not go with {what}", hint=hint)
        if self.image_min_size is not None:
            object.__setattr__(self, "image_min_size", _checked_size(self.image_min_size))
        if self.guess_content:
            _optional("filetype", "guess_content=True")

    def decode(self, fname: str, raw: bytes | memoryview) -> Any:
        """Decode one part, as the class says. The result does not refer to the bytes.

        Raises:
            DecodeError: The bytes do not fit the name, or the part is a pickle.
            PartLimitError: The part is larger than a limit.
            ConfigError: Parts of this kind cannot be decoded.
        """
        data = as_view(raw) if self._gives_memoryviews else as_bytes(raw)
        try:
            return self._decode(fname, data)
        except (EnergonStreamError, MemoryError):
            raise
        except TooLargeError as error:
            problem = f"part {fname!r} of {len(data):,} bytes unpacks to {error.found} bytes"
            raise PartLimitError(**self._bounds.exceeded("part_bytes", problem)) from None
        except ImageTooLargeError as error:
            problem = f"part {fname!r} of {len(data):,} bytes is too large: {error}"
            raise PartLimitError(**self._bounds.exceeded("image_pixels", problem)) from None
        except PickledArrayError:
            raise _untrusted(fname, "has pickled objects") from None
        except UnsafeImageError as error:
            raise DecodeError(
                f"part {fname!r} is an {error} file, which another program would have to run",
                hint=f"decode it yourself, or set {TRUST_VARIABLE}=1 if you trust the data",
            ) from None
        except Exception as error:
            raise DecodeError(
                f"part {fname!r} of {len(data)} bytes cannot be decoded: {type(error).__name__}: {error}",
                hint="check whether the part is damaged or has the wrong extension",
            ) from error

    def takes_file(self, name: str) -> bool:
        """Return True if files of a name are decoded from what is read later: video and audio."""
        is_lazy = self.av_decode in ("AVDecoder", "pyav")
        return is_lazy and name.lower().rpartition(".")[2] in AV_EXTENSIONS

    def decode_file(self, name: str, file: BinaryIO) -> Any:
        """Return the value of a file for which :meth:`takes_file` holds."""
        return decode_av(file, self.av_decode or "AVDecoder", limits=self._bounds)

    def refusal(self, fname: str) -> DecodeError | None:
        name = fname.lower()
        while name.endswith(".gz"):
            name = name[:-3]
        if name.rpartition(".")[2] not in _PICKLE_EXTENSIONS or is_trusted(self.allow_pickle):
            return None
        return _untrusted(name, "is a pickle")

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Decode all parts of a sample; names that begin with two underscores are no parts."""
        return {k: v if k.startswith("__") else self.decode(k, v) for k, v in sample.items()}

    def within(self, limits: Limits) -> SampleDecoder:
        """Return the decoder with limits; one that has limits already stays as it is."""
        return self if self.limits is not None else self._with("limits", limits)

    def with_memoryviews(self) -> SampleDecoder:
        """Return the decoder that leaves memoryviews where this one leaves bytes."""
        return self._with("_gives_memoryviews", True)

    def _with(self, name: str, value: Any) -> SampleDecoder:
        made = copy.copy(self)  # classes derived from this one may have other arguments
        object.__setattr__(made, name, value)
        return made

    @property
    def _bounds(self) -> Limits:
        return self.limits or Limits.from_environment()

    def config(self) -> dict[str, Any]:
        """Return the options by name, as plain values."""
        names = ["image_decode", "av_decode", "video_decode_audio", "guess_content"]
        names += ["image_backend"] * (self.image_backend != "pillow")
        names += ["image_min_size"] * (self.image_min_size is not None)
        names += [name for name in ("apply_exif_orientation", "scale_16_bit") if getattr(self, name)]
        return {name: getattr(self, name) for name in names}

    def _decode(self, name: str, data: bytes | memoryview) -> Any:
        stem, _, extension = name.lower().rpartition(".")
        if extension == "gz":
            left = self._room(data)
            while extension == "gz":  # all layers share the limit
                data = gunzip(data, left)
                left -= len(data)
                name = stem
                stem, _, extension = name.rpartition(".")
        if self.guess_content and extension not in _KNOWN:
            extension = _guess_extension(data) or extension
        if extension in IMAGE_EXTENSIONS:
            if self.image_decode is None or (extension == "avif" and not reads_avif()):
                return data
            return decode_image(
                as_bytes(data),
                IMAGE_MODES[self.image_decode],
                self._bounds.image_pixels,
                is_trusted(self.allow_pickle),
                self.image_backend,
                self.image_min_size,
                self.apply_exif_orientation,
                self.scale_16_bit,
            )
        if extension in AV_EXTENSIONS:
            if self.av_decode is None:
                return data
            return decode_av(as_bytes(data), self.av_decode, self.video_decode_audio, self._bounds)
        if extension in _PICKLE_EXTENSIONS:
            if (refusal := self.refusal(name)) is not None:
                raise refusal
            return pickle.loads(data)
        if extension == "npy":
            return read_npy(data, is_trusted(self.allow_pickle))
        if extension == "npz":
            return read_npz(data, self._room(data), is_trusted(self.allow_pickle))
        if extension == "pth":
            return self._load_pth(as_bytes(data))
        decoder = _DECODERS.get(extension)
        return data if decoder is None else decoder(as_bytes(data))

    def _load_pth(self, data: bytes) -> Any:
        trusted = is_trusted(self.allow_pickle)
        if not trusted:
            check_pth(data, self._room(data))
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=not trusted)
        if not trusted:
            check_tensors(value, self._room(data))
        return value

    def _room(self, data: bytes | memoryview) -> int:
        """Return the largest number of bytes that a part may unpack to; it may always keep its size."""
        return max(self._bounds.part_bytes, len(data))


def _untrusted(part: str, what: str) -> UntrustedPickleError:
    return UntrustedPickleError(
        f"part {part!r} {what}, which can run any code",
        hint="if you trust the data, set `decoder = SampleDecoder(allow_pickle=True)` on the task "
        f"encoder, or {TRUST_VARIABLE}=1",
    )


def _check_choice(option: str, value: str | None, choices: Mapping[str, Any] | tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise ConfigError(
            f"{option} is {value!r}", hint=f"use one of {', '.join(choices)}, or None for bytes"
        )


def _checked_size(size: Any) -> tuple[int, int]:
    try:
        height, width = map(operator.index, size)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise ConfigError(f"image_min_size is {size!r:.80}", hint="use (height, width) in pixels, or None")
    return height, width


def _guess_extension(data: bytes | memoryview) -> str | None:
    extension: str | None = _optional("filetype", "guess_content=True").guess_extension(data)
    return extension if extension in IMAGE_EXTENSIONS or extension in AV_EXTENSIONS else None


@dataclass(frozen=True, slots=True)
class ValueDecoder(FileStoreDecoder):
    """Decodes Arrow's values and parts that have an extension, and leaves other parts unchanged."""

    extensions: Mapping[str, str] = field(default_factory=dict)  # by part
    decoder: SampleDecoder | None = None  # decodes the parts in ``extensions``

    def decode(self, fname: str, data: Any) -> Any:
        try:
            data = python_value(data) if hasattr(data, "as_py") else data
        except (ValueError, OverflowError, ImportError) as error:
            raise DecodeError(f"the value of {fname!r} has no form in Python: {error}") from error
        extension = self.extensions.get(fname)
        return data if extension is None or self.decoder is None else self.decoder.decode(extension, data)
