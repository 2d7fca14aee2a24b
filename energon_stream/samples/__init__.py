"""Samples, batches, and the sample types that datasets name."""

from energon_stream.samples import types
from energon_stream.samples.batch import METADATA_FIELDS, Batch, batch_metadata
from energon_stream.samples.on_demand import OnDemandSample
from energon_stream.samples.sample import CrudeSample, Sample, SourceInfo, edataclass
from energon_stream.samples.types import *  # noqa: F403 # types.__all__ is the list of the types
