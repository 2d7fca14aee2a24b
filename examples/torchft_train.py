"""Train in replica groups that may leave and come back, with torchft. Start a lighthouse and some groups:

    torchft_lighthouse --min_replicas 2 --bind [::]:29510 &
    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    for group in 0 1 2; do python examples/torchft_train.py --group $group --data s3://bucket/texts & done

Kill a group, and start it again: the others go on with the batches that it would have had, and it takes the
model and the position from them.
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.integrations.torchft import ReplicaLoader


class Encoder(DefaultTaskEncoder):
    """Counts of the bytes of texts."""

    def batch(self, samples):
        rows = [torch.bincount(torch.tensor([*sample.text.encode()]), minlength=256) for sample in samples]
        return torch.stack(rows).float()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", type=int, required=True, help="number of this replica group")
    parser.add_argument("--data", required=True, help="local path or URL of a prepared dataset of texts")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds that a step takes longer")
    args = parser.parse_args()

    def open_loader(rank: int, ranks: int):
        # Twelve streams are dealt evenly to 1, 2, 3, 4, 6 or 12 groups.
        config = WorkerConfig(rank, ranks, num_workers=1, num_streams=12)
        dataset = get_train_dataset(args.data, batch_size=4, worker_config=config, task_encoder=Encoder())
        return get_savable_loader(dataset)

    model = nn.Linear(256, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.001)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # torchrun brings one, too

    def state_dict():
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=2,  # more than half of the groups, or two halves may train apart
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=f"group{args.group}",
    )
    parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    loader = ReplicaLoader(open_loader, manager)
    while manager.current_step() < args.steps:
        optimizer.zero_grad()  # begins the step: which groups take part
        batch = next(loader)
        loss = parallel(batch).square().mean()
        loss.backward()
        optimizer.step()  # if all went well
        print(
            f"step {manager.current_step()}: {manager.num_participants()} groups, loss {loss.item():.3f}",
            flush=True,
        )
        time.sleep(args.pause)
    manager.shutdown()


if __name__ == "__main__":
    main()
