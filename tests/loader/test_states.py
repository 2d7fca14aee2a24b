"""States by stream, states of all ranks, and torch's conventions for both."""

import pytest
import torch
import torch.distributed as dist
from ranks import in_ranks
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint import load as load_checkpoint
from torch.distributed.checkpoint import save as save_checkpoint
from torch.distributed.checkpoint.stateful import Stateful

from energon_stream import WorkerConfig, get_savable_loader
from energon_stream.errors import ConfigError, StateError, StateMismatchError, StateVersionError
from energon_stream.pipeline import BatchDataset
from energon_stream.testing.operator_suite import NumbersDataset

STREAMS = 12


def open_loader(rank=0, world=1, workers=0, streams=STREAMS, **options):
    config = WorkerConfig(rank, world, workers, num_streams=streams, **options)
    return get_savable_loader(BatchDataset(NumbersDataset(2000, config), 2, list))


def take(loader, count):
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def after(world, steps):
    """The loaders of all ranks after so many steps of the job."""
    loaders = [open_loader(rank, world) for rank in range(world)]
    for loader in loaders:
        take(loader, steps)
    return loaders


EXPECTED = take(open_loader(), 80)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_dict_goes_through_torch_load_and_on(tmp_path, workers):
    loader = open_loader(workers=workers)
    assert isinstance(loader, Stateful)
    take(loader, 17)
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    loader.close()
    again = open_loader()
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert take(again, 10) == EXPECTED[17:27]


def test_entries_of_streams_fit_any_number_of_ranks():
    entries = {}
    for loader in after(4, 5):
        entries |= loader.state_dict()["streams"]
    for world in (1, 2, 3, 6, 12):
        loaders = [open_loader(rank, world) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict(loaders[0].state_dict() | {"streams": entries})
        ranks = [iter(loader) for loader in loaders]
        assert [next(ranks[number % world]) for number in range(20, 50)] == EXPECTED[20:50]


def test_state_dicts_that_do_not_fit_are_named():
    loader, state = open_loader(0, 2), after(4, 5)[0].state_dict()
    with pytest.raises(StateMismatchError, match=r"lacks the streams \[2, 6, 10\] of rank 0 of 2"):
        loader.load_state_dict(state)
    with pytest.raises(StateError, match="state_dict"):
        loader.load_state_dict(loader.save_state_rank())
    with pytest.raises(StateVersionError, match="version 9"):
        loader.load_state_dict(state | {"version": 9})
    with pytest.raises(StateError, match="entry of stream 0"):
        open_loader(0, 4).load_state_dict(state | {"streams": state["streams"] | {"0": {"rotation": 1}}})
    uneven = after(4, 5)[0].state_dict()["streams"] | after(4, 9)[2].state_dict()["streams"]
    with pytest.raises(StateMismatchError, match="different steps"):
        loader.load_state_dict(state | {"streams": uneven})
    foreign = (
        after(4, 5)[2].state_dict()["streams"] | open_loader(0, 4, seed_offset=1).state_dict()["streams"]
    )
    with pytest.raises(StateMismatchError, match="different jobs"):
        loader.load_state_dict(state | {"streams": foreign})


def test_the_states_of_all_ranks_restore_where_they_were_saved_too():
    """Also where a stream has ended, which no other number of ranks can take."""
    config = WorkerConfig(0, 1, 0, num_streams=3)
    loader = get_savable_loader(BatchDataset(NumbersDataset(10, config), 2, list))
    whole = list(loader)
    loader = get_savable_loader(BatchDataset(NumbersDataset(10, config), 2, list))
    take(loader, len(whole) - 1)
    states = loader.save_state_global()
    again = get_savable_loader(BatchDataset(NumbersDataset(10, config), 2, list))
    again.restore_state_global(states)
    assert list(again) == whole[-1:]
    again = get_savable_loader(BatchDataset(NumbersDataset(10, config), 2, list))
    again.restore_state_global(None)
    assert list(again) == whole


def test_saving_describes_nothing(monkeypatch):
    """What a dataset is does not change; with a thousand sources, to describe it takes longer than to
    save.
    """
    loader = open_loader(workers=1)
    take(loader, 1)
    monkeypatch.setattr("energon_stream.loader.savable.describe", None)
    first = loader.save_state_rank()
    loader.close()
    assert first == loader.save_state_rank()


def test_without_a_process_group_many_ranks_are_an_error():
    with pytest.raises(ConfigError, match="init_process_group"):
        open_loader(0, 2).save_state_global(0)
    with pytest.raises(ConfigError, match="dst_rank is 2"):
        open_loader().save_state_global(1, dst_rank=2)


def save_both_ways(rank, world, folder):
    loader = open_loader(rank, world, data_parallel_group=dist.group.WORLD)
    take(loader, 5)
    states = loader.save_state_global(global_dst_rank=1)
    assert (states is None) == (rank != 1)
    if rank == 1:
        torch.save(states, folder / "states.pt")
    save_checkpoint({"loader": loader}, storage_writer=FileSystemWriter(folder / "dcp"))


def load_both_ways(rank, world, folder):
    first = (
        20 + (rank - 20) % world
    )  # four ranks did five steps: the first batch after them that is this rank's
    for source in (0, None):
        loader = open_loader(rank, world)
        states = torch.load(folder / "states.pt") if source is None or rank == source else None
        loader.restore_state_global(states, src_rank=source)
        assert take(loader, 6) == EXPECTED[first::world][:6]
    loader = open_loader(rank, world)
    load_checkpoint({"loader": loader}, storage_reader=FileSystemReader(folder / "dcp"))
    assert take(loader, 6) == EXPECTED[first::world][:6]


def test_checkpoints_of_four_processes_load_in_three(tmp_path):
    in_ranks(4, save_both_ways, tmp_path)
    in_ranks(3, load_both_ways, tmp_path)
