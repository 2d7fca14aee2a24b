"""Megatron's data module: items 31 and 32 of the acceptance list."""

import inspect
import logging
import re
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from energon_stream import CaptioningSample, DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energon_stream.errors import ConfigError, EmptyDatasetError, StateError, StateInUseError
from energon_stream.integrations.megatron import (
    EnergonDataloader,
    EnergonMultiModalDataModule,
    cyclic_iter,
    dataloader_state_path,
    restore_dataloader_state,
    save_dataloader_state,
)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "megatron_train.py"
PAGE = {
    "seq_length": 2048,
    "micro_batch_size": 1,
    "global_batch_size": 1,
    "num_workers": 1,
    "num_val_workers": None,
    "pin_memory": True,
    "shuffle_buffer_size": 100,
    "max_samples_per_sequence": None,
    "multimodal_sample_config": None,
    "task_encoder": None,
    "decoder_seq_length": None,
    "packing_buffer_size": None,
    "validation_task_encoder": None,
    "pg_collection": None,
}


class Group:
    """A process group, as far as it is looked at."""

    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


def worker_config_of(module, *arguments, **options):
    return module._build_worker_config(*arguments, **options)


def module_of(data, **options):
    return EnergonMultiModalDataModule(
        str(data / "coco"), None, **{"num_workers": 0, "micro_batch_size": 4, **options}
    )


def keys_of(loader, count):
    return [batch.__key__ for batch in islice(loader, count)]


def test_the_signature_is_the_pages():
    parameters = inspect.signature(EnergonMultiModalDataModule).parameters
    names = list(parameters)
    assert names[:3] == ["path", "tokenizer", "image_processor"]
    assert names[3 : 3 + len(PAGE)] == list(PAGE)
    assert {name: parameters[name].default for name in PAGE} == PAGE
    assert parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD


def test_both_generations(data):
    tokenizer, processor = object(), object()
    first = EnergonMultiModalDataModule(str(data / "coco"), tokenizer, processor, 1024, 2, 8, 0, None, False)
    later = EnergonMultiModalDataModule(
        path=str(data / "coco"),
        tokenizer=tokenizer,
        seq_length=1024,
        micro_batch_size=2,
        num_workers=0,
        cache_pool=None,
    )
    assert (first.image_processor, first.global_batch_size, first.pin_memory) == (processor, 8, False)
    for module in (first, later):
        assert (module.tokenizer, module.seq_length, module.init_global_step) == (tokenizer, 1024, 0)
        assert len(next(module.train_dataloader()).__key__) == 2


def test_further_arguments_reach_the_dataset_and_epochs_follow_each_other(data):
    module = module_of(data, virtual_epoch_length=3, max_samples_per_sequence=100)
    loader = module.train_dataloader()
    assert len(module.train_dataloader_object) == 3
    dataset = get_train_dataset(
        str(data / "coco"),
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig.default_worker_config(0),
    )
    assert keys_of(loader, 10) == keys_of(get_loader(dataset), 10)
    with pytest.raises(ConfigError, match="no_such_argument"):
        module_of(data, no_such_argument=1).train_dataloader()


def test_the_worker_configuration(data):
    assert worker_config_of(module_of(data), 3) == WorkerConfig.default_worker_config(3)
    groups = SimpleNamespace(dp=Group(1, 2), cp=Group(1, 2), dp_cp=Group(3, 4), tp=Group(0, 1))
    config = worker_config_of(module_of(data, pg_collection=groups), 3, split="val")
    assert (config.rank, config.world_size, config.num_workers) == (1, 2, 3)
    assert config.data_parallel_group is groups.dp
    for nothing in (SimpleNamespace(dp=None), SimpleNamespace(dp_cp=Group(3, 4))):
        config = worker_config_of(module_of(data, pg_collection=nothing), 0)
        assert config == WorkerConfig.default_worker_config(0)


def test_context_parallel_ranks_read_the_same(data):
    def batches(dp_rank, cp_rank):
        groups = SimpleNamespace(
            dp=Group(dp_rank, 2), cp=Group(cp_rank, 2), dp_cp=Group(2 * cp_rank + dp_rank, 4)
        )
        return keys_of(module_of(data, pg_collection=groups).train_dataloader(), 5)

    assert batches(0, 0) == batches(0, 1)
    assert batches(1, 0) == batches(1, 1)
    first, second = ({key for batch in batches(rank, 0) for key in batch} for rank in range(2))
    assert len(first) == len(second) == 20
    assert not first & second


def test_megatron_core_is_asked_where_the_program_uses_it(data, monkeypatch):
    asked = []

    def group(with_context_parallel):
        asked.append(with_context_parallel)
        return Group(1, 2)

    state = SimpleNamespace(model_parallel_is_initialized=lambda: bool(asked), get_data_parallel_group=group)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    module = module_of(data)
    assert worker_config_of(module, 0).world_size == 1
    asked.append(None)
    assert worker_config_of(module, 0).world_size == 2
    assert asked == [None, False]
    given = module_of(data, pg_collection=SimpleNamespace(dp=Group(2, 3)))
    assert worker_config_of(given, 0).world_size == 3


def test_splits(data):
    module = module_of(data)
    config = worker_config_of(module, 0)
    shards = {
        split: {
            key.split("/")[0]
            for batch in keys_of(iter(module.datasets_provider(config, split)), 20)
            for key in batch
        }
        for split in ("train", "val")
    }
    assert shards["val"] == {"coco-008.tar"}
    assert shards["train"] == {f"coco-{number:03d}.tar" for number in range(8)}
    with pytest.raises(ValueError, match="the split is 'test'"):
        module.datasets_provider(config, "test")


