"""Training through a node's cache: what goes over the wire, by the stand-in's counters."""

import io
import itertools
import os
import tarfile

import children
import pytest

import energon_stream as es
from energon_stream.cache import shared_cache
from energon_stream.errors import ConfigError, MetadataError, ObjectChangedError
from energon_stream.storage import StoreSpec, default_counters
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import S3Server

SHARDS, SAMPLES, PAYLOAD = 4, 256, 20_000


@es.stateless
def keep(sample):
    return dict(sample)


class Encoder(es.DefaultTaskEncoder):
    decoder = None
    cookers = [es.Cooker(keep)]

    def batch(self, samples):
        return [(sample["__key__"], bytes(sample["bin"])) for sample in samples]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("cached") / "data", shards=SHARDS, samples=SAMPLES, payload_bytes=PAYLOAD
    )


@pytest.fixture
def server(folder):
    with S3Server() as server:
        server.upload_folder(folder, "s3://bucket/data")
        yield server


@pytest.fixture
def cache(tmp_path):
    return es.CacheConfig(str(tmp_path / "cache"), "100MB", min_free_bytes=0, block_bytes=256 << 10)


def train(server, cache, count=SAMPLES, path="s3://bucket/data", workers=0, streams=2, **options):
    """Keys and bytes of some batches; the requests are those of the last call."""
    server.reset_counters()
    config = es.WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=streams)
    dataset = es.get_train_dataset(
        path,
        worker_config=config,
        batch_size=16,
        shuffle_buffer_size=50,
        max_samples_per_sequence=20,
        task_encoder=Encoder(),
        storage_options=server.storage_options,
        cache=cache,
        **options,
    )
    found = []
    with es.get_savable_loader(dataset) as loader:
        for batch in loader:
            found += batch
            if len(found) >= count:
                return found
    return found


def asked(server, ending=""):
    return [entry.key for entry in server.log() if entry.key.endswith(ending) and entry.method == "GET"]


@pytest.mark.every(2)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_read_once_is_not_asked_for_again(server, cache, workers):
    plain = train(server, False, 2 * SAMPLES)
    assert train(server, cache, 2 * SAMPLES) == plain
    # The second epoch was in the cache.
    assert server.counters().bytes_sent < 1.1 * SAMPLES * (PAYLOAD + 2048)
    assert train(server, cache, 2 * SAMPLES, workers=workers) == plain
    assert asked(server, ".tar") == asked(server, ".idx") == asked(server, ".yaml") == []
    assert len(server.log()) <= 1  # a listing: whether objects have changed


