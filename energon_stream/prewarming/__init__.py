"""Filling a node's cache with what training is going to read, before it does."""

from energon_stream.prewarming.job import prewarm
from energon_stream.prewarming.report import PrewarmPlan, PrewarmResult

__all__ = ["PrewarmPlan", "PrewarmResult", "prewarm"]
