"""Single answers with wrong bytes: zeros, shifted ones, too few. What ``tarfile`` reads is the truth."""

import json
import tarfile

import pytest
from told import told

from energon_stream import (
    CacheConfig,
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energon_stream.errors import DatasetError
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards
from energon_stream.testing.s3server import Rule

SHARDS, PER_SHARD = 3, 12
WRONG = ("zeros", "shifted", "short")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "data"
    write_shards(
        folder,
        shards=SHARDS,
        samples_per_shard=PER_SHARD,
        parts=lambda index: {"bin": random_bytes(3_000, index), "txt": b"%d" % index},
    )
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return folder


def members_of(folder):
    members = {}
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, part = member.name.partition(".")
                members.setdefault(key, {})[part] = tar.extractfile(member).read()
    return members


@pytest.fixture(scope="module")
def truth(folder):
    return members_of(folder)


@pytest.fixture
def url(folder, s3_server, tmp_bucket):
    s3_server.upload_folder(folder, f"{tmp_bucket}/data")
    return f"{tmp_bucket}/data"


class Raw(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return samples


def read(server, url, transport="auto", **changes):
    dataset = get_train_dataset(
        url,
        task_encoder=Raw(),
        storage_options=server.storage_options,
        transport=transport,
        **{
            "worker_config": WorkerConfig(0, 1, 0),
            "batch_size": 4,
            "shuffle_buffer_size": None,
            "max_samples_per_sequence": 4,
            "repeat": False,
            **changes,
        },
    )
    found = {}
    for batch in get_loader(dataset):
        for sample in batch:
            values = {name: value for name, value in sample.items() if not name.startswith("__")}
            values = {name: bytes(value) if name != "json" else value for name, value in values.items()}
            assert found.setdefault(sample["__key__"].rpartition("/")[2], values) is values
    return found


WAYS = {
    "whole": {},
    "parts": {"parts": ["txt"], "read_options": ReadOptions(max_gap=0)},
    "large": {"read_options": ReadOptions(byte_budget=2_000)},
    "tars": {"sample_type": "CrudeSample"},
}


@pytest.mark.every(7)
@pytest.mark.parametrize("transport", ["obstore", "fsspec"])
@pytest.mark.parametrize("action", WRONG)
@pytest.mark.parametrize("way", WAYS)
def test_one_wrong_answer_is_asked_for_again(s3_server, url, truth, caplog, transport, action, way):
    expected = {key: {"txt": parts["txt"]} if way == "parts" else parts for key, parts in truth.items()}
    path = f"{url}/data-{{000000..{SHARDS - 1:06}}}.tar" if way == "tars" else url
    if way == "tars":
        assert read(s3_server, path, transport, **WAYS[way]) == expected  # and keep the indices
    s3_server.add_rule(Rule(action, pattern="*.tar", method="GET", times=1))
    assert read(s3_server, path, transport, **WAYS[way]) == expected
    assert s3_server.counters().faults[action] == 1
    assert action == "short" or "requested again" in caplog.text


@pytest.mark.every(7)
@pytest.mark.parametrize("action", WRONG)
@pytest.mark.parametrize("pattern", ["*.tar", "*.tar.idx", "*.json", "*.yaml", "*.sqlite"])
@pytest.mark.parametrize("way", ["whole", "parts"])
def test_no_wrong_answer_stays_in_the_cache(s3_server, url, truth, tmp_path, caplog, action, pattern, way):
    expected = {key: {"txt": parts["txt"]} if way == "parts" else parts for key, parts in truth.items()}
    cache = CacheConfig(str(tmp_path / "cache"), "100MB", min_free_bytes=0)
    s3_server.add_rule(Rule(action, pattern=pattern, method="GET", times=1))
    assert read(s3_server, url, cache=cache, **WAYS[way]) == expected
    caplog.clear()
    assert read(s3_server, url, cache=cache, **WAYS[way]) == expected
    assert not told(caplog)  # such as that whole samples are read, because the index cannot be used


@pytest.mark.every(7)
@pytest.mark.parametrize("action", WRONG)
@pytest.mark.parametrize("pattern", ["*/mix.yaml", "*.jsonl", "*.jsonl.idx"])
@pytest.mark.parametrize("workers", [0, 1])
def test_mixtures_with_lines_of_json(s3_server, url, truth, tmp_path, action, pattern, workers):
    lines = {str(number): {"json": json.dumps({"n": "x" * number})} for number in range(40)}
    (tmp_path / "lines.jsonl").write_text("".join(f"{line['json']}\n" for line in lines.values()))
    prepare_jsonl(str(tmp_path / "lines.jsonl"))
    (tmp_path / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend_epochized:\n"
        "      - path: data\n      - path: lines.jsonl\n"
    )
    folder = url.removesuffix("/data")
    for name in ("lines.jsonl", "lines.jsonl.idx", "mix.yaml"):
        s3_server.put(f"{folder}/{name}", (tmp_path / name).read_bytes())
    cache = CacheConfig(str(tmp_path / "cache"), "100MB", min_free_bytes=0)
    s3_server.add_rule(Rule(action, pattern=pattern, method="GET", times=1))
    for _ in range(2):
        found = read(s3_server, f"{folder}/mix.yaml", cache=cache, worker_config=WorkerConfig(0, 1, workers))
        for key, parts in lines.items():
            assert found.pop(key) == {"json": json.loads(parts["json"])}
        assert found == truth
    assert s3_server.counters().faults[action] == 1


@pytest.mark.every(3)
@pytest.mark.parametrize("action", ["zeros", "shifted"])
@pytest.mark.parametrize("pattern", ["*.tar", "*.yaml"])
def test_wrong_answers_that_last_are_an_error_until_they_end(
    s3_server, url, truth, tmp_path, action, pattern
):
    cache = CacheConfig(str(tmp_path / "cache"), "100MB", min_free_bytes=0)
    s3_server.add_rule(Rule(action, pattern=pattern, method="GET"))
    for _ in range(2):
        with pytest.raises(DatasetError, match=r"data-00000.\.tar|yaml") as caught:
            read(s3_server, url, cache=cache)
        assert tmp_path.name not in str(caught.value)
    s3_server.clear_rules()
    assert read(s3_server, url, cache=cache) == truth


def test_shards_that_were_replaced_are_not_read_from_the_cache(s3_server, url, folder, tmp_path):
    """Under the same keys, and prepared again: other samples of the same sizes."""
    cache = CacheConfig(str(tmp_path / "cache"), "100MB", min_free_bytes=0)
    before = read(s3_server, url, cache=cache)
    write_shards(
        tmp_path / "data",
        shards=SHARDS,
        samples_per_shard=PER_SHARD,
        parts=lambda index: {"bin": random_bytes(3_000, index + 1_000), "txt": b"%d" % (99 - index)},
    )
    prepare_dataset(str(tmp_path / "data"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    s3_server.upload_folder(tmp_path / "data", url)
    after = read(s3_server, url, cache=cache)
    assert after == members_of(tmp_path / "data") != before


@pytest.mark.every(5)
@pytest.mark.parametrize("action", WRONG)
@pytest.mark.parametrize("at", range(4))
def test_preparing_survives_a_wrong_answer(s3_server, folder, tmp_bucket, truth, action, at):
    """Zeros look like the end of a tar."""
    options = s3_server.storage_options
    for path in folder.glob("*.tar"):
        s3_server.put(f"{tmp_bucket}/new/{path.name}", path.read_bytes())
    # The first requests are sound.
    s3_server.add_rule(Rule("delay", pattern="*.tar", method="GET", times=at))
    s3_server.add_rule(Rule(action, pattern="*.tar", method="GET", times=1))
    arguments = {"split_ratio": (1, 0, 0), "dataset_yaml": CRUDE_YAML, "storage_options": options}
    prepare_dataset(f"{tmp_bucket}/new", workers=1, **arguments)
    assert read(s3_server, f"{tmp_bucket}/new") == truth
