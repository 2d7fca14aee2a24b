"""What is warmed is read without a request, whatever the dataset and whichever processes read it."""

import fcntl
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import children
import pytest
from warming import BATCH, ORDER, STEPS, asked, config, listed, reads, sizes, steps_of, train, warm

from energon_stream import BlendDataset, CacheConfig, DefaultTaskEncoder, LocalEngine, PrewarmPlan, prewarm
from energon_stream.errors import ConfigError, ObjectNotFoundError
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.testing.s3server import Rule

V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
SAMPLE = 3 * 512 + 5120 + 512 + 512  # as it lies in the tar

KINDS = {
    "whole": ("whole", {}),
    "json parts": ("whole", {"dataset_config": "json.yaml"}),
    "nearly all parts": ("whole", {"dataset_config": "bin.yaml"}),
    "a field's part": ("whole", {"dataset_config": "field.yaml"}),
    "named parts": ("whole", {"parts": ["json"]}),
    "gaps": (
        "whole",
        {"shuffle_buffer_size": 1000, "read_options": replace(ORDER["read_options"], max_gap=20_000)},
    ),
    "filter": ("whole", {"filter_name": "some"}),
    "subset": ("whole", {"subset": ["20%", "90%"]}),
    "not prepared": ("plain/data-{000000..000003}.tar", {}),
    "lines": ("lines.jsonl", {}),
    "mixed": ("mixed.yaml", {}),
    "scheduled weights": ("scheduled.yaml", {}),
    "epochs": ("epochs.yaml", {}),
}


@pytest.mark.every(8)
@pytest.mark.parametrize(
    ("kind", "streams"), [*((kind, 4) for kind in KINDS), ("whole", 1), ("a field's part", 1), ("mixed", 1)]
)
def test_warmed_steps_ask_for_nothing(server, cache, kind, streams):
    name, changes = KINDS[kind]
    url = f"s3://bucket/{name}"
    done = warm(server, url, cache, streams, **changes)
    assert done.is_complete
    assert (done.samples, done.warm_samples, done.warm_steps) == (STEPS * BATCH, STEPS * BATCH, STEPS)
    expected = train(server, url, False, STEPS, config(streams), **changes)
    assert reads(server)
    for workers in (0, min(streams, 2)) if kind in ("whole", "mixed") else (min(streams, 2),):
        assert train(server, url, cache, STEPS, config(streams, workers), **changes) == expected
        assert reads(server) == []


def test_an_engine_warms_each_rank_in_a_process(server, cache):
    options = {"worker_config": config(2, world_size=2), "ranks": [0, 1]}
    planned = warm(server, "s3://bucket/whole", cache, dry_run=True, **options)
    done = warm(server, "s3://bucket/whole", cache, engine=LocalEngine(2), verify=True, **options)
    assert done.plan.bytes == planned.plan.bytes
    assert (done.is_complete, done.warm_steps, done.warm_samples) == (True, STEPS, 2 * STEPS * BATCH)
    assert (done.samples, done.damaged_bytes) == (2 * STEPS * BATCH, 0)
    assert done.verified_bytes >= done.plan.bytes  # what both ranks need counts twice
    tars = {(key, wanted): size for key, wanted, size in sizes(server) if key.endswith(".tar")}
    assert done.plan.missing_bytes <= sum(tars.values()) <= 1.5 * done.plan.missing_bytes
    for rank in (0, 1):
        train(server, "s3://bucket/whole", cache, STEPS, config(2, rank=rank, world_size=2))
        assert reads(server) == []


def test_options_that_no_process_can_get_are_refused(server, cache):
    with pytest.raises(ConfigError, match="cannot be sent to other processes"):
        prewarm(
            "s3://bucket/whole",
            cache=cache,
            steps=1,
            engine=LocalEngine(1),
            worker_config=config(1),
            task_encoder=type("Local", (DefaultTaskEncoder,), {})(),
            storage_options=server.storage_options,
            **ORDER,
        )


def test_what_workers_hold_ready_is_warmed_too(server, cache):
    warm(server, "s3://bucket/whole", cache, prefetch_factor=80)
    train(server, "s3://bucket/whole", cache, STEPS, config(1, 1), prefetch_factor=80)
    assert reads(server) == []


