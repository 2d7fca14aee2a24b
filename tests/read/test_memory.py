"""What stays in memory: nothing large for something small, and no more than the budget."""

import gc
import io
import json
import platform
import subprocess
import sys
import time
import weakref

import children
import numpy as np
import pytest
from reference_writer import write_reference_dataset
from webdataset import tenbin

from energon_stream import WorkerConfig, get_loader, get_train_dataset
from energon_stream.config.sample_factory import SampleFactory
from energon_stream.decode import SampleDecoder
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.files_index import open_file
from energon_stream.index.jsonl_index import JsonlFormat, prepare_jsonl
from energon_stream.read.consume import ReaderGroup, SampleReader
from energon_stream.read.file_locator import FileLocator
from energon_stream.read.read_options import ReadOptions
from energon_stream.read.tar_locator import TarLocator
from energon_stream.rng import derive_key
from energon_stream.samples import SourceInfo
from energon_stream.schedule import LeafPlan, OrderSpec, RepeatPlan, build_schedule
from energon_stream.storage import Body, Fetcher, StoreSpec
from energon_stream.testing.datasets import prepared_binary_dataset, random_bytes, write_shards
from energon_stream.testing.s3server import S3Server

SAMPLES = 40


class Tracking:
    """A remote store whose bodies can be followed."""

    is_local = False

    def __init__(self, store):
        self.store, self.bodies = store, []

    def __getattr__(self, name):
        return getattr(self.store, name)

    def get_range(self, path, byte_range, *, etag=None):
        memory = np.frombuffer(self.store.get_range(path, byte_range).data, np.uint8).copy()
        self.bodies.append(weakref.ref(memory))
        return Body(memoryview(memory), None, None)

    def alive(self):
        """Bodies that live on when the threads that fetched them have turned to nothing else."""
        limit = time.monotonic() + 300
        while True:
            gc.collect()
            count = sum(body() is not None for body in self.bodies)
            if not count or time.monotonic() > limit:
                return count
            time.sleep(0.01)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def parts(index):
    return {
        "bin": random_bytes(50_000, index),
        "small": b"a few bytes",
        "txt": b"text",
        "json": json.dumps({"text": "x" * 100}).encode(),
        "npy": npy(np.arange(10)),
        "ten": bytes(tenbin.encode_buffer([np.arange(10, dtype=np.float32)])),
    }


def built(source, factory, **options):
    """Everything that one pass makes, after the reader is gone."""
    plan = RepeatPlan(LeafPlan(0, source.index.shard_starts, OrderSpec(10, 20, 2, 1)), 1)
    schedule = build_schedule(plan, num_streams=1, stream=0, key=derive_key(3))
    reader = SampleReader(
        schedule, schedule.begin(), [source], ReaderGroup(ReadOptions(**options), Fetcher(4))
    )
    samples = [
        factory.build(
            raw.key,
            raw.parts,
            restore_key=("Locator", 0, raw.index),
            subflavors=None,
            source=SourceInfo("d", raw.index, raw.shard, ()),
        )
        for raw in iter(reader.next, None)
    ]
    reader.close()
    return samples


@pytest.mark.parametrize("decoder", [None, SampleDecoder()])
def test_what_is_made_of_a_sample_keeps_no_block_alive(tmp_path, decoder):
    tars = write_shards(tmp_path, shards=2, samples_per_shard=SAMPLES // 2, parts=parts)
    write_reference_dataset(tmp_path, tars, split={"train": [tar.name for tar in tars]}, exclude=[])
    source = TarLocator(0, open_webdataset(StoreSpec(str(tmp_path)), split_part="train"))
    source.store = tracking = Tracking(source.store)
    samples = built(source, SampleFactory(decoder))
    assert len(samples) == SAMPLES
    assert tracking.bodies
    assert not tracking.alive()
    assert {bytes(sample["small"]) for sample in samples} == {b"a few bytes"}


def test_a_record_keeps_no_block_alive(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps({"number": i, "text": "x" * 5000}) + "\n" for i in range(SAMPLES)))
    prepare_jsonl(str(path))
    for decoder in (None, SampleDecoder()):
        source = FileLocator(0, open_file(StoreSpec(str(path)), JsonlFormat()))
        source.store = tracking = Tracking(source.store)
        samples = built(source, SampleFactory(decoder))
        assert len(samples) == SAMPLES
        assert tracking.bodies
        assert not tracking.alive()


def test_a_loader_lets_go_of_what_it_gave_out(tmp_path):
    """Two large samples would otherwise be in memory while the second is read."""
    prepared_binary_dataset(tmp_path, samples=20, shards=2)
    options = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    loader = get_loader(
        get_train_dataset(tmp_path, worker_config=WorkerConfig(0, 1, 0), auto_decode=False, **options)
    )
    samples = iter(loader)
    gc.disable()
    try:
        for _ in range(5):
            sample = next(samples)
            follow = weakref.ref(sample)
            del sample
            limit = time.monotonic() + 100
            while follow() is not None and time.monotonic() < limit:
                time.sleep(0.001)  # another thread may look at the stacks, and has not gone on yet
            assert follow() is None
    finally:
        gc.enable()


