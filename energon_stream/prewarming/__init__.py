"""Prewarming: fill a node's cache with the bytes that training will read, before training starts."""

from energon_stream.prewarming.job import prewarm
from energon_stream.prewarming.results import PrewarmPlan, PrewarmResult

__all__ = ["PrewarmPlan", "PrewarmResult", "prewarm"]
