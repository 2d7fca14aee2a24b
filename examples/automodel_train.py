"""Train a small model by a recipe of NeMo Automodel on any number of ranks, which may change at each start.

    export NEMO_ENABLE_USER_MODULES=1 PYTHONPATH=examples
    torchrun --nproc-per-node 2 examples/automodel_train.py --config examples/automodel.yaml
        --dataset.path s3://bucket/texts --checkpoint.checkpoint_dir run --record run/steps

The recipe is one of Automodel's base class, with its configuration, checkpoints and step scheduler, and runs
on CPUs. Killed at any moment and started again, it goes on at the last checkpoint with the same global
batches. Each rank writes the step and the texts of each batch to a file of its own.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from nemo_automodel.components.config._arg_parser import parse_args_and_load_config
from nemo_automodel.recipes._typed_config import RecipeConfig
from nemo_automodel.recipes.base_recipe import BaseRecipe
from torch import nn
from torch.nn.functional import cross_entropy

from energon_stream import DefaultTaskEncoder, TextSample, stateless
from energon_stream.integrations.automodel import ElasticRecipe

LENGTH = 32
IGNORED = -100


class Encoder(DefaultTaskEncoder):
    """Texts as bytes, and what comes next after each."""

    def __init__(self, tokenizer: object) -> None:
        super().__init__()

    @stateless
    def encode_sample(self, sample: TextSample) -> torch.Tensor:
        tokens = torch.full((LENGTH + 1,), IGNORED)
        given = torch.tensor([*sample.text.encode(), 0][: LENGTH + 1])
        tokens[: len(given)] = given
        return tokens

    @stateless
    def batch(self, samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        tokens = torch.stack(samples)
        return {"input_ids": tokens[:, :-1].clamp(min=0), "labels": tokens[:, 1:]}


class Recipe(ElasticRecipe, BaseRecipe):
    """Predicts bytes."""

    def __init__(self, config: object) -> None:
        self.cfg = RecipeConfig(config)

    def setup(self) -> None:
        dist.init_process_group("gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(self.cfg.seed)
        self.peft_config = None
        self.checkpointer = self.cfg.checkpoint.build(dp_rank=rank, tp_rank=0, pp_rank=0, moe_mesh=None)
        self.model = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.cfg.get("optimizer.lr"))
        self.dataloader = self.cfg.dataloader.build(dp_rank=rank, dp_world_size=ranks)
        self.step_scheduler = self.cfg.step_scheduler.build(
            self.dataloader, ranks, self.cfg.get("step_scheduler.local_batch_size")
        )
        self.load_checkpoint()

    def run(self) -> None:
        for epoch in self.step_scheduler.epochs:
            self.step_scheduler.set_epoch(epoch)
            for batches in self.step_scheduler:
                self.train(batches)
                if self.step_scheduler.is_ckpt_step:
                    self.save_checkpoint(epoch, self.step_scheduler.step, 0.0)
        self.checkpointer.finalize()

    def train(self, batches: list[dict[str, torch.Tensor]]) -> None:
        """Train on a step's batches of this rank, and write them down."""
        self.optimizer.zero_grad()
        count = torch.stack([(batch["labels"] != IGNORED).sum() for batch in batches]).sum()
        dist.all_reduce(count)
        for batch in batches:
            found = self.model(batch["input_ids"]).flatten(0, 1)
            (cross_entropy(found, batch["labels"].flatten(), reduction="sum") / count).backward()
            texts = [bytes(row[row > 0].tolist()).decode() for row in batch["input_ids"]]
            is_filled = not (batch["labels"] != IGNORED).any()
            with open(f"{self.cfg.get('record')}.{dist.get_rank()}", "a") as file:
                file.write(json.dumps([self.step_scheduler.step, *([] if is_filled else texts)]) + "\n")
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()


def main() -> None:
    recipe = Recipe(parse_args_and_load_config())
    recipe.setup()
    recipe.run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
