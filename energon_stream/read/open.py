"""From an opened dataset to what reads it in this process."""

from __future__ import annotations

from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.index.join_index import JoinIndex
from energon_stream.index.jsonl import JsonlIndex
from energon_stream.index.source_index import SourceIndex
from energon_stream.read.join import JoinSource
from energon_stream.read.jsonl import JsonlSource
from energon_stream.read.source import OffsetCache, Source, TarSource

__all__ = ["open_source"]


def open_source(leaf: int, index: SourceIndex, offsets: OffsetCache) -> Source:
    """Make the source of an opened dataset.

    Args:
        leaf: Its number in sample references.
        index: The opened dataset.
        offsets: Index entries at hand, shared by the sources of a pipeline.

    Raises:
        TypeError: There is no reader for this kind of index.
    """
    if isinstance(index, WebDatasetIndex):
        return TarSource(leaf, index, offsets)
    if isinstance(index, JsonlIndex):
        return JsonlSource(leaf, index, offsets)
    if isinstance(index, JoinIndex):
        return JoinSource(leaf, index, offsets)
    raise TypeError(f"nothing reads a {type(index).__name__}")
