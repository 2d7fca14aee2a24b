"""Seed 001, metadatasets: items 13 to 22 of the acceptance list."""

import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import metadataset
import pytest
from acceptance_helpers import SHUFFLED, assert_share, source

import energon_stream
from energon_stream import (
    BlendDataset,
    DatasetLoader,
    DefaultTaskEncoder,
    EpochizeDataset,
    MetadatasetV2,
    RepeatDataset,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
)

IN_PROCESS = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture(scope="module")
def demo(data):
    """The page's simple file, beside its datasets."""
    return shutil.copy(Path(metadataset.HERE, "demo-metadataset.yaml"), data)


@pytest.fixture(scope="module")
def advanced(data):
    """The page's file with all keys."""
    return shutil.copy(Path(metadataset.HERE, "advanced-metadataset.yaml"), data)


def test_item_13_without_a_worker_config(demo):
    ds = get_train_dataset(
        demo,
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
    )
    assert ds.worker_config == WorkerConfig.default_worker_config()


def test_item_14_iterating_the_dataset_itself(demo):
    batches = []
    for batch in get_train_dataset(demo, batch_size=4, **SHUFFLED):
        batches.append(batch)
        if len(batches) == 3:
            break
    assert [len(batch.caption) for batch in batches] == [4, 4, 4]
    in_process = get_train_dataset(demo, batch_size=4, worker_config=IN_PROCESS, **SHUFFLED)
    expected = [batch.__key__ for batch in islice(get_loader(in_process), 3)]
    assert [batch.__key__ for batch in islice(in_process, 3)] == expected


def test_item_15_two_entries_of_one_path_count_both(demo):
    ds = get_train_dataset(demo, batch_size=None, worker_config=IN_PROCESS, **SHUFFLED)
    assert_share(sum(source(sample.__key__) == "coyo" for sample in islice(ds, 800)), 3 / 8, 800)


def samples_of(advanced):
    with pytest.warns(FutureWarning, match="subflavor: is deprecated"):
        ds = get_train_dataset(advanced, batch_size=None, worker_config=IN_PROCESS, **SHUFFLED)
    return list(islice(ds, 400))


def test_item_16_a_single_subflavor_is_kept(advanced):
    for sample in samples_of(advanced):
        assert sample.__subflavors__.get("__subflavor__") == (
            "small_images" if source(sample.__key__) == "coco" else None
        )


def test_item_17_subflavors_of_each_entry(advanced):
    seen = Counter(
        (sample.__key__[:4], sample.__subflavors__["augmentation_type"], sample.__subflavors__["text_length"])
        for sample in samples_of(advanced)
    )
    assert set(seen) == {
        ("coco", "small_images", "short"),
        ("coyo", "large_images", "short"),
        ("coyo", "large_images", "long"),
    }
    assert_share(seen["coco", "small_images", "short"], 5 / 8, 400)


def test_item_18_split_parts_of_each_entry(advanced):
    for sample in samples_of(advanced):
        if source(sample.__key__) == "coyo":
            in_val = sample.__key__.startswith("coyo-008")
            assert sample.__subflavors__["text_length"] == ("long" if in_val else "short")


@pytest.mark.parametrize("workers", [0, 2])
def test_item_19_validation_is_concatenated_and_passed_once(demo, workers):
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    with get_loader(get_val_dataset(demo, batch_size=None, worker_config=config)) as loader:
        passes = [[sample.__key__ for sample in loader] for _ in range(2)]
    assert passes[0] == passes[1]
    assert len(set(passes[0])) == len(passes[0]) == 20
    assert {key.split("/")[0] for key in passes[0]} == {"coco-008.tar", "coyo-008.tar"}
    if workers == 0:
        assert passes[0] == sorted(passes[0])


class VersionSeven(DefaultTaskEncoder):
    """The signature of version 7."""

    def build_train_datasets(
        self,
        *,
        datasets,
        worker_config,
        batch_size,
        batch_drop_last=False,
        packing_buffer_size=None,
        virtual_epoch_length=0,
        shuffle_buffer_size=None,
        blend_mode,
        repeat=True,
    ):
        assert [entry.weight / datasets[-1].weight for entry in datasets] == [5, 2, 1]
        assert [(entry.repetitions, entry.subflavors) for entry in datasets] == [(None, {})] * 3
        dataset = BlendDataset(
            *((entry.dataset, entry.weight) for entry in datasets), worker_config=worker_config
        )
        dataset = self.build_batch(
            dataset,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            worker_config=worker_config,
        )
        return EpochizeDataset(dataset, length=virtual_epoch_length, worker_config=worker_config)


class ThePage(DefaultTaskEncoder):
    """The page's literal method: pairs of dataset and weight, neither packing nor shuffling."""

    def build_train_datasets(
        self,
        *,
        datasets: list,
        worker_config: WorkerConfig,
        batch_size: int,
        batch_drop_last: bool,
        virtual_epoch_length: int = 0,
    ):
        dataset = BlendDataset(
            *datasets,
            worker_config=worker_config,
        )
        dataset = self.build_batch(
            dataset,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            worker_config=worker_config,
        )
        if virtual_epoch_length > 0:
            dataset = EpochizeDataset(
                dataset,
                length=virtual_epoch_length,
                worker_config=worker_config,
            )
        return dataset


class BuildsEach(DefaultTaskEncoder):
    """The same as programs of version 7 write it: each dataset is built, repeated and cooked on its own."""

    def build_train_datasets(self, *, datasets, worker_config, batch_size, virtual_epoch_length=0, **options):
        each, offset = [], 0
        for loaded in datasets:
            dataset = loaded.dataset.build(worker_rotation_offset=offset)
            offset += len(dataset)
            dataset = RepeatDataset(dataset, worker_config=worker_config)
            dataset = self.build_cook_crude_sample(
                dataset,
                worker_config=worker_config,
                subflavors=loaded.dataset.subflavors,
                get_primary_aux=loaded.dataset.as_file_store,
                aux=loaded.aux,
            )
            each.append((self.build_encode_sample(dataset, worker_config=worker_config), loaded.weight))
        dataset = BlendDataset(*each, worker_config=worker_config)
        dataset = self.build_batch(dataset, batch_size=batch_size, worker_config=worker_config)
        return EpochizeDataset(dataset, virtual_epoch_length, worker_config)


@pytest.mark.parametrize(
    "encoder", [VersionSeven, ThePage, BuildsEach], ids=["item_20", "item_21", "item_20_built"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_items_20_and_21_customized_blending(demo, encoder, workers):
    ds = get_train_dataset(
        demo,
        batch_size=4,
        virtual_epoch_length=50,
        task_encoder=encoder(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        **SHUFFLED,
    )
    with get_loader(ds) as loader:
        epochs = [list(loader) for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [50, 50]
    keys = [key for epoch in epochs for batch in epoch for key in batch.__key__]
    assert_share(sum(source(key) == "coco" for key in keys), 5 / 8, len(keys))


def test_item_22_the_loader_classes(data, demo):
    loader = load_dataset(demo)
    assert isinstance(loader, MetadatasetV2)
    assert isinstance(loader, energon_stream.DatasetLoaderInterface)
    assert isinstance(load_dataset(str(data / "coco")), DatasetLoader)


@pytest.mark.filterwarnings("ignore:subflavor")
def test_the_example_runs(data, tmp_path, capsys):
    for name in ("coco", "coyo"):
        (tmp_path / name).symlink_to(data / name)
    metadataset.main(str(tmp_path))
    printed = capsys.readouterr().out
    assert printed.count("a batch of") == 3
    assert "validation: 10 samples" in printed
