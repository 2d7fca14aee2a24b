"""Packs cost no byte that their samples do not have."""

import re

import numpy as np
import pytest
from packed import STREAMS, Packs, opened, taken, write

from energon_stream import ReadOptions, compute_costs, stateless
from energon_stream.index.entries import OffsetCache
from energon_stream.prewarming.amount import stream_steps
from energon_stream.testing.s3server import S3Server

GAP = 2048


class Keys(Packs):
    """A pack is the keys of its samples."""

    @stateless
    def pack_selected_samples(self, samples):
        return [sample.__key__ for sample in samples]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    lengths = np.clip(np.random.default_rng(0).lognormal(2.5, 1.1, 300), 1, 260).astype(int)
    root = tmp_path_factory.mktemp("bytes")
    compute_costs(write(root / "bucket" / "texts", lengths, shard=75), "tokens", values=lengths)
    return root


@pytest.fixture
def server(root):
    with S3Server(root) as server:
        yield server


def ranges(server):
    """Requested ranges of each tar; a late request that is made twice counts once."""
    found = set()
    for entry in server.log():
        if entry.key.endswith(".tar") and entry.method == "GET":
            first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", entry.range).groups())
            found.add((entry.key.rpartition("/")[2], first, last + 1))
    return found


def asked(server):
    """Bytes that were asked for of each tar."""
    return {(name, byte) for name, first, stop in ranges(server) for byte in range(first, stop)}


def places(dataset, refs):
    """Object and byte range of each sample."""
    locator = dataset.open_locators(OffsetCache())[0]
    for load in locator.claim_loads(refs.index):
        load.read(load.store)
    objects, starts, stops = locator.locate(refs.index)
    columns = (column.ravel().tolist() for column in (objects, starts, stops))
    return {
        (locator.object(number).path.rpartition("/")[2], start, stop)
        for number, start, stop in zip(*columns, strict=True)
    }


def covered(ranges, gap):
    """Bytes of ranges, and of the gaps between two of an object that a request may bridge."""
    found, end = set(), {}
    for name, start, stop in ranges:
        before = end.get(name, start)
        found.update((name, byte) for byte in range(start if start - before > gap else before, stop))
        end[name] = max(stop, before)
    return found


def reader_of(dataset):
    while dataset.inputs:
        dataset = dataset.inputs[0]
    return dataset


def test_a_pass_reads_the_planned_samples_and_nothing_else(server):
    """Without gaps to bridge, the bytes asked for are those of the samples that fit, and of no other one."""
    read = ReadOptions(max_gap=0)
    dataset = opened(
        "s3://bucket/texts", repeat=False, overlong="drop", read=read, storage=server.storage_options
    )
    server.reset_counters()
    assert sum(len(pack) for batch in dataset for pack in batch)
    made = asked(server)
    reader = reader_of(dataset)
    refs = [
        reader.schedule(stream).take(reader.schedule(stream).begin(), 1000)[0] for stream in range(STREAMS)
    ]
    ranges = sorted({place for own in refs for place in places(reader, own)})
    assert len(ranges) == sum(map(len, refs)) < 300
    assert made == covered(ranges, 0)


@pytest.mark.every(2)
@pytest.mark.parametrize(("ranks", "streams", "most"), [(1, 2, 40), (2, 2, 120), (1, 8, 40)])
def test_small_samples_are_read_by_large_requests(tmp_path, ranks, streams, most):
    """4,000 samples of 1 to 6 kB: no more requests than slices of 100, if one process has all streams.

    The requests of each rank end before its last step, from which on it reads the next pass.
    """
    lengths = np.random.default_rng(0).integers(1000, 6000, 4000)
    path = write(tmp_path / "bucket" / "texts", lengths, shard=500)
    compute_costs(path, "tokens", values=lengths)
    size = sum(tar.stat().st_size for tar in (tmp_path / "bucket" / "texts").glob("*.tar"))
    options = {"capacity": 32768, "window": 8, "overlong": "error", "num_streams": streams, "repeat": False}
    options |= {"shuffle_buffer_size": 500, "max_samples_per_sequence": 100, "read": ReadOptions()}
    found = []
    with S3Server(tmp_path) as server:
        for rank in range(ranks):
            packed = opened("s3://bucket/texts", rank, ranks, storage=server.storage_options, **options)
            server.reset_counters()
            taken(packed, int(lengths.sum()) // 32768 // ranks - streams)
            found += ranges(server)
    assert sum(stop - start for _, start, stop in found) < 1.1 * size
    assert len(found) < most


def test_of_many_ranks_each_makes_no_more_requests_than_without_packs(tmp_path):
    """The first packs are read with their neighbours. They once took a request for most of their samples."""
    draw, count, ranks = np.random.default_rng(0), 16_000, 32
    lengths = np.clip(draw.lognormal(np.log(650), 0.7, count), 1, 8192).astype(int)
    write(tmp_path / "bucket" / "texts", draw.integers(500, 1500, count), shard=500)
    order = {"num_streams": ranks, "shuffle_buffer_size": 500, "max_samples_per_sequence": 100}
    packing = {"cost": lengths, "capacity": 8192, "window": 8, "overlong": "error", "read": ReadOptions()}
    plain = {"pack": False, "read": ReadOptions(first_samples=10)}  # as many as a pack has
    made = {True: 0, False: 0}
    with S3Server(tmp_path) as server:
        common = {**order, "encoder": Keys, "repeat": False, "storage": server.storage_options}
        for rank in (13, 31):
            for own in (packing, plain):
                dataset = opened("s3://bucket/texts", rank, ranks, **common, **own)
                server.reset_counters()
                assert sum(1 for _ in dataset)
                made[own is packing] += len(ranges(server))
    assert made[True] <= made[False]


def test_steps_read_the_packs_of_the_plan_and_its_look_ahead(server):
    """A rank of two: no byte beyond the packs of its own steps, those it reads ahead, and bridged gaps."""
    ahead, steps = 64, 12
    read = ReadOptions(max_gap=GAP, max_ahead=ahead)
    dataset = opened("s3://bucket/texts", 1, 2, read=read, storage=server.storage_options)
    server.reset_counters()
    taken(dataset, steps)
    made = asked(server)
    reader, lanes = reader_of(dataset), list(dataset.worker_config.streams)
    needed, allowed = set(), set()
    for lane, stream in enumerate(lanes):
        schedule = reader.schedule(stream)
        count = stream_steps(schedule, 1, len(lanes), lane, steps).before(steps)
        needed |= places(reader, schedule.take(schedule.begin(), count)[0])
        allowed |= places(reader, schedule.take(schedule.begin(), count + 2 * ahead)[0])
    assert covered(sorted(needed), 0) <= made
    assert made <= covered(sorted(allowed), GAP)
