"""Task encoders, cookers, and marks for their functions: the code that users write."""

from energon_stream.task.augment import AugmentTaskEncoder
from energon_stream.task.cooking import Cooker, basic_sample_keys, cooker
from energon_stream.task.encoder import DefaultTaskEncoder, TaskEncoder
from energon_stream.task.hooks import check_encoder
from energon_stream.task.loaded_dataset import (
    DatasetBlendMode,
    LoadedDataset,
    PackingGroupConfig,
    call_with_accepted,
)
from energon_stream.task.size_metric import sample_size_metric
from energon_stream.task.stateless import get_failure_tolerance, get_stateless, stateless
