"""Seed 000, quickstart: items 1 to 12 of the acceptance list."""

import ast
import shutil
from itertools import islice
from pathlib import Path

import pytest
import quickstart
import torch
from acceptance_helpers import SHUFFLED, assert_share, source
from click.testing import CliRunner

from energon_stream import CaptioningSample, WorkerConfig, get_loader, get_train_dataset, get_val_dataset
from energon_stream.cli.main import main
from energon_stream.integrations.megatron import install_alias, uninstall_alias
from energon_stream.testing.datasets import captioning_dataset
from energon_stream.testing.operator_suite import assert_equal_values


@pytest.mark.parametrize("caption", ["txt", "json[caption]"])
def test_item_01_prepare_with_the_pages_answers(tmp_path, monkeypatch, caption):
    captioning_dataset(tmp_path, shards=10, samples_per_shard=2, with_json=True)
    monkeypatch.chdir(tmp_path)
    answers = f"8,1,1\nCaptioningWebdataset\nYes\njpg\n{caption}\n"
    result = CliRunner().invoke(main, ["prepare", "./"], input=answers)
    assert result.exit_code == 0, result.output
    names = {path.name for path in (tmp_path / ".nv-meta").iterdir()}
    assert {"dataset.yaml", "split.yaml", "index.sqlite"} < names
    assert names & {".info.json", ".info.yaml"}
    assert len(list(tmp_path.glob("*.tar.idx"))) == 10
    assert quickstart.first(tmp_path, 2).caption[0].startswith("caption ")


def test_item_02_endless_batches(data):
    ds = get_train_dataset(
        str(data / "coco"),
        batch_size=1,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig.default_worker_config(),
    )
    loader = get_loader(ds)
    keys = [batch.__key__[0] for batch in islice(loader, 200)]
    assert len(keys) == 200
    assert len(set(keys)) == 80  # the shards of the train split, more than once


@pytest.mark.parametrize("left_out", SHUFFLED)
def test_item_03_shuffling_must_be_said_under_the_alias(data, left_out):
    given = {name: value for name, value in SHUFFLED.items() if name != left_out}
    install_alias()
    try:
        from megatron.energon import get_train_dataset as their_get_train_dataset

        with pytest.raises(TypeError, match=left_out):
            their_get_train_dataset(str(data / "coco"), batch_size=1, **given)
    finally:
        uninstall_alias()
    found = get_train_dataset(str(data / "coco"), batch_size=1, **given)  # elsewhere it has a default
    assert next(iter(get_loader(found))).__key__


def test_item_04_the_default_worker_config():
    config = WorkerConfig.default_worker_config()
    assert (config.rank, config.world_size, config.num_workers) == (0, 1, 4)


def test_item_05_one_sample(data, capsys):
    sample = quickstart.first(str(data / "coco"), None)
    assert type(sample) is CaptioningSample
    assert sample.image.shape == (3, 12, 16)
    assert sample.image.dtype == torch.float32
    assert 0 <= sample.image.min() <= sample.image.max() <= 1
    assert (type(sample.caption), type(sample.__key__)) == (str, str)
    printed = capsys.readouterr().out
    assert printed.startswith(f"CaptioningSample(__key__='{sample.__key__}'")
    assert f"caption='{sample.caption}'" in printed


def test_item_06_a_batch_of_two(data):
    batch = quickstart.first(str(data / "coco"), 2)
    assert batch.image.shape == (2, 3, 12, 16)
    assert [type(key) for key in batch.__key__] == [str, str]
    assert [type(caption) for caption in batch.caption] == [str, str]


def test_item_07_unequal_images_are_padded_with_zeros(data, in_process):
    ds = get_train_dataset(str(data / "unequal"), batch_size=12, worker_config=in_process, **SHUFFLED)
    batch = next(iter(get_loader(ds)))
    assert batch.image.shape == (12, 3, 8, 12)
    for image, caption in zip(batch.image, batch.caption, strict=True):
        number = int(caption.split()[1])
        height, width = 4 + 4 * (number % 2), 4 + 4 * (number % 3)
        assert (image[:, :height, :width] == 1).all()
        assert image.sum() == 3 * height * width


@pytest.fixture(scope="module")
def blend(data):
    """The page's metadataset, beside its datasets."""
    return shutil.copy(Path(quickstart.__file__).with_name("coyo-coco-dataset.yaml"), data)


def test_item_08_a_metadataset_has_its_weights_and_splits(blend, in_process):
    loader = get_loader(
        get_train_dataset(
            blend,
            batch_size=4,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=WorkerConfig.default_worker_config(),
        )
    )
    with loader:
        keys = [key for batch in islice(loader, 250) for key in batch.__key__]
    assert_share(sum(source(key) == "coco" for key in keys), 5 / 7, 1000)
    for split, name, shard in (("val", "coco", "008"), ("test", "coyo", "009")):
        ds = get_val_dataset(blend, batch_size=4, split_part=split, worker_config=in_process)
        found = [key for batch in ds for key in batch.__key__]
        assert len(found) == 10
        assert all(key.startswith(f"{name}-{shard}.tar/") for key in found)


@pytest.mark.parametrize("workers", [0, 2])
def test_item_09_the_same_from_s3(data, blend, s3_server, tmp_bucket, workers):
    for name in ("coco", "coyo"):
        s3_server.upload_folder(data / name, f"{tmp_bucket}/lake/{name}")
    remote = f"{tmp_bucket}/lake/coyo-coco-dataset.yaml"
    s3_server.put(remote, Path(blend).read_bytes())
    sequences = []
    for path, options in ((blend, None), (remote, s3_server.storage_options)):
        config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
        ds = get_train_dataset(path, batch_size=4, worker_config=config, storage_options=options, **SHUFFLED)
        with get_loader(ds) as loader:
            sequences.append([batch.__key__ for batch in islice(loader, 60)])
    assert sequences[0] == sequences[1]


def test_item_10_ranks_see_disjoint_data(data):
    seen = []
    for rank in range(2):
        loader = quickstart.distributed(str(data / "coco"), rank, world_size=2)
        seen.append({key for batch in islice(loader, 20) for key in batch.__key__})
        loader.close()
    assert len(seen[0]) == len(seen[1]) == 40
    assert not seen[0] & seen[1]


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_item_11_a_restored_loader_goes_on_identically(data, workers):
    loader, restored = quickstart.save_and_restore(str(data / "coco"), workers)
    with loader, restored:
        for expected, batch in islice(zip(loader, restored, strict=False), 30):
            assert_equal_values(batch, expected)


def test_item_12_states_are_plain_values(data):
    with quickstart.savable(str(data / "coco"), 0) as loader:
        list(islice(loader, 10))
        state = loader.save_state_rank()
    assert ast.literal_eval(repr(state)) == state


def test_the_example_runs(data, capsys):
    quickstart.main(str(data / "coco"))
    assert "restored as without restoring: True" in capsys.readouterr().out
