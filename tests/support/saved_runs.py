"""Runs that are saved at random places and restored, beside a run that nobody disturbs."""

import random

from energon_stream import get_savable_loader
from energon_stream.state import dumps, loads
from energon_stream.testing.operator_suite import assert_equal_values


def _steps(loader):
    """Elements over all passes; ``"end"`` where a pass ends."""
    while True:
        yield from loader
        yield "end"


def differing_saves(build, saves, steps, tail=6, seed=0):
    """Save a run at random steps; return how many of the restored runs go on with other elements."""
    draws = random.Random(seed)
    places = sorted(draws.sample(range(1, steps), saves))
    expected, states = [], {}
    with get_savable_loader(build()) as loader:
        run = _steps(loader)
        for number in range(steps + tail):
            if number in places:
                states[number] = dumps(loader.save_state_rank())
            expected.append(next(run))
    differing = 0
    for number, state in states.items():
        with get_savable_loader(build()) as loader:
            loader.restore_state_rank(loads(state))
            run = _steps(loader)
            found = [next(run) for _ in range(tail)]
        try:
            assert_equal_values(expected[number : number + tail], found)
        except AssertionError:
            differing += 1
    return differing
