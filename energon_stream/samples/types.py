"""The sample types that a ``dataset.yaml`` may name."""

from __future__ import annotations

from typing import Any

import torch

from energon_stream.samples.base import Sample
from energon_stream.samples.edataclass import edataclass

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
    """An image and its caption."""

    image: torch.Tensor
    caption: str


@edataclass
class ImageSample(Sample):
    """An image."""

    image: torch.Tensor


@edataclass
class ImageClassificationSample(Sample):
    """An image and its class, by number, by name, or both."""

    image: torch.Tensor
    label: int | None = None
    label_name: str | None = None


@edataclass
class InterleavedSample(Sample):
    """Texts and images in their order."""

    sequence: list[torch.Tensor | str]


@edataclass
class MultiChoiceVQASample(Sample):
    """A question on an image with answers to choose from."""

    image: torch.Tensor
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class OCRSample(Sample):
    """An image of text. Boxes have shape ``(n, 4)`` (x, y, w, h) or ``(n, 4, 2)`` (corners)."""

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
    """Texts and images of a page, and how well they match.

    ``similarity_matrix`` has shape ``(images, texts)``; ``matched_text_indices`` names a text for each image.
    """

    images: list[torch.Tensor]
    texts: list[str]
    audio: list[torch.Tensor] | None = None
    video: list[torch.Tensor] | None = None
    similarity_matrix: torch.Tensor | None = None
    matched_text_indices: list[int] | None = None


@edataclass
class TextSample(Sample):
    """A text."""

    text: str


@edataclass
class VidQASample(Sample):
    """A question on a video, possible answers, and their weights of shape ``(answers,)``."""

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


@edataclass
class VQASample(Sample):
    """A question on an image, possible answers, and their weights of shape ``(answers,)``."""

    image: torch.Tensor
    context: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None


@edataclass
class VQAOCRSample(Sample):
    """A question on an image of text, with the words and their boxes."""

    image: torch.Tensor
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None
