"""The order in which a budget makes the requests of several readers."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from energon_stream.read.budget import Budget


@dataclass(eq=False)
class Planned:
    """As much of a planned request as a budget looks at."""

    deadline: int
    size: int
    has_arrived: bool = False
    is_local: bool = False

    def take_apart(self):
        return 0


def most_urgent(lanes):
    """Where the next request is needed first: the first lane with the least slack, by a scan of all."""
    waiting = [lane for lane in lanes if lane.queue]
    return min(waiting, key=lambda lane: lane.queue[0].deadline - lane.consumed, default=None)


LANE = st.integers(0, 5)
PLAN = st.tuples(LANE, st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40)), min_size=1, max_size=6))


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(20, 400),
    is_shared=st.booleans(),
    rounds=st.lists(
        st.tuples(
            st.lists(PLAN, max_size=6),
            st.lists(st.tuples(LANE, st.integers(1, 9)), max_size=6),
            st.sampled_from(["close", "pop", "arrive", ""]),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_requests_are_made_as_a_scan_of_all_lanes_would_find_them(size, is_shared, rounds):
    budget = Budget(size, is_shared=is_shared)
    lanes = [budget.open_lane() for _ in range(6)]
    made = []
    for plans, consumed, event in rounds:
        for lane, requests in plans:
            lanes[lane % len(lanes)].queue.extend(Planned(*each) for each in sorted(requests))
        for lane, count in consumed:
            lanes[lane % len(lanes)].consumed += count
        if event == "close" and len(lanes) > 1:
            budget.close_lane(lanes.pop(len(lanes) // 2), held=0)
        elif event == "pop" and (lane := most_urgent(lanes)):
            made.append(budget.pop(lane))
        elif event == "arrive":
            for request in made:
                request.has_arrived = True
            budget.free(sum(request.size for request in made))
            made.clear()
            budget.look()
        requests = budget.admit()
        while True:
            lane = most_urgent(lanes)
            expected = lane.queue[0] if lane else None
            before = budget.outstanding_bytes
            request = next(requests, None)
            if request is None:
                # Nothing waits, the next one has no room, or too much is under way.
                part = size // 3 if is_shared else size
                under_way = sum(each.size for each in made)
                assert expected is None or before + expected.size > size or under_way + expected.size > part
                break
            assert request is expected
            made.append(request)
