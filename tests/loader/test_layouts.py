"""Which processes read what: data-parallel ranks share the batches, tensor- and context-parallel copies have
the same.
"""

import json
import os
import sys
from pathlib import Path

import children
import pytest
import torch.distributed as dist
from ranks import in_ranks
from repetitions import is_nightly
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint import load as load_checkpoint
from torch.distributed.checkpoint import save as save_checkpoint

from energon_stream import WorkerConfig, get_savable_loader
from energon_stream.errors import ConfigError
from energon_stream.pipeline import BatchDataset
from energon_stream.state import dumps, loads
from energon_stream.testing.operator_suite import NumbersDataset

STREAMS = 12


def open_loader(config):
    return get_savable_loader(BatchDataset(NumbersDataset(2000, config), 2, list))


def take(loader, count):
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


def on_one_rank(count):
    return take(open_loader(WorkerConfig(0, 1, 0, num_streams=STREAMS)), count)


def two_by_two(rank, world, folder):
    """Processes 0 and 1 are copies of data-parallel rank 0, 2 and 3 of rank 1; with workers and without."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    copy, group = rank % 2, groups[rank % 2]
    config = WorkerConfig.default_worker_config(copy, group, num_streams=STREAMS)
    assert (config.rank, config.world_size) == (rank // 2, 2)
    loader = open_loader(config)
    found = [None] * world
    dist.all_gather_object(found, take(loader, 9))
    assert found[0] == found[1] == on_one_rank(18)[0::2]
    assert found[2] == found[3] == on_one_rank(18)[1::2]

    states = loader.save_state_global(global_dst_rank=copy)  # each group at its first process
    assert (states is None) == (rank // 2 == 1)
    with pytest.raises(ConfigError, match=rf"process {1 - copy} .* which has \[{copy}, {copy + 2}\]"):
        loader.save_state_global(global_dst_rank=1 - copy)
    if states is not None:
        (folder / f"{copy}").write_bytes(dumps(states))
    save_checkpoint({"loader": loader}, storage_writer=FileSystemWriter(folder / "dcp"))
    loader.close()

    again = open_loader(config)
    again.restore_state_global(states, src_rank=0)  # of each group's own rank 0
    dist.all_gather_object(found, take(again, 5))
    assert found[0] == found[1] == on_one_rank(28)[18::2]
    assert found[2] == found[3] == on_one_rank(28)[19::2]
    again.close()


def three_by_one(rank, world, folder):
    states = loads((folder / "0").read_bytes())
    assert loads((folder / "1").read_bytes()) == states
    config = WorkerConfig.default_worker_config(0, num_streams=STREAMS)
    expected = on_one_rank(30)[18 + rank :: 3]
    loader = open_loader(config)
    loader.restore_state_global(states)
    assert take(loader, 4) == expected
    loader = open_loader(config)
    load_checkpoint({"loader": loader}, storage_reader=FileSystemReader(folder / "dcp"))
    assert take(loader, 4) == expected


def test_copies_of_a_rank_read_the_same_and_their_states_fit_other_layouts(tmp_path):
    in_ranks(4, two_by_two, tmp_path)
    in_ranks(3, three_by_one, tmp_path)


def under_torchrun(folder, steps):
    """One rank of a job that goes on where the job before it stood; run as a program."""
    dist.init_process_group("gloo")
    workers = int(os.environ["LOCAL_RANK"]) % 2  # which changes nothing
    config = WorkerConfig.default_worker_config(workers, num_streams=STREAMS)
    loader = open_loader(config)
    file = folder / "states"
    loader.restore_state_global(loads(file.read_bytes()) if file.exists() else None)
    found = [None] * config.world_size
    dist.all_gather_object(found, (config.rank, take(loader, steps)))
    states = loader.save_state_global()
    loader.close()
    if states is not None:
        file.write_bytes(dumps(states))
        seen = {"ranks": [rank for rank, _ in found], "batches": [batches for _, batches in found]}
        (folder / f"{config.world_size}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def test_torchrun_with_other_numbers_of_processes(tmp_path):
    """Each number of ranks goes on where the one before it stood."""
    begin, expected = 0, on_one_rank(60)
    for world in (1, 2, 3, 4) if is_nightly() else (1, 4):
        steps = 12 // world
        done = children.run(
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", world),
            *(__file__, tmp_path, steps),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / f"{world}.json").read_text())
        assert found["ranks"] == list(range(world))
        for rank, batches in enumerate(found["batches"]):
            assert batches == expected[begin + rank : begin + 12 : world]
        begin += 12


if __name__ == "__main__":
    under_torchrun(Path(sys.argv[1]), int(sys.argv[2]))
