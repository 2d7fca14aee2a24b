"""Images that are decoded where the batch goes: files, one after another, in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from energon_stream.imports import LazyModule
from energon_stream.samples.batch_memory import batch_tensor

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """JPEG files, and pixels of images that no GPU decodes, of a sample or a batch.

    ``SampleDecoder(image_backend="nvjpeg")`` makes them, and ``prefetch_to_device`` turns a batch of them to
    the tensor that other backends make in the workers.

    Attributes:
        data: All files and pixels, one after another: ``uint8 [bytes]``.
        about: ``int64 [images, 5]``: bytes; colours of pixels, 0 of a file; height; width; 1 for results in
            ``float32``, else 0.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> from energon_stream import SampleDecoder
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (8, 6)).save(file, "JPEG")
        >>> decoder = SampleDecoder(image_decode="torchrgb8", image_backend="nvjpeg")
        >>> image = decoder.decode("jpg", file.getvalue())
        >>> len(image), image.data.numpy().tobytes() == file.getvalue()
        (1, True)
    """

    data: torch.Tensor
    about: torch.Tensor

    def __len__(self) -> int:
        return len(self.about)

    @classmethod
    def joined(cls, images: Sequence[Self]) -> Self:
        """Join images to a batch, in the memory of batches."""
        parts = [image.data for image in images]
        out = batch_tensor((sum(map(len, parts)),), torch.uint8)
        data = torch.cat(parts) if out is None else torch.cat(parts, out=out)
        return cls(data, torch.cat([image.about for image in images]))
