"""Two processes that write to one folder: one of them is refused, by name, on disks and on S3."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from energon_stream.storage import StoreSpec
from energon_stream.storage.claims import Claim
from energon_stream.testing.s3server import S3Server

HOLDER = """
import sys, time
from energon_stream.storage import StoreSpec
from energon_stream.storage.claims import Claim
claim = Claim(StoreSpec(sys.argv[1]).open(), "writers")
print(claim.take(), flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["local", "s3"])
def store(request, tmp_path):
    if request.param == "local":
        yield StoreSpec(str(tmp_path / "run")).open()
        return
    with S3Server(tmp_path) as server:
        server.create_bucket("runs")
        yield StoreSpec("s3://runs/a", server.storage_options).open()


def claims(store):
    return [entry.path for entry in store.list("writers")]


def claim_of(store, **about):
    """What a process of another machine has left."""
    content = {"token": "0", "held": True, "host": "node7", "machine": "m", "pid": 7, "start": "1", "job": {}}
    store.put("writers/0.claim", json.dumps({**content, **about}).encode())


def test_the_second_is_told_who_the_first_is(store):
    first, second = Claim(store, "writers"), Claim(store, "writers")
    assert first.take() is None
    assert first.take() is None  # it has it
    assert second.take()["path"] in claims(store)
    assert first.renew()
    first.release()
    assert not first.renew()
    assert second.take() is None
    second.release()
    assert claims(store) == []


def test_a_run_that_resumes_takes_over_and_the_first_finds_out(store):
    first, second = Claim(store, "writers"), Claim(store, "writers")
    assert first.take() is None
    assert second.take(resumes=True) is None
    assert not first.renew()
    assert second.renew()
    first.release()
    assert len(claims(store)) == 1


def test_one_that_was_forgotten_is_no_obstacle(store):
    assert Claim(store, "writers").take() is None
    assert Claim(store, "writers").take() is None
    assert len(claims(store)) == 1


def test_of_another_machine_only_a_resuming_run_or_the_same_job_takes_over(store, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    claim_of(store)
    other = Claim(store, "writers").take()
    assert (other["host"], other["pid"], other["path"]) == ("node7", 7, "writers/0.claim")
    assert Claim(store, "writers").take(resumes=True) is None
    claim_of(store, job={"SLURM_JOB_ID": "12"})
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # of any job of one node
    assert Claim(store, "writers").take() is not None
    monkeypatch.setenv("SLURM_JOB_ID", "12")  # requeued
    monkeypatch.delenv("MASTER_ADDR")
    assert Claim(store, "writers").take() is None


def test_a_claim_that_is_not_renewed_expires(tmp_path):
    store = StoreSpec(str(tmp_path)).open()
    claim_of(store)
    os.utime(tmp_path / "writers/0.claim", (time.time() - 1000, time.time() - 1000))
    assert Claim(store, "writers").take() is None


def test_a_process_keeps_its_claim_until_it_is_killed(tmp_path):
    store = StoreSpec(str(tmp_path)).open()
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"None\n"
        for resumes in (False, True):
            assert Claim(store, "writers").take(resumes=resumes)["pid"] == child.pid
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert Claim(store, "writers").take() is None
        child.wait()


def test_of_many_at_once_exactly_one_gets_it(store):
    for _ in range(5):
        all_claims = [Claim(store, "writers") for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(Claim.take, all_claims))
        assert [claim.is_held for claim in all_claims].count(True) == found.count(None) == 1
        for claim in all_claims:
            claim.release()
    assert claims(store) == []
