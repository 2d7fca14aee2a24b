"""``energon-stream checkpoint``: files of all kinds, dealt to other numbers of ranks."""

import pytest
import torch
from click.testing import CliRunner

from energon_stream.cli.main import main
from energon_stream.errors import StateMismatchError
from energon_stream.loader import get_savable_loader
from energon_stream.pipeline import BatchDataset
from energon_stream.state import dumps, loads, redistribute
from energon_stream.testing.operator_suite import NumbersDataset
from energon_stream.worker import WorkerConfig

STREAMS = 12


def loader(rank, world, workers=0):
    config = WorkerConfig(rank, world, workers, num_streams=STREAMS)
    return get_savable_loader(BatchDataset(NumbersDataset(2000, config), 2, list))


def run(states, world, begin, count):
    """The job's batches from number ``begin`` on, in their order, and the states of all ranks after them."""
    loaders = [loader(rank, world, workers=rank % 2) for rank in range(world)]
    for one, state in zip(loaders, states, strict=True):
        one.restore_state_rank(state)
    streams = [iter(one) for one in loaders]
    batches = [next(streams[number % world]) for number in range(begin, begin + count)]
    states = [one.save_state_rank() for one in loaders]
    for one in loaders:
        one.close()
    return batches, states


def invoke(*arguments):
    return CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])


def test_the_global_order_of_batches_outlives_any_change_of_ranks():
    expected, _ = run([None], 1, 0, 150)
    found, states = [], [None] * 4
    for world, following, count in [
        (4, 6, 9),
        (6, 1, 24),
        (1, 3, 5),
        (3, 12, 7),
        (12, 2, 30),
        (2, 4, 1),
        (4, 4, 20),
    ]:
        batches, states = run(states, world, len(found), count)
        found += batches
        states = redistribute(loads(dumps(states))[::-1], following)
    assert found == expected[: len(found)]
    assert len(found) == 96


@pytest.mark.parametrize("kind", ["torch", "msgpack", "wrapped"])
def test_files_of_ranks_are_shown_and_dealt(tmp_path, kind):
    _, states = run([None] * 2, 2, 0, 12)
    write = {
        "torch": lambda state, path: torch.save(state, path),
        "msgpack": lambda state, path: path.write_bytes(dumps(state)),
        "wrapped": lambda state, path: torch.save({"dataloader_state_dict": state}, path),
    }[kind]
    files = [tmp_path / f"train_dataloader_dprank{rank:03d}.pt" for rank in range(2)]
    for state, file in zip(states, files, strict=True):
        write(state, file)
    shown = invoke("info", *files)
    assert shown.exit_code == 0
    assert "rank 1 of 2, 12 streams" in shown.output
    out = tmp_path / "new" / "folder"  # made by the command
    assert invoke("redist", *files, out, "--new-world-size", 4).exit_code == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == [f"train_dataloader_dprank{rank:03d}.pt" for rank in range(4)]
    read = (lambda path: loads(path.read_bytes())) if kind == "msgpack" else torch.load
    batches, _ = run([read(out / name) for name in names], 4, 12, 12)
    assert batches == run([None], 1, 0, 24)[0][12:]


def test_one_file_of_all_ranks_stays_one(tmp_path):
    """Megatron-Energon's tool refuses a single file, which every global checkpoint is."""
    file = tmp_path / "global.pt"
    torch.save(run([None] * 3, 3, 0, 12)[1], file)
    assert invoke("redist", file, tmp_path / "out", "--new-world-size", 2).exit_code == 0
    assert len(torch.load(tmp_path / "out" / "global.pt")) == 2


def test_what_cannot_be_dealt_is_named(tmp_path):
    _, states = run([None] * 3, 3, 0, 6)
    other = run([None] * 3, 3, 0, 12)[1]
    for wrong, world, message in [
        (states, 5, r"possible are \[1, 2, 3, 4, 6, 12\]"),
        (states[:2], 1, "states of ranks"),
        ([*states[:2], other[2]], 1, "not neighbours"),
        ([], 1, "no states"),
    ]:
        with pytest.raises(StateMismatchError, match=message):
            redistribute(wrong, world)
    (tmp_path / "junk").write_bytes(b"\xc1")
    failed = invoke("redist", tmp_path / "junk", tmp_path / "out", "--new-world-size", 1)
    assert failed.exit_code == 1
    assert "junk" in failed.output
    assert not (tmp_path / "out").exists()
