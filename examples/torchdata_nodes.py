"""Train on a graph of torchdata nodes whose source is a loader; killed at any moment, it goes on at the last
checkpoint.

    python examples/torchdata_nodes.py --data s3://bucket/dataset --checkpoint run/ckpt.pth --record
    run/steps.txt

Each step is logged as ``step digest loss``; the digest covers the keys, pixels and captions of the batch. A
run that was interrupted and one that was not log the same steps.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torchdata.nodes import Loader, Mapper, Prefetcher
from train_captioning import SIZE, VOCABULARY, Encoder, digest, targets

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.integrations.torchdata import LoaderNode


def with_targets(batch):
    return batch, targets(batch.caption)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="local path or URL of a prepared dataset")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dataset = get_train_dataset(
        args.data,
        batch_size=args.batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        virtual_epoch_length=8,
        worker_config=WorkerConfig.default_worker_config(args.workers),
        task_encoder=Encoder(),
    )
    loader = get_savable_loader(dataset)
    graph = Loader(Prefetcher(Mapper(LoaderNode(loader), with_targets), prefetch_factor=2))
    step = 0
    if args.checkpoint.exists():
        checkpoint = torch.load(args.checkpoint)
        step = checkpoint["step"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        graph.load_state_dict(checkpoint["graph"])

    with args.record.open("a") as log:
        while step < args.steps:
            for batch, wanted in graph:  # an epoch
                loss = nn.functional.binary_cross_entropy_with_logits(model(batch.image), wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                log.write(f"{step} {digest(batch)} {loss.item():.9f}\n")
                log.flush()
                if step % args.save_every == 0:
                    state = {
                        "step": step,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "graph": graph.state_dict(),
                    }
                    unfinished = args.checkpoint.with_suffix(".tmp")
                    torch.save(state, unfinished)
                    os.replace(unfinished, args.checkpoint)
                if step >= args.steps:
                    break
    loader.close()


if __name__ == "__main__":
    main()
