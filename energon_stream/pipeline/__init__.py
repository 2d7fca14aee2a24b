"""Operators that users compose. Each is a description of a dataset, and builds nodes with plain state."""

from energon_stream.pipeline.batching import BatchDataset
from energon_stream.pipeline.dataset import SavableDataset
from energon_stream.pipeline.epochs import Ends, EpochizeDataset, EvenDataset, LimitDataset, with_ends
from energon_stream.pipeline.failures import log_exception, reraise_exception
from energon_stream.pipeline.filters import FilterDataset, GcDataset, IterMapDataset, LogSampleDataset
from energon_stream.pipeline.group import GroupBatchDataset
from energon_stream.pipeline.map import MapDataset
from energon_stream.pipeline.mixing import BlendDataset, ConcatDataset, MixBatchDataset, RepeatDataset
from energon_stream.pipeline.pack_members import PackedSamplesOutput, PartialSample
from energon_stream.pipeline.packing import PackingDataset
from energon_stream.pipeline.shuffle_buffer import ShuffleBufferDataset
