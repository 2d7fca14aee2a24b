"""Locks for which threads queue before they ask the system."""

import os
import threading

import pytest

from energon_stream.cache.locks import Busy, LockedFile, StripedLocks
from energon_stream.storage import run_isolated

LOCKS = StripedLocks(10)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file")


def opened(path):
    return LockedFile(path, os.O_RDWR | os.O_CREAT)


def is_free(path, seconds=0.0):
    try:
        with opened(path) as file, LOCKS.hold(file, path, seconds):
            return True
    except Busy:
        return False


def test_one_at_a_time_and_in_the_end_everyone(path):
    inside, most, count = 0, 0, 0

    def work():
        nonlocal inside, most, count
        for _ in range(50):
            with opened(path) as file, LOCKS.hold(file, path, 600):
                inside += 1
                most = max(most, inside)
                count += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, count) == (1, 400)


def test_a_lock_that_others_hold_is_busy(path):
    with opened(path) as file, LOCKS.hold(file, path):
        assert not is_free(path)  # another thread queues
        assert not run_isolated(is_free, path)  # another process asks the system
        assert run_isolated(is_free, path + "2")
    assert is_free(path)
    assert run_isolated(is_free, path)


def test_a_lock_taken_without_queueing_is_respected(path):
    with opened(path) as file:
        assert file.try_lock(10, 11)
        assert not is_free(path, 0.05)
        file.unlock(10, 11)
        assert is_free(path)


def test_errors_release_it(path):
    with pytest.raises(ZeroDivisionError), opened(path) as file, LOCKS.hold(file, path):
        raise ZeroDivisionError
    assert is_free(path)
