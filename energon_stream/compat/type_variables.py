"""Type variables under Megatron-Energon's names, for annotations and generic classes of programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

T = TypeVar("T")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
TType = TypeVar("TType")
TMetadata = TypeVar("TMetadata")
T_aggregation_data = TypeVar("T_aggregation_data")
T_batch = TypeVar("T_batch")
T_batch_in = TypeVar("T_batch_in")
T_batch_sample = TypeVar("T_batch_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_index = TypeVar("T_index")
T_input_data = TypeVar("T_input_data")
T_raw_batch = TypeVar("T_raw_batch")
T_result = TypeVar("T_result")
T_sample = TypeVar("T_sample")
T_sample_in = TypeVar("T_sample_in")
T_sample_out = TypeVar("T_sample_out")

FeatureBatcher: TypeAlias = Callable[[list[Any]], Any]
"""Makes one field of a batch from that field of all samples."""
