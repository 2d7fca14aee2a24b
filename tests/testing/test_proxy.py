"""Each fault of the proxy does to a plain client what it says, and is counted; the store outlives most."""

import http.client
import socket
import threading
import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from energon_stream.errors import ConfigError
from energon_stream.storage import ByteRange, StoreSpec
from energon_stream.testing.proxy import Fault, FaultProxy, all_faults
from energon_stream.testing.s3server import S3Control, S3Server
from energon_stream.testing.servers import free_ports

BODY = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def server():
    with S3Server() as found:
        found.put("s3://bucket/key", BODY)
        yield found


@pytest.fixture
def proxy(server):
    with FaultProxy(server.endpoint_url) as found:
        yield found


def get(proxy, method="GET", path="/bucket/key"):
    """Status, headers and body; raises what http.client raises."""
    host = proxy.endpoint_url.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=300)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return answer.status, headers, answer.read()


def test_without_faults_everything_passes(proxy, server):
    status, headers, body = get(proxy)
    assert (status, body) == (200, BODY)
    assert headers["content-length"] == str(len(BODY))
    assert get(proxy, "HEAD")[2] == b""
    assert get(proxy, path="/bucket/absent")[0] == 404
    options = S3Control(proxy.endpoint_url).storage_options
    store = StoreSpec("s3://bucket", options).open()
    store.put("other", BODY)
    assert bytes(store.get_range("other", ByteRange(3, 9)).data) == BODY[3:9]
    assert {"key", "other"} <= {entry.path for entry in store.list()}
    store.delete("other")
    assert proxy.counts() == {}


@pytest.mark.parametrize("kind", ["500", "503", "416"])
def test_an_error_instead_of_the_answer(proxy, kind):
    proxy.set_faults([Fault(kind, times=1)])
    status, _, body = get(proxy)
    assert status == int(kind)
    assert b"<Error>" in body
    assert get(proxy)[0] == 200
    assert proxy.counts() == {kind: 1}


def test_a_page_instead_of_the_answer(proxy):
    proxy.set_faults([Fault("html", times=1)])
    status, headers, body = get(proxy)
    assert (status, headers["content-type"]) == (200, "text/html")
    assert b"<html>" in body


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("no-answer", ConnectionError),
        ("drop", ConnectionError),
        ("reset", (ConnectionError, http.client.IncompleteRead)),
        ("truncate", http.client.IncompleteRead),
    ],
)
def test_connections_that_end(proxy, kind, error):
    proxy.set_faults([Fault(kind, times=1)])
    with pytest.raises(error):
        get(proxy)
    assert get(proxy)[2] == BODY
    assert proxy.counts() == {kind: 1}


@pytest.mark.parametrize("kind", ["stall", "trickle", "late"])
def test_answers_that_take_long_come_whole(proxy, kind):
    proxy.set_faults([Fault(kind, seconds=0.2, times=1)])
    begun = time.monotonic()
    assert get(proxy)[2] == BODY
    assert time.monotonic() - begun >= 0.2
    assert proxy.counts() == {kind: 1}


def test_an_answer_without_length_ends_with_the_connection(proxy):
    proxy.set_faults([Fault("no-length", times=1)])
    _, headers, body = get(proxy)
    assert body == BODY
    assert "content-length" not in headers
    assert "etag" in headers


def test_another_etag(proxy):
    right = get(proxy)[1]["etag"]
    proxy.set_faults([Fault("wrong-etag", times=1)])
    assert get(proxy)[1]["etag"] != right
    assert get(proxy)[1]["etag"] == right


def test_faults_of_a_body_leave_answers_without_body_alone(proxy):
    proxy.set_faults([Fault("truncate", method=None)])
    assert get(proxy, "HEAD")[0] == 200
    assert proxy.counts() == {}


