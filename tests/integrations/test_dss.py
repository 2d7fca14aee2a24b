"""Datasets of the node by name and version, wherever a path is accepted."""

import children
import pytest

MIX = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    path: dss://coco@v1
    aux:
      files: filesystem+dss://coco@v1/.nv-meta
      samples: dss://coco@v1
"""


@pytest.fixture
def node(data, tmp_path, monkeypatch):
    """The folder of a node's datasets, with ``coco`` of version ``v1``."""
    (tmp_path / "coco").mkdir()
    (tmp_path / "coco" / "v1").symlink_to(data / "coco")
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
    return tmp_path


def config():
    from megatron.energon import WorkerConfig

    return WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.mark.energon("dss://name@version/path")
def test_a_dataset(alias, node):
    from megatron.energon import get_loader, get_val_dataset

    dataset = get_val_dataset("dss://coco@v1", batch_size=2, worker_config=config())
    batch = next(iter(get_loader(dataset)))
    assert len(batch.caption) == 2
    origins = {str(source.dataset_path) for sources in batch.__sources__ for source in sources}
    assert origins == {"dss://coco@v1"}


@pytest.mark.energon("dss://name@version/path", "filesystem+dss://name@version/path")
def test_a_metadataset(alias, node):
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        get_train_dataset,
        stateless,
        traverse_metadataset,
    )

    (node / "mix.yaml").write_text(MIX)
    (found,) = traverse_metadataset(node / "mix.yaml", split_part="train")
    assert str(found.path) == "dss://coco@v1"
    (node / "mixes").mkdir()
    (node / "mixes" / "v2").mkdir()
    (node / "mixes" / "v2" / "mix.yaml").write_text(MIX.replace("dss://coco@v1/.nv-meta", "dss://coco@v1"))

    @stateless
    def cook(sample, files, samples):
        raise AssertionError("the samples are not crude")

    class Task(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

    options = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    for path in (node / "mix.yaml", "dss://mixes@v2/mix.yaml"):
        dataset = get_train_dataset(path, **options, worker_config=config(), task_encoder=Task())
        assert len(next(iter(dataset)).caption) == 2


@pytest.mark.energon("dss://name@version/path")
def test_file_stores(alias, node):
    from megatron.energon import SystemFileStore

    store = SystemFileStore("dss://coco@v1/.nv-meta")
    assert b"sample_type" in store.get("dataset.yaml")
    assert store.get_path() == "dss://coco@v1/.nv-meta"


@pytest.mark.energon("dss://name@version/path")
def test_commands(node):
    command = "from energon_stream.cli.main import main; main()"
    assert "50" in children.run("-c", command, "info", "dss://coco@v1", check=True).stdout
    assert children.run("-c", command, "lint", "dss://coco@v1").returncode == 0
