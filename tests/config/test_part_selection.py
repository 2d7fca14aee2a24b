"""``parts=[...]``, wherever it may stand: what samples are made of, and what they name as their source."""

import json
import os

import pytest

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
    stateless,
)
from energon_stream.errors import ConfigError, FieldError, MetadataError
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.pipeline.failures import reraise_exception
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, write_shards

TYPED = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "txt,json[text]"},
}
ALL = {"bin", "txt", "json"}
FILTER = "def keep(part):\n    return part != 'bin'\n"


def parts(index):
    return {"bin": b"0" * 100, "txt": b"a text", "json": json.dumps({"text": "from json"}).encode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts") / "data"
    write_shards(folder, shards=1, samples_per_shard=4, parts=parts)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    meta = folder / ".nv-meta"
    (meta / "keep.py").write_text(FILTER)
    for name, changes in {
        "json": {**CRUDE_YAML, "parts": ["json"]},
        "filter": {**CRUDE_YAML, "part_filter": ["json", "txt"]},
        "code": {**CRUDE_YAML, "part_filter": "keep.py:keep"},
        "typed": TYPED,
        "typed_json": {**TYPED, "parts": ["json"]},
        "text": {**CRUDE_YAML, "parts": "json"},
    }.items():
        (meta / f"{name}.yaml").write_bytes(dump_yaml(changes))
    return folder


def first(path, config="dataset", handler=None, **changes):
    dataset = get_val_dataset(
        os.fspath(path),
        batch_size=None,
        split_part="train",
        worker_config=WorkerConfig(0, 1, 0, **({} if handler is None else {"global_error_handler": handler})),
        dataset_config=f"{config}.yaml",
        trust_dataset_code=True,
        **changes,
    )
    return next(iter(dataset))


def names(sample):
    found = {name for name in sample if not name.startswith("__")}
    files = sample["__sources__"][0].file_names
    assert list(files) == [f"00000000.{name}" for name in sample if not name.startswith("__")]
    return found


@pytest.mark.parametrize(
    ("config", "given", "left"),
    [
        ("dataset", None, ALL),
        ("dataset", ["json"], {"json"}),
        ("dataset", ("json", "bin"), {"json", "bin"}),
        ("dataset", ["jpg"], set()),
        ("dataset", [], set()),
        ("json", None, {"json"}),
        ("json", ["txt"], set()),
        ("filter", None, {"json", "txt"}),
        ("filter", ["txt", "bin"], {"txt"}),
        ("code", None, {"json", "txt"}),
        ("code", ["txt", "bin"], {"txt"}),
    ],
)
def test_crude_samples_have_the_parts_that_all_have_named(folder, config, given, left):
    assert names(first(folder, config, parts=given)) == left


def test_fields_come_from_the_parts_that_are_left(folder):
    whole = first(folder, "typed")
    assert (whole.text, whole.__sources__[0].file_names) == ("a text", ("00000000.txt", "00000000.json"))
    for sample in (first(folder, "typed_json"), first(folder, "typed", parts=["json"])):
        assert (sample.text, sample.__sources__[0].file_names) == ("from json", ("00000000.json",))


def test_a_field_without_its_parts_is_named_before_anything_is_read(folder):
    with pytest.raises(ConfigError, match=r"field 'text' comes from json or txt, but parts=\['jpg'\]"):
        first(folder, "typed", parts=["jpg"])


def test_a_field_of_a_part_that_a_sample_does_not_have_is_an_error(folder, tmp_path):
    write_shards(tmp_path, shards=1, samples_per_shard=1, parts=lambda index: {"bin": b"0"})
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml={**TYPED, "parts": ["txt"]})
    with pytest.raises(FieldError, match=r"field 'text' .*\(it has the parts bin\)"):
        first(tmp_path, handler=reraise_exception)


@pytest.mark.parametrize("wrong", ["json", [1], {"json": True}])
def test_parts_are_a_list_of_names(folder, wrong):
    with pytest.raises(ConfigError, match="parts is "):
        first(folder, parts=wrong)
    with pytest.raises(ConfigError, match=r"parts is 'json'.*text\.yaml"):
        first(folder, "text")


def test_metadatasets_name_parts_for_each_dataset(folder, tmp_path):
    def metadataset(**more):
        node = {"path": os.fspath(folder), **more}
        document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": node}}
        (tmp_path / "meta.yaml").write_bytes(dump_yaml(document))
        return tmp_path / "meta.yaml"

    assert names(first(metadataset(parts=["json", "txt"]))) == {"json", "txt"}
    assert names(first(metadataset(parts=["json", "txt"]), parts=["txt", "bin"])) == {"txt"}
    with pytest.raises(ConfigError, match=r"splits\.train"):
        first(metadataset(parts="json"))
    inner = metadataset().rename(tmp_path / "inner.yaml")
    with pytest.raises(MetadataError, match="'parts' cannot be set for a metadataset"):
        first(metadataset(path=os.fspath(inner), parts=["json"]))


def test_records_of_jsonl_have_one_part(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1}\n')
    prepare_jsonl(os.fspath(path))
    assert names_of(first(path, parts=["json"])) == {"json"}
    assert names_of(first(path, parts=["txt"])) == set()


def names_of(sample):
    return {name for name in sample if not name.startswith("__")}


def test_other_ways_to_open_a_dataset_take_parts_too(folder):
    config = WorkerConfig(0, 1, 0)
    loaded = load_dataset(os.fspath(folder)).get_datasets(training=True, worker_config=config, parts=["txt"])
    assert names_of(next(iter(loaded.datasets[0].dataset))) == {"txt"}
    train = get_train_dataset(
        os.fspath(folder),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=config,
        parts=["txt"],
    )
    assert names_of(next(iter(train))) == {"txt"}


@stateless
@cooker(parts=["json"])
def cook(sample):
    return {**basic_sample_keys(sample), "parts": names_of(sample)}


@stateless
def cook_all(sample):
    return {**basic_sample_keys(sample), "parts": names_of(sample)}


class Cooking(DefaultTaskEncoder):
    cookers = [Cooker(cook, {"of": "json"}), Cooker(cook_all)]


def test_a_cooker_says_which_parts_it_looks_at(folder, tmp_path):
    def of(subflavors, **changes):
        node = {"path": os.fspath(folder), "subflavors": subflavors}
        document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": node}}
        (tmp_path / "meta.yaml").write_bytes(dump_yaml(document))
        return first(tmp_path / "meta.yaml", task_encoder=Cooking(), **changes)["parts"]

    assert of({"of": "json"}) == {"json"}
    assert of({"of": "json"}, parts=["txt"]) == set()
    assert of({}) == ALL
    assert of({}, parts=["txt"]) == {"txt"}


def test_a_cooker_has_no_say_where_samples_are_loaded_without_it(folder):
    class OnlyJson(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

    config = WorkerConfig(0, 1, 0)
    loaded = load_dataset(os.fspath(folder)).get_datasets(
        training=True, worker_config=config, task_encoder=OnlyJson()
    )
    assert names_of(next(iter(loaded.datasets[0].dataset))) == ALL
