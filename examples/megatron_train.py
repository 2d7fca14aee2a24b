"""A training loop as Megatron has it, on CPU: data module, iterators, checkpoints, resuming.

python examples/megatron_train.py DATASET CHECKPOINTS --iterations 20 --save-interval 5 --workers 2
# goes on at the last checkpoint
python examples/megatron_train.py DATASET CHECKPOINTS --iterations 30 --load

The import of ``megatron.energon`` is what such a program has; the two lines before it are what is added.
With ``torchrun --nproc-per-node 2`` the ranks are data-parallel. Where Megatron-Core is installed, its
process groups say so; where not, an object with a ``dp`` of the same kind does.
"""

import argparse
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from energon_stream.integrations.megatron import (
    EnergonMultiModalDataModule,
    install_alias,
    restore_dataloader_state,
    save_dataloader_state,
)

install_alias()

from megatron.energon import Batch, CaptioningSample, DefaultTaskEncoder, stateless  # noqa: E402
from megatron.energon.edataclass import edataclass  # noqa: E402


@edataclass
class Tokens(Batch):
    """The model's input."""

    pixels: torch.Tensor  # (n,)
    labels: torch.Tensor  # (n,)


class Encoder(DefaultTaskEncoder[CaptioningSample, CaptioningSample, Tokens, dict]):
    """Mean of the picture, with noise, to the number in its caption."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        noise = 0.01 * torch.randn(())
        return CaptioningSample.derive_from(sample, image=sample.image.mean() + noise, caption=sample.caption)

    @stateless
    def batch(self, samples: list[CaptioningSample]) -> Tokens:
        return Tokens.from_samples(
            samples,
            pixels=torch.stack([sample.image for sample in samples]),
            labels=torch.tensor([float(sample.caption.split()[1]) / 100 for sample in samples]),
        )

    @stateless
    def encode_batch(self, batch: Tokens) -> dict:
        return {"keys": batch.__key__, "pixels": batch.pixels, "labels": batch.labels}


def process_groups():
    """The collection of process groups that Megatron hands to its data modules; None without torchrun."""
    if "WORLD_SIZE" not in os.environ:
        return None
    dist.init_process_group("gloo")
    try:
        from megatron.core.process_groups_config import ProcessGroupCollection as Collection
    except ImportError:
        Collection = SimpleNamespace
    groups = Collection()
    groups.dp = dist.group.WORLD
    groups.cp = None
    return groups


def wait(groups):
    """Wait for all ranks, so that none reads which checkpoint is the last while another writes one."""
    if groups is not None:
        dist.barrier()


def step(model, optimizer, batch):
    """One training step; returns the loss."""
    loss = (model(batch["pixels"][:, None])[:, 0] - batch["labels"]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def evaluate(model, batches, count):
    """Mean loss over some validation batches."""
    with torch.no_grad():
        losses = []
        for _ in range(count):
            batch = next(batches)
            losses.append((model(batch["pixels"][:, None])[:, 0] - batch["labels"]).square().mean())
        return torch.stack(losses).mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("checkpoints")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--save-interval", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--load", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(0)
    groups = process_groups()
    rank = groups.dp.rank() if groups is not None else 0
    module = EnergonMultiModalDataModule(
        path=options.dataset,
        tokenizer=None,
        micro_batch_size=4,
        num_workers=options.workers,
        task_encoder=Encoder(),
        pg_collection=groups,
        virtual_epoch_length=7,
    )
    train, valid = module.build()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    tracker = Path(options.checkpoints, "latest_checkpointed_iteration.txt")
    begin = int(tracker.read_text()) if options.load else 0
    if begin:
        saved = torch.load(tracker.parent / f"iter_{begin:07d}" / "model.pt")
        model.load_state_dict(saved)
        restore_dataloader_state(train, options.checkpoints, begin, dp_rank=rank)
    wait(groups)

    for iteration in range(begin + 1, options.iterations + 1):
        batch = next(train)
        loss = step(model, optimizer, batch)
        # One write, because ranks share the output.
        sys.stdout.write(
            f"rank {rank} iteration {iteration} loss {loss:.6f} keys {' '.join(batch['keys'])}\n"
        )
        sys.stdout.flush()
        if iteration % options.save_interval == 0:
            save_dataloader_state(train, options.checkpoints, iteration, dp_rank=rank)
            wait(groups)
            if rank == 0:
                torch.save(model.state_dict(), tracker.parent / f"iter_{iteration:07d}" / "model.pt")
                tracker.write_text(str(iteration))
    sys.stdout.write(f"rank {rank} validation {evaluate(model, valid, 3):.6f}\n")
    if groups is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
