"""Programs for Megatron-Energon 8, by its addresses."""

import importlib
import io
import itertools
import json
import pickle

import pytest

import energon_stream
from energon_stream.compat.addresses import NAMES_8, find, missing_reason
from energon_stream.errors import ConfigError, StateError, UntrustedCodeError
from energon_stream.integrations.megatron import install_alias, uninstall_alias
from energon_stream.testing.datasets import prepared_captioning_dataset, prepared_text_dataset
from energon_stream.testing.operator_suite import NumbersDataset


@pytest.fixture
def alias():
    install_alias(shadow=True)
    yield
    uninstall_alias()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("eight")
    for name in ("coco", "laion"):
        prepared_captioning_dataset(made / name, shards=4, samples_per_shard=3)
    entries = "\n".join(f"    - {{path: {name}, tags: {{from: {name}}}}}" for name in ("coco", "laion"))
    (made / "recipe.yaml").write_text(f"splits:\n  train:\n    blend:\n{entries}\n    tags: {{all: 1}}\n")
    return made


def full(address):
    return f"megatron.energon.{address}".rstrip(".")


@pytest.mark.parametrize("address", NAMES_8)
def test_each_name_is_there_or_says_why_it_is_missing(alias, address):
    if missing_reason(address) is not None:
        with pytest.raises(ImportError, match="not offered"):
            importlib.import_module(full(address))
        return
    module = importlib.import_module(full(address))
    for name in NAMES_8[address].split():
        if missing_reason(address, name) is None:
            assert getattr(module, name) is find(address, name)
        else:
            with pytest.raises(AttributeError, match="not offered"):
                getattr(module, name)
            assert " " in missing_reason(address, name), "a key without a text"


@pytest.mark.energon(
    "8: prepare_recipe", "8: traverse_recipe", "8: load_dataset", "8: DataLoader", "8: recipe"
)
def test_a_program_with_a_recipe(alias, folder):
    from megatron.energon import (
        DataLoader,
        Recipe,
        WorkerConfig,
        get_savable_loader,
        get_train_dataset,
        load_dataset,
        prepare_recipe,
        traverse_recipe,
    )
    from megatron.energon.recipe.loader import load_dataset as of_the_module
    from megatron.energon.recipe.loader_interface import TraversedDatasetReference

    path = folder / "recipe.yaml"
    assert of_the_module is load_dataset
    assert isinstance(load_dataset(path), Recipe)
    assert list(prepare_recipe(path)) == []
    found = traverse_recipe(path, split_part="train")
    assert [type(each) for each in found] == [TraversedDatasetReference] * 2
    assert [(str(each.path), each.tags, each.shuffle_over_epochs_multiplier) for each in found] == [
        (str(folder / name), {"from": name, "all": 1}, 1) for name in ("coco", "laion")
    ]

    def open_loader():
        config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        order = {"shuffle_buffer_size": 4, "max_samples_per_sequence": 4}
        return get_savable_loader(get_train_dataset(path, worker_config=config, batch_size=2, **order))

    with open_loader() as loader:
        assert isinstance(loader, DataLoader)
        batches = iter(loader)
        next(batches)
        state = loader.save_state_global(0)
        wanted = next(batches)
    with open_loader().with_restored_state_global(state) as loader:
        batch = next(iter(loader))
    assert (batch.__key__, batch.__tags__) == (wanted.__key__, wanted.__subflavors__)
    batch.__restore_key__ = ("mine",)


@pytest.mark.energon("8: worker classes", "8: PinMemory")
def test_values_of_the_loader(alias):
    from megatron.energon.dataloader import (
        DataLoader,
        DataLoaderWorker,
        ForkDataLoaderWorker,
        NoPinMemory,
        PinMemoryThread,
        ThreadDataLoaderWorker,
    )

    config = energon_stream.WorkerConfig(0, 1, 1)
    automatic = ((ForkDataLoaderWorker, "automatic"), (ThreadDataLoaderWorker, "automatic"))
    for worker, pin in ((DataLoaderWorker, NoPinMemory()), *automatic):
        loader = DataLoader(NumbersDataset(3, config), prefetch_factor=1, worker_type=worker, pin_memory=pin)
        assert list(loader) == [0, 1, 2]
        loader.shutdown()
    assert PinMemoryThread()
    with pytest.raises(ConfigError, match="program's own"):
        type("Mine", (ForkDataLoaderWorker,), {})
    with pytest.raises(ConfigError, match="method pin_memory"):
        type("Mine", (PinMemoryThread,), {})