PROLOGUE = """
import resource, sys
from functools import partial
import numpy as np
from energon_stream import *
from energon_stream.index.dataset import open_webdataset
from energon_stream.read.large import read_large_sample
from energon_stream.read.tar_locator import TarLocator
from energon_stream.storage import Fetcher, StoreSpec
from energon_stream.arrays import as_bytes

url, options = sys.argv[1], eval(sys.argv[2])

def now():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def peak():
    with open("/proc/self/status") as file:  # ru_maxrss would count the parent's memory before exec
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
"""

LARGE = """
source = TarLocator(0, open_webdataset(StoreSpec(url, options), split_part="train"))
fetcher, limits = Fetcher(32), ReadOptions(byte_budget=32 << 20)

def read(sample):
    for load in source.claim_loads(np.array([sample])):
        load.run()
    place = [(object[0], start[0], stop[0]) for object, start, stop in zip(*source.locate(np.array([sample])))]
    call = partial(read_large_sample, source, sample, place, fetcher=fetcher, options=limits)
    return [as_bytes(view) for view in fetcher.call(call).result().parts.values()]

read(1)  # client, threads and connections are there
before = now()
kept = read(0)
print(peak() - before, now() - before, sum(map(len, kept)))
"""

SMALL = """
class Encoder(DefaultTaskEncoder):
    decoder = None

def samples():
    config = WorkerConfig(0, 1, 0)
    dataset = get_train_dataset(url, batch_size=None, repeat=False, shuffle_buffer_size=100,
        max_samples_per_sequence=100, worker_config=config, task_encoder=Encoder(), storage_options=options,
        read_options=ReadOptions(byte_budget=16 << 20))
    return get_loader(dataset)

kept, seen, before = [], 0, None
for sample in samples():
    seen += len(sample["bin"])
    before = before or now()
    kept.append(sample["json"])
del sample
print(peak() - before, now() - before, seen, len(kept), sum(map(len, kept)))
"""

ARENAS = """
import ctypes
import os
import sys

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from energon_stream.storage import StoreSpec

url, options = sys.argv[1], eval(sys.argv[2])

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
together = Barrier(8)

def allocate(_):
    together.wait(300)
    libc.free(ctypes.c_void_p(libc.malloc(5000)))  # more than what threads keep at hand
    together.wait(300)

libc.malloc.restype = ctypes.c_void_p
StoreSpec(url, options).open()
with ThreadPoolExecutor(8) as threads:
    list(threads.map(allocate, range(8)))
file = libc.fopen(b"/dev/fd/%d" % os.memfd_create("heaps"), b"w+")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.rewind(ctypes.c_void_p(file))
text = ctypes.create_string_buffer(1 << 20)
libc.fread(text, 1, 1 << 20, ctypes.c_void_p(file))
print(text.value.count(b"<heap nr="))
"""


def run(program, url, server):
    """Numbers that a program prints in a process of its own: memory of the system's view, Rust's included."""
    done = children.run("-c", program, url, repr(server.storage_options), check=True)
    return [int(word) for word in done.stdout.split()]


def test_a_sample_of_many_budgets_is_in_memory_once(tmp_path):
    """A sixteenth of the sample is pieces under way, what connections hold some MB; twice would be 2."""
    size = 100 << 20
    folder = tmp_path / "bucket" / "data"
    tars = write_shards(
        folder,
        shards=1,
        samples_per_shard=2,
        parts=lambda index: {"mp4": bytes(33 << 20 if index else size), "json": b"{}"},
    )
    write_reference_dataset(folder, tars, split={"train": [tars[0].name]}, exclude=[])
    with S3Server(tmp_path) as server:
        peak, after, read = run(PROLOGUE + LARGE, "s3://bucket/data", server)
    assert read == size + 2
    assert size * 0.9 < peak < size * 1.2
    assert after < size * 1.15


def test_small_parts_that_are_kept_do_not_add_up_to_the_dataset(tmp_path):
    """2,000 samples of 40 kB pass a budget of 16 MiB while something of each is kept.

    If fetches were kept, it would be 80 MB; allocators keep a few times the budget at most.
    """
    prepared_binary_dataset(tmp_path / "bucket" / "data", samples=2000, shards=4)
    with S3Server(tmp_path) as server:
        peak, after, seen, kept, small = run(PROLOGUE + SMALL, "s3://bucket/data", server)
    assert kept == 2000
    assert seen > 76 << 20
    assert small < 10 << 20
    assert after <= peak < 64 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas are glibc's")
@pytest.mark.parametrize(("setting", "least", "most"), [(None, 1, 2), ("6", 3, 6)])
def test_threads_share_two_arenas_where_the_user_says_nothing(tmp_path, monkeypatch, setting, least, most):
    """Each arena keeps the memory freed from it, which fetches of the other arenas cannot use."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    if setting:
        monkeypatch.setenv("MALLOC_ARENA_MAX", setting)
    with S3Server(tmp_path) as server:
        command = [sys.executable, "-c", ARENAS, "s3://bucket/data", repr(server.storage_options)]
        arenas = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert least <= arenas <= most
