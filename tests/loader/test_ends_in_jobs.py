"""The end of finite data in real jobs: no rank waits in a collective for one that has ended."""

import random
from itertools import islice

import pytest
import torch
import torch.distributed as dist
from ranks import in_ranks
from repetitions import is_nightly
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from energon_stream import WorkerConfig, get_savable_loader, stateless
from energon_stream.errors import ConfigError
from energon_stream.pipeline import BatchDataset, EvenDataset, MapDataset, with_ends
from energon_stream.state import redistribute
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


STREAMS, ROUNDS = 12, 4  # a pass that is filled up has 48 batches, one that is cut 36


def open_loader(ends, rank=0, world=1, workers=0):
    config = WorkerConfig(rank, world, workers, num_streams=STREAMS)
    numbers = MapDataset(NumbersDataset(STREAMS * ROUNDS - 5, config), joined_one)
    return get_savable_loader(EvenDataset(numbers, ends))


@stateless
def joined_one(number):
    return torch.tensor([number])


def go_on(rank, world, folder, ends, begin, steps):
    """Go on at a batch of the job, in steps of all ranks together, to another batch or over two passes."""
    loader = open_loader(ends, rank, world, workers=rank % 2)
    loader.restore_state_global(torch.load(folder / str(begin)) if begin else None)
    passes = [[], []]
    for batches in passes:
        for batch in loader:
            together = [torch.empty_like(batch) for _ in range(world)]
            dist.all_gather(together, batch)  # a rank without a batch would let the others wait
            batches.append(sorted(torch.cat(together).tolist()))
            if begin + len(batches) * world == steps:
                break
        if begin + len(batches) * world == steps:
            break
    counts = [None] * world
    dist.all_gather_object(counts, [len(batches) for batches in passes])
    assert counts == counts[:1] * world
    states = loader.save_state_global()
    if rank == 0:
        torch.save(states, folder / str(steps))
        torch.save(passes, folder / "passes")
    loader.close()


@pytest.mark.parametrize("ends", ["drop", "pad"])
def test_a_pass_ends_on_all_ranks_also_where_other_numbers_of_ranks_begin_amid_a_step(tmp_path, ends):
    alone = [int(batch) for batch in open_loader(ends)]
    jobs = [(2, 10), (3, 19), (4, 27), (2, -1)]  # batches of the job at the end; -1 is over two passes
    if not is_nightly():
        jobs = [(2, 10), (3, -1)]
    if ends == "pad":  # and one that stops after a batch more than the pass has, with which none can go on
        jobs = [(2, 10), (3, 49), (4 if is_nightly() else 2, -1)]
    begin, given = 0, []
    for world, end in jobs:
        in_ranks(world, go_on, tmp_path, ends, begin, end)
        under_way, following = torch.load(tmp_path / "passes")
        for step in under_way:
            plan = alone[len(given) : len(given) + world]
            more = [alone[at - STREAMS] for at in range(len(alone), len(given) + world)]
            assert step == sorted(plan + more)
            given += [*plan, *more]
        begin = end
    missing = len(alone) - len(given)
    assert 0 <= missing < world if ends == "drop" else 0 >= missing > -3
    assert [number for step in following for number in step] == [
        number for at in range(0, len(alone), world) for number in sorted(alone[at : at + world])
    ]


def saved(loaders, by):
    """The states of all ranks, and how each rank of others restores them, by calls that no rank answers."""
    if by == "list":
        states = [loader.save_state_rank() for loader in loaders]
        return lambda loader: loader.restore_state_global(states)
    if by == "files":
        states = [loader.save_state_rank() for loader in loaders]

        def restore(loader):
            config = loader.worker_config
            loader.restore_state_rank(redistribute(states, config.world_size)[config.rank])

        return restore
    dicts = [loader.state_dict() for loader in loaders]
    streams = {stream: entry for each in dicts for stream, entry in each["streams"].items()}

    def load(loader):  # what torch.distributed.checkpoint gives a rank
        config = loader.worker_config
        mine = [str(stream) for stream in range(config.rank, STREAMS, config.world_size)]
        loader.load_state_dict({**dicts[0], "streams": {stream: streams[stream] for stream in mine}})

    return load


@pytest.mark.parametrize("by", ["list", "files", "streams"])
@pytest.mark.parametrize("ends", ["drop", "pad"])
def test_without_a_process_group_the_states_tell_where_a_pass_ends(ends, by):
    for seed in range(6 if is_nightly() else 2):
        draw = random.Random(seed)
        alone = [int(batch) for batch in open_loader(ends)]
        found, restore, is_last = [], None, False
        while not is_last:
            world = draw.choice((1, 2, 3, 4, 6, 12))
            loaders = [open_loader(ends, rank, world) for rank in range(world)]
            if restore is not None:
                for loader in loaders:
                    restore(loader)
            steps = draw.randint(1, 6)
            given = [[int(batch) for batch in islice(loader, steps)] for loader in loaders]
            is_last = any(len(batches) < steps for batches in given)
            assert len({len(batches) for batches in given}) == 1, (seed, world, len(found))
            found += [number for step in zip(*given, strict=True) for number in sorted(step)]
            restore = saved(loaders, by)
        # In steps, whose batches are in any order.
        missing = len(alone) - len(found)
        assert 0 <= missing < 12 if ends == "drop" else 0 >= missing > -12
        more = [alone[at - STREAMS] for at in range(len(alone), len(found))]
        assert sorted(found) == sorted(alone[: len(found)] + more)


def unlike(number):
    return number


def refused(rank, world, folder):
    """What cannot be made again cannot fill up: all ranks say so."""
    config = WorkerConfig(rank, world, 0, num_streams=STREAMS)
    even = EvenDataset(MapDataset(NumbersDataset(STREAMS * ROUNDS, config), unlike), "pad")
    loader = get_savable_loader(even)
    if world == 2:
        for _ in zip(range(5), loader, strict=False):
            pass
        states = loader.save_state_global()
        if rank == 0:
            torch.save(states, folder / "states")
        return
    with pytest.raises(ConfigError, match="stateless"):
        loader.restore_state_global(torch.load(folder / "states"))


def test_a_pass_that_cannot_be_filled_up_is_refused_on_all_ranks(tmp_path):
    in_ranks(2, refused, tmp_path)
    in_ranks(3, refused, tmp_path)
