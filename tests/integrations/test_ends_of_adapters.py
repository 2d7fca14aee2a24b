"""Finite data whose size three ranks do not divide, in each trainer: all ranks end with the same step.

The gradient of each step is of all ranks, so a rank that went on alone would wait for ever. torchtitan,
Automodel and torchft, which need an environment of their own, have such tests in their files.
"""

import json
import os
from itertools import islice

import pytest
import torch
import torch.distributed as dist
from forked_ranks import launch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, IterableDataset

from energon_stream import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    open_dataset,
    stateless,
)
from energon_stream.testing.datasets import prepared_text_dataset

RANKS, SAMPLES, BATCH = 3, 49, 4
COUNTS = {"drop": 4, "pad": 5}  # of the streams' 17, 16 and 16 samples


class Encoder(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return {"number": int(sample.text.split()[1])}

    @stateless
    def batch(self, samples):
        return {"numbers": torch.tensor([sample["number"] for sample in samples])}


class Model(torch.nn.Module):
    """Its loss is a sum over weights that all ranks share; it records what it gets."""

    def __init__(self, record):
        super().__init__()
        self.layer, self.record = torch.nn.Linear(1, 1), record

    def forward(self, numbers):
        kind = "train" if self.training else "evaluate"
        with open(f"{self.record}.{os.environ['RANK']}", "a") as file:
            file.write(json.dumps([kind, numbers.tolist()]) + "\n")
        return {"loss": self.layer(numbers[:, None] / SAMPLES).sum()}


OPTIONS = {"batch_size": BATCH, "task_encoder": Encoder()}
TRAIN = {**OPTIONS, "repeat": False, "shuffle_buffer_size": None, "max_samples_per_sequence": 5}


def open_train(data, ends, config=None):
    config = config or WorkerConfig(int(os.environ["RANK"]), RANKS, 0)
    return get_train_dataset(data, ends=ends, worker_config=config, **TRAIN)


def train(batches, record, passes=2):
    """Train by hand."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = DistributedDataParallel(Model(record))
    for _ in range(passes):
        for batch in batches:
            model(batch["numbers"])["loss"].backward()
    dist.barrier()
    dist.destroy_process_group()


def nodes(data, ends, record, folder):
    from torchdata.nodes import Loader, Prefetcher

    from energon_stream.integrations.torchdata import LoaderNode

    train(Loader(Prefetcher(LoaderNode(get_savable_loader(open_train(data, ends))), 2)), record)


class Batches(IterableDataset):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def stateful_loader(data, ends, record, folder):
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = Batches(get_savable_loader(open_train(data, ends)))
    train(StatefulDataLoader(dataset, batch_size=None), record)


def verl(data, ends, record, folder):
    """As verl's SFTTrainer makes its loaders, which drop; with ``pad``, torch's sampler fills up."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    from energon_stream.integrations.verl import VerlRows

    class Rows(VerlRows):
        def open(self, files):
            return open_dataset(files, task_encoder=Encoder())

    rows, drops = Rows(parquet_files=data), ends == "drop"
    sampler = DistributedSampler(rows, RANKS, int(os.environ["RANK"]), shuffle=True, drop_last=drops)
    collate = {"collate_fn": Encoder().batch, "drop_last": drops}
    train(StatefulDataLoader(rows, BATCH, sampler=sampler, **collate), record)


def megatron(data, ends, record, folder):
    from energon_stream.integrations.megatron import EnergonMultiModalDataModule

    dist.init_process_group("gloo")
    given = {name: value for name, value in TRAIN.items() if name != "batch_size"}
    given |= {"micro_batch_size": BATCH, "num_workers": 0, "pin_memory": False, "ends": ends}
    module = EnergonMultiModalDataModule(str(data), None, **given)
    # One pass follows the other without an end, as Megatron's loops want it.
    train(islice(module.train_dataloader(), 2 * COUNTS[ends]), record, passes=1)


def accelerate(data, ends, record, folder):
    from accelerate import Accelerator

    from energon_stream.integrations.huggingface import AcceleratedLoader

    accelerator = Accelerator(cpu=True)
    loader = AcceleratedLoader(get_savable_loader(open_train(data, ends)), accelerator)
    model, loader = accelerator.prepare(Model(record), loader)
    for _ in range(2):
        for batch in loader:
            accelerator.backward(model(batch["numbers"])["loss"])
    accelerator.end_training()


def trainer(data, ends, record, folder):
    from transformers import TrainingArguments

    from energon_stream.integrations.huggingface import EnergonTrainer

    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    arguments = TrainingArguments(folder, use_cpu=True, max_steps=2 * COUNTS[ends], **quiet)
    train = open_train(data, ends)
    given = {"ends": ends, "worker_config": train.worker_config, "split_part": "train"}
    datasets = {"train_dataset": train, "eval_dataset": get_val_dataset(data, **given, **OPTIONS)}
    made = EnergonTrainer(Model(record), arguments, **datasets)
    made.train()
    made.evaluate()


def lightning(data, ends, record, folder):
    import lightning.pytorch as L

    from energon_stream.integrations.lightning import EnergonDataModule

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model(record)

        def training_step(self, batch, number):
            return self.model(batch["numbers"])["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    none = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    made = L.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=2, default_root_dir=folder, **none
    )
    made.fit(Module(), EnergonDataModule(train=lambda config: open_train(data, ends, config), num_workers=0))


PACKAGES = {
    nodes: "torchdata",
    stateful_loader: "torchdata",
    verl: "torchdata",
    megatron: "torch",
    accelerate: "accelerate",
    trainer: "transformers.trainer",
    lightning: "lightning.pytorch",
}


@pytest.mark.slow
@pytest.mark.parametrize("ends", COUNTS)
@pytest.mark.parametrize("program", PACKAGES, ids=lambda program: program.__name__)
def test_all_ranks_end_with_the_same_step(tmp_path, monkeypatch, program, ends):
    pytest.importorskip(PACKAGES[program])
    data = prepared_text_dataset(tmp_path / "data", shards=7, samples_per_shard=SAMPLES // 7)
    for name, value in {
        "LOCAL_WORLD_SIZE": RANKS,
        "GROUP_RANK": 0,
        "NODE_RANK": 0,
        "OMP_NUM_THREADS": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    launch(RANKS, program, data, ends, tmp_path / "record", tmp_path)
    ranks = [
        [json.loads(line) for line in (tmp_path / f"record.{rank}").read_text().splitlines()]
        for rank in range(RANKS)
    ]
    for kind in {kind for kind, _ in ranks[0]}:
        steps = [[numbers for each, numbers in found if each == kind] for found in ranks]
        count = COUNTS[ends]
        assert [len(found) for found in steps] == [count * (2 if kind == "train" else 1)] * RANKS
        for begin in range(0, len(steps[0]), count):
            seen = sorted(n for found in steps for batch in found[begin : begin + count] for n in batch)
            if ends == "pad":
                assert {*seen} == {*range(SAMPLES)}
            else:
                assert len({*seen}) == len(seen) >= SAMPLES - BATCH
