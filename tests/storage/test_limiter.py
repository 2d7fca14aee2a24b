"""The concurrency limit against simulated stores; time is a number."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream.storage.limiter import ConcurrencyLimit

ANSWER = 0.06  # seconds of an accepted request


def load(takes, requests, limit, *, share=0.0, rejection=0.05, seed=0):
    """Simulate requests with back-off at a store that rejects all beyond ``takes``, and a share of others.

    Returns attempts, the limit averaged over time, and successes per second.
    """
    dice = random.Random(seed)
    running = accepted = sleeping = attempts = 0
    events, back, left, now, area = [], [], requests, 0.0, 0.0
    while left or events:
        while running < limit.limit and (back or (left and running + sleeping < 2 * limit.limit + 16)):
            number = back.pop() if back else 0
            left -= number == 0
            attempts, running = attempts + 1, running + 1
            taken = accepted < takes and dice.random() >= share
            accepted += taken
            duration = ANSWER * dice.uniform(0.8, 1.2) if taken else rejection
            heapq.heappush(events, (now + duration, attempts, "taken" if taken else "rejected", number))
        before = now
        now, _, kind, number = heapq.heappop(events)
        area += limit.limit * (now - before)
        if kind == "awake":
            sleeping -= 1
            back.append(number)
            continue
        limit.observe(rejected=kind == "rejected", in_flight=running)
        running -= 1
        accepted -= kind == "taken"
        if kind == "rejected":
            sleeping += 1
            delay = dice.random() * min(5.0, 0.025 * 2**number)
            heapq.heappush(events, (now + delay, -attempts, "awake", number + 1))
    return attempts, area / now, requests / now


def test_a_store_without_limit_gets_all_requests():
    limit = ConcurrencyLimit(32)
    attempts, mean, _ = load(10**9, 500, limit)
    assert (attempts, mean, limit.limit) == (500, pytest.approx(32), 32)


@examples(30)
@given(
    largest=st.integers(2, 64),
    share_taken=st.floats(0.02, 0.9),
    rejection=st.sampled_from([0.002, 0.02, 0.06]),
    seed=st.integers(0, 99),
)
def test_a_loaded_store_rejects_few_and_is_well_used(largest, share_taken, rejection, seed):
    takes, limit = max(1, int(share_taken * largest)), ConcurrencyLimit(largest)
    load(takes, 600, limit, rejection=rejection, seed=seed)  # until the limit is stable
    attempts, _, speed = load(takes, 3000, limit, rejection=rejection, seed=seed)
    assert attempts <= 1.4 * 3000
    assert speed >= 0.6 * takes / ANSWER


@pytest.mark.parametrize("largest", [8, 32, 48])
@pytest.mark.parametrize("rejection", [0.002, 0.05])
def test_random_rejections_cost_little_concurrency(largest, rejection):
    attempts, mean, _ = load(10**9, 8000, ConcurrencyLimit(largest), share=0.2, rejection=rejection)
    assert mean >= 0.8 * largest
    assert attempts <= 1.4 * 8000


@pytest.mark.parametrize("takes", [1, 4])
def test_it_recovers_when_the_store_does(takes):
    limit = ConcurrencyLimit(48)
    load(takes, 500, limit)
    assert limit.limit <= 3 * takes
    load(10**9, 1500, limit)
    assert limit.limit == 48


def test_a_dead_store_gets_one_request_at_a_time():
    limit = ConcurrencyLimit(32)
    for _ in range(500):
        limit.observe(rejected=True, in_flight=limit.limit)
        assert limit.limit >= 1
    assert limit.limit == 1


def test_answers_of_earlier_requests_do_not_shrink_it_twice():
    limit = ConcurrencyLimit(32)
    for _ in range(17):  # a quarter of 64, and one
        assert limit.limit == 32
        limit.observe(rejected=True, in_flight=32)
    assert limit.limit == 16
    for _ in range(31):
        limit.observe(rejected=True, in_flight=16)
    assert limit.limit == 16
