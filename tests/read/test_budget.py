"""The order in which a budget makes the requests of several readers."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repetitions import is_nightly

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


@settings(max_examples=150 if is_nightly() else 40, deadline=None)
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


def test_other_requests_follow_the_first_ones_so_that_they_arrive_behind_them():
    """Two megabytes take 16 ms on a line of a gigabit; at 40 ms, 50 MB are in flight at ten gigabits."""
    now = [1.0]
    budget = Budget(200_000_000, is_shared=False, clock=lambda: now[0])
    lane = budget.open_lane()
    lane.queue.append(Planned(0, 2_000_000))
    first = list(budget.admit())
    lane.queue.extend(Planned(deadline, 4_000_000) for deadline in range(1, 40))
    budget.first(first, latency=0.04)
    assert (list(budget.admit()), round(budget.pause, 6)) == ([], 0.016)
    now[0] += 0.016
    assert (len(list(budget.admit())), budget.pause) == (12, None)
    assert budget.follows
    now[0] += 0.034  # the first answer: as many bytes as the line holds for 50 ms, and those that arrive
    first[0].has_arrived = True
    assert len(list(budget.admit())) == 3
    assert not budget.follows
    starting = budget.starting()
    starting[0].has_arrived = True
    assert len(list(budget.admit())) == 2
    assert len(budget.starting()) == 16


@pytest.mark.parametrize(
    ("milliseconds", "follows"), [(26.2, False), (5.2, False), (2.1, False), (1.9, True), (0.5, True)]
)
def test_others_follow_before_the_first_answers_only_where_bytes_come_at_once(milliseconds, follows):
    """64 KiB take 26.2 ms at 20 megabits, and 2.1 at 250; two more are the machine's, as far as it is known.

    64 requests beside the last of the first ones leave it a 65th of the line: seconds, of 20 megabits.
    """
    pace = max(1e-12, (milliseconds - 2) / 1000 / 65536)
    now = [1.0]
    budget = Budget(200_000_000, is_shared=False, clock=lambda: now[0])
    lane = budget.open_lane()
    lane.queue.append(Planned(0, 2_000_000))
    first = list(budget.admit())
    lane.queue.append(Planned(1, 4_000_000))
    budget.first(first, latency=0.04, pace=pace)
    assert budget.pause == (pytest.approx(0.016) if follows else None)
    now[0] += 0.017
    assert len(list(budget.admit())) == follows
    first[0].has_arrived = True
    assert len(list(budget.admit())) == (not follows)


def test_a_start_that_a_small_budget_ends_waits_for_nothing_more():
    """The first samples are late, and others may follow: waiting for no time at all once went on for ever."""
    now = [1.0]
    budget = Budget(3_000_000, is_shared=False, clock=lambda: now[0])
    lane = budget.open_lane()
    lane.queue.append(Planned(0, 2_000_000))
    budget.first(budget.admit(), latency=0.04)
    lane.queue.append(Planned(1, 2_000_000))
    now[0] += 0.5
    assert (list(budget.admit()), budget.pause) == ([], None)
    lane.queue[0].size = 1_000_000
    assert (len(list(budget.admit())), budget.pause) == (1, None)


def test_without_a_known_latency_others_wait_for_the_first_answers():
    now = [1.0]
    budget = Budget(200_000_000, is_shared=False, clock=lambda: now[0])
    lane = budget.open_lane()
    lane.queue.append(Planned(0, 2_000_000))
    first = list(budget.admit())
    lane.queue.append(Planned(1, 4_000_000))
    budget.first(first, latency=0.0)
    now[0] += 0.5
    assert (list(budget.admit()), budget.pause) == ([], None)
    first[0].has_arrived = True
    assert len(list(budget.admit())) == 1
