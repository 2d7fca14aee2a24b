"""Train a model that FSDP2 shards; save it in the background with the loader; go on with any number of ranks.

    torchrun --nproc-per-node 3 examples/train_fsdp.py --data s3://bucket/dataset --checkpoint run/ckpt
    --record run/steps.txt

Steps and record are as in ``train_ddp.py``: with any number of ranks that divides 12 it has the
same batches. ``torch.distributed.checkpoint.async_save`` takes the states of model, optimizer and loader at
once, and writes them while the next steps run. ``load`` deals the shards of the model and the streams of the
loader to the ranks that there are. Without CUDA it runs on CPUs, with gloo.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from train_captioning import SIZE, VOCABULARY, Encoder, digest, targets
from train_ddp import MICRO_BATCHES, Progress, log_step, newest_checkpoint

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.integrations.device import prefetch_to_device

if TYPE_CHECKING:
    from concurrent.futures import Future


class Sharded:
    """Model and optimizer, for the checkpoint."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)


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
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if MICRO_BATCHES % ranks:
        raise SystemExit(f"{ranks} ranks do not divide the {MICRO_BATCHES} micro-batches of a step")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY))
    fully_shard(model.to(device), mesh=init_device_mesh(device, (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)

    dataset = get_train_dataset(
        args.data,
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(rank, ranks, args.workers, num_streams=MICRO_BATCHES),
        task_encoder=Encoder(),
    )
    # With the state of the batch in use, however many are on the device already.
    loader = prefetch_to_device(get_savable_loader(dataset), device)
    progress = Progress()
    everything = {"train": Sharded(model, optimizer), "loader": loader, "progress": progress}
    newest = newest_checkpoint(args.checkpoint)
    if newest is not None:
        dcp.load(everything, checkpoint_id=newest)

    aside = dist.new_group(backend="gloo")  # for what is written in the background
    saving: tuple[int, Future[Any]] | None = None
    batches = iter(loader)
    while progress.steps < args.steps:
        optimizer.zero_grad()
        seen = []
        for _ in range(MICRO_BATCHES // ranks):
            batch = next(batches)
            loss = nn.functional.binary_cross_entropy_with_logits(
                model(batch.image), targets(batch.caption).to(device)
            )
            (loss * ranks / MICRO_BATCHES).backward()  # FSDP takes the mean over the ranks
            seen.append((digest(batch), loss.item()))
        optimizer.step()
        progress.steps += 1
        log_step(args.record, progress.steps, seen)
        if progress.steps % args.save_every == 0:
            finish(saving, args.checkpoint)  # one at a time
            folder = args.checkpoint / f"step{progress.steps:06d}"
            saving = (
                progress.steps,
                dcp.async_save(everything, checkpoint_id=folder, process_group=aside),
            )
    finish(saving, args.checkpoint)
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


def finish(saving: tuple[int, Future[Any]] | None, folder: Path) -> None:
    """Wait until a checkpoint is written. Rank 0 names it then."""
    if saving is None:
        return
    step, written = saving
    written.result()
    if dist.get_rank() == 0:
        unfinished = folder / "newest.tmp"
        unfinished.write_text(f"step{step:06d}")
        os.replace(unfinished, folder / "newest")


if __name__ == "__main__":
    main()
