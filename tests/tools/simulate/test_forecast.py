"""A forecast counts what training reads; its map tells an order from a shuffle."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.tools.simulate.forecast import Prices, forecast, map_order

BATCH, SAMPLES, SHARDS = 8, 400, 5
IN_ORDER = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "parallel_shard_iters": 1}
SHUFFLED = {"shuffle_buffer_size": 400, "max_samples_per_sequence": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("forecast") / "data"
    return prepared_binary_dataset(place, shards=SHARDS, samples=SAMPLES, payload_bytes=700)


def keys_of(folder, steps, config, **order):
    """The keys that training yields."""
    dataset = get_train_dataset(
        folder, batch_size=BATCH, worker_config=config, task_encoder=DefaultTaskEncoder(), **order
    )
    with get_loader(dataset) as loader:
        batches = iter(loader)
        return [key for _ in range(steps) for key in next(batches)["__key__"]]


@pytest.mark.parametrize("order", [IN_ORDER, SHUFFLED])
@pytest.mark.parametrize("config", [WorkerConfig(0, 1, 0), WorkerConfig(1, 2, 0, num_streams=6)])
def test_it_counts_what_training_reads(folder, order, config):
    steps = 12
    found = forecast(folder, steps=steps, batch_size=BATCH, worker_config=config, cache=False, **order)
    keys = keys_of(folder, steps, config, **order)
    assert found.samples == len(keys) == steps * BATCH
    assert found.requests == sum(found.reasons.values()) > 0
    assert found.size >= found.samples * 700
    assert found.objects <= SHARDS
    numbers = np.array([int(key.rpartition("/")[2].rpartition("-")[2]) for key in keys]).reshape(steps, BATCH)
    starts = np.arange(SHARDS) * (SAMPLES // SHARDS)
    assert np.array_equal(found.order.counts, map_order(numbers, starts, SAMPLES).counts)


def test_an_order_and_a_shuffle_are_told_apart(folder):
    config = WorkerConfig(0, 1, 0)
    read = forecast(folder, steps=40, batch_size=BATCH, worker_config=config, cache=False, **IN_ORDER).order
    shuffled = forecast(
        folder, steps=40, batch_size=BATCH, worker_config=config, cache=False, **SHUFFLED
    ).order
    assert read.neighbours > 0.8 > 0.2 > shuffled.neighbours
    assert read.spread < 0.1 < 0.7 < shuffled.spread < 1.2
    assert read.shards < 1.5 < 3 < shuffled.shards


@given(st.integers(2, 30), st.integers(1, 50), st.integers(2, 5000), st.integers(0, 2**32 - 1))
def test_a_map_counts_each_sample_once(batch, steps, total, seed):
    positions = np.random.default_rng(seed).integers(0, total, (steps, batch))
    found = map_order(positions, np.arange(0, total, 10), total)
    assert found.counts.sum() == steps * batch
    assert max(found.counts.shape) <= 200
    pairs = np.abs(positions[:, :, None] - positions[:, None, :]).sum() / (steps * batch * (batch - 1))
    assert found.spread == pytest.approx(pairs / ((total + 1) / 3))
    assert 1 <= found.shards <= batch
    assert 0 <= found.neighbours <= 1


def test_random_draws_have_a_spread_of_one():
    positions = np.random.default_rng(1).integers(0, 10**6, (2000, 16))
    assert map_order(positions, np.arange(0, 10**6, 1000), 10**6).spread == pytest.approx(1, abs=0.02)


def test_the_command_prints_prices_and_draws(folder, tmp_path):
    arguments = ["plan", str(folder), "--steps", "10", "--batch-size", str(BATCH), "--world-size", "2"]
    arguments += ["--num-workers", "0", "--shuffle-buffer-size", "100", "--max-samples-per-sequence", "10"]
    arguments += [
        "--price-per-1000-get",
        "0.4",
        "--price-per-gb",
        "90",
        "--picture",
        str(tmp_path / "map.png"),
    ]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    assert "10 steps: 80 samples" in shown.output
    assert "for all 2 ranks" in shown.output
    with Image.open(tmp_path / "map.png") as picture:
        assert len(picture.convert("RGB").getcolors(10**6)) > 2
    values = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert values["price"] == pytest.approx(values["requests"] * 0.0004 + values["size"] * 90e-9)
    assert set(values["order"]) == {"spread", "shards", "neighbours"}


def test_the_plot_has_ticks_shards_and_settings(folder, tmp_path):
    config = WorkerConfig(1, 2, 0, seed_offset=3)
    order = forecast(folder, steps=12, batch_size=BATCH, worker_config=config, cache=False, **SHUFFLED).order
    order.save(tmp_path / "map.svg")
    drawn = ElementTree.parse(tmp_path / "map.svg").getroot()
    texts = [text for text in map(str.strip, drawn.itertext()) if text]
    assert len(lines_of(drawn)) == SHARDS
    assert {"0", "12", "400", "step", "position in the data (a line a shard)"} <= set(texts)
    assert (
        f"{folder}: rank 1 of 2, 0 workers, seed 3, batch size 8, shuffle_buffer_size 400, "
        "max_samples_per_sequence 5"
    ) in " ".join(texts)
    assert any("prefers-color-scheme:dark" in text for text in texts)
    order.save(tmp_path / "map.PNG")
    with Image.open(tmp_path / "map.PNG") as picture:
        assert picture.size == (1050, 825)


def lines_of(drawn):
    """The heights of the lines across the map, in pixels."""
    (lines,) = (each for each in drawn.iter() if each.get("id") == "LineCollection_1")
    return [each.get("d") for each in lines.iter() if each.tag.endswith("path")]


def test_many_shards_have_fewer_lines(tmp_path):
    map_order([np.arange(9)], np.arange(0, 1200, 10), 1200).save(tmp_path / "map.svg")
    drawn = ElementTree.parse(tmp_path / "map.svg").getroot()
    assert len(lines_of(drawn)) == 40
    assert "position in the data (a line every 3 shards)" in set(drawn.itertext())


@pytest.mark.parametrize("steps", [0, -1])
def test_no_steps_are_refused(folder, steps):
    with pytest.raises(ConfigError, match="1 or more"):
        forecast(folder, steps=steps, batch_size=BATCH, cache=False, **IN_ORDER)


@pytest.mark.parametrize("prices", [(-1, 0), (0, float("nan")), (float("inf"), 0)])
def test_impossible_prices_are_refused(prices):
    with pytest.raises(ConfigError, match="prices"):
        Prices(*prices)
