"""Train with Hugging Face accelerate on batches streamed from S3; killed at any moment, it goes on at the
last checkpoint.

    python examples/accelerate_train.py --data s3://bucket/dataset --checkpoint run/ckpt --record run/steps
    accelerate launch --num-processes 2 examples/accelerate_train.py ...

Each rank logs ``step rank digest loss`` to a file of its own; the digest covers the keys, pixels and captions
of the batch. A run that was interrupted and one that was not log the same steps. With another number of ranks
it goes on with the same global batches.
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
from train_ddp import Progress, newest_checkpoint

from energon_stream import get_savable_loader, get_train_dataset
from energon_stream.integrations.huggingface import AcceleratedLoader, worker_config_of


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
    set_seed(0)
    dataset = get_train_dataset(
        args.data,
        batch_size=args.batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        # 12 streams, so 1, 2, 3, 4, 6 or 12 ranks see the same global batches.
        worker_config=worker_config_of(accelerator, args.workers, num_streams=12),
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

    rank = accelerator.process_index
    with args.record.with_suffix(f".{rank}").open("a") as log:
        for batch in loader:
            wanted = targets(batch.caption).to(accelerator.device)
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch.image), wanted)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            progress.steps += 1
            log.write(f"{progress.steps} {rank} {digest(batch)} {loss.item():.9f}\n")
            log.flush()
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
