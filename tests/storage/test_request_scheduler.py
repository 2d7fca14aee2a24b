"""The rules of requests, without threads and clock."""

from math import inf

import pytest

from energon_stream.errors import ThrottledError, TransientStorageError
from energon_stream.storage.attempts import AnswerUnwanted
from energon_stream.storage.request_scheduler import RequestRun, RequestScheduler, RequestTask

KB, MB = 1024, 1 << 20


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


def test_the_pace_is_that_of_the_large_answer_that_came_fastest():
    """64 KiB take 5 ms on a line of a hundred megabits; a busy machine adds two more, or many."""
    driver = Driver(4)
    sizes = (KB, 64 * KB, 64 * KB, 64 * KB)
    paces = []
    for size, seconds in zip(sizes, (1.0, 0.05, 0.007, 0.09), strict=True):
        driver.submit(size=size)
        run = driver.begin(driver.scheduler.grant())
        assert driver.scheduler.answered(run, 0.05)
        driver.scheduler.end(run, None, 0.05 + seconds)
        driver.scheduler.finish(run, None)
        driver.scheduler.release(run.task)
        paces.append(driver.scheduler.pace)
    best = pytest.approx(0.005 / (64 * KB))
    assert paces == [0.0, pytest.approx(0.048 / (64 * KB)), best, best]
    assert 8 / 110e6 < paces[-1] < 8 / 100e6


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


def rejected(driver, task, now=10.0):
    run = driver.begin(task, now)
    driver.scheduler.end(run, ThrottledError("busy"), now + 0.05)
    return run


def test_a_rejected_request_that_is_needed_next_is_sent_twice_at_once():
    """A quarter of the requests in flight is needed next: 2 of 8."""
    driver = Driver(8)
    tasks = [driver.submit(deadline, size=2 * MB) for deadline in range(4)]
    runs = [rejected(driver, driver.scheduler.grant()) for _ in tasks]
    for run in runs:
        assert not driver.scheduler.begin(run, 11.0)
        assert driver.scheduler.grant() is run.task
        assert driver.scheduler.begin(run, 11.0)
    assert driver.repeated == tasks[:2]


def test_cheap_requests_are_sent_twice_while_the_store_rejects_others():
    driver = Driver(8)
    scheduler = driver.scheduler
    for size in (KB, 2 * MB):  # nothing is known of the store
        driver.submit(size=size)
        driver.begin(scheduler.grant())
    assert not driver.repeated
    driver = Driver(8)
    scheduler = driver.scheduler
    driver.submit(deadline=-1)
    rejected(driver, scheduler.grant())
    cheap, large = driver.submit(0), driver.submit(1, size=2 * MB)
    for _ in range(2):
        driver.begin(scheduler.grant(), 11.0)
    assert driver.repeated == [cheap]
    assert not large.hedges


def test_a_busy_store_gets_no_request_twice_at_once():
    """The limit is at half after 17 rejections."""
    driver = Driver(32)
    driver.scheduler.budget.earn(1 << 40)
    runs = []
    for _ in range(17):
        driver.submit(size=MB)
        runs.append(driver.begin(driver.scheduler.grant()))
    for run in runs:
        driver.scheduler.end(run, ThrottledError("busy"), 0.05)
    for run in runs:
        driver.scheduler.begin(run, 0.06)
        assert driver.scheduler.grant() is None or driver.scheduler.begin(run, 0.06)
    assert not driver.repeated


def rejected_once():
    """A large request that was rejected once, and may begin its second attempt."""
    driver = Driver(4)
    task = driver.submit(size=4 * MB)
    first = rejected(driver, driver.scheduler.grant())
    driver.scheduler.begin(first, 11.0)
    driver.scheduler.grant()
    return driver, task, first


def test_the_second_of_two_answers_at_once_is_dropped_and_its_bytes_are_given_back():
    driver, task, first = rejected_once()
    scheduler, budget = driver.scheduler, driver.scheduler.budget
    assert scheduler.begin(first, 11.0)
    assert not budget.can_spend(3 * MB)
    second = driver.begin(task, 11.0, is_second=True)
    assert scheduler.answered(first, 11.05)
    assert not scheduler.answered(second, 11.06)
    scheduler.end(second, AnswerUnwanted(), 11.06)
    assert not scheduler.finish(second, AnswerUnwanted())
    assert budget.can_spend(5 * MB)  # one megabyte arrived for nothing
    scheduler.end(first, None, 11.1)
    assert scheduler.finish(first, None)
    assert task.error is None


