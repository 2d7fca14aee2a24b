"""``plan`` says how even planned packs are: compared with the packs that loaders of all ranks deliver."""

import json
import time

import numpy as np
import pytest
from click.testing import CliRunner
from packed import ORDER, SAMPLES, Packs, opened, taken, tokens, write

from energon_stream import (
    DefaultTaskEncoder,
    JobStats,
    PlannedPacking,
    SkipSample,
    WorkerConfig,
    compute_costs,
    get_savable_loader,
    stateless,
)
from energon_stream.cli.main import main
from energon_stream.loader.observe.metrics import SUFFIX
from energon_stream.tools.simulate import forecast
from energon_stream.tools.top.board import read_board

LENGTHS = np.clip(np.random.default_rng(0).lognormal(2.5, 1.1, SAMPLES), 1, 100).astype(int)
PATCHES = np.random.default_rng(2).integers(0, 50, SAMPLES)
STEPS = 3  # global steps of 16 packs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("balance") / "texts", LENGTHS)
    compute_costs(path, "tokens", tokens)
    compute_costs(path, "patches", values=PATCHES)
    return path


def delivered(folder, world, **packing):
    """Figures of the packs that each rank's loader gives, from the raw costs of their samples."""
    ranks = []
    for rank in range(world):
        packs = taken(opened(folder, rank, world, **packing), STEPS * 16 // world)
        numbers = [[int(key.rpartition("/")[2]) for key, _, _ in pack] for pack in packs]
        ranks.append([[(LENGTHS[n] ** 2).sum() for n in numbers], [PATCHES[n].sum() for n in numbers]])
    loads = np.array(ranks, dtype=float).reshape(world, 2, STEPS, -1)
    sums = loads.sum(axis=3)
    slowest = sums.max(axis=0) / sums.mean(axis=0)
    heaviest = loads.max(axis=(0, 3)) / sums.mean(axis=0)
    return [
        (mean, worst, heavy)
        for mean, worst, heavy in zip(slowest.mean(1), slowest.max(1), heaviest.mean(1), strict=True)
    ]


@pytest.mark.every(3)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_forecast_has_the_balance_that_loaders_deliver(folder, world):
    several = {
        "cost": {"text": "tokens", "vision": "patches"},
        "capacity": {"text": 100, "vision": 200},
        "load": {"text": "quadratic", "vision": "linear"},
        "overlong": "error",
    }
    found = forecast(
        folder,
        steps=STEPS * 16 // world,
        batch_size=1,
        worker_config=WorkerConfig(0, world, 0, num_streams=4),
        packing=PlannedPacking(window=2, **several),
        **ORDER,
    ).balance
    expected = delivered(folder, world, **several)
    assert list(found) == ["text", "vision"]
    for (mean, worst, heaviest), each in zip(expected, found.values(), strict=True):
        assert (each.mean, each.worst, each.heaviest) == pytest.approx((mean, worst, heaviest))


def test_plan_prints_the_balance(folder):
    options = ["--steps", "12", "--batch-size", "1", "--num-workers", "0", "--num-streams", "4"]
    options += ["--world-size", "4", "--shuffle-buffer-size", "20", "--max-samples-per-sequence", "8"]
    options += ["--pack-cost", "tokens", "--pack-capacity", "100", "--pack-window", "2"]
    [expected, _] = delivered(folder, 4, overlong="error")
    done = CliRunner().invoke(main, ["plan", folder, *options], catch_exceptions=False)
    assert (
        f"over 4 ranks: slowest rank ÷ mean {expected[0]:.3f}, in the worst step {expected[1]:.3f}"
        in done.output
    )
    told = CliRunner().invoke(main, ["plan", folder, *options, "--json"], catch_exceptions=False)
    assert json.loads(told.stdout)["balance"]["load"]["heaviest"] == pytest.approx(expected[2])


TWO = {
    "cost": {"text": "tokens", "vision": "patches"},
    "capacity": {"text": 100, "vision": 200},
    "load": {"text": "quadratic", "vision": "linear"},
}
JOB = ["--batch-size", "1", "--num-workers", "0", "--num-streams", "4", "--world-size", "4"]
JOB += ["--shuffle-buffer-size", "20", "--max-samples-per-sequence", "8"]


def words_of(packing):
    """Options of a command for several costs."""
    return [
        word
        for option, values in packing.items()
        for name, value in values.items()
        for word in (f"--pack-{option}", f"{name}={value}")
    ]


def asked(*words):
    return CliRunner().invoke(main, [*map(str, words)])


def test_a_command_takes_several_costs(folder):
    done = asked("plan", folder, "--steps", 12, *JOB, *words_of(TWO), "--pack-window", 2, "--json")
    found = json.loads(done.stdout)["balance"]
    expected = dict(zip(TWO["cost"], delivered(folder, 4, overlong="error", **TWO), strict=True))
    assert {name: tuple(each.values()) for name, each in found.items()} == {
        name: pytest.approx(each) for name, each in expected.items()
    }


def test_costs_without_names_have_their_own(folder):
    sizes = ["--pack-capacity", "tokens=100", "--pack-capacity", "patches=0.2k"]
    done = asked(
        "plan", folder, "--steps", 12, *JOB, "--pack-cost", "tokens", "--pack-cost", "patches", *sizes
    )
    assert "Balance of tokens over 4 ranks" in done.stdout
    assert "Balance of patches over 4 ranks" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--pack-capacity", "100", "--pack-capacity", "200"], "NAME=VALUE"),
        (["--pack-capacity", "text=100", "--pack-capacity", "text=200"], "NAME=VALUE"),
        (["--pack-capacity", "text=many"], "not a count"),
        (["--pack-capacity", "tokens=100"], "Give 'text' in capacity"),
        (["--pack-capacity", "text=100", "--pack-load", "text=linear"], "Give 'text' and 'vision' in load"),
        (["--pack-capacity", "text=100", "--pack-load", "cubic"], "oad is 'cubic'"),
        (["--pack-capacity", "text=100", "--pack-overlong", "split"], "several costs divide"),
    ],
)
def test_several_costs_that_do_not_fit_are_refused(folder, words, told):
    costs = ["--pack-cost", "text=tokens", "--pack-cost", "vision=patches"]
    done = asked("plan", folder, "--steps", 12, *JOB, *costs, *words)
    assert done.exit_code
    assert told in done.output


