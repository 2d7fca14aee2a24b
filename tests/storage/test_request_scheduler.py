"""The rules of requests, without threads and clock."""

from math import inf

import pytest

from energon_stream.errors import ThrottledError
from energon_stream.storage.attempts import AnswerUnwanted
from energon_stream.storage.request_scheduler import RequestRun, RequestScheduler, RequestTask

KB = 1024


class Driver:
    """Runs tasks in virtual time."""

    def __init__(self, slots, share=0.03):
        self.repeated, self.look_at = [], inf
        self.scheduler = RequestScheduler(slots, share, self.repeated.append, self.wake)

    def wake(self, look_at):
        self.look_at = look_at

    def submit(self, deadline=0, size=KB):
        task = RequestTask(size)
        self.scheduler.submit(task, deadline)
        return task

    def begin(self, task, now=0.0, *, is_second=False):
        run = RequestRun(task, is_second=is_second)
        assert self.scheduler.begin(run, now)
        return run

    def answer(self, run, now):
        assert self.scheduler.answered(run, now)
        self.scheduler.end(run, None, now)
        assert self.scheduler.finish(run, None)
        self.scheduler.release(run.task)

    def learn(self, count=20):
        """Answer requests after 10 ms each."""
        for _ in range(count):
            self.submit()
            self.answer(self.begin(self.scheduler.grant()), 0.01)
        self.look(1.0)

    def look(self, now):
        self.look_at = self.scheduler.look(now)


def test_slots_go_by_deadline_and_a_returning_task_waits_for_one_again():
    driver = Driver(1)
    scheduler = driver.scheduler
    late, soon, also_soon = (driver.submit(deadline) for deadline in (5, 1, 1))
    assert scheduler.grant(has_thread=False) is None
    assert scheduler.grant() is soon
    assert scheduler.grant() is None
    run = driver.begin(soon)
    scheduler.end(run, ThrottledError("busy"), 1.0)
    assert scheduler.grant() is also_soon
    assert not scheduler.begin(run, 2.0)
    assert scheduler.grant() is None
    driver.answer(driver.begin(also_soon), 3.0)
    assert scheduler.grant(has_thread=False) is soon  # it has a thread
    assert scheduler.begin(run, 4.0)
    driver.answer(run, 5.0)
    assert scheduler.grant() is late


def test_a_late_request_is_repeated_and_the_first_answer_counts():
    driver = Driver(2)
    scheduler = driver.scheduler
    driver.learn()
    task = driver.submit()
    first = driver.begin(scheduler.grant(), 10.0)
    assert 10.06 <= driver.look_at < 10.1
    driver.look(10.05)
    assert not driver.repeated
    driver.look(driver.look_at)
    assert driver.repeated == [task]
    driver.answer(driver.begin(task, 10.1, is_second=True), 10.11)
    driver.look(100.0)
    assert driver.look_at == inf  # nothing is watched any more
    assert scheduler.answered(first, 10.5)  # too small to be dropped
    scheduler.end(first, None, 10.5)
    assert not scheduler.finish(first, None)


def test_a_settled_task_makes_no_further_attempt():
    driver = Driver(2)
    driver.learn()
    task = driver.submit()
    first = driver.begin(driver.scheduler.grant(), 10.0)
    driver.look(11.0)
    driver.look(12.0)  # the first look came late itself, and takes that off
    driver.answer(driver.begin(task, 12.0, is_second=True), 12.01)
    driver.scheduler.end(first, ThrottledError("busy"), 12.02)
    with pytest.raises(AnswerUnwanted):
        driver.scheduler.begin(first, 12.03)


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (3, 1), (9, 3)])
def test_a_third_of_the_slots_may_be_taken_again(slots, most):
    driver = Driver(slots, share=1.0)
    driver.learn()
    for _ in range(slots):
        driver.submit()
        driver.begin(driver.scheduler.grant(), 10.0)
    driver.look(driver.look_at)
    assert len(driver.repeated) == most


def test_nothing_is_repeated_without_a_share_or_after_closing():
    for driver, closes in ((Driver(4, share=0.0), False), (Driver(4), True)):
        driver.learn()
        driver.submit()
        waiting = driver.submit(1)
        driver.begin(driver.scheduler.grant(), 10.0)
        if closes:
            assert driver.scheduler.close() == [waiting]
        driver.look(min(driver.look_at, 1000.0))
        assert not driver.repeated
