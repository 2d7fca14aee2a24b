"""``--run``: a run's path and options come from its record, and those that the user gives win."""

import json
from itertools import islice

import children
import numpy as np
import pytest
from click.testing import CliRunner

from energon_stream import (
    DefaultTaskEncoder,
    PlannedPacking,
    WorkerConfig,
    compute_costs,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.cli.main import main
from energon_stream.state import redistribute
from energon_stream.testing.datasets import prepared_captioning_dataset
from energon_stream.tools.simulate import forecast

ORDER = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 3, "parallel_shard_iters": 5}
BY_HAND = ["--shuffle-buffer-size", "8", "--max-samples-per-sequence", "3", "--parallel-shard-iters", "5"]
JOB = [
    "--world-size",
    "2",
    "--num-workers",
    "2",
    "--num-streams",
    "4",
    "--seed-offset",
    "7",
    "--batch-size",
    "4",
]


class Packs(DefaultTaskEncoder):
    @stateless
    def pack_selected_samples(self, samples):
        return samples[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("recorded")
    for name, shards in (("a", 5), ("b", 3)):
        prepared_captioning_dataset(place / name, shards=shards, samples_per_shard=20, split_ratio=(1, 0, 0))
    blend = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
    for name, weights in (("mix", (1, 3)), ("other", (3, 1))):
        leaves = (f"      - {{path: {leaf}, weight: {w}}}\n" for leaf, w in zip("ab", weights, strict=True))
        (place / f"{name}.yaml").write_text(blend + "".join(leaves))
    return place


def train(path, run, world=2, states=None, steps=6, seed=7, **options):
    """Train some steps on all ranks; return the keys by step and rank, and the states."""
    options = {"batch_size": 4, **ORDER, **options}
    loaders = []
    for rank in range(world):
        config = WorkerConfig(rank, world, 0, num_streams=4, seed_offset=seed)
        loader = get_savable_loader(get_train_dataset(path, worker_config=config, **options), run=run)
        if states is not None:
            loader.restore_state_global(states)
        loaders.append(loader)
    batches = [iter(loader) for loader in loaders]
    seen = [[next(each) for each in batches] for _ in range(steps)]
    states = [loader.save_state_rank() for loader in loaders]
    for loader in loaders:
        loader.close()
    return seen, states


def ask(*arguments, ok=True):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert (result.exit_code == 0) is ok, result.output
    return json.loads(result.stdout) if ok else result.stderr


@pytest.fixture(scope="module")
def alone(place):
    run = place / "runs" / "alone"
    return run, train(str(place / "a"), run)[0]


COMMANDS = [
    ("explain", "--steps", "2:5", "--rank", "1"),
    ("plan", "--steps", "5", "--rank", "1"),
    ("simulate", "--count", "40"),
]


@pytest.mark.every(3)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_record_stands_for_path_and_options(place, alone, command):
    run, _ = alone
    by_hand = ask(*command, place / "a", *JOB, *BY_HAND, "--json")
    recorded = ask(*command, "--run", run, "--json")
    if command[0] == "simulate":  # times vary a little on a busy machine
        by_hand, recorded = (
            {name: found[name] for name in ("samples", "bytes")} for found in (by_hand, recorded)
        )
    assert recorded == by_hand
    defaults = ask(*command, place / "a", "--batch-size", "4", "--world-size", "2", "--json")
    assert defaults != by_hand


def test_prewarming_takes_the_order_of_a_run_for_a_copy_of_its_data(place, alone, s3_server, tmp_bucket):
    run, _ = alone
    s3_server.upload_folder(place / "a", f"{tmp_bucket}/copy")
    place_of = [f"--storage-option={name}=test" for name in ("key", "secret")]
    call = [
        "prewarm",
        f"{tmp_bucket}/copy",
        f"--storage-option=endpoint_url={s3_server.endpoint_url}",
        *place_of,
    ]
    call += ["--steps", "3", "--rank", "0-1", "--dry-run", "--json"]
    (recorded, by_hand) = (
        children.call(ask, *call, *how)["plan"] for how in (["--run", run], [*JOB, *BY_HAND])
    )
    for plan in (
        recorded,
        by_hand,
    ):  # what was read for the plan: late requests are repeated on a busy machine
        del plan["index_bytes"], plan["index_requests"]
    assert recorded == by_hand
    assert recorded["samples"] == 3 * 2 * 4


def test_explained_requests_have_what_the_loop_got(place, alone):
    """The tars of each step's samples are requested for it, or earlier."""
    run, seen = alone
    for rank in (0, 1):
        requests = ask("explain", "--run", run, "--steps", "6", "--rank", rank, "--json")["requests"]
        for step, batches in enumerate(seen):
            named = {key.partition("/")[0] for key in batches[rank].__key__}
            got = {each["object"].rpartition("/")[2] for each in requests if each["deadline"] <= step}
            assert named <= got


def test_options_beside_it_win(place, alone):
    run, _ = alone
    changed = ["--batch-size", "2", "--seed-offset", "1", "--shuffle-buffer-size", "0"]
    by_hand = ask("plan", place / "a", *JOB, *BY_HAND, *changed, "--steps", "5", "--json")
    assert ask("plan", "--run", run, *changed, "--steps", "5", "--json") == by_hand


def test_a_run_of_a_blend_needs_the_path_of_its_metadataset(place):
    run = place / "runs" / "mix"
    train(str(place / "mix.yaml"), run, shuffle_over_epochs_multiplier=2)
    said = ask("plan", "--run", run, "--steps", "5", ok=False)
    assert "lacks the path of their metadataset" in said
    assert "Give it as PATH" in said
    by_hand = [*JOB, *BY_HAND, "--shuffle-over-epochs-multiplier", "2", "--steps", "5", "--json"]
    assert ask("plan", place / "mix.yaml", "--run", run, "--steps", "5", "--json") == ask(
        "plan", place / "mix.yaml", *by_hand
    )
    for other in ("other.yaml", "a"):
        said = ask("plan", place / other, "--run", run, "--steps", "5", ok=False)
        assert "has other samples, or another order of them, than the run" in said


def test_a_run_of_planned_packs_needs_the_name_of_their_costs(place):
    run = place / "runs" / "packs"
    compute_costs(str(place / "a"), "tokens", values=1 + np.arange(100) % 17)
    packing = PlannedPacking(cost="tokens", capacity=30, window=2, load="linear", global_batch_size=16)
    train(str(place / "a"), run, task_encoder=Packs(), packing=packing, batch_size=1)
    assert "Give --pack-cost" in ask("plan", "--run", run, "--steps", "5", ok=False)
    assert "this command does not know" in ask("simulate", "--run", run, ok=False)
    packs = [
        "--pack-cost",
        "tokens",
        "--pack-capacity",
        "30",
        "--pack-window",
        "2",
        "--pack-load",
        "linear",
        "--global-batch-size",
        "16",
    ]
    by_hand = ask("plan", place / "a", *JOB, *BY_HAND, "--batch-size", "1", *packs, "--steps", "5", "--json")
    assert ask("plan", "--run", run, "--pack-cost", "tokens", "--steps", "5", "--json") == by_hand


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "options",
    [{"share": 0.4}, {"subset": [10, 60]}, {"repeat": False}],
    ids=lambda options: next(iter(options)),
)
def test_what_no_option_says_comes_from_the_record_too(place, options):
    run = place / "runs" / next(iter(options))
    train(str(place / "a"), run, steps=2, **options)
    config = WorkerConfig(0, 2, 2, num_streams=4, seed_offset=7)
    expected = forecast(
        str(place / "a"), steps=3, batch_size=4, worker_config=config, cache=False, **ORDER, **options
    )
    found = ask("plan", "--run", run, "--steps", "3", "--json")
    assert {name: found[name] for name in expected.as_dict()} == json.loads(json.dumps(expected.as_dict()))


