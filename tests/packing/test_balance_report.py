"""``plan`` says how even planned packs are: compared with the packs that loaders of all ranks deliver."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from packed import ORDER, SAMPLES, opened, taken, tokens, write

from energon_stream import PlannedPacking, WorkerConfig, compute_costs
from energon_stream.cli.main import main
from energon_stream.tools.simulate import forecast

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


def test_nothing_is_said_without_planned_packs(folder):
    assert forecast(folder, steps=2, batch_size=4, **ORDER).balance == {}