def sent_twice(driver):
    """A large request of which both attempts are under way, after a rejection."""
    task = driver.submit(size=4 * MB)
    first = rejected(driver, driver.scheduler.grant())
    driver.scheduler.begin(first, 11.0)
    assert driver.scheduler.grant() is task
    assert driver.scheduler.begin(first, 11.0)
    return task, first, driver.begin(task, 11.0, is_second=True)


def dropped(driver, first):
    """The first run's answer comes when the other one is read."""
    assert not driver.scheduler.answered(first, 11.06)
    driver.scheduler.end(first, AnswerUnwanted(), 11.06)
    assert not driver.scheduler.finish(first, AnswerUnwanted())
    driver.scheduler.release(first.task)


def test_the_first_of_two_answers_at_once_is_dropped_if_the_second_is_read_already():
    driver = Driver(4)
    task, first, second = sent_twice(driver)
    assert driver.scheduler.answered(second, 11.05)
    dropped(driver, first)
    assert driver.scheduler.budget.can_spend(5 * MB)  # one megabyte arrived for nothing
    driver.look(11.1)
    assert driver.look_at < inf  # the answer that is read may still stall
    driver.scheduler.end(second, None, 11.1)
    assert driver.scheduler.finish(second, None)
    assert task.error is None
    driver.look(100.0)
    assert driver.look_at == inf


@pytest.mark.parametrize("breaks_first", [False, True])
def test_a_request_begins_again_if_the_answer_broke_off_for_which_the_other_was_dropped(breaks_first):
    driver = Driver(4)
    scheduler = driver.scheduler
    task, first, second = sent_twice(driver)
    error = TransientStorageError("reset")
    assert scheduler.answered(second, 11.05)
    if breaks_first:
        assert not scheduler.answered(first, 11.06)
    else:
        dropped(driver, first)
    scheduler.end(second, error, 11.1)
    assert not scheduler.finish(second, error)
    if breaks_first:
        scheduler.end(first, AnswerUnwanted(), 11.1)
        assert not scheduler.finish(first, AnswerUnwanted())
        scheduler.release(task)
    assert scheduler.grant() is task
    again = rejected(driver, task, 12.0)
    scheduler.begin(again, 13.0)
    assert scheduler.grant() is task
    assert scheduler.begin(again, 13.0)
    assert driver.repeated == [task]  # not sent twice again
    driver.answer(again, 13.1)
    assert task.settled
    assert task.error is None


def test_an_answer_that_broke_off_while_closing_ends_the_request():
    driver = Driver(4)
    task, first, second = sent_twice(driver)
    error = TransientStorageError("reset")
    assert driver.scheduler.answered(second, 11.05)
    dropped(driver, first)
    driver.scheduler.close()
    driver.scheduler.end(second, error, 11.1)
    assert driver.scheduler.finish(second, error)
    assert task.error is error


def test_a_rejected_second_request_costs_no_bytes():
    driver, task, first = rejected_once()
    scheduler, budget = driver.scheduler, driver.scheduler.budget
    scheduler.begin(first, 11.0)
    second = driver.begin(task, 11.0, is_second=True)
    scheduler.end(second, ThrottledError("busy"), 11.05)
    assert not scheduler.finish(second, ThrottledError("busy"))
    assert budget.can_spend(6 * MB)
    driver.answer(first, 11.1)


def test_rejections_do_not_count_before_answers_that_began_earlier():
    """Of 64 requests, 13 are rejected while the bodies of the others arrive: a fifth, which is tolerated."""
    driver = Driver(64, share=0.0)
    scheduler = driver.scheduler
    runs = []
    for _ in range(64):
        driver.submit(size=2 * MB)
        runs.append(driver.begin(scheduler.grant()))
    for run in runs[13:]:
        scheduler.answered(run, 0.05)
    for run in runs[:13]:
        scheduler.end(run, ThrottledError("busy"), 0.05)
    for run in runs[:13]:
        assert not scheduler.begin(run, 0.06)
        assert scheduler.grant() is run.task
        assert scheduler.begin(run, 0.06)
    for run in runs[:4]:  # now 17 of 68
        scheduler.end(run, ThrottledError("busy"), 0.11)
    for _ in range(8):
        driver.submit()
    assert [scheduler.grant() is None for _ in range(5)] == [False, False, False, False, True]
