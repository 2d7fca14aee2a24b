"""First opens by several processes at a time: each tar is walked once on a node, whoever dies or hangs
meanwhile.
"""

import collections
import multiprocessing
import os
import signal
import time

import pytest

from energon_stream.cache.private import PrivateFile
from energon_stream.errors import CorruptTarError
from energon_stream.index.plain import find_tars, open_plain
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import binary_dataset
from energon_stream.testing.s3server import Rule

SHARDS, SAMPLES = 6, 60
fork = multiprocessing.get_context("fork")


@pytest.fixture
def spec(s3_server, tmp_path, monkeypatch):
    """Tars of some 400 kB in a bucket, each of which takes two requests to walk."""
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "cache"))
    binary_dataset(tmp_path / "data", samples=SAMPLES, shards=SHARDS)
    s3_server.upload_folder(tmp_path / "data", "s3://bucket/data")
    s3_server.reset_counters()
    return StoreSpec(f"s3://bucket/data/data-{{000000..{SHARDS - 1:06d}}}.tar", s3_server.storage_options)


def open_all(spec, **options):
    return open_plain(*find_tars(spec), split_part="train", **options)


def ranges(server):
    """How often each range of a tar was asked for."""
    return collections.Counter((e.key, e.range) for e in server.log() if e.method == "GET")


class Opening:
    """A process that opens the tars; ``done`` is set when it has."""

    def __init__(self, spec, before=lambda: None, **options):
        self.done = fork.Event()

        def run():
            before()
            index = open_all(spec, **options)
            if index.num_samples != SAMPLES or index.read_offsets(None, 3, 0, 10)[0] != 0:
                os._exit(3)
            self.done.set()

        self.process = fork.Process(target=run)
        self.process.start()

    def join(self):
        self.process.join(300)
        assert self.process.exitcode == 0


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_four_processes_walk_each_tar_once(s3_server, spec):
    s3_server.shape(first_byte_latency=0.02)
    barrier = fork.Barrier(4)
    openings = [Opening(spec, lambda: barrier.wait(300)) for _ in range(4)]
    for opening in openings:
        opening.join()
    asked = ranges(s3_server)
    assert len({key for key, _ in asked}) == SHARDS
    assert set(asked.values()) == {1}
    assert sum(asked.values()) == 2 * SHARDS


def test_who_waits_goes_on_when_the_builder_is_killed(s3_server, spec):
    s3_server.add_rule(Rule("delay", "*.tar", method="GET", seconds=120, times=SHARDS))
    builder = Opening(spec)
    wait_for(lambda: s3_server.counters().faults["delay"] == SHARDS)
    others = [Opening(spec) for _ in range(2)]
    wait_for(lambda: s3_server.counters().requests["HEAD"] == 3 * SHARDS)
    assert not others[0].done.wait(0.5)
    assert s3_server.counters().requests["GET"] == SHARDS  # the builder's, and nobody else's
    os.kill(builder.process.pid, signal.SIGKILL)
    for other in others:
        other.join()
    builder.process.join()
    assert s3_server.counters().requests["GET"] == SHARDS + 2 * SHARDS


def test_a_builder_that_hangs_is_not_waited_for_for_ever(s3_server, spec):
    s3_server.add_rule(Rule("delay", "*.tar", method="GET", seconds=120, times=SHARDS))
    builder = Opening(spec)
    try:
        wait_for(lambda: s3_server.counters().faults["delay"] == SHARDS)
        os.kill(builder.process.pid, signal.SIGSTOP)
        other = Opening(spec, patience=0.3)
        other.join()
    finally:
        os.kill(builder.process.pid, signal.SIGKILL)
        builder.process.join()
    again = Opening(spec)
    again.join()
    assert s3_server.counters().requests["GET"] == SHARDS + 2 * SHARDS


def test_where_nothing_can_be_locked_everybody_builds(s3_server, spec, monkeypatch, caplog):
    def refuse(*args, **options):
        raise OSError(37, "no locks available")

    monkeypatch.setattr(PrivateFile, "try_lock", refuse)
    assert open_all(spec).num_samples == SAMPLES
    assert "cannot be locked" in caplog.text
    s3_server.reset_counters()
    assert open_all(spec).num_samples == SAMPLES
    assert not ranges(s3_server)


def test_what_was_indexed_before_a_failure_is_not_walked_again(s3_server, spec, tmp_path):
    good = (tmp_path / "data" / "data-000003.tar").read_bytes()
    s3_server.add_rule(Rule("delay", "*data-000003.tar", method="GET", seconds=1.0, times=1))
    s3_server.replace("s3://bucket/data/data-000003.tar", b"x" * 1024)
    with pytest.raises(CorruptTarError, match="data-000003"):
        open_all(spec)
    indexed = len(list((tmp_path / "cache").rglob("*.idx")))
    assert indexed
    s3_server.replace("s3://bucket/data/data-000003.tar", good)
    s3_server.reset_counters()
    assert open_all(spec).num_samples == SAMPLES
    assert len({key for key, _ in ranges(s3_server)}) == SHARDS - indexed
