"""Datasets of files that are no tars: tools read them, or say so before they write."""

import json

import pytest
from click.testing import CliRunner

from energon_stream import (
    compute_costs,
    diagnose,
    diff_datasets,
    lint_dataset,
    merge_datasets,
    sample_dataset,
    split_dataset,
)
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.prepare.prepare_files import prepare_file

USES = {
    "diff": lambda path, new: diff_datasets(path, path),
    "merge": lambda path, new: merge_datasets([path], new),
    "split": lambda path, new: split_dataset(path, {"a": new}, ratio={"a": 1}),
    "sample": lambda path, new: sample_dataset(path, new, count=1),
    "cost": lambda path, new: compute_costs(path, "n", len),
    "lint": lambda path, new: lint_dataset(path),
}


@pytest.fixture
def lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").mkdir()
    for number in range(2):
        text = "".join(json.dumps({"n": line}) + "\n" for line in range(3))
        (tmp_path / f"lines/{number}.jsonl").write_text(text)
    prepare_dataset("lines", split_ratio=(1, 0, 0))
    prepare_file("lines/0.jsonl")
    return tmp_path


@pytest.mark.parametrize("path", ["lines", "lines/0.jsonl"])
def test_what_needs_tars_says_so_and_writes_nothing(lines, path):
    before = sorted(lines.rglob("*"))
    for use in USES.values():
        with pytest.raises(ConfigError, match="tars"):
            use(path, "new")
    with pytest.raises(ConfigError, match="tars"):
        prepare_media("lines", MediaFilter("EXTENSION"))
    assert sorted(lines.rglob("*")) == before


@pytest.mark.parametrize(("path", "samples"), [("lines", 6), ("lines/0.jsonl", 3)])
def test_lint_and_doctor_read_them(lines, path, samples):
    assert json.loads(CliRunner().invoke(main, ["lint", path, "--json"]).stdout)["splits"]["train"] == {
        "made": samples,
        "failed": 0,
    }
    found = diagnose(path, seconds=0.01)
    assert found.is_healthy
    assert f"{samples} samples in" in {finding.name: finding.text for finding in found.findings}["dataset"]


def test_lint_names_bad_lines_of_a_folder(lines):
    (lines / "lines/1.jsonl").write_text('{"n": 0}\n{"n": x}\n{"n": 2}\n')
    found = CliRunner().invoke(main, ["lint", "lines", "--json"])
    assert found.exit_code == 1
    assert json.loads(found.stdout)["splits"]["train"] == {"made": 5, "failed": 1}
