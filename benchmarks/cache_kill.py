"""Many processes on one cache directory, killed at random moments: no wrong byte, no more on disk than
allowed.

    python benchmarks/cache_kill.py --kills 1000

Workers read random ranges of objects whose bytes are known, through a cache that is much smaller than the
objects, so that they write, evict and wait for each other all the time; some also prewarm, verify and clear.
One of them is killed (SIGKILL) every few milliseconds and a new one started. At every kill all are stopped
(SIGSTOP) for a moment, so that what is on disk can be measured at one time. Exits with 1 if anything is
wrong.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import replace

from energon_stream.cache import BlockCache, CacheConfig, ObjectIdentity, locks
from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.locks import Busy
from energon_stream.cache.maintenance import clear_cache, verify_cache

BLOCK, QUOTA = 256 << 10, 12_000_000
COUNTS = struct.Struct("<8q")  # reads, bytes, hits, stored bytes, waits, damaged, wrong, other failures
NAMES = ("reads", "bytes verified", "hits", "bytes stored", "waits", "damaged", "wrong", "failed")


class Objects:
    """Objects of several datasets, two versions of each; their bytes follow from names."""

    def __init__(self) -> None:
        self.all = []
        for dataset in range(3):
            for number in range(4):
                for version in range(2):
                    size = 300_000 * (number + 1) + 12_345 * version
                    path, root = f"shard-{number}.tar", f"s3://bucket/set-{dataset}"
                    data = random.Random(f"{root}/{path}/{version}").randbytes(size)
                    self.all.append((ObjectIdentity(root, path, f'"{version}"', size), memoryview(data)))


def work(objects: Objects, config: CacheConfig, seed: int, board: mmap.mmap, slot: int) -> None:
    """Read until killed."""
    rng = random.Random(seed)
    policy = rng.choice(["pin", "lru"])
    cache = BlockCache(replace(config, policy=policy, wait_seconds=rng.choice([0.05, 2.0])))
    counts = [0] * len(NAMES)
    favourite = rng.randrange(3)  # a dataset; so the others fall out of use
    while True:
        identity, data = rng.choice([each for each in objects.all if each[0].root.endswith(str(favourite))])
        start = rng.randrange(identity.size)
        stop = min(identity.size, start + rng.choice([1, 1000, 50_000, 300_000, 1_000_000]))

        def get(first: int, last: int, data: memoryview = data) -> memoryview:
            time.sleep(rng.choice([0, 0, 0.001, 0.005]))
            return data[first:last]

        chance = rng.random()
        try:
            if chance < 0.85:
                counts[6] += cache.fetch(identity, start, stop, get, wait=chance < 0.8) != data[start:stop]
            elif chance < 0.9:
                found = cache.read(identity, start, stop)
                counts[6] += found is not None and found != data[start:stop]
            elif chance < 0.95:  # prewarm
                for missing in cache.missing(identity, start, stop):
                    cache.fetch(identity, missing.start, missing.stop, get)
            elif chance < 0.97:
                with cache.filling():
                    cache.keep(identity, start, stop, get)
            elif chance < 0.98:
                cache.close()
                favourite = rng.randrange(3)
            elif chance < 0.985:
                with suppress(Busy):
                    verify_cache(CacheDirectory(config.directory))
            elif chance < 0.99:
                with suppress(Busy):
                    clear_cache(CacheDirectory(config.directory), unused_for=rng.choice([0, 0.5, 5]))
        except Exception:
            traceback.print_exc()
            counts[7] += 1
        seen = cache.counters()
        counts[:4] = [
            seen.hits + seen.misses,
            seen.hit_bytes + seen.missed_bytes,
            seen.hits,
            seen.stored_bytes,
        ]
        counts[4:6] = [seen.waits, seen.damaged]
        COUNTS.pack_into(board, slot * COUNTS.size, *counts)


def disk_bytes(directory: str) -> int:
    """Bytes on disk, counted as `du` counts them."""
    found = 0
    for folder, _, names in os.walk(directory):
        for name in ("", *names):
            with suppress(FileNotFoundError):
                found += 512 * os.lstat(os.path.join(folder, name)).st_blocks
    return found


def start(objects: Objects, config: CacheConfig, seed: int, board: mmap.mmap, slot: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        COUNTS.pack_into(board, slot * COUNTS.size, *[0] * len(NAMES))
        work(objects, config, seed, board, slot)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def run(directory: str, kills: int, workers: int, pause: float, seed: int) -> bool:
    objects, rng = Objects(), random.Random(seed)
    locks.PATIENCE = 600.0  # workers are stopped all the time, for as long as measuring takes
    config = CacheConfig(directory, QUOTA, min_free_bytes=0, block_bytes=BLOCK)
    board = mmap.mmap(-1, workers * COUNTS.size)
    totals, most, samples, begin = [0] * len(NAMES), 0, 0, time.monotonic()
    beyond_count = 0
    pids = [start(objects, config, rng.getrandbits(32), board, slot) for slot in range(workers)]
    ledger = CacheDirectory(directory).ledger
    try:
        for number in range(kills):
            time.sleep(rng.uniform(0, 2 * pause))
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            for pid in pids:
                os.waitpid(pid, os.WUNTRACED)
            size, usage = disk_bytes(directory), ledger.usage()
            beyond_count += usage is not None and size > usage.bytes
            most, samples = max(most, size), samples + 1
            slot = rng.randrange(workers)
            os.kill(pids[slot], signal.SIGKILL)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            os.waitpid(pids[slot], 0)
            counts = COUNTS.unpack_from(board, slot * COUNTS.size)
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
            pids[slot] = start(objects, config, rng.getrandbits(32), board, slot)
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {kills}", end="", file=sys.stderr)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for slot in range(workers):
        counts = COUNTS.unpack_from(board, slot * COUNTS.size)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]

    after = BlockCache(config)  # as the next run would, and nothing else
    usage, size = ledger.usage(), disk_bytes(directory)
    CacheDirectory(directory).recount(always=True)
    too_much = usage.bytes - ledger.usage().bytes
    for identity, data in objects.all:
        totals[6] += after.fetch(identity, 0, identity.size, lambda a, b, data=data: data[a:b]) != data
    report = verify_cache(CacheDirectory(directory))
    clear_cache(CacheDirectory(directory))
    after.close()
    clear_cache(CacheDirectory(directory))
    left = [name for _, _, names in os.walk(directory) for name in names if name != "usage"]

    print(f"{kills} kills of {workers} processes in {time.monotonic() - begin:.0f} s")
    for name, total in zip(NAMES, totals, strict=True):
        print(f"  {name}: {total:,}")
    print(f"  most on disk in {samples} samples: {most:,} of {QUOTA:,} allowed")
    print(f"  samples with more on disk than was counted: {beyond_count}")
    print(f"  afterwards: {size:,} on disk, {usage.bytes:,} counted, {usage.pending} pending")
    print(f"  counted beyond what counting anew finds: {too_much:,}")
    print(f"  verified afterwards: {report.blocks} blocks, {report.damaged} damaged")
    print(f"  files left after clearing: {len(left)}")
    good = not (
        totals[5] or totals[6] or totals[7] or report.damaged or left or beyond_count or usage.pending
    )
    good = good and too_much >= 0 and most <= QUOTA and size <= usage.bytes <= QUOTA and totals[0] > kills
    print("good" if good else "NOT GOOD")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.05, help="mean seconds between kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", help="where to put the cache; default a temporary folder")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="cache-kill-", dir=options.dir)
    try:
        good = run(
            os.path.join(directory, "cache"), options.kills, options.workers, options.pause, options.seed
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
