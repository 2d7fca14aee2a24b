"""A measurement tries settings one after another, and recommends those that are clearly faster."""

import base64
import io
import json
import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from energon_stream.cli.main import main
from energon_stream.errors import ConfigError, DatasetError
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.tools.doctor.measure import (
    BenchReport,
    BenchRun,
    Setting,
    _sweep,
    bench,
    best_of,
    page,
    picture,
    processors,
)

ORDER = {"shuffle_buffer_size": 20, "max_samples_per_sequence": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("bench") / "data", shards=2, samples=80, payload_bytes=500
    )


def run_of(speed, **setting):
    return BenchRun(Setting(**setting), 9, speed, speed * 1000, 0.1, 12, "the store's <latency>")


values_strategy = st.lists(st.integers(1, 200), min_size=1, max_size=4, unique=True).map(tuple)


@given(values_strategy, values_strategy, values_strategy, st.randoms(use_true_random=False))
def test_each_value_is_tried_once_and_the_best_is_kept(workers, in_flight, sizes, draw):
    values = {"num_workers": workers, "max_in_flight": in_flight, "max_request": sizes}
    speeds = {}

    def measure(setting):
        assert setting not in speeds
        speeds[setting] = draw.uniform(1, 100)
        return speeds[setting]

    settings = list(_sweep(values, measure))
    assert len(settings) == sum(map(len, values.values())) - 2
    for name, tried in values.items():
        assert {getattr(setting, name) for setting in settings} == set(tried)
    assert len(settings) == len(list(_sweep(values, lambda setting: 0.0)))


def test_the_defaults_stay_unless_another_is_clearly_faster():
    runs = [run_of(100.0), run_of(102.0, max_in_flight=16)]
    assert best_of(runs) is runs[0]
    assert best_of([*runs, run_of(104.0, num_workers=2)]).setting.num_workers == 2


def test_the_recommendation_names_what_differs_from_the_defaults():
    report = BenchReport("s3://data", (run_of(1.0), run_of(9.0, num_workers=4, max_in_flight=128)))
    assert report.code == (
        "worker_config=WorkerConfig(rank, world_size, num_workers=4), "
        "read_options=ReadOptions(max_in_flight=128)"
    )
    assert BenchReport("s3://data", (run_of(1.0),)).code.endswith("num_workers=0)")


def test_the_page_has_the_picture_and_no_markup_of_strangers():
    report = BenchReport("s3://<script>alert(1)</script>", (run_of(100.0), run_of(250.0, num_workers=2)))
    text = page(report)
    assert "<script" not in text
    assert "the store&#x27;s &lt;latency&gt;" in text
    data = base64.b64decode(re.search(r"base64,([^\"]+)", text)[1])
    with Image.open(io.BytesIO(data)) as found:
        assert found.size == picture(report).size


def test_the_command_measures_and_reports(folder, tmp_path):
    arguments = ["bench", str(folder), "--batch-size", "8", "--seconds", "0.2", "--workers", "0,1"]
    arguments += ["--in-flight", "8,64", "--request-mib", "6", "--shuffle-buffer-size", "20"]
    arguments += ["--max-samples-per-sequence", "10", "--html", str(tmp_path / "a.html")]
    arguments += ["--png", str(tmp_path / "a.png")]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("samples/s") == 3
    assert "Settings: get_train_dataset(" in shown.output
    assert "Recommended settings" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_all_runs(folder):
    arguments = [
        "bench",
        str(folder),
        "--batch-size",
        "8",
        "--seconds",
        "0.1",
        "--workers",
        "0",
        "--in-flight",
    ]
    arguments += [
        "64",
        "--request-mib",
        "6",
        "--shuffle-buffer-size",
        "20",
        "--max-samples-per-sequence",
        "10",
    ]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    (run,) = found["runs"]
    assert found["best"] == 0
    assert 1 <= run["batches"] <= 10  # one pass at most
    assert run["samples_per_second"] > 0


def test_errors_reach_the_caller(tmp_path, folder):
    with pytest.raises(DatasetError):
        bench(str(tmp_path), batch_size=4, seconds=0.1, num_workers=[0], **ORDER)
    for nothing in ({"num_workers": []}, {"max_request": []}, {"seconds": 0}):
        with pytest.raises(ConfigError, match="nothing to try"):
            bench(str(folder), batch_size=4, **nothing, **ORDER)


def test_workers_go_up_to_the_processors():
    assert processors()[:2] == [0, 1]
    assert processors() == sorted(processors())
