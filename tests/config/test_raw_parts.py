"""``raw_parts="memoryview"``: undecoded parts, and how long they live. The oracle is ``tarfile``."""

import gc
import io
import itertools
import json
import os
import shutil
import tarfile

import numpy as np
import pytest
import torch.utils.data

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    FileStoreDecoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    open_dataset,
    stateless,
)
from energon_stream.errors import ConfigError
from energon_stream.pipeline.failures import reraise_exception
from energon_stream.storage.local import LocalStore
from energon_stream.testing.datasets import CRUDE_YAML, TEXT_YAML, prepare_as, random_bytes, write_shards
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key

SHARDS, PER_SHARD = 2, 12
NAMES = {"bin", "txt", "json", "npy", "none"}


def parts(number):
    array = io.BytesIO()
    np.save(array, np.arange(number, number + 3))
    return {
        "bin": random_bytes(5000 + number, number),  # large enough for the shared memory of workers
        "txt": f"text {number}".encode(),
        "json": json.dumps({"n": number}).encode(),
        "npy": array.getvalue(),
        "none": b"",
    }


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data"
    write_shards(path, shards=SHARDS, samples_per_shard=PER_SHARD, parts=parts)
    prepare_as(path, (1, 0, 0), CRUDE_YAML)
    return path


def in_tars(folder):
    """The parts of each sample, by ``tarfile``."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, part = member.name.partition(".")
                found.setdefault(f"{path.name}/{key}", {})[part] = tar.extractfile(member).read()
    return found


@stateless
def cook(sample):
    return dict(sample)


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)

    def __init__(self, decoder=None):
        super().__init__()
        self.decoder = decoder

    @stateless
    def batch(self, samples):
        return samples


def config(workers=0):
    return WorkerConfig(0, 1, workers, num_streams=2, global_error_handler=reraise_exception)


def opened(path, decoder=None, *, workers=0, raw_parts="memoryview", **options):
    return get_train_dataset(
        str(path),
        batch_size=4,
        task_encoder=Encoder(decoder),
        worker_config=config(workers),
        raw_parts=raw_parts,
        **{"shuffle_buffer_size": 6, "max_samples_per_sequence": 4, "repeat": False, **options},
    )


def samples_of(dataset, **options):
    with get_loader(dataset, **options) as loader:
        return [sample for batch in loader for sample in batch]


def own_parts(sample):
    return {name: part for name, part in sample.items() if not name.startswith("__")}


def assert_views(samples, expected):
    """All samples once, each part a view with the bytes and the hash of ``bytes``, which nobody may write."""
    assert sorted(sample["__key__"] for sample in samples) == sorted(expected)
    for sample in samples:
        found, wanted = own_parts(sample), expected[sample["__key__"]]
        assert {type(part) for part in found.values()} == {memoryview}
        assert found == wanted
        assert {name: bytes(part) for name, part in found.items()} == wanted
        assert {name: hash(part) for name, part in found.items()} == {n: hash(p) for n, p in wanted.items()}
        assert all(part.readonly for part in found.values())


def test_parts_are_views_of_the_tar(folder):
    samples = samples_of(opened(folder))
    assert_views(samples, in_tars(folder))
    path = folder / "data-000000.tar"
    with tarfile.open(path) as tar:
        member = tar.getmember("00000003.bin")
    with path.open("r+b") as file:  # nothing was copied: who writes into the tar changes what is held
        file.seek(member.offset_data)
        file.write(b"changed")
    held = next(sample for sample in samples if sample["__key__"].endswith("/00000003"))
    assert bytes(held["bin"][:7]) == b"changed"


def test_views_outlive_their_tars(folder):
    expected = in_tars(folder)
    samples = samples_of(opened(folder))
    first, second = sorted(folder.glob("*.tar"))
    (folder / "new").write_bytes(bytes(first.stat().st_size))
    os.replace(folder / "new", first)
    second.unlink()
    LocalStore(str(folder)).close()
    gc.collect()
    assert_views(samples, expected)


@pytest.mark.parametrize("with_cache", [False, True])
def test_remote_views_hold_no_answers_and_outlive_the_cache(
    folder, s3_server, tmp_bucket, tmp_path, with_cache
):
    expected = in_tars(folder)
    s3_server.upload_folder(folder, f"{tmp_bucket}/data")
    cache = tmp_path / "cache"
    options = {"storage_options": s3_server.storage_options, "cache": str(cache) if with_cache else False}
    held = []
    for _ in range(2):  # the second time from the cache
        samples = samples_of(opened(f"{tmp_bucket}/data", **options))
        assert_views(samples, expected)
        held += samples
    # Of its own bytes each: it holds no answer of several megabytes, and no file that leaves the cache.
    each = [part for sample in held for part in own_parts(sample).values()]
    assert all(type(part.obj) is bytes and len(part.obj) == len(part) for part in each)
    if with_cache:
        shutil.rmtree(cache)
    s3_server.stop()
    gc.collect()
    assert_views(held[: len(expected)], expected)
    assert_views(held[len(expected) :], expected)


@pytest.mark.parametrize("worker_type", ["fork", "thread"])
def test_workers_send_views(folder, worker_type):
    samples = samples_of(opened(folder, workers=2), worker_type=worker_type)  # all held, while slots go round
    assert_views(samples, in_tars(folder))
    expected = [sample["__key__"] for sample in samples_of(opened(folder, raw_parts="bytes"))]
    assert [sample["__key__"] for sample in samples] == expected


def test_the_workers_of_torchs_loader_send_views(folder):
    """A queue pickles in a thread, so that what it cannot pickle is waited for without end."""
    dataset = open_dataset(str(folder), split_part="train", raw_parts="memoryview", task_encoder=Encoder())
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=list, timeout=600)
    samples = [sample for batch in loader for sample in batch]
    assert_views(samples, in_tars(folder))


@pytest.mark.parametrize("threads", [0, 2])
def test_a_decoder_leaves_views_of_what_it_does_not_decode(folder, threads):
    expected = in_tars(folder)
    for decoder in SampleDecoder(), SampleDecoder(guess_content=True):
        samples = samples_of(opened(folder, decoder), decode_threads=threads)
        assert len(samples) == len(expected)
        for sample in samples:
            own = expected[sample["__key__"]]
            number = json.loads(own["json"])["n"]
            assert (sample["txt"], sample["json"]) == (f"text {number}", {"n": number})
            np.testing.assert_array_equal(sample["npy"], np.load(io.BytesIO(own["npy"])))
            assert sample["npy"].flags.writeable
            assert type(sample["bin"]) is type(sample["none"]) is memoryview
            assert (sample["bin"], sample["none"]) == (own["bin"], b"")
    assert type(SampleDecoder().decode("bin", memoryview(b"of others"))) is bytes


def test_a_decoder_of_the_user_gets_what_it_may_return(folder):
    class Decoder(FileStoreDecoder):
        def decode(self, fname, data):
            return data

    assert_views(samples_of(opened(folder, Decoder())), in_tars(folder))


def test_typed_samples_and_plain_tars(folder, tmp_path):
    expected = in_tars(folder)
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(TEXT_YAML))
    dataset = get_val_dataset(
        str(folder), split_part="train", batch_size=None, worker_config=config(), raw_parts="memoryview",
        task_encoder=Encoder(),
    )  # fmt: skip
    texts = {sample.__key__: sample.text for sample in dataset}
    assert texts == {key: own["txt"] for key, own in expected.items()}
    assert {type(text) for text in texts.values()} == {memoryview}

    plain = tmp_path / "plain.tar"
    shutil.copy(folder / "data-000000.tar", plain)
    whole = open_dataset(str(plain), raw_parts="memoryview", task_encoder=Encoder())
    some = own_parts(whole[3])
    assert some == expected["data-000000.tar/00000003"]
    assert {type(part) for part in some.values()} == {memoryview}


def test_samples_resume_and_restore(folder):
    assert_exact_resume(lambda: opened(folder, shuffle_buffer_size=3), steps=8, tail=4)
    assert_restores_by_key(lambda: opened(folder), steps=4)


def test_states_do_not_depend_on_it(folder):
    undisturbed = [sample["__key__"] for sample in samples_of(opened(folder, raw_parts="bytes"))]
    with get_savable_loader(opened(folder, raw_parts="bytes")) as loader:
        before = [sample["__key__"] for batch in itertools.islice(loader, 2) for sample in batch]
        state = loader.save_state_rank()
    with get_savable_loader(opened(folder)) as loader:
        loader.restore_state_rank(state)
        assert before + [sample["__key__"] for batch in loader for sample in batch] == undisturbed


def test_what_cannot_be_honoured_is_refused(folder):
    with pytest.raises(ConfigError, match=r"raw_parts is 'views'.*'bytes' or 'memoryview'"):
        opened(folder, raw_parts="views")
    theirs = WorkerConfig(0, 1, 0, conventions="energon")
    options = {"batch_size": 1, "worker_config": theirs, "raw_parts": "memoryview"}
    with pytest.raises(ConfigError, match="Megatron-Energon's conventions"):
        get_train_dataset(str(folder), **options)
