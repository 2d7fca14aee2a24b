"""Methods of 7.4.1's public classes that programs call beside the ways that the pages show."""

import json

import pytest
import torch

from energon_stream import (
    BlendDataset,
    ConcatDataset,
    Cooker,
    DatasetLoader,
    EpochizeDataset,
    Lazy,
    LimitDataset,
    MetadatasetV2,
    NoCachePool,
    RepeatDataset,
    WorkerConfig,
    batch_list,
    cooker,
    generic_concat,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    load_dataset,
    reraise_exception,
)
from energon_stream.compat.dataset_classes import (
    JoinedWebdatasetFactory,
)
from energon_stream.errors import ConfigError, EmptyStreamError
from energon_stream.testing.datasets import prepared_captioning_dataset
from energon_stream.testing.operator_suite import NumbersDataset

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    """A prepared dataset of 20 samples in 10 shards, split 8,1,1."""
    folder = tmp_path_factory.mktemp("captions") / "data"
    prepared_captioning_dataset(folder, shards=10, samples_per_shard=2)
    return folder


@pytest.fixture(scope="module")
def metadataset(captions):
    """A metadataset with a join."""
    path = captions.parent / "joined.yaml"
    joined = {"join": [{"path": "./data"}, {"path": "./data"}], "joiner": {"__module__": "energon_stream"}}
    joined["joiner"]["__class__"] = "CaptioningSample"
    splits = {"train": joined}
    path.write_text(
        json.dumps({"__module__": "energon_stream", "__class__": "MetadatasetV2", "splits": splits})
    )
    return path


def train(path, **options):
    shuffling = {"shuffle_buffer_size": 4, "max_samples_per_sequence": None}
    return get_train_dataset(path, batch_size=2, worker_config=CONFIG, **shuffling, **options)


@pytest.mark.energon("SavableDataset.restore_sample", "SavableDataset.can_restore_sample")
def test_a_dataset_makes_a_sample_again(captions):
    dataset = train(captions)
    batch = next(iter(get_savable_loader(dataset)))
    again = dataset.restore_sample(batch.__restore_key__)
    assert (again.caption, again.__restore_key__) == (batch.caption, batch.__restore_key__)
    with pytest.raises(ConfigError, match="is not a restore key"):
        dataset.restore_sample(("Batch", 0, ()))


@pytest.mark.energon(
    "SavableDataset.worker_has_samples", "SavableDataset.len_worker", "SavableDataset.len_rank"
)
def test_lengths_of_workers(captions):
    config = WorkerConfig(rank=0, world_size=1, num_workers=3)
    dataset = load_dataset(captions).get_datasets(training=False, split_part="val", worker_config=config)
    only = dataset.datasets[0].dataset
    assert [only.worker_has_samples(worker) for worker in range(3)] == [True, True, False]
    assert [only.len_worker(worker_idx=worker) for worker in range(3)] == [1, 1, 0]
    assert only.len_rank() == 2


@pytest.mark.energon("BlendDataset.datasets")
def test_datasets_of_a_dataset(captions):
    first, second = train(captions), train(captions)
    assert BlendDataset((first, 1), (second, 1)).datasets == (first, second)


@pytest.mark.energon("Cooker.need_cache", "Cooker.need_primary", "Cooker.is_match")
def test_a_cooker_says_what_it_needs():
    plain = Cooker(lambda crude: crude, has_subflavors={"x": 1})
    asking = Cooker(cooker(need_cache=True, need_primary=True)(lambda crude, cache, primary: crude))
    assert (plain.need_cache, plain.need_primary) == (False, False)
    assert (asking.need_cache, asking.need_primary) == (True, True)
    assert plain.is_match({"x": 1, "y": 2})
    assert not plain.is_match({})


@pytest.mark.energon("get_train_dataset(subflavors)", "DatasetLoader(subflavors)")
def test_subflavors_of_the_caller(captions, metadataset):
    batch = next(iter(train(captions, subflavors={"from": "caller"})))
    assert batch.__subflavors__ == [{"from": "caller"}] * 2
    loader = load_dataset(captions, subflavors={"from": "loader"})
    dataset = loader.get_dataset(training=True, worker_config=CONFIG, max_samples_per_sequence=None)
    assert dataset.subflavors == {"from": "loader"}
    assert next(iter(dataset)).__subflavors__ == {"from": "loader"}


@pytest.mark.energon(
    "DatasetLoader.post_initialize",
    "DatasetLoader.prepare",
    "DatasetLoader.traverse",
    "DatasetLoader.get_dataset",
    "MetadatasetV2.prepare",
    "MetadatasetV2.traverse",
)
def test_loader_objects(captions, metadataset):
    single, joined = load_dataset(captions), load_dataset(metadataset)
    single.post_initialize()
    assert single.prepare() == []
    (index,) = joined.prepare()
    assert index.startswith(f"{metadataset}.cache/join_index_")
    assert [ref.path for ref in joined.traverse(split_part="train")] == [str(captions)] * 2
    assert [ref.path for ref in single.traverse(split_part="train")] == [str(captions)]
    with pytest.raises(ConfigError, match="Write it to a file"):
        type(joined)(json.loads(metadataset.read_text())).prepare()


@pytest.mark.energon("DatasetLoader(split_part)", "DatasetLoader(shuffle_over_epochs_multiplier)")
def test_options_of_a_loader_object(captions):
    loader = DatasetLoader(captions, split_part="val", shuffle_over_epochs_multiplier=3)
    (loaded,) = loader.get_datasets(training=True, worker_config=CONFIG).datasets
    assert len(list(loaded.dataset.build())) == 3 * 2
    (loaded,) = loader.get_datasets(training=False, split_part="train", worker_config=CONFIG).datasets
    assert len(list(loaded.dataset)) == 16


