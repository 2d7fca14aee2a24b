"""The order of samples: integers only, no I/O, no torch."""

from energon_stream.schedule.check import check_cursor
from energon_stream.schedule.combine import BlendSchedule, samples_by_leaf
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
from energon_stream.schedule.lines import Course, Knot, Lines
from energon_stream.schedule.pack_planning import PackPiece
from energon_stream.schedule.pack_spec import PackSpec
from energon_stream.schedule.packed import CursorCodec, pack_columns, pack_even, unpack_columns
from energon_stream.schedule.packed_schedule import PackedSchedule
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
from energon_stream.schedule.planned import JobPacks
from energon_stream.schedule.saved import damaged, is_count, reading, shown
from energon_stream.schedule.schedule import BlendCursor, Cursor, LeafCursor, Refs, RepeatCursor, Schedule
from energon_stream.schedule.skip import skip
from energon_stream.schedule.weights import (
    ALONG_LINES,
    BY_SEGMENTS,
    IN_STAIRS,
    UNFORESEEN,
    WeightChange,
    check_weights,
    first_batch,
    first_reference,
)
