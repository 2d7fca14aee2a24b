"""Parts of crude samples, which are decoded where someone looks at them."""

import copy
import json
import pickle
import shutil

import pytest

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    FileStoreDecoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_val_dataset,
    prepare_metadataset,
    stateless,
)
from energon_stream.errors import DecodeError, FatalSampleError, UntrustedPickleError
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.samples import CrudeSample, OnDemandSample
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

SAMPLES = 6
CONFIG = WorkerConfig(0, 1, 0)
PARTS = {"a.txt": b"one", "b.txt": b"two", "broken": b"\xff"}


class Counted:
    """Decodes text, and keeps the names of what it decoded."""

    def __init__(self):
        self.names = []

    def __call__(self, part, data):
        self.names.append(part)
        if part == "broken":
            raise DecodeError("part 'broken' cannot be decoded", where="data: sample k")
        return data.decode()


@pytest.fixture
def decode():
    return Counted()


@pytest.fixture
def sample(decode):
    made = OnDemandSample({name: PARTS[name] for name in ("a.txt", "b.txt")}, decode)
    made.update(__key__="k", __restore_key__=(), __subflavors__=None, __sources__=())
    return made


def test_names_decode_nothing(sample, decode):
    assert isinstance(sample, dict)
    assert "a.txt" in sample
    assert list(sample) == list(sample.keys()) == ["a.txt", "b.txt", *basic_sample_keys(sample)]
    assert len(sample) == 6
    assert repr(sample).startswith("{'a.txt': <3 bytes, not decoded>, ")
    assert basic_sample_keys(sample)["__key__"] == sample["__key__"] == "k"
    assert sample.get("c.txt", 5) == 5
    with pytest.raises(KeyError):
        sample["c.txt"]
    assert decode.names == []


def test_a_part_is_decoded_once_at_the_first_look(sample, decode):
    assert [sample["a.txt"], sample.get("a.txt"), sample.setdefault("a.txt", "x")] == ["one"] * 3
    assert decode.names == ["a.txt"]
    sample["b.txt"] = "set"
    sample.update({"c.txt": "new"})
    assert [sample["b.txt"], sample["c.txt"], sample.setdefault("d.txt", "d")] == ["set", "new", "d"]
    assert decode.names == ["a.txt"]


WHOLE = {
    "dict": dict,
    "**": lambda sample: dict(**sample),
    "{**}": lambda sample: {**sample},
    "items": lambda sample: dict(sample.items()),
    "values": lambda sample: dict(zip(sample, sample.values(), strict=True)),
    "iteration": lambda sample: {name: sample[name] for name in sample},
    "copy": lambda sample: sample.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda sample: pickle.loads(pickle.dumps(sample)),
    "|": lambda sample: sample | {},
    "{} |": lambda sample: {} | sample,
    "update": lambda sample: (found := {}, found.update(sample))[0],
    "pop": lambda sample: {name: sample.pop(name) for name in list(sample)},
    "popitem": lambda sample: dict(sample.popitem() for _ in list(sample)),
    "json": lambda sample: json.loads(json.dumps(sample)),
}


@pytest.mark.parametrize("way", WHOLE)
def test_whatever_takes_all_values_gets_decoded_ones(way, sample):
    found = WHOLE[way](sample)
    assert (found["a.txt"], found["b.txt"], found["__key__"]) == ("one", "two", "k")
    assert not isinstance(found, OnDemandSample)


def test_samples_are_equal_by_their_decoded_parts(sample):
    plain = dict(sample)
    assert sample == plain
    assert plain == sample
    assert sample != {**plain, "a.txt": "three"}


def test_a_part_that_cannot_be_decoded_fails_where_it_is_looked_at(decode):
    sample = OnDemandSample(PARTS, decode)
    assert sample["a.txt"] == "one"
    for look in (lambda: sample["broken"], lambda: sample.get("broken"), lambda: dict(sample), sample.items):
        with pytest.raises(DecodeError, match="sample k"):
            look()
    received = pickle.loads(pickle.dumps(sample))
    assert type(received) is CrudeSample
    assert received["b.txt"] == "two"
    with pytest.raises(DecodeError, match="part 'broken'"):
        received["broken"]


def cook_json(crude):
    return TextSample(**basic_sample_keys(crude), text=str(crude["json"]["number"]))


def encoder(cook, decoder=None):
    class Task(DefaultTaskEncoder):
        cookers = [Cooker(stateless(cook))]

    made = Task()
    if decoder is not None:
        made.decoder = decoder
    return made


