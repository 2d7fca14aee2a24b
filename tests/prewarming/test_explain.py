"""Explained requests are those that training makes."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from warming import BATCH, ORDER, Encoder, config, tar_ranges, warm

from energon_stream import CacheConfig, PlannedPacking, get_loader, get_train_dataset
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError
from energon_stream.read.read_plan import Reason
from energon_stream.tools.simulate.explain import explain

URL = "s3://bucket/whole"


def found(server, steps, url=URL, worker_config=None, **changes):
    given = {**ORDER, "batch_size": BATCH, "storage_options": server.storage_options, **changes}
    return explain(url, steps=steps, worker_config=worker_config or config(1), cache=False, **given)


def ranges(requests):
    """Object name and bytes of requests."""
    return {(each.object.rpartition("/")[2], each.start, each.start + each.size) for each in requests}


def trained(server, steps, url=URL, **changes):
    """Object name and bytes of all requests for samples that some steps in this process made."""
    server.reset_counters()
    given = {**ORDER, "batch_size": BATCH, "storage_options": server.storage_options, **changes}
    dataset = get_train_dataset(url, worker_config=config(1), task_encoder=Encoder(), cache=False, **given)
    with get_loader(dataset) as loader:
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
    return tar_ranges(server)


@pytest.mark.every(3)
@pytest.mark.parametrize("changes", [{}, {"dataset_config": "json.yaml"}, {"dataset_config": "bin.yaml"}])
def test_training_makes_the_explained_requests(server, changes):
    steps = 30
    made = trained(server, steps, **changes)
    assert ranges(found(server, (0, steps), **changes)) <= made
    assert made <= ranges(found(server, (0, steps + 60), **changes))


@pytest.mark.parametrize("window", [1, 2])
def test_training_makes_the_explained_requests_of_planned_packs(server, window):
    """Runs of a window of one step are read first; of two steps, it has more samples than are read ahead."""
    lengths = np.clip(np.random.default_rng(0).lognormal(2.5, 0.8, 1800), 1, 60).astype(int)
    packing = PlannedPacking(lengths, capacity=60, window=window, global_batch_size=12)
    steps, changes = 12, {"packing": packing, "batch_size": 2}
    made = trained(server, steps, **changes)
    assert ranges(found(server, (0, steps), **changes)) <= made
    assert made <= ranges(found(server, (0, steps + 60), **changes))


def test_requests_follow_a_schedule_of_weights(server):
    requests = found(server, (0, 20), url="s3://bucket/scheduled.yaml")
    assert {request.deadline < 9 for request in requests if "/few/" in request.object} == {True}
    assert {request.deadline >= 9 for request in requests if "/many/" in request.object} == {True}


def test_each_request_has_a_reason_and_steps_that_need_it(server):
    requests = found(server, (0, 40))
    assert {request.reason for request in requests} <= {reason.name.lower() for reason in Reason}
    assert requests[0].reason == "first_batch"
    assert requests == sorted(requests, key=lambda request: request.deadline)
    assert all(request.deadline <= request.last_step < 40 for request in requests)
    assert sum(request.samples for request in requests) == 40 * BATCH  # each sample lies in one request
    later = found(server, (20, 40))
    assert later == [request for request in requests if request.last_step >= 20]


def test_streams_of_a_rank_take_turns(server):
    requests = found(server, (0, 6), worker_config=config(4, workers=2))
    first = {request.stream: request.deadline for request in reversed(requests)}
    assert first == {0: 0, 1: 1, 2: 2, 3: 3}
    assert {(request.worker, request.stream) for request in requests} == {(0, 0), (0, 2), (1, 1), (1, 3)}


def test_the_command_shows_what_the_cache_has(server, tmp_path):
    cache = CacheConfig(str(tmp_path / "cache"), "100MB", min_free_bytes=0)
    warm(server, URL, cache, steps=5, read_options=None)
    arguments = ["explain", URL, "--steps", "0:5", "--batch-size", str(BATCH), "--num-workers", "1"]
    arguments += ["--shuffle-buffer-size", "60", "--max-samples-per-sequence", "40"]
    for key, value in server.storage_options.items():
        arguments += ["--storage-option", f"{key}={json.dumps(value)}"]
    asked = CliRunner().invoke(main, [*arguments, "--cache-dir", cache.directory, "--json"])
    requests = json.loads(asked.stdout)["requests"]
    assert [request["cached_bytes"] for request in requests] == [request["size"] for request in requests]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    assert f"{len(requests)} requests, " in shown.output
    first = sum(request["reason"] == "first_batch" for request in requests)
    assert 0 < first < len(requests)
    assert f"first_batch ({first}): {Reason.FIRST_BATCH.value}" in shown.output
    assert "of which 0 B are in the cache" in shown.output


def test_steps_are_a_range(server):
    with pytest.raises(ConfigError, match="steps are 4 to 4"):
        found(server, (4, 4))
    result = CliRunner().invoke(main, ["explain", URL, "--steps", "4:x", "--batch-size", "8"])
    assert result.exit_code == 2
    assert "--steps is 'x'" in result.output
    result = CliRunner().invoke(main, ["explain", URL, "--steps", "0:4"])
    assert result.exit_code == 2
    assert "--batch-size is missing" in result.output
