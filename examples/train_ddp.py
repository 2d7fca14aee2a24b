"""Train with DistributedDataParallel on batches streamed from S3; any number of ranks goes on where others
stood.

    torchrun --nproc-per-node 4 examples/train_ddp.py --data s3://bucket/dataset --checkpoint run/ckpt
    --record run/steps.txt

A step is 12 micro-batches, whatever the number of ranks: each accumulates the gradients of its share. So with
1, 2, 3, 4, 6 or 12 ranks a step sees the same batches. Model and loader are saved by
``torch.distributed.checkpoint``, to which the loader is one ``Stateful`` more. Rank 0 logs ``step ranks
digest loss`` for each step; the digest covers the keys, pixels and captions of all its micro-batches in their
order. (Losses differ in the last digits between numbers of ranks: sums of floats are grouped otherwise.)
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_captioning import SIZE, VOCABULARY, Encoder, digest, targets

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset

MICRO_BATCHES = 12  # of a step, over all ranks; also the number of streams


class Progress:
    """Steps done, for the checkpoint."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="local path or URL of a prepared dataset")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that all ranks see")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--step-seconds", type=float, default=0, help="pause after each step")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if MICRO_BATCHES % ranks:
        raise SystemExit(f"{ranks} ranks do not divide the {MICRO_BATCHES} micro-batches of a step")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # without momentum it has nothing to save

    dataset = get_train_dataset(
        args.data,
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(rank, ranks, args.workers, num_streams=MICRO_BATCHES),
        task_encoder=Encoder(),
    )
    loader = get_savable_loader(dataset)
    progress = Progress()
    everything = {"model": model, "loader": loader, "progress": progress}
    newest = newest_checkpoint(args.checkpoint)
    if newest is not None:
        dcp.load(everything, checkpoint_id=newest)

    batches = iter(loader)
    while progress.steps < args.steps:
        optimizer.zero_grad()
        seen = []
        for number in range(MICRO_BATCHES // ranks):
            batch = next(batches)
            # Gradients are summed over the ranks with the last micro-batch of the step.
            with nullcontext() if number == MICRO_BATCHES // ranks - 1 else parallel.no_sync():
                logits = parallel(batch.image)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, targets(batch.caption))
                (loss * ranks / MICRO_BATCHES).backward()
            seen.append((digest(batch), loss.item()))
        optimizer.step()
        progress.steps += 1
        time.sleep(args.step_seconds)
        log_step(args.record, progress.steps, seen)
        if progress.steps % args.save_every == 0:
            save(everything, args.checkpoint, progress.steps)
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


def log_step(log: Path, step: int, seen: list[tuple[str, float]]) -> None:
    """Rank 0 writes the step's micro-batches, in their order over all ranks, as one line."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    everyone = [seen] * ranks
    if ranks > 1:
        dist.all_gather_object(everyone, seen)
    if ranks == 1 or dist.get_rank() == 0:
        ordered = [part for number in zip(*everyone, strict=True) for part in number]
        together = hashlib.sha1("".join(text for text, _ in ordered).encode()).hexdigest()
        loss = sum(loss for _, loss in ordered) / len(ordered)
        with log.open("a") as file:
            file.write(f"{step} {ranks} {together} {loss:.6f}\n")


def save(everything: dict[str, object], folder: Path, step: int) -> None:
    """A checkpoint counts when it is complete: rank 0 names it then."""
    dcp.save(everything, checkpoint_id=folder / f"step{step:06d}")
    if dist.get_rank() == 0:
        unfinished = folder / "newest.tmp"
        unfinished.write_text(f"step{step:06d}")
        os.replace(unfinished, folder / "newest")
    dist.barrier()


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that was completed last."""
    name = folder / "newest"
    return folder / name.read_text() if name.exists() else None


if __name__ == "__main__":
    main()
