"""Both transports answer a fault with the same error, counters and requests."""

import contextlib
import socket
import threading

import pytest

from energon_stream.errors import (
    AccessDeniedError,
    BadAnswerError,
    ObjectChangedError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    TransientStorageError,
    UnsupportedStoreError,
)
from energon_stream.storage import ByteRange, RetryPolicy, StorageCounters, StoreSpec
from energon_stream.testing.s3server import Rule

TRANSPORTS = ("obstore", "fsspec")
PAYLOAD = bytes(range(256)) * 1024
WANTED = ByteRange(1000, 201_000)
ATTEMPTS = 3


def outcome(url, options, transport, action):
    """Return the result or error of an action on a store, and the counters."""
    counters = StorageCounters()
    policy = RetryPolicy(attempts=ATTEMPTS, base_delay=0.001, max_delay=0.001, sleep=lambda seconds: None)
    store = StoreSpec(url, options | {"config_kwargs": {"read_timeout": 30}}, transport).open(
        policy=policy, counters=counters
    )
    try:
        ended = bytes(action(store).data)
    except StorageError as error:
        ended = (type(error), error.where)
    seen = counters.snapshot()
    return ended, dict(seen.requests), seen.bytes_received, seen.retries, dict(seen.errors)


def read(store):
    return store.get_range("key", WANTED)


def read_a_hundred(store):
    return store.get_range("key", ByteRange(100, 200))


def whole(store):
    return store.get("key")


FAULTS = {
    "400": (Rule("status", status=400), StorageError),
    "401": (Rule("status", status=401), AccessDeniedError),
    "403": (Rule("status", status=403), AccessDeniedError),
    "404": (Rule("status", status=404), ObjectNotFoundError),
    "405": (Rule("status", status=405), UnsupportedStoreError),
    "408": (Rule("status", status=408), TransientStorageError),
    "412": (Rule("status", status=412), ObjectChangedError),
    "416": (Rule("status", status=416), RangeError),
    "429": (Rule("status", status=429), TransientStorageError),
    "500": (Rule("status", status=500), TransientStorageError),
    "501": (Rule("status", status=501), UnsupportedStoreError),
    "503": (Rule("status", status=503), TransientStorageError),
    "reset": (Rule("reset"), TransientStorageError),
    "truncate": (Rule("truncate"), TransientStorageError),
    "503-once": (Rule("status", times=1), None),
    "reset-once": (Rule("reset", times=1), None),
    "truncate-once": (Rule("truncate", times=1), None),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("action", [read, whole])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(s3_server, tmp_bucket, fault, action):
    rule, expected = FAULTS[fault]
    s3_server.put(f"{tmp_bucket}/key", PAYLOAD)
    found, gets = [], []
    for transport in TRANSPORTS:
        s3_server.clear_rules()
        s3_server.add_rule(rule)
        s3_server.reset_counters()
        found.append(outcome(tmp_bucket, s3_server.storage_options, transport, action))
        gets.append(dict(s3_server.counters().requests))
    assert found[0] == found[1]
    assert gets[0] == gets[1]
    ended, requests, received, retries, _ = found[0]
    if expected is None:
        assert ended == (PAYLOAD if action is whole else PAYLOAD[WANTED.start : WANTED.stop])
        assert (received, retries) == (len(ended), 1)
    else:
        assert ended == (expected, f"{tmp_bucket}/key")
        is_retried = expected in (TransientStorageError, RangeError)  # one 416 may be a proxy's mistake
        assert (received, retries) == (0, ATTEMPTS - 1 if is_retried else 0)
    assert (requests, gets[0]) == ({"get": retries + 1}, {"GET": retries + 1})


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (lambda store: store.get("absent"), ObjectNotFoundError),
        (lambda store: store.get_range("absent", ByteRange(0, 1)), ObjectNotFoundError),
        (lambda store: store.get_suffix("absent", 4), ObjectNotFoundError),
        (lambda store: store.head("absent"), ObjectNotFoundError),
        (lambda store: store.get_range("key", ByteRange(0, len(PAYLOAD) + 1)), RangeError),
        (lambda store: store.get_range("key", ByteRange(len(PAYLOAD), len(PAYLOAD) + 1)), RangeError),
        (lambda store: store.get_range("key", ByteRange(9, len(PAYLOAD) + 1)), RangeError),
        (lambda store: store.get_range("key", WANTED, etag='"old"'), ObjectChangedError),
        (lambda store: store.get("key", etag='"old"'), ObjectChangedError),
        (lambda store: store.get_suffix("key", 4, etag='"old"'), ObjectChangedError),
    ],
)
def test_answers_of_a_healthy_server(s3_server, tmp_bucket, action, error):
    s3_server.put(f"{tmp_bucket}/key", PAYLOAD)
    found = [outcome(tmp_bucket, s3_server.storage_options, transport, action) for transport in TRANSPORTS]
    assert found[0] == found[1]
    assert found[0][0][0] is error


@contextlib.contextmanager
def answering(answer):
    """Run a server that gives the same answer to every request; yields its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

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
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("head", "length", "error"),
    [
        ("200 OK\r\nContent-Length: 100", 100, BadAnswerError),
        ("206 P\r\nContent-Length: 100\r\nContent-Range: bytes 0-99/1000", 100, RangeError),
        ("206 P\r\nContent-Length: 50\r\nContent-Range: bytes 100-149/1000", 50, RangeError),
        ("206 P\r\nContent-Length: 100\r\nContent-Range: bytes 100-199/1000", 60, TransientStorageError),
        ("503 S\r\nContent-Length: 0", 0, TransientStorageError),
        ("403 F\r\nContent-Length: 0", 0, AccessDeniedError),
        ("500 I\r\nContent-Length: 9\r\nContent-Type: text/html", 9, TransientStorageError),
    ],
    ids=["ignores-range", "other-range", "short-range", "broken-body", "bare-503", "bare-403", "no-xml"],
)
def test_odd_answers(head, length, error):
    found = []
    for transport in TRANSPORTS:
        answer = f'HTTP/1.1 {head}\r\nETag: "a"\r\nConnection: close\r\n\r\n'.encode() + b"x" * length
        with answering(answer) as endpoint:
            options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
            found.append(outcome("s3://bucket", options, transport, read_a_hundred))
    assert found[0] == found[1]
    assert found[0][0] == (error, "s3://bucket/key")


def test_an_unreachable_server():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    for action in (whole, read):
        found = [outcome("s3://bucket", options, transport, action) for transport in TRANSPORTS]
        assert found[0] == found[1]
        assert found[0][0][0] is TransientStorageError
