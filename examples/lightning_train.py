"""Train with PyTorch Lightning on batches streamed from S3; killed at any moment, it goes on at the last
checkpoint.

    python examples/lightning_train.py --data s3://bucket/dataset --checkpoints run/ckpt --record run/steps
    python examples/lightning_train.py --devices 2 ...
    python examples/lightning_train.py --devices 2 --sharded ...  # checkpoints of torch.distributed

A step is 6 micro-batches, whatever the number of ranks: each accumulates the gradients of its share. So with
1, 2, 3 or 6 ranks a step sees the same batches, and a run that was killed goes on with any of these numbers.
Rank 0 logs ``step ranks digest loss`` for each step; the digest covers the keys, pixels and captions of all
its micro-batches in their order.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from contextlib import suppress
from pathlib import Path

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from train_captioning import SIZE, VOCABULARY, digest, targets
from train_captioning import Encoder as Captions
from train_ddp import log_step

from energon_stream import stateless
from energon_stream.integrations.lightning import EnergonDataModule

MICRO_BATCHES = 6  # of a step, over all ranks; also the number of streams


class Encoder(Captions):
    """Stateless, so that the last batches of validation can be repeated where ranks have unequal numbers of
    them.
    """

    encode_sample = stateless(Captions.encode_sample)


class Captioner(L.LightningModule):
    """Bags of words of pictures."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log_path = log
        self.seen: list[tuple[str, float]] = []  # of this rank, in this step
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY)
        )

    def loss(self, batch):
        wanted = targets(batch.caption).to(self.device)
        return nn.functional.binary_cross_entropy_with_logits(self.network(batch.image), wanted)

    def configure_model(self):
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.seen.append((digest(batch), loss.item()))
        return loss

    def on_before_optimizer_step(self, optimizer):
        log_step(self.log_path, self.global_step + 1, self.seen)
        self.seen.clear()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), batch_size=len(batch.caption), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="local path or URL of a prepared dataset")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1, help="number of ranks on this machine")
    parser.add_argument("--sharded", action="store_true", help="shard the model, and its checkpoints")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    L.seed_everything(0, verbose=False)

    data = EnergonDataModule(
        args.data,
        args.data,
        num_workers=args.workers,
        num_streams=MICRO_BATCHES,
        train_options={
            "batch_size": args.batch_size,
            "shuffle_buffer_size": 100,
            "max_samples_per_sequence": 100,
            "task_encoder": Encoder(),
        },
        val_options={"batch_size": args.batch_size, "ends": "pad", "task_encoder": Encoder()},
    )
    trainer = L.Trainer(
        devices=args.devices,
        strategy=ModelParallelStrategy(args.devices, 1) if args.sharded else "auto",
        accumulate_grad_batches=MICRO_BATCHES // args.devices,
        max_steps=args.steps,
        max_epochs=-1,
        callbacks=[
            ModelCheckpoint(
                args.checkpoints, "{step:06d}", every_n_train_steps=args.save_every, save_top_k=-1
            )
        ],
        val_check_interval=args.save_every,
        check_val_every_n_epoch=None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Captioner(args.record), data, ckpt_path=newest_checkpoint(args.checkpoints))


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint. Of a sharded one, Lightning writes ``meta.pt`` last."""
    for path in sorted(folder.glob("*.ckpt"), reverse=True):
        with suppress(Exception):
            torch.load(path / "meta.pt" if path.is_dir() else path, weights_only=False, map_location="cpu")
            return path
    return None


if __name__ == "__main__":
    main()
