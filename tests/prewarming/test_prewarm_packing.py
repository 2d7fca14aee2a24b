"""Planned packs are warmed, explained and forecast by the plan that training reads."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from warming import ORDER, STEPS, config, reads, steps_of, train, warm

from energon_stream import CacheConfig, PlannedPacking, compute_costs
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError
from energon_stream.prewarming.job import open_reader_dataset
from energon_stream.tools.simulate import StoreModel, forecast, simulate
from energon_stream.tools.simulate.explain import explain, samples_of_step

URL = "s3://bucket/few"
PACKS = 2  # a batch
PACKED = {
    "batch_size": PACKS,
    "packing": PlannedPacking("tokens", capacity=60, window=2, overlong="split", global_batch_size=24),
}


@pytest.fixture(scope="module", autouse=True)
def costs(root):
    draw = np.random.default_rng(0)
    for name, samples in (("few", 600), ("whole", 1800)):
        lengths = np.clip(draw.lognormal(2.5, 0.8, samples), 1, 130).astype(int)
        compute_costs(str(root / "bucket" / name), "tokens", values=lengths)


@pytest.mark.parametrize(
    ("name", "streams", "workers"), [("few", 4, 2), ("few", 1, 1), ("epochs.yaml", 4, 4)]
)
def test_warmed_steps_ask_for_nothing(server, cache, name, streams, workers):
    """Of four workers, each has few samples in a window, so that it reads runs of them first.

    Workers prefetch one batch, and not two: they go on to read ahead of what is warmed.
    """
    url = f"s3://bucket/{name}"
    done = warm(server, url, cache, streams, **PACKED)
    assert done.is_complete
    assert done.warm_steps == STEPS
    expected = train(server, url, False, STEPS, config(streams), **PACKED)
    assert reads(server)
    assert done.samples == sum(len(pack) for batch in expected for pack in batch)
    assert train(server, url, cache, STEPS, config(streams, workers), 1, **PACKED) == expected
    assert reads(server) == []


def test_a_pass_is_all_samples_of_the_job(server, cache):
    done = warm(server, URL, cache, 2, steps=None, epochs=1, **PACKED)
    assert done.samples >= 600  # parts of long samples count, and windows are whole
    train(server, URL, cache, 20, config(2), **PACKED)
    assert reads(server) == []


def test_a_full_cache_says_how_many_steps_it_has(server, tmp_path):
    cache = CacheConfig(str(tmp_path / "cache"), 2_000_000, min_free_bytes=0, wait_seconds=600.0)
    done = warm(server, "s3://bucket/whole", cache, 2, steps=100, **PACKED)
    assert not done.is_complete
    assert 0 < done.warm_steps < 100


def arguments(server):
    given = {**ORDER, **PACKED, "storage_options": server.storage_options}
    return given, given.pop("batch_size")


def keys(server, steps, streams):
    """The samples of each step of training, in order."""
    given, packs = arguments(server)
    found = steps_of(URL, steps, 2, {"worker_config": config(streams), "batch_size": packs, **given})
    return [[key for pack in batch for key, _ in pack] for batch in found]


def test_steps_are_explained_and_forecast(server):
    steps, streams = 10, 2
    expected = keys(server, steps, streams)
    given, packs = arguments(server)
    requests = explain(
        URL, steps=(0, steps), batch_size=packs, worker_config=config(streams), cache=False, **given
    )
    assert sum(request.samples for request in requests) >= len({key for step in expected for key in step})
    assert {request.deadline for request in requests} <= set(range(steps))
    found = forecast(URL, steps=steps, batch_size=packs, worker_config=config(streams), cache=False, **given)
    assert found.samples == sum(map(len, expected))
    assert found.size == sum(request.size for request in requests)
    assert int(found.order.counts.sum()) == found.samples
    dataset = open_reader_dataset(URL, config(streams), False, {"batch_size": packs, **given})
    refs = samples_of_step(dataset, 5, packs)
    assert refs.index.tolist() == [int(key.rpartition("/")[2]) for key in expected[5]]


def test_the_commands_take_the_packing(server, tmp_path):
    order = ["--batch-size", str(PACKS), "--shuffle-buffer-size", "60", "--max-samples-per-sequence", "40"]
    order += ["--pack-cost", "tokens", "--pack-capacity", "60", "--pack-window", "2", "--num-streams", "2"]
    order += ["--pack-overlong", "split", "--global-batch-size", "24", "--num-workers", "0", "--json"]
    for key, value in server.storage_options.items():
        order += ["--storage-option", f"{key}={json.dumps(value)}"]
    planned = CliRunner().invoke(main, ["plan", URL, "--steps", "6", *order])
    assert planned.exit_code == 0, planned.output
    warmed = CliRunner().invoke(
        main, ["prewarm", URL, "--steps", "6", "--cache-dir", str(tmp_path / "cache"), "--dry-run", *order]
    )
    assert warmed.exit_code == 0, warmed.output
    explained = CliRunner().invoke(main, ["explain", URL, "--steps", "0:6", *order])
    assert explained.exit_code == 0, explained.output
    samples = sum(map(len, keys(server, 6, 2)))
    assert json.loads(planned.stdout)["samples"] == json.loads(warmed.stdout)["plan"]["samples"] == samples
    missing = CliRunner().invoke(
        main, ["explain", URL, "--steps", "0:6", *order[:6], "--pack-cost", "tokens"]
    )
    assert missing.exit_code == 2
    assert "--pack-capacity" in missing.output


def test_what_cannot_be_predicted_is_refused(server):
    given, packs = arguments(server)
    with pytest.raises(ConfigError, match="planned packs"):
        simulate(URL, StoreModel(), batch_size=packs, worker_config=config(1), **given)
    with pytest.raises(ConfigError, match="no more than"):
        forecast(
            URL, steps=10**4, batch_size=packs, worker_config=config(2), cache=False, repeat=False, **given
        )
