"""Files of each rank's state, as Megatron's programs write them, on other numbers of ranks.

The expected samples are those of one undisturbed rank.
"""

from itertools import islice

import pytest
import torch
from repetitions import is_nightly
from topologies import over_epochs

from energon_stream import WorkerConfig
from energon_stream.compat import rank_files
from energon_stream.compat.aliased_program import STATES_VARIABLE
from energon_stream.compat.rank_files import get_savable_loader, rank_file
from energon_stream.errors import StateError, StateMismatchError
from energon_stream.integrations.megatron import (
    EnergonDataloader,
    restore_dataloader_state,
    save_dataloader_state,
)
from energon_stream.pipeline import BatchDataset
from energon_stream.testing.operator_suite import NumbersDataset

RUN = ("-m", "energon_stream.run_megatron")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(STATES_VARIABLE, str(tmp_path))
    return tmp_path


def opened(rank=0, world=1, streams=0):
    config = WorkerConfig(rank, world, 0, num_streams=streams)
    return get_savable_loader(BatchDataset(NumbersDataset(2000, config), 2, list))


EXPECTED = list(islice(over_epochs(opened(streams=24)), 480))


def go_on(place, world, begin, count, streams=0):
    """What a program does on all ranks: load its file, train, save its file. Returns the batches in order."""
    loaders = [opened(rank, world, streams) for rank in range(world)]
    for rank, loader in enumerate(loaders if begin else ()):
        saved = torch.load(rank_file(place(begin), rank))
        loader.restore_state_rank(saved["dataloader_state_dict"])
    ranks = [over_epochs(loader) for loader in loaders]
    found = [next(ranks[number % world]) for number in range(24 * begin, 24 * (begin + count))]
    place(begin + count).mkdir(parents=True, exist_ok=True)
    for rank, loader in enumerate(loaders):
        torch.save({"dataloader_state_dict": loader.save_state_rank()}, rank_file(place(begin + count), rank))
    return found


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", ["energon", "", "mp_rank_00", "mp_rank_00_000"])
def test_any_number_of_ranks_follows_any_other(folder, layout):
    def place(step):
        if layout == "energon":  # below the folder that is named, as Bridge has it
            return folder / "energon" / f"iter_{step:07d}"
        return folder / f"iter_{step:07d}" / layout

    found = go_on(place, 4, 0, 1, streams=24)
    many = (8, 3, 1, 6, 2, 12, 4) if is_nightly() else (8, 1, 12)
    for step, world in enumerate(many if layout == "energon" else (12, 4), 1):
        found += go_on(place, world, step, 1)
    assert found == EXPECTED[: len(found)]
    names = {path.name for path in place(1).iterdir()}  # four were saved; any step may be loaded on twelve
    assert names == {f"train_dataloader_dprank{rank:03d}.pt" for rank in range(12)}


def test_the_ranks_of_one_step_change_again_and_again(folder):
    def place(step):
        return folder / f"iter_{step:07d}"

    go_on(place, 3, 0, 1, streams=24)
    worlds = (4, 8, 6, 3, 8, 1, 2) if is_nightly() else (4, 8, 3, 1)
    for world in worlds:  # the files of ranks 3 to 7 are of the numbers before
        assert go_on(place, world, 1, 1) == EXPECTED[24:48]


def test_what_was_added_is_replaced_when_the_job_saves_the_step_again(folder):
    def place(step):
        return folder / f"iter_{step:07d}"

    for wanted in (2, 1):  # in the second run, the step is after as many batches of other data
        go_on(place, 2, 0, wanted, streams=24)
        (place(wanted)).rename(place(5)) if not place(5).exists() else [
            path.replace(place(5) / path.name) for path in place(wanted).iterdir()
        ]
        rest = [opened(rank, 4) for rank in range(4)]  # ranks 2 and 3 add their files
        for rank, loader in enumerate(rest):
            loader.restore_state_rank(torch.load(rank_file(place(5), rank))["dataloader_state_dict"])
        begin = 24 * wanted
        assert [next(iter(loader)) for loader in rest] == EXPECTED[begin : begin + 4]