def test_faults_choose_by_path_and_method(proxy):
    proxy.set_faults([Fault("503", pattern="bucket/other*")])
    assert get(proxy)[0] == 200
    assert get(proxy, path="/bucket/other")[0] == 503
    proxy.set_faults([Fault("503", method="HEAD")])
    assert get(proxy)[0] == 200
    assert get(proxy, "HEAD")[0] == 503


def test_refusing_ends_connections_and_refuses_new_ones_until_it_is_over(proxy):
    address = urlsplit(proxy.endpoint_url)
    with socket.create_connection((address.hostname, address.port)) as idle:
        get(proxy)
        proxy.outage("refuse", 3.0)
        with pytest.raises(ConnectionResetError):
            idle.recv(1)
        with pytest.raises(ConnectionRefusedError):
            get(proxy)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            assert get(proxy)[2] == BODY
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    assert proxy.counts() == {"refuse": 1}


def test_freezing_holds_everything_back_until_it_is_over(proxy):
    get(proxy)
    begun = time.monotonic()
    proxy.outage("freeze", 0.3)
    time.sleep(0.05)
    assert get(proxy)[2] == BODY
    assert time.monotonic() - begun >= 0.3


def test_an_outage_begins_at_a_request(proxy):
    proxy.set_faults([Fault("freeze", seconds=0.05, times=1)])
    assert get(proxy)[2] == BODY
    assert proxy.counts() == {"freeze": 1}


def test_the_seed_decides(server):
    def answers(seed):
        with FaultProxy(server.endpoint_url, [Fault("503", 0.3), Fault("500", 0.3)], seed=seed) as proxy:
            return [get(proxy)[0] for _ in range(30)]

    assert answers(1) == answers(1)
    assert answers(1) != answers(2)
    assert {200, 500, 503} == set(answers(3))


def test_the_store_reads_right_bytes_through_faults(proxy):
    """Those that a store must outlive; others are named errors."""
    kinds = ("500", "503", "no-answer", "reset", "truncate", "drop", "late", "stall")
    proxy.set_faults([Fault(kind, 0.05, 0.01) for kind in kinds])
    store = StoreSpec("s3://bucket", S3Control(proxy.endpoint_url).storage_options).open()
    for start in range(0, 20_000, 100):
        assert bytes(store.get_range("key", ByteRange(start, start + 100)).data) == BODY[start : start + 100]
    assert sum(proxy.counts().values()) > 10


def test_a_server_that_is_gone_is_a_closed_connection():
    (port,) = free_ports(1)
    with (
        FaultProxy(f"http://127.0.0.1:{port}") as proxy,
        pytest.raises((ConnectionError, http.client.HTTPException)),
    ):
        get(proxy)


def test_stopping_leaves_nothing(server):
    before = set(threading.enumerate())
    for _ in range(3):
        with FaultProxy(server.endpoint_url, all_faults(0.01)) as proxy:
            get(proxy, "HEAD")
        proxy.stop()
    for thread in set(threading.enumerate()) - before:  # of the server, for connections that have just ended
        thread.join(300)
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        get(proxy)


@pytest.mark.parametrize("arguments", [("no such",), ("503", 2.0), ("503", -1.0), ("stall", 0.5, -1.0)])
def test_impossible_faults(arguments):
    with pytest.raises(ConfigError):
        Fault(*arguments)


def test_faults_on_the_command_line():
    assert Fault.parse("503=0.25") == Fault("503", 0.25)
    assert Fault.parse("stall=0.25,3") == Fault("stall", 0.25, 3.0)
    for text in ("503", "503=x", "none=0.1", "503=1,2,3,4,5,6,7"):
        with pytest.raises(ConfigError):
            Fault.parse(text)
    with pytest.raises(ConfigError, match="more than 1"):
        FaultProxy("http://127.0.0.1:1", [Fault("503", 0.6), Fault("500", 0.6)])
    with pytest.raises(ConfigError, match="HOST:PORT"):
        FaultProxy("https://127.0.0.1:1")
