"""The engine on a Ray cluster of two nodes on this machine; `make ray` installs Ray and runs this."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import engine_tasks
import pytest
import ray_nodes

from energon_stream import WorkerConfig, compute_costs, prewarm, read_costs
from energon_stream.engine.cluster import RayEngine
from energon_stream.errors import ConfigError, CorruptTarError, WorkerError
from energon_stream.testing.datasets import prepared_binary_dataset

ray = pytest.importorskip("ray", reason="`make ray` installs Ray and runs this")


@pytest.fixture(scope="module", autouse=True)
def _busy_machine():
    ray_nodes.wait_for_agents()


def test_a_cluster_of_its_own_listens_on_the_loopback_interface_only(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    modules = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    (addresses,) = RayEngine(runtime_env=modules).map(engine_tasks.listening, [None])
    assert len(addresses) >= 3
    assert {address[-8:] for address in addresses} == {"0100007F"}  # 127.0.0.1
    assert not ray.is_initialized()


def test_a_module_that_nodes_lack_is_named(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(WorkerError, match=r"could not begin a task: .*No module named 'engine_tasks'"):
        list(RayEngine().map(engine_tasks.listening, [None]))


@pytest.mark.parametrize("wrong", [{"env_vars": {"A": 1}}, {"working_dir": "/no/such"}])
def test_an_environment_that_ray_refuses_is_named(monkeypatch, wrong):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"given this runtime_env: .*(must be of type|existing directory)"):
        list(RayEngine(runtime_env=wrong).map(len, ["a"]))


LATE = """
import sys, time
if any("agent" in word for word in sys.orig_argv):
    time.sleep(40)
"""
FAILS = """
from energon_stream import RayEngine
from energon_stream.errors import ConfigError
try:
    list(RayEngine("local").map(len, ["a"]))
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_cluster_that_cannot_start_is_an_error(tmp_path):
    """Its processes start late, as on a busy machine: Ray gives up by an exception without a name."""
    (tmp_path / "sitecustomize.py").write_text(LATE)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env["PYTHONPATH"] = f"{tmp_path}:{ray_nodes.REPOSITORY}"
    done = subprocess.run([sys.executable, "-c", FAILS], env=env, capture_output=True, text=True, check=False)
    assert re.match(r"Ray cannot be started: .*timed out.*LocalEngine", done.stdout), done.stderr


@pytest.fixture(scope="module")
def cluster():
    with ray_nodes.one_node() as started:
        yield started


@pytest.mark.parametrize("job", ray_nodes.JOBS)
def test_a_node_that_is_killed_changes_nothing(cluster, tmp_path, job):
    ray_nodes.write_sources(tmp_path, 40)
    before, tasks = ray_nodes.compare(cluster, tmp_path, job)
    assert 0 < before < tasks
    assert not ray.is_initialized()


def test_a_damaged_dataset_has_the_same_report(cluster, tmp_path):
    ray_nodes.write_sources(tmp_path, 10)
    ray_nodes.compare_reports(cluster, tmp_path)


def test_ranks_are_warmed_by_the_cluster(cluster, tmp_path, s3_server):
    folder = prepared_binary_dataset(tmp_path / "data", shards=4, samples=40, payload_bytes=1000)
    s3_server.upload_folder(folder, "s3://bucket/data")
    options = {
        "ranks": [0, 1],
        "worker_config": WorkerConfig(0, 2, 0),
        "storage_options": s3_server.storage_options,
    }
    done = prewarm(
        "s3://bucket/data", cache=str(tmp_path / "cache"), engine=RayEngine(cluster.address), **options
    )
    assert (done.is_complete, done.samples) == (True, 40)
    planned = prewarm("s3://bucket/data", cache=str(tmp_path / "cache"), dry_run=True, **options)
    assert planned.plan.missing_bytes == 0


def test_costs_are_computed_by_the_cluster(cluster, tmp_path, s3_server):
    folder = prepared_binary_dataset(tmp_path / "data", shards=4, samples=40, payload_bytes=1000)
    s3_server.upload_folder(folder, "s3://bucket/data")
    options = {"storage_options": s3_server.storage_options}
    compute_costs("s3://bucket/data", "here", "builtins:len", **options)
    report = compute_costs(
        "s3://bucket/data", "there", "builtins:len", engine=RayEngine(cluster.address), **options
    )
    assert (report.computed, report.samples) == (4, 40)
    found = [read_costs("s3://bucket/data", name, **options).tolist() for name in ("here", "there")]
    assert found[0] == found[1]


def test_errors_are_those_of_the_local_engine(cluster, tmp_path):
    engine = RayEngine(cluster.address)
    with pytest.raises(CorruptTarError, match=r"x\.tar"):
        list(engine.map(partial(engine_tasks.damaged, tmp_path), [1]))
    with pytest.raises(WorkerError, match="lost its process"):
        list(engine.map(engine_tasks.die, [1], retries=1))


def test_a_cluster_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match="cannot be reached"):
        list(RayEngine("127.0.0.1:1").map(len, ["a"]))
