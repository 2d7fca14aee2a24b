"""Faults of servers and networks, and the one retry layer above both transports."""

import socket

import pytest

from energon_stream.errors import StorageError, TransientStorageError
from energon_stream.storage import ByteRange, RetryPolicy, StorageCounters, StoreSpec
from energon_stream.testing.s3server import Rule

PAYLOAD = bytes(range(256)) * 1024
WANTED = ByteRange(1000, 201_000)


@pytest.fixture(params=["obstore", "fsspec"])
def transport(request):
    return request.param


@pytest.fixture
def slept():
    return []


@pytest.fixture
def policy(slept):
    return RetryPolicy(attempts=4, base_delay=1.0, max_delay=6.0, jitter=lambda: 0.5, sleep=slept.append)


@pytest.fixture
def counters():
    return StorageCounters()


@pytest.fixture
def store(s3_server, tmp_bucket, transport, policy, counters):
    s3_server.put(f"{tmp_bucket}/key", PAYLOAD)
    options = s3_server.storage_options | {"config_kwargs": {"read_timeout": 1}}
    return StoreSpec(tmp_bucket, options, transport).open(policy=policy, counters=counters)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "fault",
    [{"action": "status", "status": status} for status in (500, 502, 503, 429, 408)]
    + [{"action": "reset"}, {"action": "truncate"}, {"action": "stall", "seconds": 3.0}],
    ids=lambda fault: f"{fault['action']}{fault.get('status', '')}",
)
def test_transient_faults_are_retried_with_growing_delays(s3_server, store, counters, slept, fault):
    times = 1 if fault["action"] == "stall" else 2
    s3_server.add_rule(Rule(times=times, **fault))
    assert store.get_range("key", WANTED).data == PAYLOAD[1000:201_000]
    assert slept == [0.5, 2.0][:times]
    seen = counters.snapshot()
    assert (seen.requests, seen.retries) == ({"get": times + 1}, times)
    throttled = fault.get("status") in (429, 503)
    assert seen.errors == {"ThrottledError" if throttled else "TransientStorageError": times}
    assert seen.bytes_received == len(WANTED)
    assert s3_server.counters().requests["GET"] == times + 1  # the transport itself does not retry


def test_a_lasting_fault_ends_after_the_attempts(s3_server, store, slept):
    s3_server.add_rule(Rule("status"))
    with pytest.raises(TransientStorageError, match=r"503.*gave up after 4 attempts.*key"):
        store.get_range("key", WANTED)
    assert slept == [0.5, 2.0, 3.0]  # the last bounded by max_delay
    assert s3_server.counters().requests["GET"] == 4


@pytest.mark.every(5)
@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 501])
def test_lasting_answers_are_not_retried(s3_server, store, slept, status):
    s3_server.add_rule(Rule("status", status=status))
    with pytest.raises(StorageError, match="key") as caught:
        store.get_range("key", WANTED)
    assert not isinstance(caught.value, TransientStorageError)
    assert slept == []


def test_unreachable_server_names_the_endpoint(transport, policy):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    spec = StoreSpec("s3://bucket", {"key": "k", "secret": "SECRET", "endpoint_url": endpoint}, transport)
    with pytest.raises(TransientStorageError, match=endpoint) as caught:
        spec.open(policy=policy).get("key")
    assert "SECRET" not in str(caught.value) + repr(spec)
