"""Many local datasets and shards where a process may have few open files, which the kernel counts."""

import os
import resource
import shutil

import children
import pytest

from energon_stream import MapDataset, WorkerConfig, get_loader, get_savable_loader, get_train_dataset
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import StorageError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import LocalStore
from energon_stream.testing.datasets import TEXT_YAML, write_shards
from energon_stream.testing.operator_suite import NumbersDataset


def open_files(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))


def write(folder, shards):
    write_shards(folder, shards=shards, samples_per_shard=2, parts=lambda i: {"txt": b"%d" % i})
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)


def write_blend(folder, datasets):
    write(folder / "0", 1)
    for number in range(1, datasets):
        shutil.copytree(folder / "0", folder / str(number))
    blend = "".join(f"\n    - {{weight: 1, path: '{number}'}}" for number in range(datasets))
    text = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:"
    (folder / "mix.yaml").write_text(text + blend)
    return str(folder / "mix.yaml")


def read(path, limit, workers, batches):
    """Read some batches under a limit; return the most files of a process, and the datasets and shards."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    options = {"batch_size": 8, "shuffle_buffer_size": 2000, "max_samples_per_sequence": 100}
    dataset = get_train_dataset(path, worker_config=WorkerConfig(0, 1, workers), **options)
    seen, most = set(), 0
    with get_savable_loader(dataset) as loader:
        for number, batch in zip(range(batches), loader, strict=False):
            seen.update((each.dataset_path, each.index) for each in batch.__sources__)
            if number % 50 == 0:
                most = max(most, *map(open_files, ["self", *loader.worker_pids]))
    return most, len(seen)


@pytest.mark.every(2)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_blend_of_more_datasets_than_open_files(tmp_path, workers):
    most, seen = children.call(read, write_blend(tmp_path, 90), 64, workers, 60, timeout=120)
    assert most < 50
    assert seen > 120  # of 180 samples


def test_more_shards_than_open_files(tmp_path):
    write(tmp_path / "data", 120)
    most, seen = children.call(read, str(tmp_path / "data"), 64, 0, 30, timeout=120)
    assert most < 50
    assert seen == 240


def limit_of_a_worker():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    numbers = NumbersDataset(1, WorkerConfig(0, 1, 1))
    with get_loader(MapDataset(numbers, lambda _: resource.getrlimit(resource.RLIMIT_NOFILE))) as loader:
        return next(iter(loader)), resource.getrlimit(resource.RLIMIT_NOFILE), hard


def test_workers_have_as_many_files_as_the_system_allows():
    of_worker, of_main, hard = children.call(limit_of_a_worker)
    assert of_worker == (min(hard, 65_536), hard)
    assert of_main == (100, hard)  # the program's own


def look_up(folder, limit):
    """Read one file of each of many datasets by its name, twice; return the most open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    stores = [WebdatasetFileStore(str(path)) for path in sorted(folder.iterdir()) if path.is_dir()]
    for _ in range(2):
        assert {bytes(store["00000001.txt"][0]) for store in stores} == {b"1"}
    return len(stores), open_files()


def test_more_indices_than_open_files(tmp_path):
    write_blend(tmp_path, 150)
    datasets, most = children.call(look_up, tmp_path, 120, timeout=120)
    assert (datasets, most < 110) == (150, True)


@pytest.mark.slow
def test_two_thousand_datasets_and_ten_thousand_shards(tmp_path):
    most, _ = children.call(read, write_blend(tmp_path / "blend", 2000), 1024, 2, 1000, timeout=600)
    assert most < 100
    write(tmp_path / "data", 10_000)
    most, seen = children.call(read, str(tmp_path / "data"), 1024, 2, 2500, timeout=600)
    assert most < 100
    assert seen > 19_000


def test_a_process_without_descriptors_names_the_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        with pytest.raises(StorageError, match=r"Too many open files.*used up its 0 open files.*ulimit -n"):
            LocalStore(str(tmp_path)).get("a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert bytes(LocalStore(str(tmp_path)).get("a").data) == b"x"
