"""Train with transformers.Trainer on batches streamed from S3; killed, it goes on at the last checkpoint.

    python examples/trainer_train.py --data s3://bucket/dataset --output run --record run/steps
    torchrun --nproc-per-node 2 examples/trainer_train.py ...

Each rank logs ``digest loss`` of each step to a file of its own; the digest covers the pixels and the words
of the batch. A run that was interrupted and one that was not log the same steps. With another number of ranks
it goes on with the same global batches. (The trainer does not mark which checkpoints are complete: one that
was being written has to be removed by hand.)
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
from torch import nn
from train_captioning import SIZE, VOCABULARY, targets
from train_captioning import Encoder as Captions
from transformers import TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from energon_stream import WorkerConfig, get_train_dataset
from energon_stream.integrations.huggingface import EnergonTrainer


class Encoder(Captions):
    """Batches are what the model's ``forward`` takes."""

    def encode_batch(self, batch):
        return {"pixels": batch.image, "words": targets(batch.caption)}


class Captioner(nn.Module):
    """Bags of words of pictures."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY)
        )

    def forward(self, pixels, words):
        logits = self.network(pixels)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, words)
        seen = hashlib.sha1(pixels.cpu().numpy().tobytes() + words.cpu().numpy().tobytes()).hexdigest()
        with self.log.open("a") as file:
            file.write(f"{seen} {loss.item():.9f}\n")
        return {"loss": loss, "logits": logits}


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
    )
    dataset = get_train_dataset(
        args.data,
        batch_size=args.batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        # The ranks are those that TrainingArguments set up; of 12 streams, 1, 2, 3, 4, 6 or 12 ranks see the
        # same batches.
        worker_config=WorkerConfig.default_worker_config(args.workers, num_streams=12),
        task_encoder=Encoder(),
    )
    model = Captioner(args.record.with_suffix(f".{training.process_index}"))
    trainer = EnergonTrainer(model, training, train_dataset=dataset)
    saved = get_last_checkpoint(args.output) if args.output.exists() else None
    trainer.train(resume_from_checkpoint=saved)


if __name__ == "__main__":
    main()
