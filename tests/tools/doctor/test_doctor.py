"""The diagnosis of a dataset's place: each thing that is wrong is named."""

import json
import re
import sys
import time
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest
from click.testing import CliRunner

from energon_stream import CacheConfig, diagnose
from energon_stream.cli.main import main
from energon_stream.storage import server_of
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.tools.doctor.findings import Finding, check_clock, check_machine
from energon_stream.tools.doctor.speed import SpeedOf, best_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("doctor") / "data", shards=2, samples=40, payload_bytes=2000
    )


@pytest.fixture
def url(folder, s3_server, tmp_bucket):
    s3_server.upload_folder(folder, f"{tmp_bucket}/data")
    return f"{tmp_bucket}/data"


def named(diagnosis):
    return {finding.name: finding for finding in diagnosis.findings}


def test_a_healthy_place(url, s3_server):
    seen = []
    options = {"storage_options": s3_server.storage_options, "seconds": 0.05}
    found = diagnose(url, on_finding=seen.append, **options)
    assert seen == list(found.findings)
    assert found.is_healthy
    assert found.verdict.startswith("Training works, at ")
    assert named(found)["dataset"].text == "40 samples in 2 shards"
    assert [speed.in_flight for speed in found.speeds] == [1, 4, 16, 64]
    assert found.settings["max_in_flight"] in (1, 4, 16, 64)
    assert found.latency > 0
    assert json.loads(json.dumps(found.as_json()))["healthy"] is True


def test_the_command(url, s3_server):
    options = [
        part
        for key, value in s3_server.storage_options.items()
        for part in ("--storage-option", f"{key}={json.dumps(value)}")
    ]
    shown = CliRunner().invoke(main, ["doctor", url, "--seconds", "0.05", *options])
    assert shown.exit_code == 0, shown.output
    assert "requests at one time" in shown.output
    assert "ReadOptions(max_in_flight=" in shown.output
    shown = CliRunner().invoke(main, ["doctor", f"{url}/none", "--seconds", "0.05", "--json", *options])
    assert shown.exit_code == 1
    assert json.loads(shown.output)["verdict"].startswith("Training cannot work: ")


def test_a_throttling_store_is_named(url, s3_server):
    s3_server.shape(share_503=0.3)
    found = diagnose(url, storage_options=s3_server.storage_options, seconds=0.2)
    assert named(found)["throttling"].level == "warning"
    assert "were refused or failed" in found.verdict
    assert found.is_healthy


def test_requests_of_others_are_none_of_local_files(folder, url, s3_server):
    """Another part of the program reads from a throttling store meanwhile."""
    s3_server.shape(share_503=0.3)
    options = {"storage_options": s3_server.storage_options, "seconds": 0.05}
    others = []
    found = diagnose(
        str(folder),
        seconds=0.01,
        on_finding=lambda finding: finding.name == "dataset" and others.append(diagnose(url, **options)),
    )
    assert named(others[0])["throttling"].level == "warning"
    assert named(found)["throttling"].level == "ok"


def test_a_store_that_is_not_there_is_named():
    options = {"endpoint_url": "http://127.0.0.1:1", "key": "a", "secret": "b"}
    found = diagnose("s3://bucket/data", storage_options=options, seconds=0.1)
    assert not found.is_healthy
    assert "the connection was refused" in named(found)["store"].text
    assert found.speeds == ()


def test_tars_that_are_not_prepared(tmp_path, folder):
    (tmp_path / "a.tar").write_bytes(next(folder.glob("*.tar")).read_bytes())
    found = diagnose(str(tmp_path), seconds=0.01)
    assert named(found)["dataset"].text == "1 tar, not prepared"
    assert found.is_healthy


def test_a_full_disk_is_named(tmp_path):
    config = CacheConfig(str(tmp_path / "cache"), min_free_bytes="1000TB")
    finding = next(iter(check_machine(config)))
    assert (finding.name, finding.level) == ("cache", "error")
    assert "nothing more is kept" in finding.text
    large = replace(config, min_free_bytes=0, max_bytes="1000TB")
    assert next(iter(check_machine(large))).level == "warning"
    assert next(iter(check_machine(None))).level == "ok"


