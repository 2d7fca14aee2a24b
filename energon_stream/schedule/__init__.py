"""Which sample comes next: integers only, no I/O, no torch."""

from energon_stream.schedule.base import Cursor, Refs, Schedule, as_cursor
from energon_stream.schedule.change import PassUnderWay, carry, earlier_plan, passes_under_way
from energon_stream.schedule.combine import BlendSchedule, ConcatSchedule, RepeatSchedule
from energon_stream.schedule.leaf import LeafSchedule, OrderSpec
from energon_stream.schedule.packed import CursorCodec, pack_columns, unpack_columns
from energon_stream.schedule.plan import (
    BlendPlan,
    ConcatPlan,
    LeafPlan,
    Plan,
    RepeatPlan,
    build_schedule,
    describe_plan,
    leaves,
    stream_bounds,
    stream_shares,
)
from energon_stream.schedule.slices import SliceTable

__all__ = [
    "leaves",
    "stream_shares",
    "describe_plan",
    "build_schedule",
    "RepeatPlan",
    "Plan",
    "LeafPlan",
    "ConcatPlan",
    "BlendPlan",
    "BlendSchedule",
    "ConcatSchedule",
    "Cursor",
    "CursorCodec",
    "LeafSchedule",
    "OrderSpec",
    "PassUnderWay",
    "Refs",
    "RepeatSchedule",
    "Schedule",
    "SliceTable",
    "as_cursor",
    "carry",
    "pack_columns",
    "unpack_columns",
    "earlier_plan",
    "passes_under_way",
    "stream_bounds",
]
