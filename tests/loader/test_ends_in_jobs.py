"""The end of finite data in real jobs: no rank waits in a collective for one that has ended."""

import torch
import torch.distributed as dist
from ranks import in_ranks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from energon_stream import WorkerConfig, get_savable_loader, stateless
from energon_stream.pipeline import BatchDataset, with_ends
from energon_stream.testing.operator_suite import NumbersDataset

SAMPLES = 55
COUNTS = {"uneven": [7, 6, 6], "drop": [6, 6, 6], "pad": [7, 7, 7]}


@stateless
def joined(samples):
    return list(samples)


def one_pass(rank, world):
    """A pass with a gradient of all ranks in each step; the streams have 19, 18 and 18 samples."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    for ends, counts in COUNTS.items():
        config = WorkerConfig(rank, world, 0)
        loader = get_savable_loader(
            with_ends(BatchDataset(NumbersDataset(SAMPLES, config), 3, joined), ends, even=False)
        )
        batches = []
        with Join([model], enable=ends == "uneven"):
            for batch in loader:
                model(torch.ones(1, 1)).sum().backward()
                batches.append(batch)
        found = [None] * world
        dist.all_gather_object(found, batches)
        assert [len(each) for each in found] == counts
        seen = sorted(number for each in found for batch in each for number in batch)
        if ends == "uneven":
            assert seen == list(range(SAMPLES))
        elif ends == "pad":
            assert {*seen} == {*range(SAMPLES)}
        else:
            assert len(seen) == len({*seen}) == SAMPLES - 1


def test_a_pass_ends_on_all_ranks():
    in_ranks(3, one_pass)