def test_the_environment_may_say_it_and_the_caller_may_refuse(server, cache, monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", cache.directory)
    monkeypatch.setenv("ENERGON_STREAM_CACHE_SIZE", "100MB")
    train(server, False)
    assert not os.path.exists(cache.directory)
    train(server, None)
    assert os.path.exists(cache.directory)
    with pytest.raises(ConfigError, match="cache is 5"):
        train(server, 5)


def test_datasets_of_a_metadataset_may_do_without(server, tmp_path, cache):
    def metadataset(**options):
        entry = {"path": "s3://bucket/data", "weight": 1, **options}
        return {
            "__module__": "megatron.energon",
            "__class__": "MetadatasetV2",
            "splits": {"train": {"blend": [entry]}},
        }

    train(server, cache, path=metadataset(cache=False))
    assert not os.path.exists(cache.directory)
    own = {"directory": str(tmp_path / "own"), "max_bytes": "50MB", "min_free_bytes": 0}
    first = train(server, cache, path=metadataset(cache=own))
    assert not os.path.exists(cache.directory)
    assert os.path.exists(own["directory"])
    assert train(server, cache, path=metadataset(cache=own)) == first
    assert asked(server, ".tar") == []
    for wrong in ({"folder": "x"}, "here"):
        with pytest.raises(MetadataError, match=r"splits\.train\.blend\[0\]"):
            train(server, cache, path=metadataset(cache=wrong))


def test_a_replaced_object_is_noticed_and_versions_are_never_mixed(server, cache, tmp_path):
    first = dict(train(server, cache))
    other = prepared_binary_dataset(
        tmp_path / "other", shards=SHARDS, samples=SAMPLES, payload_bytes=PAYLOAD + 512
    )
    server.upload_folder(other, "s3://bucket/data")
    second = dict(train(server, cache))
    assert {len(data) for data in second.values()} == {PAYLOAD + 512}
    assert first.keys() == second.keys()
    assert second == dict(train(server, False))


def test_an_object_replaced_within_a_run_is_an_error(server, cache, folder):
    """What is not in the cache yet is asked for by the version that the run began with."""
    dataset = es.get_train_dataset(
        "s3://bucket/data",
        worker_config=es.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=5,
        task_encoder=Encoder(),
        storage_options=server.storage_options,
        read_options=es.ReadOptions(byte_budget=1 << 20, first_samples=4),
        cache=cache,
    )

    def replace():
        for tar in sorted(folder.glob("*.tar")):
            data = bytearray(tar.read_bytes())
            data[1024:2048] = b"x" * 1024
            server.put(f"s3://bucket/data/{tar.name}", data)

    with es.get_loader(dataset) as loader:
        batches = iter(loader)
        next(batches)
        replace()
        with pytest.raises(ObjectChangedError):
            list(itertools.islice(batches, SAMPLES))


def _train_in_a_process(options, cache):
    class Endpoint:
        storage_options = options
        reset_counters = staticmethod(lambda: None)

    before = default_counters().snapshot()
    return len(train(Endpoint(), cache)), (default_counters().snapshot() - before).hedged_bytes


def test_eight_processes_download_each_byte_once(server, folder, cache):
    """P9: copies of one rank (tensor parallel, say) share what one of them fetches."""
    server.reset_counters()
    calls = [children.submit(_train_in_a_process, server.storage_options, cache) for _ in range(8)]
    counts, hedged = zip(*(call.result() for call in calls), strict=True)
    assert min(counts) >= SAMPLES
    tars = sum(os.path.getsize(tar) for tar in folder.glob("*.tar"))
    # Listings, metadata and indices come to it, and on a busy machine requests that look late.
    assert server.counters().bytes_sent <= 1.01 * tars + 8 * 24_000 + sum(hedged)


@pytest.mark.parametrize("name", [pytest.param("localstack", marks=pytest.mark.localstack), "seaweedfs"])
def test_prewarm_train_and_replace_on_another_server(request, name, folder, cache, tmp_path):
    """The change is noticed by its ETag; old bytes and new ones are never mixed."""
    server = request.getfixturevalue(name)

    class Place:
        storage_options = server.storage_options
        reset_counters = staticmethod(lambda: None)

    server.create_bucket("prewarmed")
    path = "s3://prewarmed/data"
    store = StoreSpec(path, Place.storage_options).open()

    def upload(source, pattern="**/*"):
        for file in source.glob(pattern):
            if file.is_file():
                store.put_file(file.relative_to(source).as_posix(), str(file))

    upload(folder)
    es.prewarm(
        path,
        cache=cache,
        epochs=1,
        worker_config=es.WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=2),
        batch_size=16,
        shuffle_buffer_size=50,
        max_samples_per_sequence=20,
        storage_options=Place.storage_options,
    )
    before = shared_cache(cache).counters().missed_bytes
    first = train(Place, cache, path=path)
    assert shared_cache(cache).counters().missed_bytes == before
    assert first == train(Place, False, path=path)
    # One shard, as long as it was, with other bytes in it.
    tar = sorted(folder.glob("*.tar"))[3]
    changed = tmp_path / tar.name
    changed.write_bytes(_with_other_payloads(tar.read_bytes()))
    store.put_file(tar.name, str(changed))
    second, plain = train(Place, cache, path=path), train(Place, False, path=path)
    assert second == plain
    differing = [key for (key, old), (_, new) in zip(first, second, strict=True) if old != new]
    assert differing
    assert {key.split("/")[0] for key in differing} == {tar.name}
    assert len(set(differing)) == SAMPLES // SHARDS


def _with_other_payloads(data):
    """A tar with the same members and sizes."""
    read, written = io.BytesIO(data), io.BytesIO()
    with (
        tarfile.open(fileobj=read) as old,
        tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as new,
    ):
        for member in old:
            content = old.extractfile(member).read()
            if member.name.endswith(".bin"):
                content = bytes(255 - byte for byte in content)
            new.addfile(member, io.BytesIO(content))
    return written.getvalue()
