"""Task encoders for images with and without captions, used by the pages on blending."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from energon_stream import CaptioningSample, DefaultTaskEncoder, ImageSample


@dataclass
class CaptioningRawBatch:
    """The result of ``batch``."""

    __key__: list[str]
    image: torch.Tensor  # (n, c, h, w)
    caption: list[str]  # (n,)


@dataclass
class CaptioningBatch:
    """The result of ``encode_batch``."""

    __keys__: list[str]
    image: torch.Tensor  # (n, c, h, w)
    caption: list[str]  # (n,)


@dataclass
class ImageBatch:
    """Images alone."""

    __key__: list[str]
    image: torch.Tensor  # (n, c, h, w)


@dataclass
class WeightedCaptioningBatch:
    """Images and tokens, with a weight for the loss."""

    __keys__: list[str]
    images: torch.Tensor  # (n, c, h, w)
    text: torch.Tensor  # (n, tokens)
    weight: float  # samples of several datasets are not mixed in one batch


class ImageTask(DefaultTaskEncoder[ImageSample, ImageSample, ImageBatch, ImageBatch]):
    """Leaves the captions out."""

    def __init__(self):
        super().__init__(batch_type=ImageBatch)


class CaptioningTask(
    DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningRawBatch, CaptioningBatch]
):
    """Keeps images and captions."""

    def __init__(self):
        super().__init__(batch_type=CaptioningRawBatch)

    def encode_batch(self, batch: CaptioningRawBatch) -> CaptioningBatch:
        return CaptioningBatch(__keys__=batch.__key__, image=batch.image, caption=batch.caption)


def tokenize(captions: list[str], length: int = 16) -> torch.Tensor:
    """Bytes as tokens, padded with zeros to ``(n, length)``."""
    rows = [list(caption.encode()[:length].ljust(length, b"\0")) for caption in captions]
    return torch.tensor(rows)


class WeightedCaptioningTaskEncoder(
    DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningRawBatch, WeightedCaptioningBatch]
):
    """A simple task encoder for captioning."""

    def __init__(
        self,
        tokenizer: Callable[[list[str]], torch.Tensor] = tokenize,
        max_length: int = 128,
        sample_weight: float = 1,
    ):
        super().__init__(batch_type=CaptioningRawBatch)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.sample_weight = sample_weight

    def encode_batch(self, batch_data: CaptioningRawBatch) -> WeightedCaptioningBatch:
        return WeightedCaptioningBatch(
            __keys__=batch_data.__key__,
            images=batch_data.image,
            text=self.tokenizer(batch_data.caption),
            weight=self.sample_weight,
        )
