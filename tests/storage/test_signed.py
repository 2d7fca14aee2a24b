"""Large ranges over plain HTTP: signed URLs, connections that are used again, ways out."""

import socket
import threading

import pytest

from energon_stream.errors import AccessDeniedError, TransientStorageError
from energon_stream.storage import ByteRange, Counters, RetryPolicy, StoreSpec
from energon_stream.storage._obstore import ObstoreStore
from energon_stream.storage._plain_http import goes_straight
from energon_stream.storage.into import get_into
from energon_stream.testing.s3server import Rule

MB = 1 << 20
PAYLOAD = bytes(range(251)) * (3 * MB // 251 + 1)
WANTED = ByteRange(12_345, 12_345 + 2 * MB)
QUICK = RetryPolicy(attempts=3, base_delay=0.001, sleep=lambda seconds: None)


@pytest.fixture
def gets(monkeypatch):
    """How many ranges were read by obstore itself."""
    seen = []
    get_range = ObstoreStore._get_range

    def spy(self, *arguments):
        seen.append(arguments)
        return get_range(self, *arguments)

    monkeypatch.setattr(ObstoreStore, "_get_range", spy)
    return seen


@pytest.fixture
def key(s3_server, tmp_bucket):
    s3_server.put(f"{tmp_bucket}/a key/with ü+%.tar", PAYLOAD)
    return "a key/with ü+%.tar"


def opened(url, options, **more):
    return StoreSpec(url, options, "obstore").open(policy=QUICK, **more)


def read(store, key, wanted=WANTED, **more):
    memory = memoryview(bytearray(len(wanted)))
    body = get_into(store, key, wanted, memory, **more)
    assert body.data.obj is memory.obj  # nothing was copied beside
    assert memory == PAYLOAD[wanted.start : wanted.stop]
    return body


def test_large_ranges_come_to_where_they_are_wanted(s3_server, tmp_bucket, key, gets):
    counters = Counters()
    store = opened(tmp_bucket, s3_server.storage_options, counters=counters)
    meta = store.head(key)
    body = read(store, key, etag=meta.etag)
    assert (body.etag, body.total_size) == (meta.etag, len(PAYLOAD))
    assert not gets
    assert counters.snapshot().bytes_received == len(WANTED)
    read(store, key, ByteRange(0, 1000))
    assert len(gets) == 1  # small ones are obstore's


def test_without_credentials(s3_server, tmp_bucket, key, gets):
    options = {"endpoint_url": s3_server.endpoint_url, "anon": True}
    read(opened(tmp_bucket, options), key)
    assert not gets


def test_whoever_refuses_the_signature_is_asked_otherwise(s3_server, tmp_bucket, key, gets):
    """A bucket's policy may do so."""
    store = opened(tmp_bucket, s3_server.storage_options | {"requester_pays": True})
    s3_server.add_rule(Rule("status", status=403, times=1))
    read(store, key)
    read(store, key)
    assert len(gets) == 2


def test_whoever_refuses_both_is_believed(s3_server, tmp_bucket, key, gets):
    store = opened(tmp_bucket, s3_server.storage_options | {"token": "t"})
    s3_server.add_rule(Rule("status", status=403, times=2))
    with pytest.raises(AccessDeniedError, match="a key"):
        read(store, key)
    read(store, key)
    s3_server.add_rule(Rule("status", status=403, times=1))
    with pytest.raises(AccessDeniedError, match="a key"):
        read(store, key)
    assert len(gets) == 1


@pytest.mark.parametrize("action", ["reset", "truncate"])
def test_a_broken_body_is_asked_for_again(s3_server, tmp_bucket, key, gets, action):
    store = opened(tmp_bucket, s3_server.storage_options)
    s3_server.add_rule(Rule(action, times=2))
    read(store, key)
    assert not gets


def test_a_server_that_stops_to_send(s3_server, tmp_bucket, key):
    options = s3_server.storage_options | {"config_kwargs": {"read_timeout": 0.3}}
    s3_server.add_rule(Rule("stall", times=3, seconds=2.0))
    with pytest.raises(TransientStorageError, match="no progress in time"):
        read(opened(tmp_bucket, options), key)


def test_connections_are_used_again_until_the_server_closes_them():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = []
        closing = threading.Semaphore(0)

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                with connection:
                    for _ in range(3):
                        while not connection.recv(65536).endswith(b"\r\n\r\n"):
                            pass
                        head = f"HTTP/1.1 206 P\r\nContent-Length: {2 * MB}\r\n"
                        head += f"Content-Range: bytes 0-{2 * MB - 1}/{len(PAYLOAD)}\r\n\r\n"
                        connection.sendall(head.encode() + PAYLOAD[: 2 * MB])
                closing.release()

        threading.Thread(target=serve, daemon=True).start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        store = opened("s3://bucket", {"key": "k", "secret": "s", "endpoint_url": endpoint})
        for number in range(7):
            if number and not number % 3:
                assert closing.acquire(timeout=10)
            read(store, "key", ByteRange(0, 2 * MB))
        assert len(connections) == 3
        listener.shutdown(socket.SHUT_RDWR)


def test_what_goes_through_a_proxy_or_tls_is_left_to_obstore(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert goes_straight("http://10.0.0.7:9000")
    assert not goes_straight("https://10.0.0.7:9000")
    assert not goes_straight("")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert not goes_straight("http://10.0.0.7:9000")
    monkeypatch.setenv("no_proxy", "10.0.0.7")
    assert goes_straight("http://10.0.0.7:9000")
