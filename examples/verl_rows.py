"""Prompts for verl from a dataset in S3, in its own shuffled order or in verl's, and exactly resumed.

    python -m verl.trainer.main_ppo data.train_files=s3://bucket/dataset data.val_files=s3://bucket/dataset@val
    data.custom_cls.path=examples/verl_rows.py data.custom_cls.name=Prompts data.shuffle=False
    data.dataloader_num_workers=0 trainer.total_training_steps=1000 ...

Run as a program, it shows what verl's trainer would read: verl's own functions make the loader, save it and
go on, and the model is left out. Killed at any moment, it goes on at the last checkpoint.

    python examples/verl_rows.py --data s3://bucket/dataset --checkpoint run/ckpt --record run/steps

Each step is logged as ``step 1 digest 0``; the digest covers the prompts.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import torch

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_train_dataset, open_dataset, stateless
from energon_stream.integrations.verl import ShuffledRows, VerlRows


class Encoder(DefaultTaskEncoder):
    """Rows as verl's RLHFDataset makes them."""

    @stateless
    def encode_sample(self, sample):
        return {
            "raw_prompt": [{"role": "user", "content": f"Draw this: {sample.caption}"}],
            "data_source": "captions",
            "reward_model": {"style": "rule", "ground_truth": sample.caption},
            "extra_info": {"key": sample.__key__},
            "index": 0,
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),  # verl needs a tensor
        }


class Prompts(VerlRows):
    """Streams rows in an order that shuffling and blends of the dataset decide."""

    def open(self, files: Any) -> Any:
        path, at, part = files.partition("@")
        if at:
            rows = open_dataset(path, split_part=part, task_encoder=Encoder())
            return ShuffledRows(rows, seed=1) if part == "train" else rows
        # verl's controller reads for all GPUs, so it is one rank, however many GPUs there are.
        config = WorkerConfig(rank=0, world_size=1, num_workers=1, num_streams=4)
        return get_train_dataset(path, batch_size=None, worker_config=config, task_encoder=Encoder())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="local path or URL of a prepared dataset")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--step-seconds", type=float, default=0, help="pause in the place of training")
    parser.add_argument("--mapped", action="store_true", help="rows by number, from workers of verl's loader")
    args = parser.parse_args()

    trainer = make_trainer(args.data, args.checkpoint, args.batch_size, args.mapped)
    trainer.global_steps = 0
    trainer._load_checkpoint()
    with args.record.open("a") as log:
        for batch in (batch for _ in range(args.steps) for batch in trainer.train_dataloader):
            trainer.global_steps += 1
            prompts = "\0".join(prompt[0]["content"] for prompt in batch["raw_prompt"])
            digest = hashlib.sha1(prompts.encode()).hexdigest()
            log.write(f"{trainer.global_steps} 1 {digest} 0\n")
            log.flush()
            time.sleep(args.step_seconds)
            if trainer.global_steps % args.save_every == 0:
                trainer._save_checkpoint()
            if trainer.global_steps == args.steps:
                break


def make_trainer(data: str, folder: Path, batch_size: int, mapped: bool) -> Any:
    """verl's trainer without models: what it reads, and what it saves of that."""
    import verl.trainer
    from omegaconf import OmegaConf
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    defaults = Path(verl.trainer.__file__).parent / "config" / "_generated_ppo_trainer.yaml"
    chosen = {
        "data": {
            "train_files": f"{data}@train" if mapped else data,
            "val_files": f"{data}@val",
            "train_batch_size": batch_size,
            "val_batch_size": batch_size,
            "dataloader_num_workers": 2 if mapped else 0,
            "shuffle": False,
            "seed": 1,
            "custom_cls": {"path": __file__, "name": "Prompts"},
        },
        "trainer": {"default_local_dir": str(folder.absolute()), "total_training_steps": 1000},
    }
    trainer = RayPPOTrainer.__new__(RayPPOTrainer)
    trainer.config = OmegaConf.merge(OmegaConf.load(defaults), chosen)
    trainer.tokenizer = trainer.processor = None
    trainer.use_critic, trainer.actor_rollout_wg = False, NoModel()
    trainer._create_dataloader(None, None, None, None)
    return trainer


class NoModel:
    """In the place of the workers with the model."""

    def save_checkpoint(self, path, *args, **options):
        Path(path).mkdir(parents=True, exist_ok=True)

    def load_checkpoint(self, *args, **options):
        pass


if __name__ == "__main__":
    main()
