"""Locks that threads queue up for before they ask the system."""

import os
import threading

import pytest

from energon_stream.cache.locks import LockedFile, Turns
from energon_stream.storage import run_isolated

TURNS = Turns(10, 11)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file")


def opened(path):
    return LockedFile(path, os.O_RDWR | os.O_CREAT)


def held(path, seconds=0.0):
    """Whether the lock can be had."""
    with opened(path) as file, TURNS.hold(file, path, seconds) as is_held:
        return is_held


def test_one_at_a_time_and_in_the_end_everyone(path):
    inside, most, turns = 0, 0, 0

    def work():
        nonlocal inside, most, turns
        for _ in range(50):
            with opened(path) as file, TURNS.hold(file, path, 20) as is_held:
                assert is_held
                inside += 1
                most = max(most, inside)
                turns += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, turns) == (1, 400)


def test_what_others_hold_is_not_given_within_the_time(path):
    with opened(path) as file, TURNS.hold(file, path, 1) as is_held:
        assert is_held
        assert not held(path)  # another thread's turn
        assert not run_isolated(held, path)  # another process asks the system
        assert run_isolated(held, path + "2")
    assert held(path)
    assert run_isolated(held, path)


def test_a_lock_taken_without_a_turn_is_respected(path):
    with opened(path) as file:
        assert file.try_lock(10, 11)
        assert not held(path, 0.05)
        file.unlock(10, 11)
        assert held(path)


def test_errors_give_it_back(path):
    with pytest.raises(ZeroDivisionError), opened(path) as file, TURNS.hold(file, path, 1):
        raise ZeroDivisionError
    assert held(path)