def parts_of(number):
    """Parts of which only the JSON can be decoded, and that of sample 4 cannot."""
    return {
        "json": b"{" if number == 4 else json.dumps({"number": number}).encode(),
        "jpg": b"damaged",
        "pickle": pickle.dumps(number),
        "x.pyd.gz": b"not even gzip",
        "npy": b"not even an array",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crude") / "data"
    write_shards(folder, shards=1, samples_per_shard=SAMPLES, parts=parts_of)
    prepare_dataset(str(folder), split_ratio=(0, 1, 0), dataset_yaml=CRUDE_YAML)
    return folder


def cooked(folder, cook, failures=None, config=CONFIG, **options):
    if failures is not None:
        config = WorkerConfig(0, 1, 0, global_error_handler=lambda error, sample, _: failures.append(error))
    options = {"task_encoder": encoder(cook), "batch_size": None, "worker_config": config, **options}
    return list(get_val_dataset(str(folder), **options))


def test_parts_that_no_cooker_looks_at_are_not_decoded(folder):
    failures = []
    texts = [sample.text for sample in cooked(folder, cook_json, failures)]
    assert texts == ["0", "1", "2", "3", "5"]
    (failure,) = failures
    assert type(failure) is DecodeError
    assert "part 'json'" in failure.what
    assert failure.where.endswith("data: sample data-000000.tar/00000004")
    assert failure.__cause__ is not None


@pytest.mark.parametrize(("part", "error"), [("jpg", DecodeError), ("pickle", UntrustedPickleError)])
def test_the_error_of_a_part_names_it_and_the_sample(folder, part, error):
    failures = []
    with pytest.raises(FatalSampleError, match=f"all {SAMPLES} samples of the pass failed"):
        cooked(folder, lambda crude: crude[part], failures)
    assert len(failures) == SAMPLES
    assert {type(failure) for failure in failures} == {error}
    assert f"part '{part}'" in failures[3].what
    assert failures[3].where.endswith("data: sample data-000000.tar/00000003")


def test_taking_all_parts_leaves_untrusted_pickles_out(tmp_path):
    parts = {"json": b"{}", "pickle": pickle.dumps(1), "txt": b"a"}
    write_shards(tmp_path, shards=1, samples_per_shard=2, parts=lambda _: parts)
    prepare_dataset(str(tmp_path), split_ratio=(0, 1, 0), dataset_yaml=CRUDE_YAML)

    def cook(crude):
        assert "pickle" in crude
        assert "pickle" not in dict(crude)
        with pytest.raises(UntrustedPickleError, match="allow_pickle=True"):
            crude.get("pickle")
        return crude

    for sample in cooked(tmp_path, cook):
        assert type(sample) is CrudeSample  # decoded, and in need of no decoder
        assert (sample["json"], sample["txt"]) == ({}, "a")
        with pytest.raises(UntrustedPickleError, match="data-000000"):
            sample["pickle"]


def test_a_damaged_part_of_a_sample_that_a_cooker_passes_on_fails_in_the_cooker(folder):
    failures = []

    def passes_on(crude):
        del crude["npy"]
        if crude["__key__"].endswith("3"):
            del crude["jpg"]
        return crude

    (sample,) = cooked(folder, passes_on, failures)
    assert sample["json"] == {"number": 3}
    assert len(failures) == SAMPLES - 1


def test_without_cookers_all_parts_are_decoded_when_the_sample_is_read(folder):
    dataset = get_val_dataset(str(folder), batch_size=None, worker_config=CONFIG, parts=["json", "npy"])
    with pytest.raises(FatalSampleError, match=f"all {SAMPLES} samples of the pass failed"):
        list(dataset)


class Wrapping(FileStoreDecoder):
    """A user's own decoder, which knows nothing of refusals."""

    def decode(self, fname, data):
        if fname == "npy":
            raise ValueError("no array here")
        return bytes(data)


def test_a_decoder_of_the_users_own_is_asked_on_demand(folder):
    task = encoder(lambda crude: crude["json"], Wrapping())
    assert len(cooked(folder, None, task_encoder=task)) == SAMPLES


def test_a_sample_crosses_to_the_main_process_decoded(folder):
    class Holder(DefaultTaskEncoder):
        cookers = [Cooker(stateless(lambda crude: {**basic_sample_keys(crude), "crude": crude}))]

        @stateless
        def batch(self, samples):
            return samples

    config = WorkerConfig(0, 1, 1)
    dataset = get_val_dataset(str(folder), batch_size=2, worker_config=config, task_encoder=Holder())
    with get_savable_loader(dataset) as loader:
        first = next(iter(loader))[0]["crude"]
    assert type(first) is CrudeSample
    assert first["json"] == {"number": 0}
    with pytest.raises(DecodeError, match=r"part 'npy' .* \[.*data: sample data-000000\.tar/00000000\]"):
        first["npy"]


def test_joined_crude_samples_decode_on_demand(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "data")
    document = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {
            "val": {
                "join": [{"path": "data"}, {"path": "data"}],
                "joiner": {"__module__": __name__, "__function__": "both"},
            }
        },
    }
    (tmp_path / "join.yaml").write_bytes(dump_yaml(document))
    prepare_metadataset(str(tmp_path / "join.yaml"))
    found = cooked(tmp_path / "join.yaml", lambda crude: crude["text"], [], trust_dataset_code=True)
    assert found == ["0 0", "1 1", "2 2", "3 3", "5 5"]


def both(one, other):
    """The joiner of the test above."""
    return CrudeSample(__key__=one["__key__"], text=f"{one['json']['number']} {other['json']['number']}")
