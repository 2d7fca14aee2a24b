"""The loader as one ``Stateful`` more of ``torch.distributed.checkpoint``: async, resharded, alone."""

import os
from pathlib import Path

import children
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import in_ranks
from torch.distributed.checkpoint import FileSystemReader, state_dict_saver

from energon_stream import WorkerConfig, get_savable_loader
from energon_stream.errors import StateMismatchError
from energon_stream.integrations.dcp import ElasticLoadPlanner
from energon_stream.pipeline import BatchDataset, ShuffleBufferDataset
from energon_stream.testing.operator_suite import NumbersDataset

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STREAMS = 24
# Older versions of PyTorch save with a thread, and cannot be asked for a process.
KINDS = [
    {"async_checkpointer_type": kind} for kind in getattr(state_dict_saver, "AsyncCheckpointerType", ())
] or [{}]


def open_loader(rank=0, world=1, workers=0, streams=STREAMS):
    config = WorkerConfig(rank, world, workers, num_streams=streams)
    return get_savable_loader(BatchDataset(ShuffleBufferDataset(NumbersDataset(9000, config), 50), 3, list))


def undisturbed(steps):
    """The batches of the job, in their order over all ranks."""
    batches = iter(open_loader())
    return [next(batches) for _ in range(steps * STREAMS)]


class CountingReader(FileSystemReader):
    """Notes the keys that a rank reads."""

    keys: list[str]

    def read_data(self, plan, planner):
        self.keys = sorted(item.storage_index.fqn for item in plan.items)
        return super().read_data(plan, planner)


def train(rank, world, folder, begin, steps, kind):
    """Load what another number of ranks saved, and save in the background while batches go on."""
    aside = dist.new_group(backend="gloo")  # collectives of the background do not meet those of the loop
    # The second job names no number of streams, and has one for each of its ranks until it loads.
    streams, planner = (0, ElasticLoadPlanner()) if begin == steps else (STREAMS, None)
    loader = open_loader(rank, world, workers=rank % 2, streams=streams)
    expected = undisturbed(begin + steps + 2)
    if begin:
        reader = CountingReader(folder / str(begin))
        dcp.load({"loader": loader}, storage_reader=reader, planner=planner)
        mine = [f"loader.streams.{stream}" for stream in range(rank, STREAMS, world)]
        assert [key for key in reader.keys if "streams" in key] == sorted(mine)
    batches = iter(loader)
    end = (begin + steps) * STREAMS
    assert [next(batches) for _ in range(steps * STREAMS // world)] == expected[
        begin * STREAMS + rank : end : world
    ]
    saved = dcp.async_save(
        {"loader": loader},
        checkpoint_id=folder / str(begin + steps),
        process_group=aside,
        **kind,
    )
    # The state is that of the call, however far the loop is when it is written.
    after = [next(batches) for _ in range(STREAMS // world)]
    assert after == expected[end + rank : end + STREAMS : world]
    saved.result()
    loader.close()


def through(worlds, folder, kind=KINDS[0]):
    for number, world in enumerate(worlds):
        in_ranks(world, train, folder, 2 * number, 2, kind)


def test_saved_in_the_background_and_loaded_on_other_numbers_of_ranks(tmp_path):
    through((3, 2, 3), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_eight_ranks_six_and_eight_again(tmp_path, kind):
    through((8, 6, 8), tmp_path, kind)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_process_without_a_group_and_without_a_number_of_streams(tmp_path):
    expected = undisturbed(2)
    loader = open_loader()
    for _ in zip(range(7), loader, strict=False):
        pass
    saved = dcp.async_save({"loader": loader}, checkpoint_id=tmp_path / "one")
    for _ in zip(range(7), loader, strict=False):
        pass
    saved.result()
    again, nested = open_loader(streams=0), open_loader(streams=0).state_dict()
    dcp.load({"loader": again}, checkpoint_id=tmp_path / "one", planner=ElasticLoadPlanner())
    assert next(iter(again)) == expected[7]
    # In dicts, with what has no streams, and names that streams also have.
    others = {"streams": {"0": 1, "a": 2}, "step": 7}
    dcp.save({"app": {"data": loader.state_dict(), **others}}, checkpoint_id=tmp_path / "nested")
    state = {"app": {"data": nested, **others}}
    dcp.load(state, checkpoint_id=tmp_path / "nested", planner=ElasticLoadPlanner())
    again = open_loader(streams=0)
    again.load_state_dict(state["app"]["data"])
    assert next(iter(again)) == expected[14]
    assert state["app"] == {**state["app"], **others}
    for streams in (6, 48):  # a number that the program names is compared
        named = open_loader(streams=streams)
        with pytest.raises(StateMismatchError, match=f"num_streams={STREAMS} to WorkerConfig"):
            dcp.load({"loader": named}, checkpoint_id=tmp_path / "one", planner=ElasticLoadPlanner())
    with pytest.raises(StateMismatchError, match=f"num_streams={STREAMS} to WorkerConfig"):
        dcp.load({"loader": open_loader(streams=6)}, checkpoint_id=tmp_path / "one")
    five = open_loader(0, 5, streams=0)
    with pytest.raises(StateMismatchError, match=r"\[1, 2, 3, 4, 6, 8, 12, 24\]"):
        dcp.load({"loader": five}, checkpoint_id=tmp_path / "one", planner=ElasticLoadPlanner())


def digests(record):
    return [line.split()[2] for line in record.read_text().splitlines()]


def sharded(folder, ranks, steps, record):
    done = children.run(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks),
        *(EXAMPLES / "train_fsdp.py", "--data", folder / "data", "--checkpoint", folder / record),
        *("--record", folder / f"{record}.txt", "--steps", steps, "--workers", 0),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return digests(folder / f"{record}.txt")


@pytest.mark.slow
def test_the_example_with_fsdp_goes_on_with_other_numbers_of_ranks(tmp_path, example_data):
    (tmp_path / "data").symlink_to(example_data / "captions")
    whole = sharded(tmp_path, 1, 6, "whole")
    for ranks, steps in ((3, 2), (2, 4), (4, 6)):
        found = sharded(tmp_path, ranks, steps, "parts")
    assert found == whole
