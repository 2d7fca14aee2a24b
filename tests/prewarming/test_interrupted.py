"""Interrupted at any moment and run again: what was kept is not fetched again."""

import json
import signal
import time

import children
import pytest
from warming import config, reads, train, warm

from energon_stream import ReadOptions
from energon_stream.prewarming.planner import REQUEST_BYTES
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import S3Server

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
    with S3Server(tmp_path / "s3", rate=15e6) as server:
        yield server


def start(server, cache, errors):
    arguments = {"path": URL, "storage_options": server.storage_options, **ORDER}
    said = json.dumps([cache.directory, OPTIONS.byte_budget, arguments])
    return children.start("-c", PROGRAM, said, stderr=errors)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_was_kept_is_not_fetched_again(server, cache, number, tmp_path):
    interrupted, errors = 0, tmp_path / "errors"
    for millions in (8, 25):
        with errors.open("w") as file, start(server, cache, file) as process:
            while server.counters().bytes_sent < millions * 1_000_000 and process.poll() is None:
                time.sleep(0.01)
            if process.poll() is None:
                process.send_signal(number)
                interrupted += 1
        assert process.returncode != 0
        assert number == signal.SIGKILL or "KeyboardInterrupt" in errors.read_text()
        assert server.counters().bytes_sent < 40_000_000
    assert interrupted == 2
    with errors.open("w") as file:
        assert start(server, cache, file).wait() == 0
    assert errors.read_text() == ""
    sent = server.counters().bytes_sent
    done = warm(server, URL, cache, steps=None, epochs=1, **ORDER, read_options=OPTIONS)
    assert done.is_complete
    assert (done.fetched_bytes, done.plan.index_requests) == (0, 0)
    again = interrupted * IN_FLIGHT * REQUEST_BYTES
    assert done.plan.bytes <= sent <= done.plan.bytes + again + BESIDE
    train(server, URL, cache, SAMPLES // BATCH, config(1, 1), **ORDER, read_options=OPTIONS)
    assert reads(server) == []
