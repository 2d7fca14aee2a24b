"""Train with Hugging Face accelerate on batches streamed from S3; killed at any moment, it goes on at the
last checkpoint.

    python examples/accelerate_train.py --data s3://bucket/dataset --checkpoint run/ckpt --record run/steps
    accelerate launch --num-processes 2 examples/accelerate_train.py ...

A step is 6 micro-batches, whatever the number of ranks: each accumulates the gradients of its share. So with
1, 2, 3 or 6 ranks a step sees the same batches, and a run that was killed goes on with any of these numbers.
Rank 0 logs ``step ranks digest loss`` for each step; the digest covers the keys, pixels and captions of all
its micro-batches in their order.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from train_captioning import SIZE, VOCABULARY, Encoder, digest, targets
from train_ddp import Progress, log_step, newest_checkpoint

from energon_stream import get_savable_loader, get_train_dataset
from energon_stream.integrations.huggingface import AcceleratedLoader, worker_config_of

MICRO_BATCHES = 6  # of a step, over all ranks; also the number of streams


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="local path or URL of a prepared dataset")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that all ranks see")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    accelerator.gradient_accumulation_steps = MICRO_BATCHES // accelerator.num_processes
    set_seed(0)
    dataset = get_train_dataset(
        args.data,
        batch_size=args.batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config_of(accelerator, args.workers, num_streams=MICRO_BATCHES),
        task_encoder=Encoder(),
    )
    loader = AcceleratedLoader(get_savable_loader(dataset), accelerator)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(loader, progress)
    newest = newest_checkpoint(args.checkpoint)
    if newest is not None:
        accelerator.load_state(newest)

    seen = []
    for batch in loader:
        with accelerator.accumulate(model):
            wanted = targets(batch.caption).to(accelerator.device)
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch.image), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        seen.append((digest(batch), loss.item()))
        if accelerator.sync_gradients:  # the step is complete
            progress.steps += 1
            log_step(args.record, progress.steps, seen)
            seen.clear()
            if progress.steps % args.save_every == 0:
                save(accelerator, args.checkpoint, progress.steps)
            if progress.steps >= args.steps:
                break
    loader.close()
    accelerator.end_training()


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """A checkpoint counts when it is complete: the main process names it then."""
    accelerator.save_state(folder / f"step{step:06d}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        unfinished = folder / "newest.tmp"
        unfinished.write_text(f"step{step:06d}")
        os.replace(unfinished, folder / "newest")


if __name__ == "__main__":
    main()
