"""The fetcher: order, bounds, cancelling, threads and exits; and isolation of a forked child."""

import os
import signal
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import CancelledError, wait

import children
import pytest

from energon_stream.errors import (
    ConfigError,
    ObjectNotFoundError,
    RangeError,
    TransientStorageError,
    WorkerError,
)
from energon_stream.storage import (
    Body,
    ByteRange,
    Fetcher,
    LocalStore,
    RetryPolicy,
    StorageCounters,
    StoreSpec,
    run_isolated,
)
from energon_stream.storage.attempts import ScheduledStore
from energon_stream.storage.managed import ManagedStore
from energon_stream.storage.request_pool import RequestPool


class GatedStore:
    """Answers when the gate opens; records the order and the number of requests inside."""

    is_local = False

    def __init__(self):
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.order = []
        self.inside = self.most_inside = 0
        self.lock = threading.Lock()

    def get_range(self, path, byte_range, *, etag=None):
        with self.lock:
            self.order.append(path)
            self.inside += 1
            self.most_inside = max(self.inside, self.most_inside)
        self.entered.release()
        self.gate.wait()
        with self.lock:
            self.inside -= 1
        if path == "bad":
            raise RangeError("no such bytes")
        return Body(memoryview(path.encode()), etag, None)


ONE = ByteRange(0, 1)


def test_urgent_requests_overtake_and_queued_ones_cancel():
    store, fetcher = GatedStore(), Fetcher(max_in_flight=1)
    first = fetcher.submit(store, "first", ONE, deadline=9)
    store.entered.acquire()
    late = fetcher.submit(store, "late", ONE, deadline=5)
    also_late = fetcher.submit(store, "also late", ONE, deadline=5)
    dropped = fetcher.submit(store, "dropped", ONE, deadline=0)
    urgent = fetcher.submit(store, "urgent", ONE, etag="v1", deadline=1)
    assert dropped.cancel()
    assert not first.cancel()
    store.gate.set()
    assert [bytes(f.result().data) for f in (late, also_late)] == [b"late", b"also late"]
    assert urgent.result().etag == "v1"
    assert store.order == ["first", "urgent", "late", "also late"]
    with pytest.raises(CancelledError):
        dropped.result()


def test_in_flight_is_bounded_and_errors_reach_the_caller():
    store, fetcher = GatedStore(), Fetcher(max_in_flight=4)
    futures = [fetcher.submit(store, "good", ONE) for _ in range(20)] + [fetcher.submit(store, "bad", ONE)]
    for _ in range(4):
        store.entered.acquire()
    store.gate.set()
    assert all(future.result().data == b"good" for future in futures[:20])
    with pytest.raises(RangeError):
        futures[20].result()
    assert store.most_inside == 4
    with pytest.raises(ConfigError):
        Fetcher(max_in_flight=0)


def test_a_released_slot_lets_the_next_request_begin():
    """The task's next attempt waits for a slot again."""
    fetcher, second_runs, first_asks = Fetcher(max_in_flight=1), threading.Event(), threading.Event()

    class Reporting(ScheduledStore):
        is_local = False

        def first(self):
            self._listener.release_slot()
            assert second_runs.wait(300)
            first_asks.set()
            self._listener.begin()
            self._listener.end(None)
            return "first"

    def second():
        second_runs.set()
        assert first_asks.wait(300)
        return "second"

    futures = [fetcher.ask(Reporting(), Reporting.first), fetcher.call(second)]
    assert [future.result(300) for future in futures] == ["first", "second"]
    fetcher.close()


def test_a_store_that_is_down_does_not_hold_up_another_one():
    """Its requests wait for their next attempts: each has a thread, and none a slot."""
    again = threading.Event()

    def wait(_seconds):
        assert again.wait(300)

    class Down:
        url = "s3://down"

        def get_range(self, path, byte_range, *, etag=None):
            raise TransientStorageError("connection refused")

    store = ManagedStore(Down, RetryPolicy(attempts=2, sleep=wait), None, "down")
    fetcher, sound = Fetcher(max_in_flight=1), GatedStore()
    sound.gate.set()
    failing = [fetcher.submit(store, str(number), ONE) for number in range(20)]
    try:
        assert fetcher.submit(sound, "good", ONE, deadline=1).result(300) is not None
    finally:
        again.set()
    for future in failing:
        assert isinstance(future.exception(20), TransientStorageError)
    fetcher.close()


def test_closing_does_not_wait_for_requests_between_two_attempts():
    """A server that is gone delays no exit, and is asked no more."""
    waits, again, asked = threading.Semaphore(0), threading.Event(), []

    def wait(_seconds):
        waits.release()
        assert again.wait(300)

    class Down:
        url = "s3://gone"

        def get_range(self, path, byte_range, *, etag=None):
            asked.append(path)
            raise TransientStorageError("connection refused")

    store = ManagedStore(Down, RetryPolicy(sleep=wait), None, "gone")
    fetcher = Fetcher(max_in_flight=4)
    futures = [fetcher.submit(store, str(number), ONE) for number in range(4)]
    for _ in futures:
        assert waits.acquire(timeout=300)
    closing = threading.Thread(target=fetcher.close)
    closing.start()
    closing.join(4)  # less than running requests have
    assert not closing.is_alive()
    again.set()
    for future in futures:
        with pytest.raises(CancelledError):
            future.result(300)
    assert sorted(asked) == ["0", "1", "2", "3"]