@pytest.mark.energon("8: RankState")
def test_its_states_load_and_are_refused(alias, folder):
    from megatron.energon.dataloader.dataloader import RankState

    state = RankState(prefetched_restore_keys=[[]], worker_states=[], next_worker_id=0, micro_batch_size=2)
    loaded = pickle.load(io.BytesIO(pickle.dumps(state)))
    assert loaded == state
    loader = energon_stream.get_savable_loader(NumbersDataset(3))
    with pytest.raises(
        StateError, match=r"a RankState that is not a rank's state.*migration/megatron-energon"
    ):
        loader.restore_state_rank(loaded)
    with pytest.raises(StateError, match="RankState"):
        loader.restore_state_global([loaded])


@pytest.mark.energon("8: migrate_dataloader_state")
def test_a_state_goes_to_a_changed_recipe(alias, tmp_path):
    """Of the sources that stay, no sample comes twice in a pass, as ``restore_state_rank`` sees to."""
    from megatron.energon.checkpoint import ResumeMetadata, collect_resume_metadata, migrate_dataloader_state

    for name in "abc":
        prepared_text_dataset(tmp_path / name, shards=2, samples_per_shard=10, text=name + "{}")

    def open_loader(*names):
        entries = [{"repetitions": 1, "path": f"./{name}"} for name in names]
        splits = {"train": {"blend_epochized": entries}}
        document = {"__module__": "megatron.energon", "__class__": "Recipe", "splits": splits}
        (tmp_path / "recipe.yaml").write_text(json.dumps(document))
        dataset = energon_stream.get_train_dataset(
            tmp_path / "recipe.yaml", batch_size=None, worker_config=energon_stream.WorkerConfig(0, 1, 0),
            shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False,
        )  # fmt: skip
        return energon_stream.get_savable_loader(dataset)

    loader = open_loader("a", "b")
    seen = [sample.text for sample in itertools.islice(loader, 15)]
    state, metadata = loader.save_state_rank(), collect_resume_metadata(loader).to_dict()
    changed = open_loader("b", "c", "a")
    migrated = migrate_dataloader_state(changed, state, ResumeMetadata.from_dict(metadata))
    changed.restore_state_rank(migrated)
    rest = [sample.text for sample in itertools.islice(changed, 100)]
    kept = [text for text in seen + rest if text[0] != "c"]
    assert len(set(kept)) == len(kept) == 40
    assert sum(text[0] == "c" for text in rest) == 20


@pytest.mark.energon("8: JsonParser(allow_imports)", "8: decoders", "8: new addresses")
def test_a_parser_can_forbid_imports(alias, tmp_path, monkeypatch):
    from megatron.energon.dataset_config import load_config
    from megatron.energon.decoders import SampleDecoder
    from megatron.energon.flavors.common.manifest.paths import MAIN_FOLDER_NAME
    from megatron.energon.typed_converter import JsonParser

    assert SampleDecoder is energon_stream.SampleDecoder
    assert MAIN_FOLDER_NAME == ".nv-meta"
    (tmp_path / "of_a_client_8.py").write_text(
        "from megatron.energon import CaptioningWebdataset\nclass Mine(CaptioningWebdataset): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ENERGON_STREAM_TRUST_DATASET_CODE", "1")
    document = {"__module__": "of_a_client_8", "__class__": "Mine", "path": str(tmp_path)}
    with pytest.raises(UntrustedCodeError):
        load_config(document, default_type=object, parser=JsonParser(allow_imports=False))
    found = load_config(document, default_type=object, parser=JsonParser())
    assert type(found).__name__ == "Mine"
