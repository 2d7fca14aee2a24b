"""The rules of second requests: lateness, and the budget of bytes."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.storage.hedge import HedgeBudget, LatencyModel

KB, MB = 1024, 1024 * 1024
SIZES = st.integers(1, 8 * MB)


def learnt(size, durations):
    model = LatencyModel()
    news = [model.observe(size, seconds) for seconds in durations]
    assert news == [number in (1, 12) for number in range(1, len(news) + 1)]
    return model


def test_nothing_is_late_before_a_dozen_answers():
    assert LatencyModel().late_after(MB) == inf
    assert learnt(MB, [0.05] * 11).late_after(MB) == inf
    assert learnt(MB, [0.05] * 12).late_after(MB) == pytest.approx(0.15)


def test_the_first_requests_are_late_by_the_longest_answer():
    assert LatencyModel().early == inf
    assert learnt(MB, [0.05]).early == pytest.approx(0.175)
    assert learnt(MB, [0.05, 0.1, 0.06]).early == pytest.approx(0.3)
    assert learnt(MB, [0.05] * 12).early == inf


def test_a_slow_tail_does_not_move_the_limit_and_a_slow_store_does():
    usual = learnt(MB, [0.05] * 60)
    assert learnt(MB, [0.05] * 57 + [1.0] * 3).late_after(MB) == usual.late_after(MB)
    assert learnt(MB, [0.05] * 50 + [1.0] * 10).late_after(MB) > 1.0
    for _ in range(64):  # old durations are forgotten
        usual.observe(MB, 0.5)
    assert usual.late_after(MB) == pytest.approx(1.05)


def test_a_burst_of_slow_answers_moves_the_limit_by_little():
    assert learnt(MB, [0.06] * 50 + [0.15] * 10).late_after(MB) == pytest.approx(1.25 * 0.15)
    assert learnt(MB, [0.06] * 50 + [0.08] * 10).late_after(MB) == pytest.approx(0.17)


def test_other_sizes_borrow_a_limit_that_is_not_too_low():
    model = learnt(MB, [0.06] * 20)
    assert model.late_after(40 * KB) == model.late_after(MB)
    assert model.late_after(4 * MB) == 4 * model.late_after(MB)
    for _ in range(12):
        model.observe(40 * KB, 0.05)
    assert model.late_after(40 * KB) == pytest.approx(0.15)
    assert model.late_after(60 * KB) == model.late_after(40 * KB)
    assert model.late_after(100 * KB) == 2 * model.late_after(40 * KB)


@given(st.floats(0.005, 0.3), st.floats(5e6, 1e9), SIZES, SIZES)
def test_a_request_of_usual_duration_is_never_late(first_byte, rate, known, asked):
    """Latency and rate are those of real stores; the model knows one size only."""
    model = learnt(known, [first_byte + known / rate] * 12)
    late_after = model.late_after(asked)
    assert late_after < inf
    # Within a class, sizes differ by less than a factor of two, which the limit allows for.
    assert late_after >= first_byte + asked / rate


@given(st.floats(0.001, 0.2), st.lists(st.tuples(st.booleans(), SIZES), max_size=200))
def test_repeated_bytes_stay_within_the_share_at_any_time(share, requests):
    budget, asked, twice = HedgeBudget(share), 0, 0
    for is_late, size in requests:
        asked += size
        budget.earn(size)
        if is_late and budget.can_spend(size):
            budget.spend(size)
            twice += size
        assert twice <= max(share * asked + 1, 6 * MB)


def test_a_short_run_repeats_one_large_request():
    budget = HedgeBudget(0.03)
    budget.earn(8 * MB)
    assert not budget.can_spend(8 * MB)
    assert budget.can_spend(6 * MB)
    budget.spend(5 * MB)
    assert not budget.can_spend(2 * MB)
    budget.spend(-2 * MB)
    assert budget.can_spend(2 * MB)
    nothing = HedgeBudget(0.0)
    nothing.earn(8 * MB)
    assert not nothing.can_spend(1)


def test_quiet_hours_save_up_a_bounded_burst():
    budget = HedgeBudget(0.03)
    budget.earn(10**15)
    assert budget.can_spend(64 * MB)
    assert not budget.can_spend(64 * MB + 1)
