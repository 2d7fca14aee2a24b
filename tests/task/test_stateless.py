import hashlib
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from energon_stream.task import get_failure_tolerance, get_stateless, stateless
from energon_stream.worker import WorkerConfig


def draw(_=None):
    return float(torch.rand(())), float(np.random.rand()), random.random()


def seeded_draw(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    return draw()


@pytest.mark.parametrize(
    ("decorated", "tolerance"),
    [
        (stateless(lambda: 1), 100),
        (stateless()(lambda: 1), 100),
        (stateless(restore_seeds=True)(lambda: 1), 100),
        (stateless(failure_tolerance=3)(lambda: 1), 3),
        (stateless(restore_seeds=True, failure_tolerance=7)(lambda: 1), 7),
        (stateless(failure_tolerance=0)(lambda: 1), 0),
    ],
)
def test_marks_are_set_in_every_form(decorated, tolerance):
    assert decorated() == 1
    assert get_stateless(decorated)
    assert get_failure_tolerance(decorated, 100) == tolerance
    assert not get_stateless(draw)


def test_seeds_come_from_the_active_configuration_at_call_time():
    hook, config = stateless(restore_seeds=True)(draw), WorkerConfig(0, 1, 0)
    seed = b"%d|7" % config.worker_seed()
    expected = seeded_draw(int.from_bytes(hashlib.sha1(seed).digest()[:4], "big"))
    before = seeded_draw(5)
    seeded_draw(5)
    random_after = draw()
    seeded_draw(5)
    with config.activate(0, 7):
        assert hook() == hook() == expected
        assert draw() == random_after  # the generators were put back
    assert before == seeded_draw(5)
    seeded_draw(5)
    assert hook() == random_after  # outside of a pipeline the function runs as it is


def test_stream_counter_and_seed_offset_change_the_draws():
    hook = stateless(restore_seeds=True)(draw)
    draws = set()
    for offset, stream, index in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]:
        config = WorkerConfig(0, 1, 2, seed_offset=offset)
        with config.activate(stream, index):
            draws.add(hook())
    assert len(draws) == 4


def test_an_error_leaves_the_generators_as_they_were():
    @stateless(restore_seeds=True)
    def fails():
        draw()
        raise ValueError

    seeded_draw(5)
    expected = draw()
    seeded_draw(5)
    with WorkerConfig(0, 1, 0).activate(0), pytest.raises(ValueError):
        fails()
    assert draw() == expected


def test_a_generator_has_random_states_of_its_own():
    @stateless(restore_seeds=True)
    def several(log):
        try:
            for _ in range(3):
                yield draw()
        finally:
            log.append("closed")

    log = []
    with WorkerConfig(0, 1, 0).activate(0):
        undisturbed = list(several(log))
        assert len(set(undisturbed)) == 3
        seeded_draw(5)
        outer = [draw() for _ in range(4)]
        seeded_draw(5)
        disturbed, between = [], [draw()]
        for value in several(log):
            disturbed.append(value)
            between.append(draw())
        assert disturbed == undisturbed
        assert between == outer
        assert log == ["closed"] * 2
        opened = several(log)
        next(opened)
        opened.close()
        assert len(log) == 3


def test_nested_hooks_do_not_disturb_each_other():
    inner = stateless(restore_seeds=True)(draw)

    @stateless(restore_seeds=True)
    def outer(nested):
        first = draw()
        if nested:
            assert inner() == first  # seeded anew, with the same seed
        return first, draw()

    with WorkerConfig(0, 1, 0).activate(0):
        assert outer(True) == outer(False)


def test_threads_that_step_loaders_side_by_side_have_seeds_of_their_own():
    """Whoever enters and leaves in between neither changes a hook's seed nor leaves one behind."""
    hook = stateless(restore_seeds=True)(draw)
    here, there = WorkerConfig(0, 1, 0), WorkerConfig(0, 1, 0, seed_offset=5)
    with here.activate(0):
        expected = hook()
    entered, leave = threading.Event(), threading.Event()

    def step():
        with there.activate(0):
            entered.set()
            assert leave.wait(300)

    thread = threading.Thread(target=step)
    with here.activate(0):
        thread.start()
        assert entered.wait(300)
        assert hook() == expected
    leave.set()
    thread.join()
    seeded_draw(5)
    outside = draw()
    seeded_draw(5)
    assert hook() == outside


def test_threads_that_draw_at_the_same_time_draw_what_one_would():
    hook = stateless(restore_seeds=True)(lambda: [draw() for _ in range(50)])
    config = WorkerConfig(0, 1, 0)

    def draws(order):
        found = {}
        for number in order:
            with config.activate(0, number):
                found[number] = hook()
        return found

    expected, interval = draws(range(40)), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(draws, [range(40), range(39, -1, -1), range(0, 40, 3), range(7, 40)]))
    finally:
        sys.setswitchinterval(interval)
    assert all(expected[number] == drawn for each in found for number, drawn in each.items())
