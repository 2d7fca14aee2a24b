"""Interrupted at any moment and run again: what was kept is not fetched again."""

import json
import signal
import time

import children
import pytest
from warming import config, reads, train, warm

from energon_stream import ReadOptions
from energon_stream.prewarming.fetch_planner import REQUEST_BYTES
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import Rule, S3Server

URL, SAMPLES, BATCH = "s3://bucket/data", 1000, 8
IN_FLIGHT = 1  # requests at a time, for a budget of 8 MiB
ORDER = {"batch_size": BATCH, "shuffle_buffer_size": 100, "max_samples_per_sequence": 50}
BESIDE = 100_000  # bytes of listings, metadata and indices
OPTIONS = ReadOptions(byte_budget=8 << 20)
PROGRAM = """
import json, sys
from energon_stream import CacheConfig, ReadOptions, WorkerConfig, prewarm
directory, budget, arguments = json.loads(sys.argv[1])
prewarm(
    cache=CacheConfig(directory, min_free_bytes=0), worker_config=WorkerConfig(0, 1, 0),
    read_options=ReadOptions(byte_budget=budget), epochs=1, isolated=False, **arguments,
)
"""


@pytest.fixture
def server(tmp_path):
    prepared_binary_dataset(tmp_path / "s3" / "bucket" / "data", samples=SAMPLES, shards=4)
    with S3Server(tmp_path / "s3") as server:
        yield server


def stop_after(server, requests):
    """Let so many requests for samples pass, and no more."""
    server.clear_rules()
    server.add_rule(Rule("delay", "*.tar", times=requests))
    server.add_rule(Rule("stall", "*.tar", seconds=600))


def start(server, cache, errors):
    arguments = {"path": URL, "storage_options": server.storage_options, **ORDER}
    said = json.dumps([cache.directory, OPTIONS.byte_budget, arguments])
    return children.start("-c", PROGRAM, said, stderr=errors)


@pytest.mark.every(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_was_kept_is_not_fetched_again(server, cache, number, tmp_path):
    errors, stops = tmp_path / "errors", (2, 3)
    for requests in stops:
        stop_after(server, requests)
        stalls = server.counters().faults["stall"]
        with errors.open("w") as file, start(server, cache, file) as process:
            while server.counters().faults["stall"] == stalls:
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(number)
        assert process.returncode != 0
        assert number == signal.SIGKILL or "KeyboardInterrupt" in errors.read_text()
    server.clear_rules()
    with errors.open("w") as file:
        assert start(server, cache, file).wait() == 0
    assert errors.read_text() == ""
    sent = server.counters().bytes_sent
    done = warm(server, URL, cache, steps=None, epochs=1, **ORDER, read_options=OPTIONS)
    assert done.is_complete
    assert (done.fetched_bytes, done.plan.index_requests) == (0, 0)
    again = len(stops) * IN_FLIGHT * REQUEST_BYTES
    assert done.plan.bytes <= sent <= done.plan.bytes + again + BESIDE
    train(server, URL, cache, SAMPLES // BATCH, config(1, 1), **ORDER, read_options=OPTIONS)
    assert reads(server) == []
