"""Checksums of samples: wrong bytes are noticed, whoever sends them, and right ones are asked for again."""

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from energon_stream import CacheConfig, DefaultTaskEncoder, ReadOptions, WorkerConfig, get_train_dataset
from energon_stream.cache.cached_store import shared_cache
from energon_stream.errors import ChecksumError, ConfigError, IndexMismatchError, NotPreparedError
from energon_stream.index.checksums import CHECKSUMS
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.entries import OffsetCache
from energon_stream.index.index_files import index_path
from energon_stream.index.sample_sizes import MOST_BYTES, appended_bytes
from energon_stream.index.verify import SAMPLED_SHARE, open_verifier
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.read.consume import ReaderGroup, SampleReader
from energon_stream.read.open_locator import open_locator
from energon_stream.rng import derive_key
from energon_stream.schedule import LeafPlan, OrderSpec, build_schedule
from energon_stream.storage import ByteRange, Fetcher, LocalStore, StoreSpec, register_store
from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards

SHARDS, PER_SHARD = 3, 40
SAMPLES = SHARDS * PER_SHARD
ALWAYS = ReadOptions(verify="always")


def parts(index):
    """Samples of one size, so that the bytes of some can stand for those of others."""
    return {"bin": random_bytes(2_000, index), "txt": b"%08d" % index}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "data"
    write_shards(folder, shards=SHARDS, samples_per_shard=PER_SHARD, parts=parts)
    prepare_dataset(str(folder), split_ratio=(2, 1, 0), dataset_yaml=CRUDE_YAML, checksums=True)
    return folder


class Proxy(LocalStore):
    """Answers ``lies`` requests for ranges of tars with the bytes of other samples, and counts requests."""

    is_local = False
    lies, asked = 0, []

    def get_range(self, path, byte_range, *, etag=None):
        Proxy.asked.append(path)
        if path.endswith(".tar") and Proxy.lies and byte_range.start:
            Proxy.lies -= 1
            body = super().get_range(path, ByteRange(0, len(byte_range)))
            return replace(body, data=memoryview(bytes(body.data)))
        return super().get_range(path, byte_range, etag=etag)


@pytest.fixture
def proxied(folder):
    register_store("proxied", lambda url, options: Proxy(url.removeprefix("proxied://")))
    Proxy.lies, Proxy.asked = 0, []
    yield f"proxied://{folder}"
    Proxy.lies = 0


