"""The fetcher at slow, throttling and broken stores: second requests, fewer in flight, freed slots."""

import textwrap
import threading
import time
import uuid

import children
import pytest

from energon_stream.errors import ConfigError, ObjectNotFoundError, ThrottledError, TransientStorageError
from energon_stream.storage import Body, ByteRange, Fetcher, RetryPolicy, StorageCounters, StoreSpec
from energon_stream.storage.attempts import AnswerUnwanted, ScheduledStore
from energon_stream.storage.managed import ManagedStore
from energon_stream.testing.s3server import Rule

pytestmark = pytest.mark.usefixtures("late_requests")

SIZE = 30_000
COUNT = 600
AGAIN = 6 << 20  # bytes that even a short run may request twice; a busy machine makes healthy answers late
OBJECT = bytes(range(251)) * (COUNT * SIZE // 251 + 1)


@pytest.fixture
def counters():
    return StorageCounters()


@pytest.fixture
def store(s3_server, tmp_bucket, counters):
    s3_server.put(f"{tmp_bucket}/key", OBJECT)
    s3_server.put(f"{tmp_bucket}/other", OBJECT)
    s3_server.put(f"{tmp_bucket}/slow", OBJECT[:SIZE])
    return StoreSpec(tmp_bucket, s3_server.storage_options).open(counters=counters)


@pytest.fixture
def fetcher(s3_server):
    fetcher = Fetcher(32)
    yield fetcher
    s3_server.stop()  # this ends answers that are late
    fetcher.close()


def read(fetcher, store, count):
    """Read ``count`` different ranges and compare every byte."""
    ranges = [ByteRange(n * SIZE, (n + 1) * SIZE) for n in range(count)]
    futures = [fetcher.submit(store, "key", wanted, deadline=n) for n, wanted in enumerate(ranges)]
    for wanted, future in zip(ranges, futures, strict=True):
        assert future.result().data == OBJECT[wanted.start : wanted.stop]


def served(server, ending):
    return sum(entry.key.endswith(ending) for entry in server.log())


def test_a_slow_tail_is_requested_twice_within_the_budget(s3_server, store, fetcher, counters):
    s3_server.shape(first_byte_latency=0.02, slow_tail=(0.02, 20.0), seed=1)
    s3_server.reset_counters()
    read(fetcher, store, COUNT)
    fetcher.close()  # late answers arrive and are dropped
    seen, served = counters.snapshot(), s3_server.counters()
    assert seen.hedges > 0
    assert seen.hedged_bytes == seen.hedges * SIZE <= AGAIN
    assert served.bytes_sent == seen.bytes_received == COUNT * SIZE + seen.hedged_bytes
    assert seen.requests == {"get": COUNT + seen.hedges} == {"get": served.requests["GET"]}
    assert (seen.retries, seen.errors) == (0, {})
    assert seen.max_in_flight <= 32 + 10


def test_a_healthy_store_gets_no_second_requests(s3_server, store, fetcher, counters):
    s3_server.shape(first_byte_latency=0.8)  # longer than the pauses of a busy machine
    read(fetcher, store, 96)
    assert counters.snapshot().hedges <= 3


def test_the_second_answer_is_enough_and_the_first_is_dropped(s3_server, store, fetcher, counters):
    s3_server.shape(first_byte_latency=0.01)
    read(fetcher, store, 40)
    s3_server.reset_counters()
    s3_server.add_rule(Rule("delay", "*/slow", times=1, seconds=4.0))
    assert fetcher.submit(store, "slow", ByteRange(0, SIZE)).result().data == OBJECT[:SIZE]
    assert served(s3_server, "/slow") == 1  # the first answer is still on its way
    read(fetcher, store, 40)
    fetcher.close()
    assert served(s3_server, "/slow") == 2
    seen = counters.snapshot()
    assert seen.bytes_received == 81 * SIZE + seen.hedged_bytes


def test_a_function_is_repeated_if_that_is_allowed(s3_server, store, fetcher):
    s3_server.shape(first_byte_latency=0.01)
    read(fetcher, store, 40)
    s3_server.reset_counters()
    s3_server.add_rule(Rule("delay", "*/slow", times=1, seconds=60.0))
    assert (
        fetcher.ask(store, lambda store: store.get("slow").data, repeatable_bytes=SIZE).result()
        == OBJECT[:SIZE]
    )
    assert served(s3_server, "/slow") == 1  # the first answer is still on its way


def test_a_large_request_is_late_by_its_first_byte_and_its_answer_is_dropped(
    s3_server, tmp_bucket, store, counters
):
    """By the total duration of small answers, one of 4 MB would be late after many seconds."""
    large, fetcher = 4_000_000, Fetcher(8, hedged_share=1.0)
    s3_server.put(f"{tmp_bucket}/large", OBJECT[:large])
    s3_server.shape(first_byte_latency=0.01)
    read(fetcher, store, 40)
    s3_server.reset_counters()
    s3_server.add_rule(Rule("delay", "*/large", times=1, seconds=4.0))
    assert fetcher.submit(store, "large", ByteRange(0, large)).result().data == OBJECT[:large]
    assert served(s3_server, "/large") == 1
    fetcher.close()
    seen = counters.snapshot()
    assert seen.bytes_received == 40 * SIZE + large + (seen.hedges - 1) * SIZE
    assert seen.errors == {}


def test_a_second_request_may_be_late_too(s3_server, store, fetcher, counters):
    s3_server.shape(first_byte_latency=0.01)
    read(fetcher, store, 40)
    s3_server.reset_counters()
    s3_server.add_rule(Rule("delay", "*/slow", times=2, seconds=60.0))
    before = counters.snapshot().hedges
    assert fetcher.submit(store, "slow", ByteRange(0, SIZE)).result().data == OBJECT[:SIZE]
    assert served(s3_server, "/slow") == 1
    assert counters.snapshot().hedges - before == 2


def test_the_first_requests_may_be_late(s3_server, store, fetcher, counters):
    """A reader that opens a dataset waits for the slowest of a few requests."""
    s3_server.shape(first_byte_latency=0.01)
    read(fetcher, store, 1)
    s3_server.reset_counters()
    s3_server.add_rule(Rule("delay", "*/slow", times=1, seconds=60.0))
    body = fetcher.ask(store, lambda store: store.get("slow"), repeatable_bytes=SIZE)
    assert body.result().data == OBJECT[:SIZE]
    assert served(s3_server, "/slow") == 1  # the first answer is still on its way


@pytest.mark.parametrize("how", ["off", "call", "no answer yet", "too large"])
def test_requests_that_are_not_repeated(s3_server, store, counters, how):
    fetcher = Fetcher(8, hedged_share=0.0 if how == "off" else 0.03)
    read(fetcher, store, 0 if how == "no answer yet" else 40)
    s3_server.add_rule(Rule("delay", "*/other", times=1, seconds=0.5))
    wanted = ByteRange(0, 8_000_000 if how == "too large" else SIZE)
    if how == "call":
        body = fetcher.ask(store, lambda store: store.get_range("other", wanted))
    else:
        body = fetcher.submit(store, "other", wanted)
    assert body.result().data == OBJECT[: wanted.stop]
    fetcher.close()  # late answers arrive
    # Not by the counters: on a busy machine, an earlier read may be requested again, and end now.
    assert served(s3_server, "/other") == 1
    for share in (-0.1, 1.1):
        with pytest.raises(ConfigError, match="hedged_share"):
            Fetcher(8, hedged_share=share)


def test_a_rejected_second_request_is_not_retried(s3_server, store, fetcher, counters):
    read(fetcher, store, 40)
    before = counters.snapshot()
    s3_server.add_rule(Rule("delay", "*/slow", times=1, seconds=4.0))
    s3_server.add_rule(Rule("status", "*/slow"))
    assert fetcher.submit(store, "slow", ByteRange(0, SIZE)).result().data == OBJECT[:SIZE]
    seen = counters.snapshot() - before
    assert (seen.hedges, seen.retries) == (1, 0)
    assert (seen.requests, seen.errors) == ({"get": 2}, {"ThrottledError": 1})


def test_a_fifth_of_random_503_costs_neither_requests_nor_concurrency(s3_server, store, fetcher, counters):
    s3_server.shape(first_byte_latency=0.01, share_503=0.2, seed=3)
    s3_server.reset_counters()
    read(fetcher, store, COUNT)
    fetcher.close()
    seen = counters.snapshot()
    assert set(seen.errors) == {"ThrottledError"}
    assert seen.total_requests == s3_server.counters().requests["GET"]
    assert seen.retries + seen.hedges == seen.total_requests - COUNT
    assert seen.retries <= 0.4 * COUNT
    assert seen.hedges * SIZE <= AGAIN


class ScriptedStore(ScheduledStore):
    """Answers with ``answer(path, number)``; the number counts the requests for a path."""

    is_local = False
    url = "scripted://"

    def __init__(self, answer, *, tells=False):
        self.answer, self.tells = answer, tells
        self.lock = threading.Lock()
        self.asked = {}
        self.inside, self.most_inside = [], [0]  # shared with the copies that report to a listener

    def get_range(self, path, byte_range, *, etag=None):
        with self.lock:
            self.asked[path] = number = self.asked.get(path, 0) + 1
            self.inside.append(path)
            self.most_inside[0] = max(len(self.inside), self.most_inside[0])
        try:
            self.answer(path, number)
            if self.tells and not self._listener.answered():
                raise AnswerUnwanted
        finally:
            with self.lock:
                self.inside.remove(path)
        return Body(memoryview(bytes(len(byte_range))), etag, None)


def managed(store, counters, **policy):
    return ManagedStore(lambda: store, RetryPolicy(**policy), counters, uuid.uuid4().hex)


@pytest.mark.parametrize("tells", [True, False])
def test_bytes_that_are_dropped_return_to_the_budget(counters, tells):
    """The share allows one full second request, or the first megabyte of two."""

    answered = {path: threading.Event() for path in ("late", "later")}

    def answer(path, number):
        if (
            path in answered and number == 1
        ):  # the budget has a second request for the last one if it was told
            again = path == "late" or tells
            assert answered[path].wait(300) if again else not answered[path].wait(1.0)

    scripted, fetcher = ScriptedStore(answer, tells=tells), Fetcher(8, hedged_share=0.07)
    store, wanted = managed(scripted, counters), ByteRange(0, 4 << 20)
    for path in ["good"] * 20 + ["late", "later"]:
        fetcher.submit(store, path, wanted).result()
        if path in answered:
            answered[path].set()
    fetcher.close()
    assert (scripted.asked["late"], scripted.asked["later"]) == (2, 1 + tells)
    assert counters.snapshot().bytes_received == (22 if tells else 23) * len(wanted)


def test_if_both_requests_fail_the_first_error_is_raised(fetcher, counters):
    second_failed = threading.Event()

    def answer(path, number):
        if path == "bad" and number == 1:
            assert second_failed.wait(300)
            raise ObjectNotFoundError("the first")
        if path == "bad":
            second_failed.set()
            raise ObjectNotFoundError("the second")

    scripted = ScriptedStore(answer)
    store = managed(scripted, counters)
    for _ in range(20):
        fetcher.submit(store, "good", ByteRange(0, 10)).result()
    with pytest.raises(ObjectNotFoundError, match="the first"):
        fetcher.submit(store, "bad", ByteRange(0, 10)).result()
    assert scripted.asked["bad"] == 2


def test_a_late_request_is_not_retried_after_the_answer_came(fetcher, counters):
    answered = threading.Event()

    def answer(path, number):
        if path == "late" and number == 1:
            assert answered.wait(300)
            raise TransientStorageError("at last")

    scripted = ScriptedStore(answer)
    store = managed(scripted, counters, base_delay=0.0)
    for _ in range(20):
        fetcher.submit(store, "good", ByteRange(0, 10)).result()
    fetcher.submit(store, "late", ByteRange(0, 10)).result()
    answered.set()
    fetcher.close()
    assert scripted.asked["late"] == 2
    assert counters.snapshot().retries == 0


def test_a_request_between_attempts_leaves_its_slot_to_others(counters):
    asleep, wake = threading.Event(), threading.Event()

    def sleep(seconds):
        asleep.set()
        assert wake.wait(300)

    def answer(path, number):
        if path == "rejected" and number == 1:
            raise ThrottledError("too much")

    scripted, fetcher = ScriptedStore(answer), Fetcher(1)
    store = managed(scripted, counters, sleep=sleep)
    rejected = fetcher.submit(store, "rejected", ByteRange(0, 1))
    assert asleep.wait(300)
    for _ in range(5):
        fetcher.submit(store, "others", ByteRange(0, 1)).result(timeout=300)
    assert not rejected.done()
    wake.set()
    assert rejected.result(timeout=300).data == b"\0"
    assert scripted.most_inside[0] == 1
    fetcher.close()


def test_concurrency_follows_the_store(fetcher, counters):
    takes, is_counted, are_many = [4], threading.Event(), threading.Event()

    def answer(path, number):
        if len(scripted.inside) > takes[0]:
            raise ThrottledError("too much")
        if len(scripted.inside) >= 28:
            are_many.set()
        if is_counted.is_set() and not are_many.wait(30):  # a busy machine may not run all within 2 ms
            are_many.set()
        time.sleep(0.002)

    scripted = ScriptedStore(answer)
    store = managed(scripted, counters, attempts=100, base_delay=0.004, max_delay=0.1)

    def attempts(count):
        before = counters.snapshot().total_requests
        for future in [
            fetcher.ask(store, lambda store: store.get_range("x", ByteRange(0, 1))) for _ in range(count)
        ]:
            future.result()
        return counters.snapshot().total_requests - before

    attempts(500)
    assert attempts(1500) <= 1.4 * 1500
    takes[0] = 10**9
    attempts(2500)
    scripted.most_inside[0] = 0
    are_many.clear()
    is_counted.set()
    attempts(500)
    assert scripted.most_inside[0] >= 28


def test_close_fork_and_exit_with_a_late_request_in_flight(s3_server, tmp_bucket, store):
    """Runs in a new process: the exit waits for threads inside the client."""
    for key in ("slow", "sloth"):
        s3_server.put(f"{tmp_bucket}/{key}", OBJECT[:SIZE])
        s3_server.add_rule(Rule("delay", f"*/{key}", times=1, seconds=4))  # the exit waits for 5
    options = s3_server.storage_options | {
        "config_kwargs": {"read_timeout": 300}
    }  # or a busy machine retries
    program = f"""
        from energon_stream.storage import *
        store = StoreSpec({tmp_bucket!r}, {options!r}).open()
        read = lambda fetcher, key: fetcher.submit(store, key, ByteRange(0, {SIZE})).result().data
        for fetcher, key in ((Fetcher(8), "slow"), (shared_fetcher(8), "sloth")):
            for _ in range(40):
                read(fetcher, "key")
            read(fetcher, key)
            assert run_isolated(lambda: len(read(fetcher, "key"))) == {SIZE}
            if key == "slow":
                fetcher.close()
                read(fetcher, "key")
        assert default_counters().snapshot().hedges >= 2
        queued = [shared_fetcher(8).submit(store, "key", ByteRange(0, {SIZE})) for _ in range(50)]
        print("end")
    """
    done = children.run("-c", textwrap.dedent(program), finalize=True)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert served(s3_server, "/slow") == served(s3_server, "/sloth") == 2
