"""Train with torchtitan on a dataset of texts, on any number of ranks, which may change at each start.

    torchrun --nproc-per-node 2 examples/torchtitan_train.py --dataloader.dataset_path s3://bucket/texts
        --dump_folder run --record run/steps --training.steps 20

It is torchtitan's own program (``torchtitan.train``) with the configuration ``small`` below, and takes its
options. Killed at any moment and started again, it goes on at the last checkpoint with the same global
batches. Each rank writes the step and the texts of each batch to a file of its own. Without a GPU it runs on
CPUs, for which torchtitan is not made: ``on_cpus`` says what that takes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils


def on_cpus() -> None:
    """Let torchtitan take the CPUs for devices; call it before its other modules are imported."""
    nothing: dict[str, Any] = {
        name: lambda *_: None
        for name in ("set_device", "synchronize", "reset_peak_memory_stats", "empty_cache")
    }
    utils.device_type = "cpu"
    utils.device_module = types.SimpleNamespace(
        **nothing,
        current_device=lambda: 0,
        current_stream=torch.cpu.current_stream,
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_name=lambda _: "CPU",
        get_device_properties=lambda _: types.SimpleNamespace(total_memory=1 << 30),
        memory_stats=lambda _: {},
    )
    if not hasattr(torch.distributed, "set_timeout"):  # torchtitan 0.3 needs a newer torch for this alone
        torch.distributed.set_timeout = lambda timeout, group: None


if not torch.cuda.is_available():
    on_cpus()

from torchtitan import train  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.models.llama3.parallelize import parallelize_llama  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from energon_stream import DefaultTaskEncoder, TextSample, stateless  # noqa: E402
from energon_stream.integrations.torchtitan import EnergonDataLoader  # noqa: E402


class Bytes(BaseTokenizer):
    """A token is a byte."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Nothing to choose."""

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()
        self.eos_id = 0

    def encode(self, text: str, **_: Any) -> list[int]:
        return [*text.encode(), 0]

    def decode(self, tokens: list[int], **_: Any) -> str:
        return bytes(tokens).decode()

    def get_vocab_size(self) -> int:
        return 256


class Encoder(DefaultTaskEncoder):
    """Texts, cut or padded to ``seq_len`` tokens, and what comes next after each."""

    def __init__(self, tokenizer: BaseTokenizer, seq_len: int) -> None:
        super().__init__()
        self.tokenizer, self.seq_len = tokenizer, seq_len

    @stateless
    def encode_sample(self, sample: TextSample) -> torch.Tensor:
        tokens = torch.full((self.seq_len + 1,), IGNORE_INDEX)
        given = torch.tensor(self.tokenizer.encode(sample.text)[: self.seq_len + 1])
        tokens[: len(given)] = given
        return tokens

    @stateless
    def batch(self, samples: list[torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        tokens = torch.stack(samples)
        return {"input": tokens[:, :-1].clamp(min=0)}, tokens[:, 1:]


class RecordingTrainer(Trainer):
    """torchtitan's trainer, which also writes down what each step gets."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        record: str = ""
        """Files of the steps, one for each rank, which is added to the name."""
        dataloader: EnergonDataLoader.Config = field(default_factory=EnergonDataLoader.Config)

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        for inputs, labels in super().batch_generator(data_iterable):
            texts = [bytes(row[row > 0].tolist()).decode() for row in inputs["input"]]
            line = json.dumps([self.step, *(texts if (labels != IGNORE_INDEX).any() else [])])
            with open(f"{self.config.record}.{os.environ['RANK']}", "a") as file:
                file.write(line + "\n")
            yield inputs, labels


def parallelize(model: torch.nn.Module, **options: Any) -> torch.nn.Module:
    """Shard a llama. gloo, which CPUs have, cannot scale and sum in one operation."""
    model = parallelize_llama(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule) and utils.device_type == "cpu":
            module.set_force_sum_reduction_for_comms(True)
    return model


def small() -> RecordingTrainer.Config:
    """A llama of one layer, twelve texts a step."""
    spec = dataclasses.replace(model_registry("debugmodel"), parallelize_fn=parallelize)
    del spec.model.layers[1:]
    spec.model.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()  # CPUs have it, too
    return RecordingTrainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(),
        tokenizer=Bytes.Config(),
        optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            local_batch_size=2,
            global_batch_size=12,
            seq_len=32,
            steps=10,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        dataloader=EnergonDataLoader.Config(
            num_workers=0,
            num_streams=12,
            batches_per_step=6,
            task_encoder=Encoder,
            options={"shuffle_buffer_size": 100, "max_samples_per_sequence": 10},
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=True, interval=2, last_save_model_only=False),
    )


if __name__ == "__main__":
    sys.modules["torchtitan_train"] = sys.modules["__main__"]  # where torchtitan looks for ``small``
    sys.argv[1:1] = ["--module", "torchtitan_train", "--config", "small"]
    train.main()
