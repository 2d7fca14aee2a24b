"""A measurement tries settings one after another, and recommends those that are clearly faster."""

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

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
    bench,
    best_of,
    page,
    processors,
    save_picture,
    try_settings,
)

ORDER = {"shuffle_buffer_size": 20, "max_samples_per_sequence": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("bench") / "data", shards=2, samples=80, payload_bytes=500
    )


def run_of(speed, cause="store latency", verdict="the store's <latency>", **setting):
    return BenchRun(Setting(**setting), 9, speed, speed * 1000, 0.1, 12, verdict, cause)


values_strategy = st.lists(st.integers(1, 200), min_size=1, max_size=4, unique=True).map(tuple)


@given(values_strategy, values_strategy, values_strategy, st.randoms(use_true_random=False))
def test_each_value_is_tried_once_and_the_best_is_kept(workers, in_flight, sizes, draw):
    values = {"num_workers": workers, "max_in_flight": in_flight, "max_request": sizes}
    speeds = {}

    def measure(setting):
        assert setting not in speeds
        speeds[setting] = draw.uniform(1, 100)
        return speeds[setting]

    settings = list(try_settings(values, measure))
    assert len(settings) == sum(map(len, values.values())) - 2
    for name, tried in values.items():
        assert {getattr(setting, name) for setting in settings} == set(tried)
    assert len(settings) == len(list(try_settings(values, lambda setting: 0.0)))


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


class Cells(HTMLParser):
    """Collects the texts of cells, and checks that each element is closed by its own end."""

    def __init__(self, text):
        super().__init__()
        self.open, self.cells, self.tags, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open:
            self.cells[-1] += data


def test_the_page_is_whole_fits_a_phone_and_has_no_markup_of_strangers():
    report = BenchReport("s3://<script>alert(1)</script>", (run_of(100.0), run_of(250.0, num_workers=2)))
    text = page(report)
    found = Cells(text)
    assert "script" not in found.tags
    assert found.cells == [
        *("0 workers, 64 in flight, 6 MiB", "100", "0.1", "0.10 s", "12", "the store's <latency>"),
        *("2 workers, 64 in flight, 6 MiB", "250", "0.2", "0.10 s", "12", "the store's <latency>"),
    ]
    assert [a["value"] for tag, a in found.attributes if tag == "meter"] == ["100.0", "250.0"]
    assert ("meta", {"name": "viewport", "content": "width=device-width"}) in found.attributes
    assert "color-scheme: light dark" in text
    assert "http" not in text.replace("s3://", "")


def test_the_verdict_says_how_much_faster_and_never_to_do_what_was_tried():
    one = run_of(100.0, cause="decode", verdict="decoding, 92% of the workers' time", num_workers=1)
    two = replace(one, setting=Setting(2), samples_per_second=101.0)
    fast = replace(one, setting=Setting(4), samples_per_second=250.0)
    found = "Its limit: decoding, 92% of the workers' time."
    name = "64 in flight, 6 MiB"
    assert BenchReport("a", (one,)).verdict == (
        f"Best of 1 run: 1 worker, {name}, 100 samples/s. {found} More workers were not tried."
    )
    assert BenchReport("a", (one, two)).verdict == (
        f"Best of 2 runs: 1 worker, {name}, 100 samples/s. {found} More workers were not clearly faster."
    )
    assert BenchReport("a", (one, two, fast)).verdict == (
        f"Best of 3 runs: 4 workers, {name}, 250 samples/s, 2.5 times as fast as 1 worker, {name}. {found} "
        "More workers were not tried."
    )
    store = replace(one, cause="store rate", verdict="the store's rate, 99% of the workers' time")
    assert BenchReport("a", (store,)).verdict.endswith(
        "Its limit: the store's rate, 99% of the workers' time."
    )


def test_the_limit_of_a_run_is_its_cause_and_not_that_the_loop_waits(folder):
    (run,) = bench(
        str(folder),
        batch_size=4,
        seconds=0.2,
        num_workers=[0],
        max_in_flight=[64],
        max_request=[6 << 20],
        **ORDER,
    ).runs
    assert not re.search(r"waiting|add workers|use workers|keeps up", run.verdict)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_picture_has_a_bar_a_run(tmp_path, kind):
    report = BenchReport(
        "s3://data", (run_of(100.0), run_of(250.0, num_workers=2), run_of(9.0, max_in_flight=7))
    )
    save_picture(report, tmp_path / f"a.{kind}")
    if kind == "png":
        with Image.open(tmp_path / "a.png") as found:
            assert (59, 130, 230) in {colour for _, colour in found.convert("RGB").getcolors(10**6)}
        return
    drawn = ElementTree.fromstring((tmp_path / "a.svg").read_bytes())
    texts = [text for text in map(str.strip, drawn.itertext()) if text]
    assert {"2 workers, 64 in flight, 6 MiB", "250", "samples a second", "s3://data"} <= set(texts)
    assert any("prefers-color-scheme:dark" in text for text in texts)
    assert b"#010203" not in (tmp_path / "a.svg").read_bytes()


@pytest.mark.parametrize(
    "url", ["s3://$x$/$y", "s3://a_b^c/\\frac{", "s3://" + "long/" * 60, "s3://<script>&#010203"]
)
def test_any_name_can_be_drawn(tmp_path, url):
    save_picture(BenchReport(url, (run_of(1.0),)), tmp_path / "a.svg")
    drawn = ElementTree.fromstring((tmp_path / "a.svg").read_bytes())
    assert url[:50] in "".join(drawn.itertext()).replace("currentColor", "#010203")
    assert not [each for each in drawn.iter() if each.tag.endswith("script")]


def test_pictures_are_checked_before_anything_is_measured(folder, tmp_path, monkeypatch):
    arguments = ["bench", str(folder), "--batch-size", "8", "--picture"]
    shown = CliRunner().invoke(main, [*arguments, str(tmp_path / "a.gif")])
    assert (shown.exit_code, "samples/s" in shown.output) == (2, False)
    assert "use one that ends in .svg or .png" in shown.output.lower()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = CliRunner().invoke(main, [*arguments, str(tmp_path / "a.svg")])
    assert (shown.exit_code, "samples/s" in shown.output) == (1, False)
    assert "energon-stream[plots]" in shown.output


def test_other_kinds_of_pictures_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.svg or \.png"):
        save_picture(BenchReport("s3://data", (run_of(1.0),)), tmp_path / "a.gif")


def test_the_command_measures_and_reports(folder, tmp_path):
    arguments = ["bench", str(folder), "--batch-size", "8", "--seconds", "200ms", "--num-workers", "0,1"]
    arguments += ["--max-in-flight", "8,64", "--max-request", "6MiB", "--shuffle-buffer-size", "20"]
    arguments += ["--max-samples-per-sequence", "10", "--html", str(tmp_path / "a.html")]
    arguments += ["--picture", str(tmp_path / "a.png")]
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code == 0, shown.output
    assert shown.output.count(" MB/s") == 2
    assert "Settings: get_train_dataset(" in shown.output
    assert len(Cells((tmp_path / "a.html").read_text()).cells) == 2 * 6
    assert shown.output.count("Best of 2 runs: ") == 1
    assert "Local files take no requests, so only workers were tried." in shown.output
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
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)  # older spellings
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