def test_a_run_that_changed_its_ranks_has_no_plan_of_all_steps(place):
    run = place / "runs" / "ranks"
    _, states = train(str(place / "a"), run, steps=2)
    train(str(place / "a"), run, world=4, states=redistribute(states, 4), steps=2)
    said = ask("plan", "--run", run, "--steps", "3", ok=False)
    assert "from step 2 on, the run has another --world-size" in said
    assert "energon-stream which" in said
    assert ask("plan", "--run", run, "--world-size", "4", "--steps", "3", "--json")["samples"] == 12


def test_bench_reads_as_the_run_does(alone):
    run, _ = alone
    quick = [
        "--seconds",
        "100ms",
        "--num-workers",
        "0",
        "--max-in-flight",
        "64",
        "--max-request",
        "6MiB",
        "--json",
    ]
    (found,) = ask("bench", "--run", run, *quick)["runs"]
    assert found["batches"] >= 1


def test_what_is_missing_is_named(place, tmp_path):
    said = CliRunner().invoke(main, ["plan", "--steps", "1"])
    assert (said.exit_code, "Missing argument 'PATH'. Give it, or --run." in said.stderr) == (2, True)
    assert "there is no run.json" in ask("plan", "--run", tmp_path, "--steps", "1", ok=False)
    dataset = get_train_dataset(str(place / "a"), worker_config=WorkerConfig(0, 1, 0), batch_size=4, **ORDER)
    with get_savable_loader(dataset, run=tmp_path / "run") as loader:
        assert len(list(islice(loader, 2))) == 2
    assert "--batch-size is missing" in ask("plan", place / "a", "--steps", "1", ok=False)
    assert ask("plan", "--run", tmp_path / "run", "--steps", "2", "--json")["samples"] == 8
