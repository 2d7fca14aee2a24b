"""What is read before the first batch, by the server's own books: it must not grow with the dataset (P4,
P6).
"""

import re
import shutil
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from itertools import islice

import pytest
from repetitions import is_nightly

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.index.info_files import encode_info
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.state import dumps, loads, with_digest
from energon_stream.testing.datasets import CRUDE_YAML, prepared_binary_dataset
from energon_stream.testing.s3server import FolderObjects, S3Server

BATCH, PER_SHARD, SIDE_BY_SIDE = 32, 100, 16
SAMPLE_BYTES = 4 * 512  # bin and json, each a header and a block
D40_SAMPLE_BYTES = 512 + 40_448 + 2 * 512
FILES = {".info.json": 1, "split.yaml": 1, "dataset.yaml": 1}
METADATA = FILES | {"index.sqlite": 1}  # of a dataset; of one among many, only marks of its shards are asked
HUGE, SOURCES = 100_000 if is_nightly() else 30_000, 50
BILLION = HUGE * (HUGE // 10)  # by day, 90 million


@stateless
def keep(sample):
    return basic_sample_keys(sample)


class Encoder(DefaultTaskEncoder):
    """Keys only."""

    decoder = None
    cookers = [Cooker(keep)]

    def batch(self, samples):
        return [sample["__key__"] for sample in samples]


class OneTar(FolderObjects):
    """A folder in which all shards are the same file, and all leaves the same folder: they need not be
    written.
    """

    def open(self, bucket, key):
        return super().open(bucket, re.sub(r"data-\d{6}", "data-000000", re.sub(r"leaf-\d\d", "data", key)))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Buckets named after their number of shards; ``billion`` has 10^9 samples, by day fewer, and
    ``d40`` 4,000 of 40 kB.
    """
    root = tmp_path_factory.mktemp("startup")
    buckets = {f"shards-{shards}": (shards, PER_SHARD) for shards in (8, 64, 10_000, HUGE)}
    buckets |= {"billion": (HUGE, HUGE // 10), "d40": (8, 500)}
    for bucket, (shards, per_shard) in buckets.items():
        folder = prepared_binary_dataset(
            root / bucket / "data",
            samples=per_shard,
            shards=1,
            payload_bytes=40_000 if bucket == "d40" else 500,
        )
        names = [f"data-{number:06d}.tar" for number in range(shards)]
        meta = folder / ".nv-meta"
        (meta / ".info.json").write_bytes(encode_info(dict.fromkeys(names, per_shard)))
        split = {"train": [f"data-{{{0:06d}..{shards - 1:06d}}}.tar"]}
        (meta / "split.yaml").write_bytes(dump_yaml({"split_parts": split, "exclude": []}))
        (meta / "dataset.yaml").write_bytes(dump_yaml(CRUDE_YAML))
    return root


@contextmanager
def one_tar_each(root):
    with S3Server(OneTar(root)) as server:
        yield server


@pytest.fixture
def server(root):
    with one_tar_each(root) as server:
        yield server


def open_dataset(server, bucket, workers=0, path="data", in_flight=64, config=None):
    return get_train_dataset(
        f"s3://{bucket}/{path}",
        batch_size=BATCH,
        shuffle_buffer_size=50,
        max_samples_per_sequence=20,
        parallel_shard_iters=SIDE_BY_SIDE,
        worker_config=config or WorkerConfig(0, 1, workers),
        task_encoder=Encoder(),
        storage_options=server.storage_options,
        read_options=ReadOptions(first_samples=BATCH, max_in_flight=in_flight),
    )


def metadata(log):
    return Counter(entry.key.rpartition("/")[2] for entry in log if "/.nv-meta/" in entry.key)


def until_served(log, keys, sample_bytes=SAMPLE_BYTES):
    """The requests whose answers a batch had to wait for: up to the last one that it has bytes of."""
    wanted = Counter(key.partition("/")[0] for key in keys)
    for number, entry in enumerate(log, 1):
        if entry.key.endswith(".tar"):
            wanted[entry.key.rpartition("/")[2]] -= entry.bytes // sample_bytes
        if max(wanted.values()) <= 0:
            return log[:number]
    raise AssertionError(f"never read: {+wanted}")


@pytest.mark.every(2)
@pytest.mark.parametrize("bucket", ["shards-8", "shards-64", "shards-10000", f"shards-{HUGE}"])
def test_the_first_batch_costs_its_metadata_its_index_entries_and_its_samples(server, bucket):
    with get_savable_loader(open_dataset(server, bucket, in_flight=1)) as loader:  # in order of urgency
        keys = next(iter(loader))
    waited = until_served(server.log(), keys)
    touched = {key.partition("/")[0] for key in keys}
    kinds = Counter(entry.key.rpartition(".")[2] for entry in waited if "/.nv-meta/" not in entry.key)
    assert metadata(waited) == METADATA
    assert kinds["idx"] == len(touched) <= SIDE_BY_SIDE
    assert kinds["tar"] <= BATCH
    assert len(waited) == sum(METADATA.values()) + kinds["idx"] + kinds["tar"]
    assert set(server.counters().requests) == {"GET"}


def test_a_restore_at_95_percent_of_a_billion_samples_costs_what_the_start_costs(root, server):
    """P5 at any position: no part of the cursor is walked to. A group has 16 slices of 20 samples here."""
    with one_tar_each(root) as other, get_savable_loader(open_dataset(other, "billion")) as loader:
        assert len(loader) == BILLION // BATCH
        next(iter(loader))
        state = loader.save_state_rank()
    source = state["streams"]["0"]["node"]
    while "at" not in source:
        source = source["in"]
    epoch, _, (inner, given, group, offset) = source["at"]
    assert (epoch, inner, given, group, offset) == (0, 0, BATCH, 0, BATCH)
    group = 95 * BILLION // 100 // (20 * SIDE_BY_SIDE)
    source["at"] = (epoch, 0, (0, 20 * SIDE_BY_SIDE * group, group, 0))
    with get_savable_loader(open_dataset(server, "billion", in_flight=1)) as loader:
        loader.restore_state_rank(with_digest(state))
        keys = next(iter(loader))
    touched = {key.partition("/")[0] for key in keys}
    waited = until_served(server.log(), keys)
    assert len(waited) <= sum(METADATA.values()) + len(touched) + BATCH
    assert sum(entry.bytes for entry in waited if "/.nv-meta/" not in entry.key) < 4e6


@pytest.fixture(scope="module")
def after_24_batches(root):
    """The states of three ranks of twelve streams, and what comes after them in a run of one rank."""
    states = []
    with one_tar_each(root) as server:
        for rank in range(3):
            with get_savable_loader(open_dataset(server, "d40", config=in_ranks(rank, 3))) as loader:
                for _ in zip(range(8), loader, strict=False):
                    pass
                states.append(loads(dumps(loader.save_state_rank())))
        with get_savable_loader(open_dataset(server, "d40", config=in_ranks(0, 1))) as loader:
            return states, list(islice(loader, 24, 36))


def in_ranks(rank, world):
    return WorkerConfig(rank, world, 0, num_streams=12)


@pytest.mark.every(2)
@pytest.mark.parametrize(("world", "rank"), [(1, 0), (2, 1), (4, 3), (6, 0), (12, 11)])
def test_a_restore_on_another_number_of_ranks_waits_for_little_more_than_its_first_batch(
    server, after_24_batches, world, rank
):
    """P5 at H50, by what had been served when the last sample of the batch was; more is on its way to other
    streams.
    """
    states, expected = after_24_batches
    server.shape(first_byte_latency=0.05, rate=85e6)
    with get_savable_loader(open_dataset(server, "d40", config=in_ranks(rank, world))) as loader:
        loader.restore_state_global(states)
        keys = next(iter(loader))
    assert keys == expected[rank]
    served = sum(entry.bytes for entry in until_served(server.log(), keys, D40_SAMPLE_BYTES))
    assert BATCH * D40_SAMPLE_BYTES <= served <= 4e6


def test_workers_read_no_metadata(server):
    with get_savable_loader(open_dataset(server, "shards-10000", workers=2)) as loader:
        for _ in zip(range(4), loader, strict=False):
            pass
    assert metadata(server.log()) == METADATA


@pytest.mark.every(2)
@pytest.mark.parametrize("listed", [False, True])
def test_a_dataset_of_a_hundred_thousand_shards_fits_in_64_mb(root, server, listed):
    """By day, one of 30,000 in 30 % of that."""
    bucket = f"shards-{HUGE}"
    if listed:  # every name is in split.yaml
        bucket = "listed"
        meta = shutil.copytree(root / f"shards-{HUGE}", root / bucket) / "data" / ".nv-meta"
        split = {"train": [f"data-{number:06d}.tar" for number in range(HUGE)]}
        (meta / "split.yaml").write_bytes(dump_yaml({"split_parts": split, "exclude": []}))
    open_dataset(server, "shards-8")  # imports and the client are not the dataset's
    tracemalloc.start()
    try:
        dataset = open_dataset(server, bucket)
        with get_savable_loader(dataset) as loader:
            next(iter(loader))
            kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(dataset) == HUGE * PER_SHARD // BATCH
    assert kept < 400 * HUGE
    assert peak < 640 * HUGE


def test_the_metadata_of_fifty_sources_is_read_at_once(server):
    sources = [{"path": f"s3://shards-64/leaf-{number:02d}"} for number in range(SOURCES)]
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    document["splits"] = {"train": {"blend": [{"weight": 1.0, **source} for source in sources]}}
    server.put("s3://shards-64/all.yaml", dump_yaml(document))
    server.shape(first_byte_latency=0.05)
    open_dataset(server, "shards-64", path="all.yaml")
    opening = server.log()
    assert opening[0].key.endswith("all.yaml")
    assert metadata(opening) == {name: SOURCES * count for name, count in METADATA.items()}
    assert len(opening) == 1 + SOURCES * sum(METADATA.values())
    marks = [entry.bytes for entry in opening if entry.key.endswith("index.sqlite")]
    assert max(marks) <= 4096
    # Neither one source after the other nor four files after four: as much as one process has in flight.
    assert SOURCES * sum(METADATA.values()) // 8 < server.counters().max_in_flight <= 64 + 64 // 3
