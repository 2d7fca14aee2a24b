"""The sample types that a ``dataset.yaml`` may name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from energon_stream.imports import LazyModule
from energon_stream.samples.sample import Sample, edataclass

if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

__all__ = [
    "CaptioningSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "MultiChoiceVQASample",
    "OCRSample",
    "SimilarityInterleavedSample",
    "TextSample",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
]


@edataclass
class CaptioningSample(Sample):
    """An image, float ``[3, height, width]`` in 0 to 1 by default, and its caption.

    Example:
        >>> import torch
        >>> from energon_stream import CaptioningSample
        >>> image = torch.zeros(3, 8, 8)
        >>> CaptioningSample(__key__="0", __restore_key__=(), image=image, caption="a dog").caption
        'a dog'
    """

    image: torch.Tensor
    caption: str


@edataclass
class ImageSample(Sample):
    """An image, float ``[3, height, width]`` in 0 to 1 by default.

    Example:
        >>> import torch
        >>> from energon_stream import ImageSample
        >>> ImageSample(__key__="0", __restore_key__=(), image=torch.zeros(3, 8, 8)).image.shape
        torch.Size([3, 8, 8])
    """

    image: torch.Tensor


@edataclass
class ImageClassificationSample(Sample):
    """An image and its class, by number, by name, or both.

    Example:
        >>> import torch
        >>> from energon_stream import ImageClassificationSample
        >>> image = torch.zeros(3, 8, 8)
        >>> ImageClassificationSample(__key__="0", __restore_key__=(), image=image, label=7).label
        7
    """

    image: torch.Tensor
    label: int | None = None
    label_name: str | None = None


@edataclass
class InterleavedSample(Sample):
    """Texts and images in the order of a page.

    Example:
        >>> import torch
        >>> from energon_stream import InterleavedSample
        >>> image = torch.zeros(3, 8, 8)
        >>> InterleavedSample(__key__="0", __restore_key__=(), sequence=["a dog", image]).sequence[0]
        'a dog'
    """

    sequence: list[torch.Tensor | str]


@edataclass
class MultiChoiceVQASample(Sample):
    """A question about an image, with answers to choose from.

    Example:
        >>> import torch
        >>> from energon_stream import MultiChoiceVQASample
        >>> image = torch.zeros(3, 8, 8)
        >>> asked = {"context": "Color?", "choices": ["red", "blue"]}
        >>> MultiChoiceVQASample(__key__="0", __restore_key__=(), image=image, **asked).choices
        ['red', 'blue']
    """

    image: torch.Tensor
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class OCRSample(Sample):
    """An image of text. Boxes have shape ``(n, 4)`` (x, y, width, height) or ``(n, 4, 2)`` (corners).

    Example:
        >>> import torch
        >>> from energon_stream import OCRSample
        >>> OCRSample(__key__="0", __restore_key__=(), image=torch.zeros(3, 8, 8), text="EXIT").text
        'EXIT'
    """

    image: torch.Tensor
    text: str
    block_boxes: torch.Tensor | None = None
    block_classes: torch.Tensor | list[str] | None = None
    block_text: list[str] | None = None
    lines_boxes: torch.Tensor | None = None
    lines_text: list[str] | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None
    chars_boxes: torch.Tensor | None = None
    chars_text: list[str] | None = None


@edataclass
class SimilarityInterleavedSample(Sample):
    """Texts and images of a page, and scores of how well they match.

    ``similarity_matrix`` has shape ``(images, texts)``; ``matched_text_indices`` has one text for each image.

    Example:
        >>> import torch
        >>> from energon_stream import SimilarityInterleavedSample
        >>> images = [torch.zeros(3, 8, 8)]
        >>> SimilarityInterleavedSample(__key__="0", __restore_key__=(), images=images, texts=["a dog"]).texts
        ['a dog']
    """

    images: list[torch.Tensor]
    texts: list[str]
    audio: list[torch.Tensor] | None = None
    video: list[torch.Tensor] | None = None
    similarity_matrix: torch.Tensor | None = None
    matched_text_indices: list[int] | None = None


@edataclass
class TextSample(Sample):
    """A text.

    Example:
        >>> from energon_stream import TextSample
        >>> TextSample(__key__="0", __restore_key__=(), text="a dog").text
        'a dog'
    """

    text: str


@edataclass
class VidQASample(Sample):
    """A question about a video, possible answers, and their weights of shape ``(answers,)``.

    Example:
        >>> from energon_stream import VidQASample
        >>> VidQASample(__key__="0", __restore_key__=(), video=b"", context="Who?", answers=["a dog"]).answers
        ['a dog']
    """

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


@edataclass
class VQASample(Sample):
    """A question about an image, possible answers, and their weights of shape ``(answers,)``.

    Example:
        >>> import torch
        >>> from energon_stream import VQASample
        >>> image = torch.zeros(3, 8, 8)
        >>> VQASample(__key__="0", __restore_key__=(), image=image, context="Who?", answers=["a dog"]).answers
        ['a dog']
    """

    image: torch.Tensor
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


@edataclass
class VQAOCRSample(Sample):
    """A question about an image of text, with the words and their boxes.

    Example:
        >>> import torch
        >>> from energon_stream import VQAOCRSample
        >>> image = torch.zeros(3, 8, 8)
        >>> VQAOCRSample(__key__="0", __restore_key__=(), image=image, context="Who?", text="EXIT").text
        'EXIT'
    """

    image: torch.Tensor
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None
