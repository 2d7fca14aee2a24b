"""A Ray cluster of two nodes on this machine, one of which is killed midway: the output is that of processes.

``python tests/engine/ray_nodes.py --shards 200`` joins two datasets, prepares one, converts a table, writes
one anew, and checks a damaged dataset, by local processes and by Ray, and compares all bytes. Ray must be
installed: ``make ray``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from energon_stream import (
    LocalEngine,
    RayEngine,
    convert_dataset,
    lint_dataset,
    merge_datasets,
    repair_dataset,
)
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML, write_shards
from energon_stream.testing.servers import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
ROWS_A_PART = 500
SECONDS = 3000  # that a busy machine may take for anything
# Ray reads these when it is imported, and its processes when they start. A killed node refuses at once.
os.environ |= dict.fromkeys(
    (
        "RAY_raylet_start_wait_time_s",
        "RAY_raylet_client_num_connect_attempts",
        "RAY_worker_register_timeout_seconds",
        "RAY_gcs_server_port_wait_time_s",
        "RAY_gcs_server_request_timeout_seconds",
        "RAY_gcs_rpc_server_reconnect_timeout_s",
        "RAY_py_gcs_connect_timeout_s",
    ),
    str(SECONDS),
)
os.environ |= dict.fromkeys(("RAY_agent_register_timeout_ms", "RAY_health_check_timeout_ms"), f"{SECONDS}000")
os.environ |= {"RAY_worker_niceness": "0"}  # 15 by default: tasks starve on a busy machine


def wait_for_agents():
    """Let the nodes of this process wait for their agents, to which Ray gives 15 seconds to say their ports.

    The agent of environments gets its port; of the others stands what they say without ``ray[default]``.
    """
    from ray._private import services

    start, others = services.start_raylet, ("metrics_agent", "metrics_export", "dashboard_agent_listen")

    def started(*args, **given):
        known = inspect.signature(start).bind(*args, **given).arguments
        for name in others:
            Path(known["session_dir"], f"{name}_port_{known['node_id']}").write_text("-1")
        return start(**known | {"runtime_env_agent_port": free_ports(1)[0]})

    services.start_raylet = started


def add_node(cluster, cpus):
    """Add a node, and wait for it."""
    node = cluster.add_node(num_cpus=cpus, include_dashboard=False, wait=False)
    cluster.wait_for_nodes(timeout=SECONDS)
    return node


@contextmanager
def one_node():
    """A cluster of one node, with one CPU; others may be added."""
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = f"{REPOSITORY}:{Path(__file__).parent}"  # of the nodes
    cluster = Cluster()
    add_node(cluster, 1)
    try:
        yield cluster
    finally:
        cluster.shutdown()


@contextmanager
def second_node(cluster, is_time):
    """Add a node with two CPUs, and kill it as soon as ``is_time()``.

    Yields a list that gets the time, and the thread that kills.
    """
    node = add_node(cluster, 2)
    killed: list[float] = []
    over = threading.Event()

    def kill():
        while not is_time():
            if over.wait(0.005):
                return
        cluster.remove_node(node, allow_graceful=False)
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed, killer
    finally:
        over.set()
        killer.join()


def files(folder):
    """Content of all files, but for the name that each preparation draws."""
    found = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name != "index.uuid"}


def write_sources(folder, shards):
    """Two datasets of so many shards, and a table that is converted in so many parts."""
    for name in ("a", "b"):
        write_shards(
            folder / name,
            shards=shards,
            samples_per_shard=10,
            parts=lambda i: {"txt": b"text %d" % i},
            key=f"{name}-{{:06d}}",
        )
        prepare_dataset(str(folder / name), split_ratio=(1, 1, 0), dataset_yaml=TEXT_YAML)
    rows = (json.dumps({"text": f"text {row}"}) for row in range(shards * ROWS_A_PART))
    (folder / "table.jsonl").write_text("\n".join(rows))


def merge(folder, out, engine, on_done):
    """Join both datasets."""
    sources = [str(folder / name) for name in ("a", "b")]
    merge_datasets(sources, str(folder / out), engine=engine, on_done=on_done)


def prepare(folder, out, engine, on_done):
    """Prepare the tars of one."""
    (folder / out).mkdir()
    for tar in (folder / "a").glob("*.tar"):
        shutil.copy2(tar, folder / out)
    options = {"split_ratio": (2, 1, 0), "dataset_yaml": TEXT_YAML, "checksums": True}
    prepare_dataset(str(folder / out), engine=engine, progress=on_done, **options)


def convert(folder, out, engine, on_done):
    """Convert the table."""
    convert_dataset(folder / "table.jsonl", folder / out, max_count=200, engine=engine, progress=on_done)


def repair(folder, out, engine, on_done):
    """Write one anew."""
    repair_dataset(folder / "a", folder / out, engine=engine, progress=on_done)


JOBS = {"merge": merge, "prepare": prepare, "convert": convert, "repair": repair}


def compare(cluster, folder, name):
    """Do a job by both engines; returns how far Ray was when its node was killed, and the number of tasks."""
    job, done = JOBS[name], []

    def on_done(number, tasks):
        done.append((time.monotonic(), tasks))
        if number == 3 * tasks // 4:
            killer.join()  # or Ray might be done before

    job(folder, f"{name}-local", LocalEngine(2), None)
    with second_node(cluster, lambda: bool(done) and len(done) > done[0][1] // 4) as (killed, killer):
        job(folder, f"{name}-ray", RayEngine(cluster.address), on_done)
    assert killed, "the node was not killed"
    assert files(folder / f"{name}-local") == files(folder / f"{name}-ray")
    return sum(at < killed[0] for at, _ in done), len(done)


def compare_reports(cluster, folder):
    """Check a dataset with a damaged tar by both engines."""
    (folder / "a" / "data-000001.tar").write_bytes(b"damaged" * 100)
    engines = LocalEngine(2), RayEngine(cluster.address)
    reports = [lint_dataset(str(folder / "a"), engine=used).as_json() for used in engines]
    assert reports[0] == reports[1]
    assert not reports[0]["clean"]


def main():
    """Run the comparison, and say what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=200)
    options = parser.parse_args()
    wait_for_agents()
    with tempfile.TemporaryDirectory() as folder, one_node() as cluster:
        write_sources(Path(folder), options.shards)
        for name in JOBS:
            before, total = compare(cluster, Path(folder), name)
            print(f"{name}: equal, byte for byte; the node was killed after {before} of {total} tasks.")
        compare_reports(cluster, Path(folder))
        print("lint: equal reports.")


if __name__ == "__main__":
    main()
