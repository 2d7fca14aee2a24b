"""Train on a graph of torchdata nodes whose source is a loader; killed at any moment, it goes on at the last
checkpoint, on any number of ranks.

    torchrun --nproc-per-node 2 examples/torchdata_nodes.py --data s3://bucket/dataset --checkpoint run/ckpt
    --record run/steps.txt

A step is 6 micro-batches, whatever the number of ranks: each accumulates the gradients of its share. So with
1, 2, 3 or 6 ranks a step sees the same batches. Model and graph are saved by
``torch.distributed.checkpoint``, which deals the states of the streams to the ranks that load them. Rank 0
logs ``step ranks digest loss`` for each step; the digest covers the keys, pixels and captions of all its
micro-batches in their order.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchdata.nodes import Loader, Mapper, Prefetcher
from train_captioning import SIZE, VOCABULARY, Encoder, digest, targets
from train_ddp import Progress, log_step, newest_checkpoint, save

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.integrations.torchdata import LoaderNode

MICRO_BATCHES = 6  # of a step, over all ranks; also the number of streams
STEPS_OF_AN_EPOCH = 4


def with_targets(batch):
    return batch, targets(batch.caption)


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

    for name, alone in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 0}.items():
        os.environ.setdefault(name, str(alone))  # without torchrun
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, VOCABULARY))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # without momentum it has nothing to save
    dataset = get_train_dataset(
        args.data,
        batch_size=args.batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        virtual_epoch_length=STEPS_OF_AN_EPOCH * MICRO_BATCHES // ranks,
        worker_config=WorkerConfig.default_worker_config(args.workers, num_streams=MICRO_BATCHES),
        task_encoder=Encoder(),
    )
    loader = get_savable_loader(dataset)
    graph = Loader(Prefetcher(Mapper(LoaderNode(loader), with_targets), prefetch_factor=2))
    progress = Progress()
    everything = {"model": model, "graph": graph, "progress": progress}
    newest = newest_checkpoint(args.checkpoint)
    if newest is not None:
        known = {**everything, "graph": graph.state_dict()}
        dcp.load(known, checkpoint_id=newest)
        iter(graph)  # where state_dict() has begun; after it, the graph takes a state
        graph.load_state_dict(known["graph"])

    seen = []
    while progress.steps < args.steps:
        for batch, wanted in graph:  # an epoch
            # Gradients are summed over the ranks with the last micro-batch of the step.
            parallel.require_backward_grad_sync = len(seen) + 1 == MICRO_BATCHES // ranks
            loss = nn.functional.binary_cross_entropy_with_logits(parallel(batch.image), wanted)
            (loss * ranks / MICRO_BATCHES).backward()
            seen.append((digest(batch), loss.item()))
            if len(seen) < MICRO_BATCHES // ranks:
                continue
            optimizer.step()
            optimizer.zero_grad()
            progress.steps += 1
            log_step(args.record, progress.steps, seen)
            seen.clear()
            if progress.steps % args.save_every == 0:
                save(everything, args.checkpoint, progress.steps)
            if progress.steps >= args.steps:
                break
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
