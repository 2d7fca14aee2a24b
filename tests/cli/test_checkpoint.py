"""``energon-stream checkpoint``: files of all kinds, dealt to other numbers of ranks."""

import os
import pickle
import re

import pytest
import torch
from click.testing import CliRunner
from torch.distributed.checkpoint import save as save_checkpoint

from energon_stream.cli.main import main
from energon_stream.errors import StateMismatchError
from energon_stream.loader import get_savable_loader
from energon_stream.pipeline import BatchDataset, EpochizeDataset
from energon_stream.state import dumps, loads, redistribute, split_streams
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


def save(content, path, by_torch, wrapped):
    content = {"dataloader_state_dict": content, "iteration": 6} if wrapped else content
    if by_torch:
        torch.save(content, path)
    else:
        path.write_bytes(dumps(content))


def load(path, by_torch, wrapped):
    content = torch.load(path) if by_torch else loads(path.read_bytes())
    assert not wrapped or content.pop("iteration") == 6
    return content["dataloader_state_dict"] if wrapped else content


def contents(states, kind):
    """What files of a kind hold, by the names that frameworks give them."""
    if kind == "list":
        return {"global.pt": states}
    names = [f"train_dataloader_dprank{rank:03d}.pt" for rank in range(len(states))]
    if kind == "ranks":
        return dict(zip(names, states, strict=True))
    parts = [split_streams(state) for state in states]
    if kind == "streams of ranks":
        return dict(zip(names, parts, strict=True))
    return {"union.pt": {**parts[0], "streams": {k: v for part in parts for k, v in part["streams"].items()}}}