@pytest.mark.energon(
    "BlendDataset.dataset",
    "ConcatDataset.dataset",
    differs="several datasets have `datasets`",
)
def test_several_datasets_are_not_one(captions):
    assert not hasattr(ConcatDataset(train(captions)), "dataset")


@pytest.mark.energon(
    "JoinedWebdatasetFactory.load_sample", differs="the joiner makes the samples; datasets have load_sample"
)
def test_joins_make_no_samples_of_parts():
    assert not hasattr(JoinedWebdatasetFactory, "load_sample")


def test_metadatasets_from_documents(captions):
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    document["splits"] = {"train": {"path": str(captions)}}
    (ref,) = MetadatasetV2(document).traverse(split_part="train")
    assert ref.path == str(captions)


@pytest.mark.energon(
    "log_exception(e)", "reraise_exception(e)", differs="the first parameter is called error"
)
def test_handlers_take_an_error():
    with pytest.raises(ValueError, match="broken"):
        reraise_exception(error=ValueError("broken"), sample=None)


@pytest.mark.energon(
    "Lazy(ds)",
    "Lazy(fname)",
    "Lazy(pool)",
    "DirectLazy(ds)",
    "DirectLazy(pool)",
    "FileCacheLazy(ds)",
    "FileCacheLazy(pool)",
    "FileCacheLazy(entry)",
    differs="pools make them: call get_lazy or to_cache",
)
def test_pools_make_lazy_values():
    lazy = NoCachePool().to_cache([1], "name")
    assert isinstance(lazy, Lazy)
    assert lazy.get() == [1]


@pytest.mark.energon("DatasetLoaderInterface.traverse(mds_path)", differs="an object knows its path")
def test_a_loader_object_knows_its_path(captions):
    with pytest.raises(TypeError, match="mds_path"):
        load_dataset(captions).traverse(mds_path=captions, split_part="train")


@pytest.mark.energon("SavableDataLoader.next_id", differs="a counter of 7.4.1's messages to its workers")
def test_loaders_count_no_messages(captions):
    assert not hasattr(get_savable_loader(train(captions)), "next_id")


@pytest.mark.energon("batch_list")
def test_arguments_by_their_names():
    assert batch_list(batch=(1, 2)) == [1, 2]


def test_lists_of_batches_are_joined_or_stay_nested(monkeypatch):
    """``interop/behaviours_own.py`` has what 7.4.1 does."""
    assert generic_concat([["a"], ["b"]]) == ["a", "b"]
    monkeypatch.setenv("ENERGON_STREAM_CONVENTIONS", "energon")
    assert generic_concat([["a"], ["b"]]) == [["a"], ["b"]]


@pytest.mark.parametrize(("conventions", "second"), [("own", [3, 0, 1]), ("energon", [0, 1, 2])])
def test_a_limit_goes_on_or_begins_again(conventions, second):
    config = WorkerConfig(0, 1, 0, conventions=conventions)
    limited = get_loader(LimitDataset(RepeatDataset(NumbersDataset(4, config)), 3))
    assert [list(limited) for _ in range(2)] == [[0, 1, 2], second]


@pytest.mark.energon(
    "EpochizeDataset of a finite dataset",
    differs="the next pass follows within the epoch; in 7.4.1 it is short",
)
def test_epochs_have_one_length():
    epochs = get_loader(EpochizeDataset(NumbersDataset(4), 3))
    assert [list(epochs) for _ in range(2)] == [[0, 1, 2], [3, 0, 1]]


def energon_config(**options):
    return WorkerConfig(**{"rank": 0, "world_size": 1, "num_workers": 0, "conventions": "energon", **options})


def from_captions(captions, config, batch_size=3, **options):
    shuffling = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return get_train_dataset(captions, batch_size=batch_size, worker_config=config, **shuffling, **options)


@pytest.mark.energon(
    "isinstance of torch's DataLoader and IterableDataset",
    differs="neither: torch's loader would collate batches again, and lose states",
)
def test_loaders_and_datasets_are_not_those_of_torch(captions):
    loader = get_savable_loader(train(captions))
    assert not isinstance(loader, torch.utils.data.DataLoader)
    assert not isinstance(loader.dataset, torch.utils.data.IterableDataset)


@pytest.mark.energon(
    "len() of endless training",
    differs="the samples of a pass, in batches; 7.4.1 adds a part batch for each worker, which never comes",
)
def test_the_length_of_endless_training(captions):
    """7.4.1 says 6: it has 6, 5 and 5 samples in the workers."""
    assert len(from_captions(captions, energon_config(num_workers=3), batch_size=4)) == 4


@pytest.mark.energon(
    "fewer samples than workers of all ranks",
    differs="refused on every rank: ranks with samples would wait for those without",
)
def test_fewer_samples_than_workers(captions):
    for rank in (0, 29):
        with pytest.raises(EmptyStreamError, match="16 samples cannot be dealt to 30 streams"):
            from_captions(captions, energon_config(rank=rank, world_size=30))


@pytest.mark.energon(
    "crude samples without a cooker", differs="encode_sample gets the dict; 7.4.1 refuses the dataset"
)
def test_crude_samples_without_a_cooker(captions):
    crude = {"__module__": "energon_stream", "__class__": "CrudeWebdataset"}
    (captions / ".nv-meta" / "crude.yaml").write_text(json.dumps(crude))
    shuffling = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    dataset = get_train_dataset(
        captions, batch_size=None, worker_config=CONFIG, dataset_config="crude.yaml", **shuffling
    )
    assert {"jpg", "txt"} <= set(next(iter(get_loader(dataset))))
