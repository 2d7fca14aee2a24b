"""Samples, batches, and the sample types that datasets name."""

from energon_stream.samples.base import CrudeSample, Sample, SourceInfo
from energon_stream.samples.batch import METADATA_FIELDS, Batch, batch_metadata
from energon_stream.samples.edataclass import edataclass
from energon_stream.samples.types import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)

__all__ = [
    "METADATA_FIELDS",
    "Batch",
    "CaptioningSample",
    "CrudeSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "MultiChoiceVQASample",
    "OCRSample",
    "Sample",
    "SimilarityInterleavedSample",
    "SourceInfo",
    "TextSample",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "batch_metadata",
    "edataclass",
]
