"""Processes without a home folder, without a working directory, or with a limit on the size of files."""

import os
import pwd
import resource
import shutil
import tempfile

import children
import pytest
from click.testing import CliRunner

from energon_stream import (
    CacheConfig,
    ShardWriter,
    WorkerConfig,
    compute_costs,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.cache.config import node_directory
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError, StorageError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML, write_shards


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """A process of a container whose user has no entry in /etc/passwd."""

    def unknown(user):
        raise KeyError(user)

    for name in ("HOME", "XDG_CACHE_HOME", "ENERGON_STREAM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places") / "texts"
    write_shards(folder, shards=2, samples_per_shard=2000, parts=lambda i: {"txt": b"%d" % i})
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    return str(folder)


def read(path, workers=0, **options):
    config = WorkerConfig(0, 1, workers)
    steps = {"batch_size": 4, "shuffle_buffer_size": 10, "max_samples_per_sequence": 10}
    dataset = get_train_dataset(path, worker_config=config, **steps)
    with get_savable_loader(dataset, **options) as loader:
        return [batch.__key__ for _, batch in zip(range(10), loader, strict=False)]


def test_without_a_home_folder(homeless, texts):
    assert node_directory() == os.path.join(tempfile.gettempdir(), f"energon_stream-{os.getuid()}")
    for use in (
        lambda: read("~/texts"),
        lambda: CacheConfig("~/cache"),
        lambda: ShardWriter("~/new"),
        lambda: prepare_dataset(texts, split_ratio=(1, 0, 0), force=True, tmp_path="~/tmp"),
        lambda: read(texts, run="~/run"),
    ):
        with pytest.raises(ConfigError, match=r"no home folder \[~/\w+\].*set HOME|Set HOME"):
            use()
    (homeless / "~folder").mkdir()  # as a tar of somebody may have
    with ShardWriter("~folder/new") as writer:
        writer.write({"__key__": "a", "txt": "b"})
    assert os.listdir(homeless) == ["~folder"]
    assert len(read(texts)) == 10


def without_a_working_directory(texts, folder):
    os.mkdir(folder)
    os.chdir(folder)
    os.rmdir(folder)
    hint = r"the working directory was removed \[\w*\].*(folder that exists)"
    for use in (
        lambda: read("texts"),
        lambda: ShardWriter("new"),
        lambda: prepare_dataset(texts, split_ratio=(1, 0, 0), force=True, tmp_path="tmp"),
        lambda: read(texts, run="run"),
        lambda: read(texts, workers=1, start_method="spawn"),
        lambda: read({"__module__": "megatron.energon", "__class__": "MetadatasetV2"}),
    ):
        with pytest.raises(ConfigError, match=hint):
            use()
    assert read(texts) == read(texts, workers=1)
    found = CliRunner().invoke(main, ["info", "texts"])
    assert (found.exit_code, "working directory was removed" in found.output) == (2, True)


def test_without_a_working_directory(texts, tmp_path):
    children.call(without_a_working_directory, texts, str(tmp_path / "gone"))


def with_small_files(texts, folder):
    most = 20_000
    expected = read(texts, workers=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert read(texts, workers=1) == expected  # without shared memory, which the limit holds for as well

    def write():
        with ShardWriter(f"{folder}/new") as writer:
            for number in range(1000):
                writer.write({"__key__": f"{number}", "txt": "x" * 100})

    for use in (
        write,
        lambda: prepare_dataset(texts, split_ratio=(1, 0, 0), force=True),
        lambda: compute_costs(texts, "ones", lambda sample: 1),
    ):
        with pytest.raises(StorageError, match=r"File too large.*ulimit -f"):
            use()
    assert read(texts) == expected


def test_with_a_limit_on_the_size_of_files(texts, tmp_path):
    children.call(with_small_files, texts, str(tmp_path))


def test_a_command_without_descriptors_names_the_limit(texts, tmp_path):
    folder = shutil.copytree(texts, tmp_path / "new")  # of which this process has no maps
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        found = CliRunner().invoke(main, ["info", str(folder)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.exit_code == 1
    assert "ulimit -n" in found.output
