"""States and runs of earlier packs: planned in windows before chapters, or in windows that ended anywhere."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from packed import opened, write
from repetitions import is_nightly

from energon_stream import compute_costs, get_savable_loader
from energon_stream.cli.main import main
from energon_stream.errors import StateMismatchError
from energon_stream.schedule import pack_spec

EARLIER = Path(__file__).with_name("state_of_windows.msgpack").read_bytes()
"""State after 13 packs, which that version saved of this dataset."""
PACKS = 558410053
"""Hash of its next 60 packs, the same after a resume and undisturbed."""
OF_COSTS = Path(__file__).with_name("state_of_several_costs.msgpack").read_bytes()
"""State after seven packs of several costs, before packs exchanged samples."""
PACKS_OF_COSTS = 1822312454
"""Hash of its next 60 packs."""
WITHIN_PASSES = {"chapters": 647993328, "exchanged": 133876668}
"""Hashes of the 60 packs after such states, after 13 packs, of windows that did not end with passes."""
FIRST_STEPS = 515, 0.6556
"""Samples of the first 40 steps and their distance, as its ``plan`` counted them."""


@pytest.fixture(autouse=True)
def short_chapters(monkeypatch):
    """Of two passes and not of 16, which take longer to plan; states of then have none."""
    monkeypatch.setattr(pack_spec, "CHAPTER", 4000)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    lengths = np.arange(2000) * 7919 % 13 + 1
    path = write(tmp_path_factory.mktemp("windows") / "texts", lengths, shard=500)
    compute_costs(path, "tokens", values=lengths)
    return path


def going_on(path, states, count, world=1, packing=None, **options):
    """The packs after some states, and the states after these."""
    packing = {"overlong": "error"} | (packing or {})
    loaders = [get_savable_loader(opened(path, rank, world, **packing), **options) for rank in range(world)]
    for loader in loaders:
        loader.restore_state_global(states)
    batches = [iter(loader) for loader in loaders]
    packs = [next(batches[number % world])[0] for number in range(count)]
    states = [loader.save_state_rank() for loader in loaders]
    for loader in loaders:
        loader.close()
    return packs, states


def test_states_go_on_with_windows_on_any_ranks(path):
    found, states = [], [EARLIER]
    for world, count in ((1, 31), (2, 14), (1, 15)):
        packs, states = going_on(path, states, count, world)
        found += packs
    assert zlib.crc32(repr(found).encode()) == PACKS
    assert going_on(path, None, 60)[0] != found  # a new run has chapters


@pytest.mark.parametrize("name", WITHIN_PASSES)
def test_states_go_on_with_windows_that_end_within_passes(path, name):
    states, packing = [Path(__file__).with_name(f"state_of_{name}.msgpack").read_bytes()], None
    if name == "exchanged":
        packing = of_two_costs(path)
    found = []
    for world, count in ((1, 31), (2, 14), (1, 15)):
        packs, states = going_on(path, states, count, world, packing)
        found += packs
    assert zlib.crc32(repr(found).encode()) == WITHIN_PASSES[name]


def of_two_costs(path):
    numbers = np.arange(2000)
    compute_costs(path, "patches", values=np.where(numbers % 97 == 0, 60, numbers * 104729 % 5))
    packing = {"cost": {"text": "tokens", "vision": "patches"}, "capacity": {"text": 100, "vision": 80}}
    return packing | {"load": "linear", "global_batch_size": 4, "window": 4}


@pytest.mark.slow  # the next test has what such a state leaves to other loaders
def test_a_loader_that_refuses_such_a_state_plans_as_before(path):
    (expected,), _ = going_on(path, None, 1)
    loader = get_savable_loader(opened(path, 0, 4, overlong="error"))
    with pytest.raises(StateMismatchError, match="world_size"):
        loader.restore_state_rank(EARLIER)
    assert next(iter(loader))[0] == expected


def test_loaders_of_one_dataset_plan_as_their_own_states_say(path):
    (expected,), newest = going_on(path, None, 1)
    (earlier,), _ = going_on(path, [EARLIER], 1)
    dataset = opened(path, 0, 1, overlong="error")
    before, last = get_savable_loader(dataset), get_savable_loader(dataset)
    _ = before.save_state_rank()
    with get_savable_loader(dataset) as loader:
        loader.restore_state_rank(EARLIER)
        assert next(iter(loader))[0] == earlier
    assert next(iter(before))[0] == expected
    assert before.save_state_rank()["fingerprint"] == newest[0]["fingerprint"]
    last.restore_state_rank(newest[0])
    assert next(iter(last))[0] == going_on(path, newest, 1)[0][0]


def test_states_of_several_costs_go_on_with_their_packs(path):
    packing = of_two_costs(path)
    found, states = [], [OF_COSTS]
    for world, count in ((1, 31), (2, 14), (1, 15)):
        packs, states = going_on(path, states, count, world, packing)
        found += packs
    assert zlib.crc32(repr(found).encode()) == PACKS_OF_COSTS
    undisturbed, _ = going_on(path, None, 67 if is_nightly() else 20, packing=packing)
    assert undisturbed[7:] != found[: len(undisturbed) - 7]  # in a new run packs exchange samples
    if is_nightly():  # by day, test_ranks_share_the_steps_and_states
        begun, states = going_on(path, None, 32, packing=packing)
        assert begun + going_on(path, states, 35, 2, packing)[0] == undisturbed


@pytest.mark.every(2)
@pytest.mark.parametrize(("states", "algorithm"), [([EARLIER], 4), (None, 16)])
def test_the_record_of_a_run_says_which_packs_it_has(path, tmp_path, states, algorithm):
    run = str(tmp_path / "run")
    going_on(path, states, 8, run=run)
    described = json.loads(Path(run, "run.json").read_text())["datasets"][0]
    assert described["packing"]["algorithm"] == algorithm
    arguments = ["plan", "--run", run, "--pack-cost", "tokens", "--steps", "40", "--json"]
    found = json.loads(CliRunner().invoke(main, arguments, catch_exceptions=False).stdout)
    is_earlier = (found["samples"], round(found["order"]["spread"], 4)) == FIRST_STEPS
    assert is_earlier is (algorithm == 4)
