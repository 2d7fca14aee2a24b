"""Saved states: their format, by rank and by stream, and dealing them to other numbers of ranks."""

from energon_stream.state.rank import (
    FORMAT,
    VERSION,
    check_rank_state,
    dumps,
    fingerprint,
    loads,
    make_rank_state,
    read_rank_state,
    world_sizes,
)
from energon_stream.state.redistribute import deal_state, redistribute
from energon_stream.state.streams import join_streams, split_streams

__all__ = [
    "FORMAT",
    "VERSION",
    "check_rank_state",
    "deal_state",
    "dumps",
    "fingerprint",
    "join_streams",
    "loads",
    "make_rank_state",
    "read_rank_state",
    "redistribute",
    "split_streams",
    "world_sizes",
]