@pytest.mark.parametrize(
    ("skew", "level", "said"),
    [(0, "ok", "agrees"), (100, "warning", "100 s ahead of"), (-4000, "error", "4,000 s behind")],
)
def test_clocks(skew, level, said):
    now = time.time() // 1
    finding = check_clock(formatdate(now - skew, usegmt=True), now)
    assert finding.level == level
    assert said in finding.text
    assert check_clock("yesterday", now).level == "warning"


def test_servers_of_urls():
    assert server_of("/data", {}) is None
    options = {"client_kwargs": {"region_name": "eu-west-1"}, "key": "a", "secret": "b"}
    assert server_of("s3://data/x", options) == ("https://s3.eu-west-1.amazonaws.com", "data", "eu-west-1")


def test_the_fewest_requests_that_are_nearly_the_best():
    speeds = [SpeedOf(1, 9, 10.0, 0.1), SpeedOf(4, 9, 95.0, 0.1), SpeedOf(16, 9, 100.0, 0.1)]
    assert best_of(speeds).in_flight == 4
    assert str(Finding("clock", "ok", "right", "Nothing to do.")) == "ok      clock: right. Nothing to do."


MIX = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train: {blend: [{path: data, weight: 2}, {path: gone, weight: 1}]}
  val: {path: data, split_part: train}
"""


def test_the_datasets_of_a_metadataset_are_named(tmp_path, folder, url, tmp_bucket, s3_server):
    (tmp_path / "mix.yaml").write_text(MIX)
    s3_server.upload_folder(tmp_path, f"{tmp_bucket}/mixes")
    s3_server.upload_folder(folder, f"{tmp_bucket}/mixes/data")
    found = diagnose(f"{tmp_bucket}/mixes/mix.yaml", storage_options=s3_server.storage_options, seconds=0.05)
    texts = [(finding.level, finding.text) for finding in found.findings if finding.name == "dataset"]
    assert texts[0] == ("ok", f"{tmp_bucket}/mixes/data [train] of train, val: 40 samples in 2 shards")
    level, text = texts[1]
    assert level == "error"
    assert text.startswith(f"{tmp_bucket}/mixes/gone [train] of train: ")
    assert len(texts) == 2
    assert found.verdict.startswith(f"Training cannot work: {tmp_bucket}/mixes/gone")
    assert len(found.speeds) == 4  # those of the dataset that is there


def test_a_wrong_metadataset_is_named(tmp_path):
    (tmp_path / "mix.yaml").write_text(MIX.replace("blend:", "blond:"))
    found = diagnose(str(tmp_path / "mix.yaml"), seconds=0.01)
    assert named(found)["metadataset"].level == "error"
    assert "blond" in named(found)["metadataset"].text
    (tmp_path / "mix.yaml").unlink()
    assert named(diagnose(str(tmp_path / "mix.yaml"), seconds=0.01))["store"].level == "error"


def test_the_speed_of_local_files_is_that_of_reading_them(tmp_path, s3_server, url):
    """The bytes are read, which a map alone does not do, and the verdict says where they were."""
    folder = prepared_binary_dataset(tmp_path / "data", shards=2, samples=40, payload_bytes=100_000)
    found = diagnose(str(folder), seconds=0.02)
    assert re.fullmatch(
        r"Training works, at [\d,]+ MB/s from local files \(.*page cache.*\)\.", found.verdict
    )
    if sys.platform == "linux":  # which tells the bytes of each mapped file that were looked at
        maps = Path("/proc/self/smaps").read_text()
        for tar in folder.glob("*.tar"):
            looked_at = re.search(rf"{re.escape(str(tar))}\n(?:.*\n)*?Rss: +(\d+) kB", maps)
            assert int(looked_at[1]) * 1024 >= tar.stat().st_size
    (tmp_path / "mix.yaml").write_text(
        f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: {url}\n"
    )
    remote = diagnose(str(tmp_path / "mix.yaml"), storage_options=s3_server.storage_options, seconds=0.02)
    assert re.fullmatch(r"Training works, at [\d,]+ MB/s\.", remote.verdict)