def test_just_what_is_needed_is_fetched_once(server, cache):
    done = warm(server, "s3://bucket/whole", cache, shuffle_buffer_size=1)
    plan = done.plan
    assert done.fetched_bytes == plan.bytes == plan.missing_bytes
    assert server.counters().bytes_sent == listed(server) + plan.bytes + plan.index_bytes
    ranges = [entry for entry in reads(server) if entry[1].endswith(".tar")]
    assert (len(ranges), len(reads(server))) == (plan.requests, plan.requests + plan.index_requests)
    # Slices of 40 samples are read side by side: a step reads some of each, and more of them are fetched
    # together.
    assert plan.requests < (plan.samples + plan.ahead_samples) / 5
    sizes = 2 * ORDER["read_options"].fetch_bytes
    assert plan.bytes <= (plan.samples + 3 * BATCH) * SAMPLE + sizes + SAMPLE + 6 * 1024


def test_a_second_call_finds_all_of_it(server, cache):
    first = warm(server, "s3://bucket/mixed.yaml", cache)
    again = warm(server, "s3://bucket/mixed.yaml", cache)
    assert reads(server) == []
    assert again.is_complete
    assert (again.fetched_bytes, again.requests, again.plan.requests) == (0, 0, 0)
    assert again.plan.cached_bytes == again.plan.bytes == first.plan.bytes
    more = warm(server, "s3://bucket/mixed.yaml", cache, steps=STEPS + 6)
    assert 0 < more.fetched_bytes < 0.4 * first.fetched_bytes


