"""Plans are pure: properties of requests, whatever the ranges and limits."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.read.located import Located
from energon_stream.read.plan_limits import PlanLimits
from energon_stream.read.read_plan import LargeSample, Reason
from energon_stream.read.request_planner import Planner


def located(rows):
    """Ranges of references: a reference is a list of (object, start, length)."""
    flat = [(number, *span, at == 0) for number, spans in enumerate(rows) for at, span in enumerate(spans)]
    number, objects, starts, sizes, begins = (np.array(column) for column in zip(*flat, strict=True))
    flags = np.zeros(len(flat), dtype=bool)
    zero = np.zeros(len(flat), dtype=np.int64)
    return Located(zero, number, objects, starts * 8, starts * 8 + sizes, begins.astype(bool), flags)


def plan_all(limits, pieces):
    """All plans, planned as soon as the ranges that have arrived determine them."""
    planner, plans = Planner(limits), []
    pieces = list(pieces)
    while True:
        made = planner.plan(is_all=not pieces) if planner.has_enough(not pieces) else None
        if made is not None:
            plan, planner = made
            plans.append(plan)
        elif pieces:
            piece = pieces.pop(0)
            planner = planner.add(*piece) if isinstance(piece, tuple) else planner.add(piece)
        else:
            return plans


span = st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(1, 60))
references = st.lists(
    st.lists(span, min_size=1, max_size=3, unique_by=lambda s: s[:2]), min_size=1, max_size=60
)
limits = st.builds(
    PlanLimits,
    exact_samples=st.integers(0, 6),
    opening_take=st.integers(1, 12),
    second_take=st.integers(1, 20),
    max_ahead=st.integers(1, 30),
    plan_bytes=st.integers(1, 900),
    max_request=st.integers(1, 400),
    max_gap=st.integers(0, 40),
    largest_shared=st.integers(30, 10_000),
    resident_bytes=st.sampled_from([0, 10_000]),
    is_shared=st.booleans(),
    sparse=st.sampled_from([frozenset(), frozenset([0])]),
    max_waste=st.sampled_from([0.0, 0.3, 2.0]),
)


def test_a_window_whose_samples_are_all_left_out_holds_nothing_up():
    limits = PlanLimits(2, 2, 20, 20, 10**6, 10**6, 0, 10**6, is_shared=True, windows=1)
    opening, others = ([[(0, 100 * number, 8)] for number in numbers] for numbers in (range(2), range(2, 22)))
    planned = Planner(limits).add(located(opening)).plan()
    assert planned is not None
    planner = planned[1].add(Located.none(), (0, 0))
    assert planner.add(located(others), (0, 1)).has_enough(is_all=False)


@examples(100)
@given(references, limits, st.integers(1, 3), *2 * [st.lists(st.integers(1, 60), max_size=6)])
def test_windows_in_pieces_make_no_difference(rows, limit, together, ends, cuts):
    """Pieces end where windows do. A generation of whole windows is cut nowhere else."""
    whole, limit = located(rows), replace(limit, windows=together)
    heads = np.append(np.flatnonzero(whole.begins), len(whole)).tolist()
    ends = sorted({heads[end] for end in ends if end < len(heads)} | {len(whole)})
    plans = []
    for inner in ([], cuts):
        bounds = sorted({0, *ends, *(heads[cut] for cut in inner if cut < len(heads))})
        pieces = [
            (whole[a:b], (0, ends.index(b)) if b in ends else None) for a, b in itertools.pairwise(bounds)
        ]
        plans.append(plan_all(limit, pieces))
    assert [describe(plan) for plan in plans[0]] == [describe(plan) for plan in plans[1]]
    for plan in plans[0][1:]:
        begin, end = plan.first_range, plan.first_range + plan.ranges
        following = [each for each in ends if each > begin][:together]
        if len(following) == together and end != following[-1]:
            seen = whole[begin : following[-1]]
            assert (
                seen.sizes.sum() > limit.plan_bytes
                or seen.begins.sum() > limit.max_ahead
                or (seen.reference_sizes().max() > limit.largest_shared)
            )


@examples(200)
@given(references, limits, st.lists(st.integers(0, 60), max_size=6))
def test_pieces_make_no_difference(rows, limit, cuts):
    whole = located(rows)
    heads = np.append(np.flatnonzero(whole.begins), len(whole))
    bounds = [0, *(int(heads[cut]) for cut in sorted(cuts) if cut < len(heads)), len(whole)]
    pieces = [whole[start:stop] for start, stop in itertools.pairwise(bounds) if stop > start]
    once, several = plan_all(limit, [whole]), plan_all(limit, pieces)
    assert [describe(plan) for plan in once] == [describe(plan) for plan in several]


def describe(plan):
    requests = [
        (each.number, each.object, each.start, each.size, each.deadline, each.reason, each.samples.tolist())
        for each in plan.requests
    ]
    return plan.generation, requests, list(plan.samples), plan.ranges, plan.bytes, plan.reused, plan.keeps


@examples(200)
@given(references, limits)
def test_every_range_is_in_one_request_and_limits_hold(rows, limit):
    whole = located(rows)
    plans = plan_all(limit, [whole])
    requests = {each.number: each for plan in plans for each in plan.requests}
    assert list(requests) == list(range(len(requests)))
    opening = [each for each in requests.values() if each.reason is Reason.FIRST_BATCH]
    seen = []
    for plan in plans:
        assert plan.first_range == len(seen)
        for sample in plan.samples:
            mine = whole[whole.index == sample.sample]
            expected = list(
                zip(mine.objects.tolist(), mine.starts.tolist(), mine.stops.tolist(), strict=True)
            )
            if isinstance(sample, LargeSample):
                assert sum(stop - start for _, start, stop in expected) > limit.largest_shared
                assert list(sample.ranges) == expected
            else:
                places = [(sample.request, sample.place), *sample.more]
                held = [
                    (requests[n].object, int(requests[n].starts[at]), int(requests[n].stops[at]))
                    for n, at in places
                ]
                assert held == expected
            seen += expected
        assert len(seen) == plan.first_range + plan.ranges
    assert len(seen) == len(whole)
    for request in requests.values():
        stops = int(request.stops.max())
        assert request.start == int(request.starts.min())
        assert stops == request.start + request.size
        largest = int((request.stops - request.starts).max())
        assert request.size <= max(limit.max_request, largest)
        # Its bytes are wanted, but for gaps, and for requests of the first samples.
        is_opening = request.reason is Reason.FIRST_BATCH
        spanned = [] if is_opening else [each for each in opening if each.object == request.object]
        starts = np.array([*request.starts, *(each.start for each in spanned)])
        ends = np.array([*request.stops, *(each.start + each.size for each in spanned)])
        order = np.argsort(starts, kind="stable")
        order = order[(starts[order] >= request.start) & (ends[order] <= stops)]
        reach = np.maximum.accumulate(ends[order])
        assert (starts[order][1:] - reach[:-1] <= limit.max_gap * (1 + is_opening)).all()


@examples(200)
@given(references, limits)
def test_deadlines_ascend_and_precede_the_need(rows, limit):
    plans = plan_all(limit, [located(rows)])
    for plan in plans:
        deadlines = [request.deadline for request in plan.requests]
        assert deadlines == sorted(deadlines)
        assert all(plan.first_range <= deadline < plan.first_range + plan.ranges for deadline in deadlines)
    assert all(
        request.reason is Reason.FIRST_BATCH
        for plan in plans[:1]
        if limit.exact_samples
        for request in plan.requests
    )


@examples(100)
@given(references, limits)
def test_what_fits_is_requested_once_for_all_passes(rows, limit):
    """A pass that follows another one requests nothing while all bytes fit in the budget."""
    first = {spot[:2]: number for number, spots in reversed([*enumerate(rows)]) for spot in spots}
    rows = [[spot for spot in spots if first[spot[:2]] == n] for n, spots in enumerate(rows)]
    rows = [spots for spots in rows if spots]  # no two samples begin at one place
    whole = located(rows)
    many = plan_all(replace(limit, largest_shared=10**6, resident_bytes=10**6), [whole, whole, whole])
    kept = [each for plan in many for each in plan.requests]
    assert all(plan.keeps for plan in many)
    # A range is requested again only within the view in which it occurs first.
    made = {(each.object, each.start, each.size, tuple(each.samples.tolist())) for each in kept}
    assert len(made) == len(kept)
    later = [plan for plan in many if plan.first_range >= 2 * len(whole)]
    assert not any(plan.requests for plan in later)
    none = plan_all(replace(limit, largest_shared=10**6, resident_bytes=0), [whole, whole])
    # One view may span both passes.
    assert sum(each.size for plan in none for each in plan.requests) >= sum(each.size for each in kept)


def row_of(start, size=8, number=0):
    return [(number, start // 8, size)]


@pytest.mark.parametrize(
    ("changes", "rows", "reasons"),
    [
        ({}, [row_of(0), row_of(8)], ["GAP"]),
        ({"max_request": 8}, [row_of(0), row_of(8)], ["MAX_REQUEST", "GAP"]),
        ({"max_gap": 7}, [row_of(0), row_of(16)], ["GAP", "GAP"]),
        ({"sparse": frozenset([0]), "max_waste": 0.5}, [row_of(0), row_of(16)], ["GAP"]),
        ({"sparse": frozenset([0]), "max_waste": 0.4}, [row_of(0), row_of(16)], ["WASTE", "GAP"]),
        ({"sparse": frozenset([1]), "max_waste": 0.4}, [row_of(0), row_of(16)], ["GAP"]),
        ({"exact_samples": 1, "opening_take": 1}, [row_of(0), row_of(8)], ["FIRST_BATCH", "GAP"]),
        (
            {"max_request": 8, "request_limit": Reason.SHARED_LIMIT},
            [row_of(0), row_of(8)],
            ["SHARED_LIMIT", "GAP"],
        ),
        (
            {"max_ahead": 2, "second_take": 2, "max_request": 8},
            [row_of(0), row_of(8)],
            ["GENERATION_END", "GAP"],
        ),
    ],
)
def test_a_request_says_why_it_ends(changes, rows, reasons):
    most = 1 << 20
    limit = replace(PlanLimits(0, 1, 100, 100, most, most, 64, most), **changes)
    plans = plan_all(limit, [located(rows)])
    assert [request.reason.name for plan in plans for request in plan.requests] == reasons


def test_first_samples_merge_over_small_gaps_and_later_requests_span_them():
    most = 1 << 20
    limit = PlanLimits(2, 2, 100, 100, most, most, 8, most)
    plans = plan_all(limit, [located([row_of(start) for start in (8, 32, 0, 16, 40)])])
    spans = [[(each.start, each.size) for each in plan.requests] for plan in plans]
    assert spans == [[(8, 32)], [(0, 48)]]  # a gap of 16 bytes; over two samples and their gaps


def test_first_requests_take_in_the_next_samples_between_theirs():
    most = 1 << 20
    limit = PlanLimits(2, 4, 100, 100, most, most, 0, most)
    first, second = plan_all(limit, [located([row_of(start) for start in (8, 32, 16, 24, 40)])])
    assert [(each.start, each.size, each.samples.tolist()) for each in first.requests] == [
        (8, 32, [0, 1, 2, 3])
    ]
    assert (len(first.samples), len(second.samples)) == (2, 3)
    assert [(each.start, each.size) for each in second.requests] == [(40, 8)]


@pytest.mark.parametrize(
    ("size", "rest", "sizes", "changes", "widens"),
    [
        (8, 8, 8, {}, True),
        (8, 18, 8, {}, True),
        (8, 19, 8, {}, False),  # more samples than are read ahead
        (8, 8, 8, {"is_shared": True}, False),
        (1 << 18, 8, 8, {}, False),  # 2.5 MB, by the first samples
        (8, 8, 1 << 18, {}, False),  # 2 MB, as it turns out
    ],
)
def test_the_first_window_is_read_in_runs_if_it_is_small(size, rest, sizes, changes, widens):
    """Two first samples of a window, of two objects, and the others of it, which follow one of them."""
    limits = replace(PlanLimits(2, 2, 40, 20, 10**7, 10**7, 0, 10**7), sparse=frozenset([0]), **changes)
    first = [[(0, 4 * 10**5, size)], [(1, 4 * 10**5, size)]]
    planner = Planner(limits).add(located(first))
    if planner.may_widen(rest):
        others = [[(0, 4 * 10**5 + (size + at * sizes) // 8, sizes)] for at in range(rest)]
        planner = planner.add(located(others), (0, 0)).with_window()
    planned = planner.plan(is_all=True)
    assert planned is not None
    spans = [(request.object, request.size) for request in planned[0].requests]
    assert sorted(spans) == [(0, size + rest * sizes if widens else size), (1, size)]


@pytest.mark.parametrize(
    ("changes", "spans"),
    [
        ({}, [[(0, 32)], []]),
        ({"max_request": 24}, [[(0, 24)], [(24, 8)]]),  # no request may have the whole run
        ({"resident_bytes": 0, "exact_samples": 1, "opening_take": 1}, [[(0, 8)], [(8, 16)], [(24, 8)]]),
    ],
)
def test_while_answers_are_kept_a_request_has_all_of_a_run_of_neighbours(changes, spans):
    most = 1 << 20
    limit = replace(PlanLimits(0, 1, 4, 4, most, most, 0, most, most), **changes)
    plans = plan_all(limit, [located([row_of(start) for start in (0, 16, 8, 24)])])
    assert [[(each.start, each.size) for each in plan.requests] for plan in plans] == spans
