"""Train with transformers.Trainer on batches streamed from S3; killed, it goes on at the last checkpoint.

    python examples/trainer_train.py --data s3://bucket/dataset --output run --record run/steps
    torchrun --nproc-per-node 2 examples/trainer_train.py ...

A step is 6 micro-batches, whatever the number of ranks: each accumulates the gradients of its share. So with
1, 2, 3 or 6 ranks a step sees the same batches, and a run that was killed goes on with any of these numbers.
Rank 0 logs ``step ranks digest loss`` for each step; the digest covers the pixels and words of all its
micro-batches in their order.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
from torch import nn
from train_captioning import SIZE, VOCABULARY, targets
from train_captioning import Encoder as Captions
from train_ddp import log_step
from transformers import TrainerCallback, TrainingArguments, set_seed

from energon_stream import WorkerConfig, get_train_dataset
from energon_stream.integrations.huggingface import EnergonTrainer

MICRO_BATCHES = 6  # of a step, over all ranks; also the number of streams


class Encoder(Captions):
    """Batches are what the model's ``forward`` takes."""

    def encode_batch(self, batch):
        return {"pixels": batch.image, "words": targets(batch.caption)}


class Captioner(nn.Module):
    """Bags of words of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, float]] = []  # of this rank, in this step
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY)
        )

    def forward(self, pixels, words):
        logits = self.network(pixels)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, words)
        digest = hashlib.sha1(pixels.cpu().numpy().tobytes() + words.cpu().numpy().tobytes()).hexdigest()
        self.seen.append((digest, loss.item()))
        return {"loss": loss, "logits": logits}


class Record(TrainerCallback):
    """Logs each step."""

    def __init__(self, model: Captioner, log: Path) -> None:
        self.model, self.log = model, log

    def on_step_end(self, args, state, control, **kwargs):
        log_step(self.log, state.global_step, self.model.seen)
        self.model.seen.clear()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="local path or URL of a prepared dataset")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    set_seed(0)
    training = TrainingArguments(
        str(args.output),
        max_steps=args.steps,
        save_strategy="steps",
        save_steps=args.save_every,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        lr_scheduler_type="constant",
        gradient_accumulation_steps=MICRO_BATCHES // int(os.environ.get("WORLD_SIZE", "1")),
    )
    dataset = get_train_dataset(
        args.data,
        batch_size=args.batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        # The ranks are those that TrainingArguments set up.
        worker_config=WorkerConfig.default_worker_config(args.workers, num_streams=MICRO_BATCHES),
        task_encoder=Encoder(),
    )
    model = Captioner()
    trainer = EnergonTrainer(model, training, train_dataset=dataset, callbacks=[Record(model, args.record)])
    # True takes the newest checkpoint that was written to its end.
    trainer.train(resume_from_checkpoint=any(args.output.glob("checkpoint-*")))


if __name__ == "__main__":
    main()