def test_a_pass_goes_on_into_the_next_one(server, cache):
    done = warm(server, "s3://bucket/few", cache, steps=None, epochs=1, streams=2)
    assert done.samples == 600
    assert done.steps is None
    train(server, "s3://bucket/few", cache, 2 * 600 // BATCH, config(2, 2))  # all is there now
    assert reads(server) == []


def test_a_part_of_a_pass(server, cache):
    done = warm(server, "s3://bucket/whole", cache, steps=None, fraction=0.25)
    assert done.samples == 450
    train(server, "s3://bucket/whole", cache, 450 // BATCH, config(1))
    assert reads(server) == []
    train(server, "s3://bucket/whole", cache, 600 // BATCH, config(1))
    assert reads(server)


def test_a_pass_of_a_blend_by_weights_is_all_that_it_is_drawn_from(server, cache):
    done = warm(server, "s3://bucket/mixed.yaml", cache, steps=None, epochs=1)
    assert done.samples == 1080 + 2000 + 1500


def test_without_repeat_there_is_nothing_beyond_the_pass(server, cache):
    done = warm(server, "s3://bucket/few", cache, steps=None, epochs=1, repeat=False)
    assert (done.samples, done.plan.samples, done.plan.ahead_samples) == (600, 600, 0)
    assert done.is_complete


def test_ranks_of_a_node_share_what_was_fetched_for_them(server, cache):
    url, world = "s3://bucket/whole", {"world_size": 3, "streams": 6}
    done = warm(server, url, cache, ranks=[2, 0], worker_config=config(6, world_size=3))
    assert done.samples == 2 * STEPS * BATCH
    assert done.is_complete
    for rank in (0, 2):
        train(server, url, cache, STEPS, config(rank=rank, **world))
        assert reads(server) == []
    train(server, url, cache, 1, config(rank=1, **world))
    assert reads(server)


def test_a_dry_run_tells_the_same_and_fetches_no_samples(server, cache):
    dry = warm(server, "s3://bucket/whole", None, dry_run=True)
    assert not [entry for entry in reads(server) if entry[1].endswith(".tar")]
    assert (dry.fetched_bytes, dry.warm_samples, dry.is_complete) == (0, 0, False)
    done = warm(server, "s3://bucket/whole", cache)
    assert done.plan == dry.plan
    after = warm(server, "s3://bucket/whole", cache, dry_run=True)
    assert after.is_complete
    assert after.plan == replace(
        dry.plan, cached_bytes=dry.plan.bytes, requests=0, index_requests=0, index_bytes=0
    )


def test_costs():
    plan = PrewarmPlan(0, 0, 0, 3_000_000_000, 1_000_000_000, 1500, 500, 0)
    assert plan.cost() == pytest.approx(2 * 0.0004)
    assert plan.cost(price_per_1000_get=0.01, price_per_gb=0.09) == pytest.approx(0.02 + 0.18)


@pytest.mark.every(2)
@pytest.mark.parametrize("policy", ["pin", "lru"])
def test_a_small_cache_takes_what_comes_first_and_keeps_it(server, tmp_path, policy):
    cache = CacheConfig(
        str(tmp_path / "cache"), 6_000_000, min_free_bytes=0, policy=policy, block_bytes=1 << 20
    )
    done = warm(server, "s3://bucket/whole", cache, steps=150)
    assert not done.is_complete
    assert 0 < done.warm_steps < 150
    assert done.warm_samples // BATCH == done.warm_steps
    assert 2_000_000 < done.fetched_bytes < 6_000_000
    twice = 1_000_000  # what is asked for again where an answer is late
    assert server.counters().bytes_sent < 6_000_000 + twice + listed(server) + done.plan.index_bytes
    again = warm(
        server, "s3://bucket/whole", cache, steps=150
    )  # small requests may find room where large ones did not
    assert again.fetched_bytes < 6_000_000 - done.fetched_bytes
    assert 0 < again.warm_steps < 150
    for steps in (done.warm_steps, again.warm_steps):
        assert warm(server, "s3://bucket/whole", cache, steps=steps, dry_run=True).warm_steps == steps
    assert disk_bytes(cache) <= 6_000_000


def warm_and_listen(url, arguments):
    """Prewarm; the result, and the warnings of the library."""
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("energon_stream").addHandler(handler)
    return prewarm(url, isolated=False, **arguments), records


@pytest.mark.every(2)
@pytest.mark.parametrize("size", [3_000_000, 12_000_000])
def test_data_that_does_not_fit_is_told(server, tmp_path, size):
    """Once, and before the cache is filled."""
    cache = CacheConfig(str(tmp_path / "cache"), size, min_free_bytes=0, block_bytes=1 << 20)
    room = size - size // 64

    def listen(**changes):
        options = {"cache": cache, "storage_options": server.storage_options, "worker_config": config(1)}
        return children.call(warm_and_listen, "s3://bucket/whole", {**options, **ORDER, **changes})

    done, warnings = listen(epochs=3)
    (warning,) = (each for each in warnings if "does not fit" in each)
    assert f"the cache has room for {room / 1e6:.1f} MB" in warning
    assert done.expected_bytes == pytest.approx(1800 * SAMPLE, rel=0.1)
    assert not done.is_complete
    assert 0.7 * size < done.fetched_bytes < size
    dry, warnings = listen(epochs=3, dry_run=True)
    assert not dry.plan.fits
    assert dry.expected_bytes == dry.plan.bytes
    assert dry.plan.bytes - dry.plan.excess_bytes == room
    assert ["does not fit" in each for each in warnings] == [True]
    fits, warnings = listen(steps=5, dry_run=True)
    assert fits.plan.fits
    assert warnings == []


def disk_bytes(cache):
    return sum(512 * path.stat().st_blocks for path in Path(cache.directory).rglob("*") if path.is_file())


def test_verifying_finds_a_flipped_byte(server, cache):
    done = warm(server, "s3://bucket/whole", cache, verify=True)
    assert (done.verified_bytes, done.damaged_bytes) == (done.plan.bytes, 0)
    largest = max(Path(cache.directory).rglob("*.*"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        written = [at for at, byte in enumerate(file.read()) if byte]  # the file has holes
        file.seek(written[len(written) // 2])
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    bad = warm(server, "s3://bucket/whole", cache, verify=True)
    assert bad.damaged_bytes > 0
    good = warm(server, "s3://bucket/whole", cache, verify=True)
    assert (good.verified_bytes, good.damaged_bytes) == (done.plan.bytes, 0)


def test_two_at_a_time_fetch_hardly_more_than_one(server, cache):
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(warm, server, "s3://bucket/whole", cache) for _ in range(2)]
        done = [each.result() for each in both]
    assert all(each.is_complete for each in done)
    assert server.counters().bytes_sent <= 1.1 * (done[0].plan.bytes + done[0].plan.index_bytes)


def test_what_fails_is_told_and_what_came_is_kept(server, cache):
    server.add_rule(Rule("status", "bucket/whole/data-000004.tar", status=404))
    with pytest.raises(ObjectNotFoundError, match="data-000004"):
        warm(server, "s3://bucket/whole", cache)
    came = server.counters().bytes_sent
    server.clear_rules()
    done = warm(server, "s3://bucket/whole", cache)
    assert done.is_complete
    assert done.plan.cached_bytes > 0
    assert came > done.plan.cached_bytes


def test_versions_are_asked_for_where_listing_is_forbidden(server, cache):
    server.add_rule(Rule("status", "bucket", status=403))
    first = warm(server, "s3://bucket/whole", cache)
    assert {entry[0] for entry in asked(server)} == {"HEAD", "GET"}
    again = warm(server, "s3://bucket/whole", cache)
    assert first.is_complete
    assert (again.fetched_bytes, again.plan.cached_bytes) == (0, first.plan.bytes)


def test_datasets_without_a_cache_and_with_one_of_their_own(server, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_ALLOW_URLS", str(tmp_path))  # the metadataset names a folder of it
    own = {"directory": str(tmp_path / "own"), "min_free_bytes": 0}
    blend = [{"path": "whole"}, {"path": "few", "cache": False}, {"path": "many", "cache": own}]
    server.put("s3://bucket/caches.yaml", dump_yaml({**V2, "splits": {"train": {"blend": blend}}}))
    done = warm(server, "s3://bucket/caches.yaml", cache, verify=True)
    assert done.is_complete
    assert done.verified_bytes == done.plan.bytes
    train(server, "s3://bucket/caches.yaml", cache, STEPS, config(1))
    assert {entry[1].split("/")[1] for entry in reads(server)} == {"few"}
    again = warm(server, "s3://bucket/caches.yaml", cache)
    assert (again.fetched_bytes, again.is_complete) == (0, True)
    dry = warm(
        server, "s3://bucket/caches.yaml", False, dry_run=True
    )  # what has one of its own is there still
    assert dry.plan.objects > done.plan.objects
    assert 0 < dry.plan.cached_bytes < dry.plan.bytes


class Blending(DefaultTaskEncoder):
    def build_train_datasets(self, *, datasets, worker_config, **_):
        return BlendDataset(*[(each.dataset, each.weight) for each in datasets], worker_config=worker_config)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("whole", {"epochs": 1}, "steps and epochs exclude each other"),
        ("whole", {"steps": 0}, "steps is 0"),
        ("whole", {"steps": None, "fraction": 1.5}, "fraction is 1.5"),
        ("whole", {"batch_size": None}, "counted in samples"),
        ("whole", {"prefetch_factor": -1}, "prefetch_factor is -1"),
        ("whole", {"ranks": [1]}, "not ranks of world_size 1"),
        ("mixed.yaml", {"task_encoder": Blending()}, "order of the samples is not known"),
        ("whole", {"unheard_of": 1}, "unknown argument 'unheard_of'"),
    ],
)
def test_what_cannot_work_is_refused(server, cache, name, changes, message):
    with pytest.raises(ConfigError, match=message):
        warm(server, f"s3://bucket/{name}", cache, **changes)
    assert not [entry for entry in reads(server) if entry[1].endswith(".tar")]


def test_local_paths_and_no_cache_are_refused(root, cache):
    local = str(root / "bucket" / "whole")
    for changes in ({"cache": cache}, {"cache": False, "dry_run": True}):
        with pytest.raises(ConfigError, match="local paths never are"):
            prewarm(local, worker_config=config(1), **changes)
    with pytest.raises(ConfigError, match="no cache to fill"):
        prewarm(local, cache=False, worker_config=config(1))


def without_locks(function, *arguments):
    """Call a function on a system without the locks that a cache needs."""
    del fcntl.F_OFD_SETLK
    return function(*arguments)


def test_without_locks_prewarming_is_refused_and_training_reads_the_store(server, cache):
    url = "s3://bucket/whole"
    arguments = {"worker_config": config(2), "storage_options": server.storage_options, **ORDER}
    with pytest.raises(ConfigError, match="only Linux has"):
        children.call(without_locks, warm_and_listen, url, {"cache": cache, "steps": STEPS, **arguments})
    cached = {"cache": cache, **arguments}
    assert children.call(without_locks, steps_of, url, STEPS, 2, cached) == train(
        server, url, False, STEPS, config(2)
    )
    assert not Path(cache.directory).exists()