class Texts(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return [bytes(sample["txt"]) for sample in samples]


def read(url, options=ALWAYS, **changes):
    dataset = get_train_dataset(
        str(url),
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=Texts(),
        **{
            "batch_size": 5,
            "shuffle_buffer_size": None,
            "max_samples_per_sequence": 10,
            "repeat": False,
            "read_options": options,
            **changes,
        },
    )
    return sorted(text for batch in dataset for text in batch)


EXPECTED = [b"%08d" % index for index in range(2 * PER_SHARD)]


def test_the_file_has_a_hash_of_each_samples_bytes(folder):
    content = (folder / CHECKSUMS).read_bytes()
    counts = json.loads((folder / ".nv-meta/.info.json").read_bytes())["shard_counts"]
    expected = []
    for shard in counts:
        bounds = np.fromfile(folder / index_path(shard), dtype="<u8").tolist()
        bounds[0] = 0
        data = (folder / shard).read_bytes()
        expected += [xxhash.xxh3_64_intdigest(data[a:b]) for a, b in itertools.pairwise(bounds)]
    assert np.frombuffer(content, "<u8", offset=32).tolist() == expected
    assert len(set(expected)) == SAMPLES


@pytest.mark.parametrize("verify", ["never", "sampled", "always"])
@pytest.mark.parametrize("config", [{}, {"split_part": "val"}, {"parts": ["txt"]}])
def test_right_bytes_are_read(folder, proxied, verify, config):
    options, first = ReadOptions(verify=verify), EXPECTED[0]
    expected = (
        [b"%08d" % (2 * PER_SHARD + i) for i in range(PER_SHARD)] if "split_part" in config else EXPECTED
    )
    assert first not in expected[1:]
    for url in (folder, proxied):
        assert read(url, options, **config) == expected
    # The header, and a page of 2,048 hashes if a sample is drawn that is read whole.
    requested = Proxy.asked.count("") + Proxy.asked.count(CHECKSUMS)
    assert requested in {"never": (0,), "sampled": (1, 2), "always": (2,)}[verify]


@pytest.fixture
def nameless(folder, proxied, tmp_path):
    """The dataset without sizes and names, as another program prepares it."""
    shutil.copytree(folder, tmp_path / "data")
    database = tmp_path / "data/.nv-meta/index.sqlite"
    content = database.read_bytes()
    database.write_bytes(content[: -appended_bytes(memoryview(content)[-MOST_BYTES:])])
    return f"proxied://{tmp_path}/data"


def test_bytes_of_other_samples_are_taken_without_names_and_checksums(nameless):
    """What the checksums are for: valid tars, the right sizes, and the wrong samples."""
    Proxy.lies = 2
    assert read(nameless, ReadOptions()) != EXPECTED
    assert not Proxy.lies


@pytest.mark.parametrize(
    "options",
    [ALWAYS, ReadOptions(verify="always", byte_budget=1000), ReadOptions(), ReadOptions(byte_budget=1000)],
)
def test_a_proxy_that_lies_now_and_then_is_survived(proxied, options, caplog):
    """With less budget, each sample is read alone, in pieces. Names alone tell, too."""
    Proxy.lies = 1
    assert read(proxied, options) == EXPECTED
    assert not Proxy.lies
    assert "requested again" in caplog.text


@pytest.mark.parametrize("options", [ALWAYS, ReadOptions(verify="always", byte_budget=1000), ReadOptions()])
def test_a_proxy_that_always_lies_is_an_error(proxied, options):
    Proxy.lies = 1 << 20
    with pytest.raises(
        ChecksumError, match=r"sample \d+ of the shard.*data-00000\d\.tar.*energon-stream prepare"
    ):
        read(proxied, options)


def test_wrong_bytes_leave_the_cache(nameless, tmp_path, caplog):
    cache = CacheConfig(str(tmp_path / "cache"), "50MB", min_free_bytes=0)
    Proxy.lies = 1
    assert read(nameless, ReadOptions(), cache=cache) != EXPECTED
    assert not Proxy.lies
    assert read(nameless, ReadOptions(), cache=cache) != EXPECTED  # the cache has kept them
    assert read(nameless, ALWAYS, cache=cache) == EXPECTED
    assert "requested again" in caplog.text
    assert read(nameless, ReadOptions(), cache=cache) == EXPECTED
    shared_cache(cache).close()


def flip(folder, tmp_path, shard, offset):
    damaged = shutil.copytree(folder, tmp_path / "damaged", dirs_exist_ok=True)
    path = damaged / f"data-{shard:06d}.tar"
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    return damaged


def test_other_samples_of_the_same_request_are_read(folder, tmp_path):
    bounds = np.fromfile(folder / "data-000001.tar.idx", dtype="<u8").tolist()
    damaged = flip(folder, tmp_path, 1, bounds[7] + 600)
    index = open_webdataset(StoreSpec(str(damaged)), split_part="train")
    schedule = build_schedule(
        LeafPlan(0, index.shard_starts, OrderSpec()), num_streams=1, stream=0, key=derive_key(3)
    )
    for readers in (1, 2):  # several readers may take an answer apart
        group = ReaderGroup(ALWAYS, Fetcher(4), readers)
        locators = [open_locator(0, index, OffsetCache(), None, 0, "always")]
        reader = SampleReader(schedule, schedule.begin(), locators, group)
        samples, errors = [], []
        for _ in range(2 * PER_SHARD):
            try:
                samples.append(int(bytes(reader.next().parts["txt"])))
            except ChecksumError as error:
                errors.append(str(error))
        assert sorted(samples) == [i for i in range(2 * PER_SHARD) if i != PER_SHARD + 7]
        assert len(errors) == 1
        assert "sample 7 of the shard" in errors[0]
        assert "damaged/data-000001.tar" in errors[0]
        reader.close()


def test_some_samples_are_verified_always_the_same(tmp_path):
    folder, samples = tmp_path / "data", 5000
    write_shards(
        folder, shards=2, samples_per_shard=samples // 2, parts=lambda index: {"txt": b"%08d" % index}
    )
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML, checksums=True)
    content = bytearray((folder / CHECKSUMS).read_bytes())
    options = ReadOptions(verify="sampled")
    found = set()
    for _ in range(3):
        content[32:] = b"\1" * (8 * samples)
        (folder / CHECKSUMS).write_bytes(content)
        with pytest.raises(ChecksumError) as caught:
            read(folder, options)
        found.add(str(caught.value))
    assert len(found) == 1
    spec = StoreSpec(str(folder))
    verifier = open_verifier(open_webdataset(spec, split_part="train"), spec.open(), "sampled")
    chosen = verifier.chooses(np.arange(samples))
    assert 0.5 * SAMPLED_SHARE * samples < len(chosen) < 2 * SAMPLED_SHARE * samples


@pytest.mark.parametrize("change", ["mark", "cut", "info", "count"])
def test_checksums_of_another_preparation_are_refused(folder, tmp_path, change):
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    content = bytearray((folder / CHECKSUMS).read_bytes())
    if change == "cut":
        content = content[:20]
    else:
        content[{"mark": 3, "count": 8, "info": 16}[change]] ^= 1
    (damaged / CHECKSUMS).write_bytes(content)
    with pytest.raises(IndexMismatchError, match=r"checksums\.xxh3.*--checksums` again"):
        read(damaged)


def test_a_dataset_without_checksums(folder, tmp_path):
    bare = shutil.copytree(folder, tmp_path / "bare")
    prepare_dataset(str(bare), split_ratio=(2, 1, 0), dataset_yaml=CRUDE_YAML, force=True)
    assert not (bare / CHECKSUMS).exists()  # those of the earlier preparation are gone
    with pytest.raises(NotPreparedError, match=r"verify='always' needs.*prepare --checksums"):
        read(bare)
    assert read(bare, ReadOptions(verify="sampled")) == EXPECTED
    with pytest.raises(ConfigError, match="Use one of never, sampled, always"):
        ReadOptions(verify="often")
    with pytest.raises(ConfigError, match="tar_index_only excludes checksums"):
        prepare_dataset(str(bare), tar_index_only=True, checksums=True)