def test_loaders_are_made_once(data, caplog):
    module = module_of(data, num_workers=2, num_val_workers=0)
    assert module.train_dataloader_object is module.val_dataloader_object is None
    train, val = module.build()
    assert module.train_dataloader() is train
    assert module.val_dataloader() is val
    assert module.train_dataloader_object.worker_config.num_workers == 2
    assert module.val_dataloader_object.worker_config.num_workers == 0
    assert len(module.train_dataloader_object) == 10
    with caplog.at_level(logging.WARNING):
        assert module.test_dataloader() is None
    assert "no test split" in caplog.text
    assert module_of(data, num_workers=3).num_val_workers == 3


class Upper(DefaultTaskEncoder):
    """Marks what it has encoded."""

    def encode_sample(self, sample):
        sample.caption = sample.caption.upper()
        return sample


def test_task_encoders(data):
    module = module_of(data)
    assert type(module.task_encoder) is DefaultTaskEncoder
    assert module.task_encoder is module.validation_task_encoder
    assert type(next(module.train_dataloader())) is CaptioningSample
    assert module_of(data).task_encoder is not module.task_encoder
    train, val = module_of(data, task_encoder=Upper()).build()
    assert next(train).caption[0].startswith("CAPTION")
    assert next(val).caption[0].startswith("CAPTION")
    train, val = module_of(data, validation_task_encoder=Upper()).build()
    assert next(train).caption[0].startswith("caption")
    assert next(val).caption[0].startswith("CAPTION")


@pytest.mark.parametrize("pin", [True, False])
def test_pinning(data, monkeypatch, pin):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(asked.append(1)))
    module = module_of(data, pin_memory=pin)
    batch = next(module.train_dataloader())
    assert bool(asked) is pin
    assert not batch.image.is_pinned()


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("epoch", [0, 3])
def test_the_wrapper_saves_and_restores(data, workers, epoch):
    def loader():
        return module_of(data, num_workers=workers, virtual_epoch_length=epoch).train_dataloader()

    first = loader()
    beginning = keys_of(first, 5)
    state = first.save_state()
    expected = keys_of(first, 7)
    with pytest.raises(StateInUseError):
        first.restore_state(state)
    second = loader()
    batches = iter(second)  # made before, as training loops do
    second.restore_state(state)
    assert keys_of(batches, 7) == expected
    assert second.save_state() == first.save_state()
    third = loader()
    third.restore_state(None)
    assert keys_of(third, 5) == beginning


def test_iterators_of_the_wrapper_keep_its_methods(data):
    loader = module_of(data).train_dataloader()
    iterator = iter(loader)
    next(iterator)
    assert iterator.save_state() == loader.save_state()


def test_the_wrapper_takes_loaders_without_a_state(data):
    dataset = get_train_dataset(
        str(data / "coco"),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig.default_worker_config(0),
        repeat=False,
    )
    assert len(keys_of(EnergonDataloader(get_loader(dataset)), 25)) == 25


def test_cycling():
    class Passes:
        """A pass that was at its end when it was restored, then some of two."""

        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter([] if self.passes % 2 else [1, 2])

    assert list(islice(cyclic_iter(iter=[1, 2]), 5)) == [1, 2, 1, 2, 1]
    assert list(islice(cyclic_iter(Passes()), 5)) == [1, 2, 1, 2, 1]
    with pytest.raises(EmptyDatasetError, match="yields no batch"):
        next(cyclic_iter([]))
    asked = []
    lazily = cyclic_iter(map(asked.append, [1]))
    assert not asked
    next(lazily)
    assert asked


def test_checkpoint_files(data, tmp_path):
    loader = module_of(data).train_dataloader()
    next(loader)
    path = save_dataloader_state(loader, tmp_path, 10, dp_rank=0)
    assert path == tmp_path / "iter_0000010" / "train_dataloader_dprank000.pt"
    assert path == dataloader_state_path(str(tmp_path), 10, 0)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert torch.load(path) == {"dataloader_state_dict": loader.save_state()}
    restored = module_of(data).train_dataloader()
    restore_dataloader_state(restored, tmp_path, 10, dp_rank=0)
    assert keys_of(restored, 3) == keys_of(loader, 3)
    torch.save({"other": 1}, dataloader_state_path(tmp_path, 10, 2))
    dataloader_state_path(tmp_path, 10, 3).write_bytes(path.read_bytes()[:100])
    for rank, iteration, message in (
        (1, 10, "The folder has .*dprank000"),
        (0, 11, "without the loader"),
        (2, 10, "has no"),
        (3, 10, "damaged"),
    ):
        with pytest.raises(StateError, match=message):
            restore_dataloader_state(module_of(data).train_dataloader(), tmp_path, iteration, dp_rank=rank)


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_training_loop_goes_on_in_a_new_process(run, data, tmp_path, workers):
    program, options = EXAMPLE, ["--workers", workers, "--save-interval", 4]
    whole = run(program, data / "coco", tmp_path / "whole", "--iterations", 14, *options).splitlines()
    run(program, data / "coco", tmp_path / "parts", "--iterations", 10, *options)
    resumed = run(
        program, data / "coco", tmp_path / "parts", "--iterations", 14, "--load", *options
    ).splitlines()
    assert len(whole) == 15
    assert re.match(r"rank 0 iteration 9 loss [\d.]+ keys \d+", resumed[0])
    assert resumed[:-1] == whole[8:-1]  # losses too, so the noise is the same