def test_what_cannot_be_dealt_is_named(folder, monkeypatch, caplog):
    def place(step):
        return folder / f"iter_{step:07d}"

    go_on(place, 4, 0, 1, streams=24)
    saved = torch.load(rank_file(place(1), 0))["dataloader_state_dict"]
    possible = r"24 streams cannot be dealt to 5 ranks.*ossible are \[1, 2, 3, 4, 6, 8, 12, 24\] ranks"
    with pytest.raises(StateMismatchError, match=possible):
        opened(4, 5)
    with pytest.raises(StateMismatchError, match=possible):
        opened(0, 5).restore_state_rank(saved)
    rank_file(place(1), 2).unlink()
    with pytest.raises(StateError, match=r"dprank002.pt"):
        opened(0, 2).restore_state_rank(saved)
    go_on(place, 3, 0, 2, streams=24)  # step 2 is complete; step 1 is not the latest any more
    opened(4, 6)
    assert "no loader state for rank 4" in caplog.text
    rank_file(place(2), 1).write_bytes(b"PK damaged")
    rank_file(place(2), 4).unlink()
    with pytest.raises(StateError, match="no loader state"):
        opened(4, 6)
    torch.save({"dataloader_state_dict": saved}, rank_file(place(2), 1))
    with pytest.raises(StateMismatchError, match="not of rank 1 of 3"):
        opened(4, 6)
    monkeypatch.delenv(STATES_VARIABLE)
    with pytest.raises(StateMismatchError, match=r"saved on 4 data-parallel ranks.*--states FOLDER"):
        opened(0, 2).restore_state_rank(saved)
    opened(0, 4, 24).restore_state_rank(saved)


def test_a_step_that_a_crash_left_incomplete_is_not_the_one_to_load(folder, caplog):
    def place(step):
        return folder / f"iter_{step:07d}"

    go_on(place, 4, 0, 1, streams=24)
    go_on(place, 4, 0, 2, streams=24)
    for rank in (1, 2, 3):
        rank_file(place(2), rank).unlink()
    with pytest.raises(StateError, match="no such file"):
        opened(4, 6)
    (folder / "latest_checkpointed_iteration.txt").write_text("1")
    assert go_on(place, 6, 1, 1) == EXPECTED[24:48]
    assert "no loader state for rank 4" in caplog.text
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    opened(4, 6)  # step 2 is complete now


def test_a_folder_that_cannot_be_written_is_named(folder, monkeypatch):
    def place(step):
        return folder / f"iter_{step:07d}"

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    go_on(place, 4, 0, 1, streams=24)
    with monkeypatch.context() as patched:
        patched.setattr(rank_files, "replacing", refused)
        with pytest.raises(StateError, match=r"rank 4 cannot be written.*checkpoint redist"):
            opened(4, 6)
        assert go_on(place, 2, 1, 1) == EXPECTED[24:48]  # nothing is written for fewer ranks


def test_our_functions_deal_as_well(tmp_path):
    for rank in range(4):
        loader = EnergonDataloader(opened(rank, 4, 24))
        list(islice(loader, 6))
        save_dataloader_state(loader, tmp_path, 1, dp_rank=rank)
    ranks = [EnergonDataloader(opened(rank, 6)) for rank in range(6)]
    for rank, loader in enumerate(ranks):
        restore_dataloader_state(loader, tmp_path, 1, dp_rank=rank)
    assert [next(ranks[number % 6]) for number in range(24, 48)] == EXPECTED[24:48]


SHOW = """
import os
from megatron.energon import WorkerConfig
print(os.environ["ENERGON_STREAM_STATES"], WorkerConfig(1, 8, 2).num_streams)
"""


def test_the_launcher_names_the_folder(run, tmp_path):
    (tmp_path / "program.py").write_text(SHOW)
    printed = run(*RUN, "--states", "runs", "program.py", cwd=tmp_path)
    assert printed == f"{tmp_path}/runs 48\n"
    printed = run(*RUN, "--states", "runs", "program.py", cwd=tmp_path, ENERGON_STREAM_NUM_STREAMS="16")
    assert printed == f"{tmp_path}/runs 16\n"