def test_local_stores_answer_at_once(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    fetcher = Fetcher()
    threads = set(threading.enumerate())
    future = fetcher.submit(LocalStore(str(tmp_path)), "a", ByteRange(1, 3))
    assert future.done()
    assert future.result().data == b"bc"
    assert isinstance(fetcher.submit(LocalStore(str(tmp_path)), "b", ONE).exception(), ObjectNotFoundError)
    assert set(threading.enumerate()) <= threads


def test_requests_that_end_while_they_are_submitted_answer_too():
    class Instant(GatedStore):
        def get_range(self, path, byte_range, *, etag=None):
            return Body(memoryview(path.encode()), None, None)

    fetcher, interval = Fetcher(8), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        futures = [fetcher.submit(Instant(), str(number), ONE) for number in range(3000)]
    finally:
        sys.setswitchinterval(interval)
    assert [int(bytes(future.result(timeout=300).data)) for future in futures] == list(range(3000))


def test_a_thread_that_begins_before_its_slot_is_noted_does_not_wait_for_another_one():
    def request(run):
        run.begin()
        run.end(None)

    pool, interval = RequestPool(1, 0.0), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns in the middle of granting
    try:
        answers = [pool.submit(request, number, 0) for number in range(2_000)]
        assert not wait(answers, timeout=300).not_done
    finally:
        sys.setswitchinterval(interval)
        pool.close(1.0)


def test_idle_threads_keep_no_body_alive():
    class Large(bytearray):
        """Supports weak references."""

    class Bodies(GatedStore):
        def get_range(self, path, byte_range, *, etag=None):
            data = Large(10)
            alive.append(weakref.ref(data))
            return Body(memoryview(data), None, None)

    alive, fetcher = [], Fetcher(2)
    for _ in range(2):
        for future in [fetcher.submit(Bodies(), "x", ONE) for _ in range(5)]:
            future.result()
        del future
        fetcher.call(int).result()
        limit = time.monotonic() + 300
        while any(reference() is not None for reference in alive):
            assert time.monotonic() < limit
            time.sleep(0.001)
    assert len(alive) == 10


def test_counters_see_retries_and_concurrency(s3_server, tmp_bucket):
    s3_server.put(f"{tmp_bucket}/key", bytes(1000))
    s3_server.hold()
    s3_server.fail_next(2)
    counters, fetcher = StorageCounters(), Fetcher(8)
    before = counters.snapshot()
    options = s3_server.storage_options | {"config_kwargs": {"read_timeout": 300}}
    store = StoreSpec(tmp_bucket, options).open(
        policy=RetryPolicy(sleep=lambda seconds: None), counters=counters
    )
    futures = [fetcher.submit(store, "key", ByteRange(n, n + 10)) for n in range(24)]
    while s3_server.counters().max_in_flight < 8:
        pass  # each look is a request of its own
    s3_server.release()
    assert all(len(future.result().data) == 10 for future in futures)
    seen = counters.snapshot() - before
    assert (seen.total_requests, seen.retries, seen.bytes_received) == (26, 2, 240)
    assert seen.max_in_flight == s3_server.counters().max_in_flight == 8


@pytest.mark.every(2)
@pytest.mark.parametrize(("transport", "warnings"), [("auto", 1), ("fsspec", 0)])
def test_exit_with_requests_in_flight_and_use_in_forked_children(s3_server, tmp_bucket, transport, warnings):
    """Runs in a new process: forks children before and after the first read, and exits cleanly."""
    s3_server.put(f"{tmp_bucket}/key", b"data")
    program = f"""
        import logging
        from energon_stream.storage import *
        from energon_stream.storage.obstore_use import obstore_usable
        logging.basicConfig()
        store = StoreSpec({tmp_bucket!r}, {s3_server.storage_options!r}, {transport!r}).open()
        read = lambda: bytes(shared_fetcher().submit(store, "key", ByteRange(0, 4)).result().data)
        assert run_isolated(read) == b"data"
        assert obstore_usable()
        assert read() == b"data"
        assert run_isolated(lambda: [read(), read()]) == [b"data"] * 2
        for _ in range(100):
            shared_fetcher().submit(store, "key", ByteRange(0, 4))
        print("end")
    """
    s3_server.shape(first_byte_latency=0.02)
    done = children.run("-c", textwrap.dedent(program), finalize=True)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert done.stderr.count("reads through fsspec") == warnings


def test_isolated_functions_return_raise_and_die():
    assert run_isolated(lambda a, b: [a, b, os.getpid() != parent], 1, "x") == [1, "x", True]
    with pytest.raises(RangeError, match="far away") as caught:
        run_isolated(fail, RangeError("too far", where="far away"))
    assert "in fail" in str(caught.value.__cause__)
    with pytest.raises(WorkerError, match="Unpicklable: lost"):
        run_isolated(fail, Unpicklable("lost", "arguments"))
    with pytest.raises(WorkerError, match="signal 9"):
        run_isolated(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(WorkerError, match="exit code 3"):
        run_isolated(os._exit, 3)
    with pytest.raises(SystemExit):
        run_isolated(sys.exit, 2)


def test_an_interrupt_ends_the_child(tmp_path):
    note, main = tmp_path / "pid", threading.get_ident()

    def waits_for_the_answer():
        """Earlier, an interrupt could hit a hook of os.register_at_fork, where Python ignores it."""
        return note.exists() and note.read_text() and "pipe" in sys._current_frames()[main].f_locals

    def interrupt_when_it_runs():
        while not waits_for_the_answer():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def work():
        note.write_text(str(os.getpid()))
        time.sleep(60)

    threading.Thread(target=interrupt_when_it_runs).start()
    with pytest.raises(KeyboardInterrupt):
        run_isolated(work)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


parent = os.getpid()


def fail(error):
    raise error


class Unpicklable(Exception):
    def __init__(self, what, more):
        super().__init__(what)
