"""Outages are waited out, and a store that never answered fails within seconds, with the cause in words."""

import itertools
import logging
import pickle
import re
import socket
import threading
import time
import uuid

import pytest
from told import told

from energon_stream import ReadOptions
from energon_stream.errors import (
    BadAnswerError,
    ConfigError,
    ObjectNotFoundError,
    RangeError,
    TransientStorageError,
)
from energon_stream.storage import (
    ByteRange,
    Fetcher,
    RetryPolicy,
    StoreSpec,
    abandon,
    retry_deadline,
    run_isolated,
)
from energon_stream.storage import contact as contacts
from energon_stream.storage.attempts import AnswerUnwanted, ScheduledStore
from energon_stream.storage.contact import Contact
from energon_stream.testing.s3server import Rule

TRANSPORTS = ("obstore", "fsspec")
FIRST = ByteRange(0, 4)


class Clock:
    """A clock that waits move; nothing else does."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        for module in ("retry", "contact"):
            monkeypatch.setattr(f"energon_stream.storage.{module}.time.monotonic", lambda: self.now)

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def knows(store):
    return store.__reduce__()[1][1]


def forget_contacts():
    contacts.shared_contacts.clear()


def unknown_store():
    return Contact("s3://bucket", uuid.uuid4().hex)


def known():
    contact = unknown_store()
    contact.know()
    return contact


def failing(clock, until, error):
    """A function that fails until some seconds have passed."""
    began, calls = clock.now, []

    def attempt(number):
        calls.append(number)
        if clock.now - began < until:
            raise error
        return len(calls)

    return attempt


UNREACHABLE = TransientStorageError("the connection was refused", answered=False)
BUSY = TransientStorageError("503", answered=True)


@pytest.mark.parametrize("error", [UNREACHABLE, BUSY])
@pytest.mark.parametrize("seconds", [10, 60, 299])
def test_a_known_store_may_fail_until_the_deadline(clock, error, seconds):
    policy = RetryPolicy(sleep=clock.sleep)
    calls = policy.run(failing(clock, seconds, error), known())
    assert 5 < calls < 20 + seconds  # the waits grow to five seconds


@pytest.mark.parametrize("deadline", [0, 2, 300])
def test_it_is_given_up_at_the_deadline(clock, deadline):
    began = clock.now
    policy = RetryPolicy(deadline=deadline, sleep=clock.sleep)
    with pytest.raises(
        TransientStorageError, match=rf"refused \(gave up after \d+ attempts in {deadline} s\)"
    ):
        policy.run(failing(clock, 1e9, UNREACHABLE), known())
    assert clock.now - began == pytest.approx(deadline)


def test_an_unknown_store_that_cannot_be_reached_is_given_up_within_seconds(clock):
    began = clock.now
    with pytest.raises(TransientStorageError, match="refused"):
        RetryPolicy(sleep=clock.sleep).run(failing(clock, 1e9, UNREACHABLE), unknown_store())
    assert clock.now - began == pytest.approx(4.0)


def test_a_server_that_restarts_passes_and_one_that_is_busy_is_known(clock):
    policy = RetryPolicy(sleep=clock.sleep)
    assert policy.run(failing(clock, 3.0, UNREACHABLE), unknown_store()) > 3
    contact = unknown_store()
    assert policy.run(failing(clock, 60.0, BUSY), contact) > 3
    assert contact.is_known


def test_bad_answers_are_tried_for_seconds_and_absent_ranges_four_times(clock):
    began, policy = clock.now, RetryPolicy(sleep=clock.sleep)
    assert policy.run(failing(clock, 2.0, BadAnswerError("HTML")), known()) > 3
    began = clock.now
    with pytest.raises(BadAnswerError, match=r"^HTML$"):
        policy.run(failing(clock, 1e9, BadAnswerError("HTML")), known())
    assert clock.now - began == pytest.approx(4.0)
    calls = itertools.count()
    with pytest.raises(RangeError):
        policy.run(lambda _: (_ for _ in ()).throw(RangeError(str(next(calls)))), known())
    assert next(calls) == 4


def test_an_outage_is_logged_every_few_seconds_and_at_its_end(clock, caplog):
    caplog.set_level(logging.WARNING)
    RetryPolicy(sleep=clock.sleep, max_delay=1.0).run(failing(clock, 20.0, UNREACHABLE), known())
    lines = told(caplog)
    assert 3 <= len(lines) - 1 <= 5
    pattern = (
        r"s3://bucket fails since \d\d:\d\d:\d\d and is tried again until \d\d:\d\d:\d\d .*300 s.*refused"
    )
    assert all(re.match(pattern, line) for line in lines[:-1])
    assert re.fullmatch(r"s3://bucket answers again, after 2\d\.\d s", lines[-1])


def test_faults_in_passing_are_not_logged(clock, caplog):
    policy, contact = RetryPolicy(sleep=clock.sleep), known()
    for _ in range(50):
        policy.run(failing(clock, 0.5, BUSY), contact)
    assert told(caplog) == []


def test_one_object_that_fails_is_given_up_though_others_are_read(clock, caplog):
    caplog.set_level(logging.WARNING)
    contact = known()

    def attempt(number):
        contact.answered()  # to somebody else
        raise BUSY

    began = clock.now
    with pytest.raises(TransientStorageError):
        RetryPolicy(deadline=60, sleep=clock.sleep).run(attempt, contact)
    assert clock.now - began == pytest.approx(60)
    assert 5 <= len(told(caplog)) <= 14


def test_an_answer_after_an_outage_ends_all_waits():
    contact, waiting = known(), threading.Barrier(9)

    def wait():
        waiting.wait()
        contact.wait(60.0)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    waiting.wait()
    for thread in threads:
        while thread.is_alive():  # it may not have begun to wait at the first answers
            contact.failed("refused", 0.0, 300.0)
            time.sleep(1.0)  # answers to shorter faults wake nobody
            contact.answered()
            thread.join(0.01)


def test_an_abandoned_request_is_not_tried_again():
    failed, tries = threading.Event(), []

    class Store(ScheduledStore):
        is_local = False

        def begin(self):
            self._listener.begin()

    def request(store):
        def attempt(number):
            store.begin()
            tries.append(number)
            failed.set()
            raise UNREACHABLE

        return RetryPolicy(sleep=lambda seconds: abandoned.wait()).run(attempt, known())

    abandoned, fetcher = threading.Event(), Fetcher(1)
    answer = fetcher.ask(Store(), request)
    failed.wait()
    abandon(answer)
    abandoned.set()
    with pytest.raises(AnswerUnwanted):
        answer.result()
    assert tries == [0]
    fetcher.close()


def test_the_deadline_comes_from_the_option_or_the_environment(monkeypatch):
    assert (retry_deadline(), ReadOptions().retry_deadline) == (300.0, None)
    monkeypatch.setenv("ENERGON_STREAM_RETRY_DEADLINE", "20")
    assert (retry_deadline(), retry_deadline(7), retry_deadline(0)) == (20.0, 7.0, 0.0)
    for wrong in (-1, float("nan")):
        with pytest.raises(ConfigError, match="retry_deadline"):
            ReadOptions(retry_deadline=wrong)
    monkeypatch.setenv("ENERGON_STREAM_RETRY_DEADLINE", "soon")
    with pytest.raises(ConfigError, match="ENERGON_STREAM_RETRY_DEADLINE is 'soon'"):
        StoreSpec("s3://bucket", {"anon": True}).open()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def spec(endpoint, transport="obstore", **changes):
    options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    return StoreSpec("s3://bucket", options, transport, **changes)


def talking(answer):
    """A listener that answers every connection's first bytes, and its endpoint."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return listener, listener.getsockname()[1]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("cause", "scheme", "words"),
    [
        ("name", "http", "cannot resolve the name of the host"),
        ("port", "http", "the connection was refused"),
        ("plain", "https", "does not speak TLS"),
        ("ssh", "http", "does not speak HTTP"),
        ("hangs up", "http", "closed the connection"),
    ],
)
def test_first_contact_names_the_cause(transport, cause, scheme, words):
    answers = {"plain": b"HTTP/1.1 400 Bad\r\n\r\n", "ssh": b"SSH-2.0-OpenSSH_9.6\r\n", "hangs up": b""}
    listener, port = talking(answers[cause]) if cause in answers else (None, free_port())
    host = "no-such-host.invalid" if cause == "name" else "127.0.0.1"
    store = spec(f"{scheme}://{host}:{port}", transport)
    quick = RetryPolicy(patience=0.1)
    with pytest.raises(TransientStorageError, match=words) as caught:
        store.open(policy=quick).get_range("key", FIRST)
    assert not caught.value.answered
    assert host in str(caught.value)
    if listener:
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("transport", "limit", "form"),
    [("obstore", "_obstore.FIRST_READ_TIMEOUT", "{}s".format), ("fsspec", "_s3fs._FIRST_ANSWER", float)],
)
def test_first_contact_with_a_silent_server(s3_server, tmp_bucket, transport, limit, form, monkeypatch):
    """The limits are nine seconds; shorter here. An answer that is only late is asked for again."""
    policy = RetryPolicy(patience=0.1)
    wait_for = lambda seconds: monkeypatch.setattr(f"energon_stream.storage.{limit}", form(seconds))  # noqa: E731
    wait_for(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = spec(f"http://127.0.0.1:{listener.getsockname()[1]}", transport)
        with pytest.raises(TransientStorageError, match=r"no answer.*after 2 attempts") as caught:
            store.open(policy=policy).get_range("key", FIRST)
    assert not caught.value.answered
    s3_server.put(f"{tmp_bucket}/key", b"bytes")
    wait_for(5)
    s3_server.add_rule(Rule("delay", seconds=60, times=1))
    late = StoreSpec(tmp_bucket, s3_server.storage_options, transport).open(policy=policy)
    assert bytes(late.get_range("key", FIRST).data) == b"bytes"[FIRST.start : FIRST.stop]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_connection_in_time(transport, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)  # its queue is full soon, and the system drops further attempts
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        options = {"key": "k", "secret": "s", "config_kwargs": {"connect_timeout": 1}}
        options["endpoint_url"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TransientStorageError, match="no connection in time"):
            StoreSpec("s3://bucket", options, transport).open(policy=RetryPolicy(patience=0.1)).get("key")
        for filler in fillers:
            filler.close()


def test_a_store_is_known_to_processes_that_get_its_name(s3_server, tmp_bucket):
    s3_server.put(f"{tmp_bucket}/key", b"data")
    mine = StoreSpec(tmp_bucket, s3_server.storage_options)

    def read():
        mine.open().get("key")
        return mine

    assert not knows(mine)
    packed = pickle.dumps(mine)
    assert run_isolated(read) == mine  # the child's answer tells the parent, as a dataset that is opened does
    assert knows(mine)
    assert run_isolated(knows, mine)  # a forked worker inherits it
    with_news = pickle.dumps(mine)
    contacts.known_stores.clear()  # as in a worker that is spawned
    forget_contacts()
    assert not knows(pickle.loads(packed))
    forget_contacts()
    assert knows(pickle.loads(with_news))


def test_an_absent_object_is_an_answer(s3_server, tmp_bucket):
    store = StoreSpec(tmp_bucket, s3_server.storage_options)
    with pytest.raises(ObjectNotFoundError):
        store.open().get("absent")
    assert knows(store)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_listings_are_tried_again(s3_server, tmp_bucket, transport):
    s3_server.put(f"{tmp_bucket}/key", b"data")
    s3_server.add_rule(Rule("status", times=4, status=500))
    store = StoreSpec(tmp_bucket, s3_server.storage_options, transport).open()
    assert [entry.path for entry in store.list()] == ["key"]
    assert s3_server.counters().requests["LIST"] == 5


@pytest.mark.usefixtures("late_requests")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_trickling_answer_is_left_and_requested_again(s3_server, tmp_bucket, transport, monkeypatch):
    """Neither a latency is known, nor does the read time-out see it: bytes keep coming."""
    monkeypatch.setattr("energon_stream.storage.request_scheduler.STALLED", 0.2)
    s3_server.put(f"{tmp_bucket}/key", bytes(20_000))
    s3_server.add_rule(Rule("trickle", times=4, rate=2.0))  # more often than a late request is repeated
    fetcher = Fetcher(4)
    store = StoreSpec(tmp_bucket, s3_server.storage_options, transport).open()
    began = time.monotonic()
    assert len(fetcher.submit(store, "key", ByteRange(0, 2000)).result(300).data) == 2000
    assert time.monotonic() - began < 500  # one answer takes 1,000 s
    assert s3_server.counters().faults["trickle"] == 4
    s3_server.stop()  # this ends the trickling answers
    fetcher.close()
