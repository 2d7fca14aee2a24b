"""Many processes and threads: each byte is downloaded once, whoever dies or hangs meanwhile."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from origins import BLOCK, PATIENCE, Origin
from repetitions import is_nightly
from told import told

from energon_stream.cache import BlockCache

fork = multiprocessing.get_context("fork")


class SlowOrigin(Origin):
    """Takes some time, and writes down who asked for what in a file that all processes append to."""

    def __init__(self, size, log, seconds=0.002, **options):
        super().__init__(size, **options)
        self.log, self.seconds = log, seconds

    def get(self, start, stop):
        with open(self.log, "a") as file:
            file.write(f"{start} {stop}\n")
        time.sleep(self.seconds)
        return super().get(start, stop)

    def all_asked(self):
        return [tuple(map(int, line.split())) for line in self.log.read_text().splitlines()]


def run_all(functions):
    """Run functions in processes of their own, at the same time."""
    barrier = fork.Barrier(len(functions))

    def run(function):
        barrier.wait(PATIENCE)
        function()

    processes = [fork.Process(target=run, args=[function]) for function in functions]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * len(processes)


@pytest.mark.every(2)
@pytest.mark.parametrize("opened", ["before the fork", "after"])
def test_eight_processes_download_each_byte_once(config, tmp_path, opened):
    """The same ranges in the same order, as ranks of a model-parallel group read; with eight threads each."""
    origin = SlowOrigin((40 if is_nightly() else 12) * BLOCK, tmp_path / "log")
    cache = BlockCache(config)
    size = 100_000
    ranges = [(start, min(start + size, len(origin.data))) for start in range(0, len(origin.data), size)]

    def read_all():
        own = cache if opened == "before the fork" else BlockCache(config)
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda span: origin.read(own, *span), ranges):
                pass
        assert own.counters().timeouts == 0

    run_all([read_all] * 8)
    assert sum(stop - start for start, stop in origin.all_asked()) == len(origin.data)


def test_overlapping_ranges_are_downloaded_once(config, tmp_path):
    origin = SlowOrigin(8 * BLOCK, tmp_path / "log")

    def reader(shift):
        def read_all():
            cache = BlockCache(config)
            for start in range(0, len(origin.data), BLOCK):
                origin.read(cache, max(0, start - shift), min(len(origin.data), start + BLOCK + shift))

        return read_all

    run_all([reader(40_000 * number) for number in range(6)])
    asked = sum(stop - start for start, stop in origin.all_asked())
    assert asked <= 1.01 * len(origin.data)


def test_disjoint_ranges_of_a_block_are_downloaded_at_the_same_time(cache):
    origin, together = Origin(BLOCK), threading.Barrier(4)

    def get(start, stop):
        together.wait(PATIENCE)  # breaks unless all four are here
        return origin.get(start, stop)

    def read(number):
        bounds = number * BLOCK // 4, (number + 1) * BLOCK // 4
        return cache.fetch(origin.identity, *bounds, get)

    with ThreadPoolExecutor(4) as pool:
        assert b"".join(pool.map(read, range(4))) == origin.data


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def opened_block(process):
    """Whether a process has a block open, as one has that waits for its bytes."""
    links = []
    for link in Path("/proc", str(process.pid), "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(os.readlink(link))
    return any(os.path.basename(link).partition(".")[0].isdecimal() for link in links if "/cache/" in link)


def start_fetcher(config, origin, sign, *spans):
    """A process that gets stuck in its download."""

    def fetch():
        def get(start, stop):
            sign.touch()
            signal.pause()

        cache = BlockCache(config)
        for span in spans:
            cache.fetch(origin.identity, *span, get)

    process = fork.Process(target=fetch, daemon=True)
    process.start()
    wait_until(sign.exists)
    return process


def test_a_waiter_takes_over_when_the_fetcher_is_killed(config, tmp_path):
    origin = SlowOrigin(BLOCK, tmp_path / "log")
    fetcher = start_fetcher(config, origin, tmp_path / "sign", (0, BLOCK))

    def wait():
        cache = BlockCache(config)
        origin.read(cache)
        assert cache.counters().timeouts == 0

    waiters = [fork.Process(target=wait) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        wait_until(partial(opened_block, waiter))
    assert origin.log.exists() is False
    os.kill(fetcher.pid, signal.SIGKILL)
    for waiter in waiters:
        waiter.join(PATIENCE)
    assert [waiter.exitcode for waiter in waiters] == [0] * 4
    assert origin.all_asked() == [(0, BLOCK)]
    fetcher.join()


def test_nobody_waits_for_a_hung_fetcher_for_ever(config, tmp_path):
    origin = SlowOrigin(2 * BLOCK, tmp_path / "log")
    fetcher = start_fetcher(config, origin, tmp_path / "sign", (1000, BLOCK))
    os.kill(fetcher.pid, signal.SIGSTOP)
    try:
        cache = BlockCache(replace(config, wait_seconds=0.1))
        origin.read(cache)
        assert (cache.counters().waits, cache.counters().timeouts) == (1, 1)
        assert origin.asked_bytes == len(origin.data)
        origin.read(cache)  # and what it fetched is kept
        assert origin.asked_bytes == len(origin.data)
        origin.read(BlockCache(config))  # for others, who need not wait at all
        assert origin.asked_bytes == len(origin.data)
    finally:
        fetcher.kill()
        fetcher.join()


def test_who_must_not_wait_does_not(config, tmp_path):
    origin = Origin(BLOCK)
    fetcher = start_fetcher(config, origin, tmp_path / "sign", (0, BLOCK))
    try:
        cache = BlockCache(config)
        origin.read(cache, wait=False)
        assert (cache.counters().waits, cache.counters().timeouts) == (0, 0)
        assert origin.asked == [(0, BLOCK)]
    finally:
        fetcher.kill()
        fetcher.join()


@pytest.mark.parametrize("patience", [0.05], indirect=True)
def test_a_stopped_process_that_holds_the_ledger_does_not_stop_reads(config, tmp_path, caplog):
    BlockCache(config)
    sign = tmp_path / "sign"

    def hold():
        with BlockCache(config).directory.ledger.writing() as transaction, transaction.locked():
            sign.touch()
            signal.pause()

    process = fork.Process(target=hold, daemon=True)
    process.start()
    wait_until(sign.exists)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        cache = BlockCache(config)
        origins = [Origin(1000, path=str(number)) for number in range(20)]
        for origin in origins:
            origin.read(cache)
        assert cache.counters().stored_bytes == 0
        (warning,) = told(caplog)
        assert "another process kept a lock" in warning
    finally:
        process.kill()
        process.join()
    cache.close()  # forgets that it was told to pause
    origins[0].read(cache)
    assert cache.counters().stored_bytes == 1000


def test_threads_of_one_process_download_once(cache, origin):
    begun = threading.Barrier(9)

    def get(start, stop):
        begun.wait(PATIENCE)  # all threads are about to ask for the bytes
        return origin.get(start, stop)

    def fetch():
        begun.wait(PATIENCE)
        return cache.fetch(origin.identity, 0, BLOCK, origin.get)

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(cache.fetch, origin.identity, 0, BLOCK, get)
        others = [pool.submit(fetch) for _ in range(8)]
        for future in (first, *others):
            assert future.result() == origin.data[:BLOCK]
    assert origin.asked == [(0, BLOCK)]
