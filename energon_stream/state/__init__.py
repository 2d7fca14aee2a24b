"""Saved states: their format, by rank and by stream, and dealing them to other numbers of ranks."""

from energon_stream.state.digest import with_digest
from energon_stream.state.rank import (
    check_rank_state,
    dumps,
    loads,
    make_rank_state,
    read_rank_state,
    summarize,
    world_sizes,
)
from energon_stream.state.redistribute import deal_state, redistribute
from energon_stream.state.restore_report import ChangeReport, LeafChange
from energon_stream.state.rotation import read_rotation
from energon_stream.state.streams import STREAMS_FORMAT, join_streams, ranks_of_streams, split_streams
from energon_stream.state.versions import FORMAT, VERSION

__all__ = [
    "FORMAT",
    "STREAMS_FORMAT",
    "VERSION",
    "ChangeReport",
    "LeafChange",
    "check_rank_state",
    "deal_state",
    "dumps",
    "join_streams",
    "loads",
    "make_rank_state",
    "ranks_of_streams",
    "read_rank_state",
    "read_rotation",
    "redistribute",
    "split_streams",
    "summarize",
    "with_digest",
    "world_sizes",
]