def test_a_recorded_run_has_its_several_costs_but_their_names(folder, tmp_path):
    dataset = opened(folder, 0, 1, overlong="error", **TWO)
    with get_savable_loader(dataset, run=tmp_path / "run") as loader:
        next(iter(loader))
    by_hand = [
        *JOB[:2],
        "--num-workers",
        "4",
        *JOB[8:],
        *words_of(TWO),
        "--pack-window",
        "2",
        "--steps",
        "12",
        "--json",
    ]
    costs = words_of({"cost": TWO["cost"]})
    recorded = asked("plan", "--run", tmp_path / "run", *costs, "--steps", "12", "--json")
    assert recorded.stdout == asked("plan", folder, *by_hand).stdout


def test_nothing_is_said_without_planned_packs(folder):
    assert forecast(folder, steps=2, batch_size=4, **ORDER).balance == {}


class Loses(Packs):
    """Leaves some samples out."""

    @stateless
    def encode_sample(self, sample):
        if int(sample.__key__.rpartition("/")[2]) % 7 == 3:
            raise SkipSample
        return sample


def measured(folder, world, workers, encoder, steps=STEPS, **packing):
    """Statistics of all ranks' loaders after some global steps of 16 packs, and the loads they delivered."""
    stats, ranks = [], []
    for rank in range(world):
        loader = get_savable_loader(opened(folder, rank, world, workers, encoder, **packing))
        with loader:
            packs = [batch[0] for batch, _ in zip(loader, range(steps * 16 // world), strict=False)]
            stats.append(loader.stats())
        numbers = [[int(key.rpartition("/")[2]) for key, _, _ in pack] for pack in packs]
        ranks.append([[(LENGTHS[n] ** 2).sum() for n in numbers], [PATCHES[n].sum() for n in numbers]])
    sums = np.array(ranks, dtype=float).reshape(world, 2, steps, -1).sum(axis=3)
    return stats, sums


@pytest.mark.every(3)  # with and without workers, and what is left out
@pytest.mark.parametrize("encoder", [Packs, Loses])
@pytest.mark.parametrize(("world", "workers"), [(2, 0), (4, 1)])
def test_statistics_tell_the_balance_of_what_batches_have(folder, world, workers, encoder):
    options = {"overlong": "error", **TWO}
    stats, sums = measured(folder, world, workers, encoder, **options)
    expected = (sums.max(axis=0) / sums.mean(axis=0)).mean(axis=1)
    all_there, whole = sums, sums.mean(axis=0)
    if encoder is Loses:
        _, all_there = measured(folder, world, 0, Packs, **options)
        whole = all_there.mean(axis=0)
        assert (sums.sum(axis=0) < all_there.sum(axis=0)).all()
    planned = (all_there.max(axis=0) / whole).mean(axis=1)
    found = JobStats(tuple(stats)).balance
    assert list(found) == ["text", "vision"]
    assert [each.measured for each in found.values()] == pytest.approx(list(expected))
    assert [each.planned for each in found.values()] == pytest.approx(list(planned))
    assert {each.steps for each in found.values()} == {STEPS}
    for rank, own in zip(stats, sums, strict=True):
        assert [each.measured for each in rank.balance.values()] == pytest.approx((own / whole).mean(axis=1))
        assert [each.planned for each in rank.balance.values()] == pytest.approx(list(planned))


def test_statistics_of_a_resumed_run_begin_with_its_whole_steps(folder):
    loader = get_savable_loader(opened(folder, encoder=Packs, overlong="error"))
    batches = iter(loader)
    for _ in range(21):
        next(batches)
    again = get_savable_loader(opened(folder, encoder=Packs, overlong="error"))
    again.restore_state_rank(loader.save_state_rank())
    with again:
        for _ in zip(range(11 + 2 * 16), again, strict=False):
            pass
        stats = again.stats()
    assert sorted(stats.pack_steps) == [1, 2, 3]
    assert stats.balance["load"].steps == 2
    assert json.loads(json.dumps(stats.as_json()))["balance"]["load"]["measured"] == pytest.approx(1)
    assert "load of packs, slowest rank ÷ mean: planned 1.000, this rank's 1.000" in str(stats)


def test_statistics_without_planned_packs_have_no_balance(folder):
    loader = get_savable_loader(opened(folder, pack=False, encoder=DefaultTaskEncoder))
    with loader:
        next(iter(loader))
        stats = loader.stats()
    assert stats.balance == {} == stats.gather().balance
    assert "÷" not in str(stats)


def test_top_has_the_balance_of_all_loaders_of_a_folder(folder, tmp_path):
    stats, sums = measured(folder, 2, 0, Loses, overlong="error", **TWO)
    for rank, each in enumerate(stats):
        content = {
            "host": "h",
            "pid": 1,
            "time": time.time(),
            "recent": each.as_json(),
            "whole": each.as_json(),
        }
        (tmp_path / f"{rank}{SUFFIX}").write_text(json.dumps(content))
    board = read_board(tmp_path)
    expected = (sums.max(axis=0) / sums.mean(axis=0)).mean(axis=1)
    assert [each.measured for each in board.balance.values()] == pytest.approx(list(expected))
    assert (
        f"vision of packs, slowest rank ÷ mean: planned {board.balance['vision'].planned:.3f}" in board.text()
    )
    assert json.loads(json.dumps(board.as_json()))["balance"]["text"]["steps"] == STEPS
    broken = json.loads((tmp_path / f"0{SUFFIX}").read_text())
    broken["whole"]["packs"]["steps"]["1"] = [4, [1.0], []]  # loads of one cost
    (tmp_path / f"0{SUFFIX}").write_text(json.dumps(broken))
    assert len(read_board(tmp_path).rows) == 1
