"""Train with PyTorch Lightning on batches streamed from S3; killed at any moment, it goes on at the last
checkpoint.

    python examples/lightning_train.py --data s3://bucket/dataset --checkpoints run/ckpt --record run/steps
    python examples/lightning_train.py --devices 2 ...

Each rank logs ``step rank digest loss`` to a file of its own; the digest covers the keys, pixels and captions
of the batch. A run that was interrupted and one that was not log the same steps. With another number of ranks
it goes on with the same global batches.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from train_captioning import SIZE, VOCABULARY, digest, targets
from train_captioning import Encoder as Captions

from energon_stream import stateless
from energon_stream.integrations.lightning import EnergonDataModule


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
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY)
        )

    def loss(self, batch):
        wanted = targets(batch.caption).to(self.device)
        return nn.functional.binary_cross_entropy_with_logits(self.network(batch.image), wanted)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        with self.log_path.with_suffix(f".{self.global_rank}").open("a") as file:
            file.write(f"{self.global_step + 1} {self.global_rank} {digest(batch)} {loss.item():.9f}\n")
        return loss

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
    parser.add_argument("--devices", default="auto", help="number of ranks on this machine")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    L.seed_everything(0, verbose=False)

    data = EnergonDataModule(
        args.data,
        args.data,
        num_workers=args.workers,
        num_streams=12,  # so 1, 2, 3, 4, 6 or 12 ranks see the same global batches
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
        max_steps=args.steps,
        max_epochs=-1,
        callbacks=[ModelCheckpoint(args.checkpoints, every_n_train_steps=args.save_every, save_last=True)],
        val_check_interval=args.save_every,
        check_val_every_n_epoch=None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = args.checkpoints / "last.ckpt"
    trainer.fit(Captioner(args.record), data, ckpt_path=newest if newest.exists() else None)


if __name__ == "__main__":
    main()