def restored(found, kind, world):
    """Loaders of all ranks that went on from the contents of such files."""
    loaders = [loader(rank, world) for rank in range(world)]
    for rank, one in enumerate(loaders):
        content = next(iter(found.values())) if len(found) == 1 else found[sorted(found)[rank]]
        if kind == "list":
            one.restore_state_rank(content[rank])
        elif kind == "ranks":
            one.restore_state_rank(content)
        else:
            one.load_state_dict(content)
    return loaders


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", ["ranks", "list", "streams of ranks", "union"])
@pytest.mark.parametrize("by_torch", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_states_of_every_form_are_shown_and_dealt_in_that_form(tmp_path, kind, by_torch, wrapped):
    expected, _ = run([None], 1, 0, 60)
    for world, following in [(2, 4), (4, 1), (1, 3), (3, 3)]:
        folder = tmp_path / f"{world}"
        folder.mkdir()
        states = run([None] * world, world, 0, 12)[1]
        written = contents(states, "list" if kind == "union" and world == 1 else kind)
        for name, content in written.items():
            save(content, folder / name, by_torch, wrapped)
        files = sorted(folder.iterdir())
        shown = invoke("info", *files[::-1])
        assert shown.exit_code == 0
        assert f"rank {world - 1} of {world}, 12 streams" in shown.output
        assert "can be dealt to [1, 2, 3, 4, 6, 12] ranks" in shown.output
        assert ("torch.save" if by_torch else "msgpack") in shown.output
        out = tmp_path / "new" / f"{world}"  # made by the command
        dealt = invoke("redist", *files[::-1], out, "--new-world-size", following)
        assert dealt.exit_code == 0, dealt.output
        now = "list" if kind == "union" and world == 1 else kind
        names = sorted(path.name for path in out.iterdir())
        assert names == sorted(contents([states[0]] * following, now))
        found = {name: load(out / name, by_torch, wrapped) for name in names}
        ranks = [iter(one) for one in restored(found, now, following)]
        assert [next(ranks[number % following]) for number in range(12, 40)] == expected[12:40]


def test_tensors_beside_a_state_do_not_matter(tmp_path):
    """PyTorch reads such a file; without tensors it is not imported."""
    state = run([None], 1, 0, 12)[1][0]
    torch.save({"dataloader_state_dict": state, "weight": torch.ones(2)}, tmp_path / "rank0.pt")
    assert "rank 0 of 1, 12 streams" in invoke("info", tmp_path / "rank0.pt").output
    dealt = invoke("redist", tmp_path / "rank0.pt", tmp_path / "out", "--new-world-size", 1)
    assert dealt.exit_code == 0, dealt.output
    assert torch.load(tmp_path / "out" / "rank0.pt")["weight"].tolist() == [1, 1]


def test_a_single_rank_by_stream_gets_files_for_each_rank(tmp_path):
    """It is a file of a rank, not of all ranks, as far as anyone can tell."""
    (tmp_path / "state.pt").write_bytes(dumps(split_streams(run([None], 1, 0, 12)[1][0])))
    assert invoke("redist", tmp_path / "state.pt", tmp_path / "out", "--new-world-size", 2).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["state-rank0.pt", "state-rank1.pt"]


@pytest.mark.energon(
    "checkpoint redist over states", differs="refused: what it would replace may be the only states"
)
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["step10_rank0of2.pt", "step10_rank1of2.pt"], ["step10_rank0of2.pt"]),
        (["0/state.pt", "1/state.pt"], ["state-rank0.pt"]),
        (["a7.pt", "b.pt"], ["a7-rank0.pt"]),
    ],
)
def test_names_are_those_of_the_files_with_the_new_ranks_numbers(tmp_path, names, expected):
    for name, state in zip(names, run([None] * 2, 2, 0, 12)[1], strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(dumps(state))
    files = [tmp_path / name for name in names]
    assert invoke("redist", *files, tmp_path / "out", "--new-world-size", 1).exit_code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == expected
    again = invoke("redist", *files, tmp_path / "out", "--new-world-size", 1)
    assert again.exit_code == 2
    assert "Choose another folder" in again.output


def test_virtual_epochs_are_shown_with_the_length_to_pass(tmp_path):
    def epochs(rank, world):
        config = WorkerConfig(rank, world, 0, num_streams=STREAMS)
        numbers = BatchDataset(NumbersDataset(2000, config), 2, list)
        return get_savable_loader(EpochizeDataset(numbers, 18 // world))

    states = []
    for rank in range(3):
        one = epochs(rank, 3)
        assert [len(list(one)) for _ in range(2)] == [6, 6]
        next(iter(one))
        states.append(one.save_state_rank())
    file = tmp_path / "global.msgpack"
    file.write_bytes(dumps(states))
    shown = invoke("info", file).output
    assert "13 batches, 1 of them in this pass, 2 passes before it" in shown
    assert "virtual_epoch_length is 18 with 1, 9 with 2, 6 with 3, 3 with 6 ranks" in shown
    assert invoke("redist", file, tmp_path / "out", "--new-world-size", 2).exit_code == 0
    dealt = loads((tmp_path / "out" / file.name).read_bytes())
    one = epochs(0, 1)
    one.restore_state_global(dealt)
    whole = epochs(0, 1)
    expected = [list(whole) for _ in range(3)]
    assert list(one) == expected[2][3:]


def bad_pickle(path):
    """A file that would run a program if it were unpickled."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(path.parent / "ran"),)

    torch.save({"dataloader_state_dict": Evil()}, path)


def test_errors_say_which_file(tmp_path):
    states = run([None] * 3, 3, 0, 6)[1]
    later = run([None] * 3, 3, 0, 12)[1]
    foreign = loader(0, 3)
    foreign.worker_config = WorkerConfig(0, 3, 0, num_streams=STREAMS, seed_offset=1)
    files = {
        "junk": b"\xc1",
        "short": dumps(states[0])[:-9],
        "zip": b"PK nothing",
        "old": dumps({**states[0], "version": 1}),
        "other": dumps({"epoch": 1}),
        "r0": dumps(states[0]),
        "r1": dumps(states[1]),
        "r2": dumps(states[2]),
        "later": dumps(later[2]),
        "foreign": dumps(foreign.save_state_rank()),
        "streams": dumps({**(part := split_streams(states[2])), "streams": part["streams"] | {"2": b"\x80"}}),
        "fewer": dumps({**part, "streams": {"2": part["streams"]["2"]}}),
        "all": dumps(states),
        "wrapped": dumps({"dataloader_state_dict": states[2]}),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    bad_pickle(tmp_path / "evil")
    out = tmp_path / "out"
    for names, said in [
        (["junk"], r"not a state.*\[\S*junk\]"),
        (["short"], r"not a state.*\[\S*short\]"),
        (["zip"], r"torch\.load.*\[\S*zip\]"),
        (["evil"], r"torch\.load.*UnpicklingError.*\[\S*evil\]"),
        (["old"], r"version 1.*\[\S*old\]"),
        (["other"], r"not a rank's state.*\[\S*other\]"),
        (["r0", "r1", "r1"], r"ranks \[0, 1, 1\].*\[\S*r1, \S*r1\]"),
        (["r0", "r1"], r"ranks \[0, 1\], but the job had 3"),
        (["r0", "r1", "later"], r"not neighbours \[\S*r0, \S*later\]"),
        (["r1", "r2", "foreign"], r"different jobs \[\S*r1, \S*foreign\]"),
        (["streams"], r"not a rank's state \[entry of stream 2 in \S*streams\]"),
        (["fewer"], r"lacks the streams \[5, 8, 11\] of rank 2 of 3 \[\S*fewer\]"),
        (["all", "r1"], r"ranks \[0, 1, 1, 2\].*\[rank 1 in \S*all, \S*r1\]"),
        (["r0", "r1", "wrapped"], r"of different kinds.*\[\S*r0, \S*wrapped\]"),
    ]:
        failed = invoke("redist", *[tmp_path / name for name in names], out, "--new-world-size", 1)
        assert failed.exit_code == 1, names
        assert re.search(said, failed.output), failed.output
        if len(names) == 1:
            assert re.search(said, invoke("info", tmp_path / names[0]).output)
    assert not out.exists()
    assert not (tmp_path / "ran").exists()
    shown = invoke("info", tmp_path / "r0", tmp_path / "later")
    assert shown.exit_code == 0
    assert "cannot be dealt to other ranks: there are states of ranks [0, 2]" in shown.output


def test_folders_of_torch_distributed_checkpoint_are_shown(tmp_path):
    """Without torch, and without executing what their metadata names."""
    one, other = loader(0, 1), loader(0, 1)
    numbers = iter(one)
    for _ in range(5):
        next(numbers)
    folder = tmp_path / "step-5"
    save_checkpoint({"train": one, "val": other, "model": {"w": torch.ones(3)}}, checkpoint_id=folder)
    shown = invoke("info", folder)
    assert shown.exit_code == 0, shown.output
    assert "of 1 rank under 'train', torch.distributed.checkpoint" in shown.output
    assert "under 'val'" in shown.output
    assert "5 batches, 5 of them in this pass" in shown.output
    assert shown.output.count("can be dealt to [1, 2, 3, 4, 6, 12] ranks") == 2
    dealt = invoke("redist", folder, tmp_path / "out", "--new-world-size", 2)
    assert dealt.exit_code == 2
    assert "needs no dealing" in dealt.output
    assert "torch.distributed.checkpoint.load" in dealt.output
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_be_shown_are_named(tmp_path):
    def said_of(folder):
        failed = invoke("info", folder)
        assert failed.exit_code == 1
        assert str(folder) in failed.output
        return failed.output

    (tmp_path / "empty").mkdir()
    assert "has no .metadata" in said_of(tmp_path / "empty")
    save_checkpoint({"w": torch.ones(3)}, checkpoint_id=tmp_path / "model")
    assert "no state of a loader" in said_of(tmp_path / "model")
    folder = tmp_path / "checkpoint"
    save_checkpoint({"loader": loader(0, 1)}, checkpoint_id=folder)
    data = (folder / "__0_0.distcp").read_bytes()
    (folder / "__0_0.distcp").write_bytes(data[:-100])
    assert "checkpoint is damaged" in said_of(folder)
    (folder / "__0_0.distcp").write_bytes(data.replace(b"energon_stream.rank", b"energon_stream.dank"))
    assert re.search("is damaged|not a rank's state", said_of(folder))
    metadata = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(metadata.replace(b"__0_0.distcp", b"../_0.distcp"))
    assert "outside the folder" in said_of(folder)
    (folder / ".metadata").write_bytes(metadata[:-30])
    assert "checkpoint is damaged" in said_of(folder)

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    assert "checkpoint is damaged" in said_of(folder)
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_dealt_is_named():
    _, states = run([None] * 3, 3, 0, 6)
    other = run([None] * 3, 3, 0, 12)[1]
    for wrong, world, message in [
        (states, 5, r"Possible are \[1, 2, 3, 4, 6, 12\]"),
        (states[:2], 1, "states of ranks"),
        ([*states[:2], other[2]], 1, "not neighbours"),
        ([], 1, "no states"),
    ]:
        with pytest.raises(StateMismatchError, match=message):
            redistribute(wrong, world)
