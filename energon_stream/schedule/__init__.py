"""The order of samples: integers only, no I/O, no torch."""

from energon_stream.schedule.check import check_cursor
from energon_stream.schedule.combine import BlendSchedule
from energon_stream.schedule.counts import samples_by_leaf
from energon_stream.schedule.grown import (
    EarlierLeaf,
    are_first,
    carry,
    earlier_plan,
    in_place,
    leaf_then,
    passes_under_way,
)
from energon_stream.schedule.leaf_order import LeafSchedule, OrderSpec
from energon_stream.schedule.pack_planning import PackPiece
from energon_stream.schedule.packed import CursorCodec, pack_columns, pack_even, unpack_columns
from energon_stream.schedule.plan import (
    BlendPlan,
    ConcatPlan,
    LeafPlan,
    Plan,
    RepeatPlan,
    build_schedule,
    describe_plan,
    leaves,
    reached_shares,
    stream_shares,
)
from energon_stream.schedule.planned import JobPacks, PackedSchedule, PackSpec
from energon_stream.schedule.saved import damaged, is_count, reading, shown
from energon_stream.schedule.schedule import BlendCursor, Cursor, LeafCursor, Refs, RepeatCursor, Schedule
from energon_stream.schedule.skip import skip
from energon_stream.schedule.weights import WeightChange, check_weights, first_batch, first_reference

__all__ = [
    "BlendCursor",
    "BlendPlan",
    "BlendSchedule",
    "ConcatPlan",
    "Cursor",
    "CursorCodec",
    "EarlierLeaf",
    "LeafCursor",
    "LeafPlan",
    "LeafSchedule",
    "JobPacks",
    "OrderSpec",
    "PackSpec",
    "PackedSchedule",
    "PackPiece",
    "Plan",
    "Refs",
    "RepeatCursor",
    "RepeatPlan",
    "Schedule",
    "WeightChange",
    "are_first",
    "build_schedule",
    "carry",
    "check_cursor",
    "check_weights",
    "damaged",
    "describe_plan",
    "earlier_plan",
    "first_batch",
    "first_reference",
    "in_place",
    "is_count",
    "leaf_then",
    "leaves",
    "pack_columns",
    "pack_even",
    "passes_under_way",
    "reading",
    "samples_by_leaf",
    "shown",
    "skip",
    "reached_shares",
    "stream_shares",
    "unpack_columns",
]
