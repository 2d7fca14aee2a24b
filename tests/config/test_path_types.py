"""Paths as text, as pathlib.Path, and as another os.PathLike: every public function takes all three alike."""

import inspect
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import energon_stream
from energon_stream import ShardWriter, WorkerConfig
from energon_stream.auxiliary import SystemFileStore, WebdatasetFileStore
from energon_stream.cache import CacheConfig
from energon_stream.errors import ConfigError
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import TEXT_YAML, prepared_text_dataset

ONE = WorkerConfig(0, 1, 0)
# Parameters that are names or numbers within a dataset, and no places.
NO_PLACES = {
    *(
        "table",
        "allow_urls",
        "tables",
        "dataset_yaml",
        "dataset_config",
        "file_names",
        "dry_run",
        "dotted_keys",
        "cached_bytes",
    ),
    *(
        "index",
        "index_requests",
        "index_bytes",
        "dataset_path",
        "worker_debug_path",
        "profile",
        "table_bytes",
    ),
}


class Place:
    """A path as other packages have it."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path

    def __repr__(self):
        return f"Place({self.path!r})"


def loaded(dataset, **options):
    return [key for batch in energon_stream.get_savable_loader(dataset, **options) for key in batch.__key__]


def opened(function):
    options = {"batch_size": 4, "worker_config": ONE}
    if function != "get_train_dataset":
        return lambda p: loaded(getattr(energon_stream, function)(p("texts"), split_part="train", **options))
    options |= {"repeat": False, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return lambda p: loaded(energon_stream.get_train_dataset(p("texts"), **options))


def with_costs(p):
    report = energon_stream.compute_costs(p("texts"), "length", values=range(12))
    return report.total, energon_stream.read_costs(p("texts"), "length").tolist()


def with_tables(p):
    energon_stream.add_table(p("texts"), p("rows.parquet"), name="n")
    listed = [table.name for table in energon_stream.list_tables(p("texts"))]
    energon_stream.remove_table(p("texts"), "n")
    return listed


def with_run(p):
    dataset = energon_stream.get_train_dataset(p("texts"), batch_size=4, worker_config=ONE)
    loader = energon_stream.get_savable_loader(dataset, run=p("run"))
    batch = next(iter(loader))
    loader.close()
    (step,) = energon_stream.open_run(p("run")).which(0)
    return batch.__key__, len(step.samples)


def with_bad_samples(p):
    energon_stream.write_bad_samples(p("bad.jsonl"), [])
    return list(energon_stream.read_bad_samples(p("bad.jsonl")))


def written(p):
    with energon_stream.ShardWriter(p("new")) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    return energon_stream.finish_dataset(p("new"))


def warmed(p):
    with pytest.raises(ConfigError, match="local paths never are") as caught:
        energon_stream.prewarm(p("texts"), steps=1, batch_size=2, dry_run=True)
    return str(caught.value)


WAYS = {
    "get_train_dataset": opened("get_train_dataset"),
    "get_val_dataset": opened("get_val_dataset"),
    "get_val_datasets": lambda p: len(
        energon_stream.get_val_datasets(p("texts"), split_part="train", batch_size=4, worker_config=ONE)
    ),
    "load_dataset": lambda p: energon_stream.load_dataset(p("texts")) is not None,
    "traverse_metadataset": lambda p: len(
        list(energon_stream.traverse_metadataset(p("mix.yaml"), split_part="train"))
    ),
    "prepare_metadataset": lambda p: energon_stream.prepare_metadataset(p("mix.yaml")),
    "compute_costs": with_costs,
    "add_table": with_tables,
    "open_run": with_run,
    "read_bad_samples": with_bad_samples,
    "finish_dataset": written,
    "convert_dataset": lambda p: energon_stream.convert_dataset(p("rows.parquet"), p("new")).samples,
    "repair_dataset": lambda p: energon_stream.repair_dataset(p("texts"), p("new")).samples,
    "diagnose": lambda p: len(energon_stream.diagnose(p("texts"), seconds=0.01).findings) > 0,
    "lint_dataset": lambda p: energon_stream.lint_dataset(p("texts"), decode=False).samples,
    "map_shards": lambda p: len(list(energon_stream.map_shards(p("texts"), len_of))),
    "merge_datasets": lambda p: energon_stream.merge_datasets([p("texts"), p("more")], p("new")),
    "split_dataset": lambda p: energon_stream.split_dataset(
        p("texts"), {"a": p("new"), "b": p("new2")}, ratio={"a": 1, "b": 1}
    ),
    "sample_dataset": lambda p: energon_stream.sample_dataset(p("texts"), p("new"), count=3),
    "prewarm": warmed,
    "StoreSpec": lambda p: len(list(StoreSpec(p("texts")).open().list())) > 0,
    "CacheConfig": lambda p: CacheConfig(p("cache")).directory,
    "FileStoreCachePool": lambda p: energon_stream.FileStoreCachePool(p("cache")).close(),
    "SystemFileStore": lambda p: bytes(SystemFileStore(p("texts"))["data-000000.tar"][0][:4]),
    "WebdatasetFileStore": lambda p: WebdatasetFileStore(p("texts"))["00000000.txt"],
}


def len_of(shard):
    return 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What tests copy."""
    folder = tmp_path_factory.mktemp("places")
    prepared_text_dataset(folder / "texts", shards=2, samples_per_shard=6)
    with ShardWriter(folder / "more", dataset_yaml=TEXT_YAML) as writer:
        writer.write({"__key__": "another", "txt": "more"})
    (folder / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\n"
        "splits:\n  train:\n    blend:\n      - {weight: 1, path: texts}\n"
    )
    pq.write_table(
        pa.table({"__key__": [f"{n:08d}" for n in range(12)], "n": range(12)}), folder / "rows.parquet"
    )
    return folder


@pytest.mark.parametrize("name", WAYS)
def test_text_path_and_others_are_alike(folder, name, tmp_path):
    def result(kind, number):
        place = tmp_path / str(number)
        shutil.copytree(folder, place)
        return repr(WAYS[name](lambda relative: kind(str(place / relative)))).replace(str(place), "")

    text, *others = (result(kind, number) for number, kind in enumerate((str, Path, Place)))
    assert others == [text, text]


def test_every_public_function_with_a_place_takes_paths():
    """A parameter that is a place says in its annotation that it takes paths."""
    place = ("path", "url", "source", "target", "root", "directory")
    missing = []
    for name in energon_stream.__all__:
        function = getattr(energon_stream, name)
        if not inspect.isfunction(function):
            continue
        for parameter in inspect.signature(function).parameters.values():
            if (
                parameter.name in NO_PLACES
                or parameter.annotation == "Any"
                or not parameter.name.rstrip("s").endswith(place)
            ):
                continue
            if "PathLike" not in str(parameter.annotation) and "PathOption" not in str(parameter.annotation):
                missing.append(f"{name}({parameter})")
    assert not missing


@pytest.mark.parametrize("wrong", [None, 7, ["a"], {"path": "a"}])
def test_what_is_no_path_is_named(wrong):
    with pytest.raises(ConfigError, match="is text or a path, not"):
        StoreSpec(wrong)
