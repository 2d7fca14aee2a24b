"""``energon-stream table``: tables are added, listed and removed."""

import json

import pytest
from click.testing import CliRunner

from energon_stream.cli.main import main
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.testing.datasets import prepared_captioning_dataset

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def place(tmp_path, monkeypatch):
    prepared_captioning_dataset(tmp_path / "data", shards=2, samples_per_shard=3, split_ratio=(1, 1, 0))
    pq.write_table(pa.table({"clip": [n / 6 for n in range(6)]}), tmp_path / "clip.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, status=0):
    result = CliRunner().invoke(main, ["table", "data", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_tables_are_added_listed_and_removed(place):
    assert run() == "the dataset has no tables\n"
    expected = {
        "path": ".nv-meta/tables/scores.parquet",
        "rows": 6,
        "columns": {"clip": "double"},
        "fits": True,
    }
    (added,) = json.loads(run("clip.parquet", "--name", "scores", "--json"))["tables"]
    assert added == {"name": "scores", **expected}
    assert json.loads(run("--json"))["tables"] == [added]
    assert run() == "scores: 6 rows of clip (double)\n"
    prepare_media(str(place / "data"), MediaFilter("EXTENSION"))
    assert "jpg_width (int64)" in run("--media")
    assert json.loads(run("--remove", "scores", "--json")) == {"removed": "scores"}
    assert run().startswith("media: 6 rows of jpg_width")
    (place / "data/.nv-meta/.info.json").write_text(
        (place / "data/.nv-meta/.info.json").read_text().replace("{", "{ ", 1)
    )
    assert "OLDER THAN THE INDEX" in run()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["clip.parquet", "--media"], 2, "give only one of"),
        (["--name", "x"], 2, "--name is for a table that is added"),
        (["--remove", "nope"], 2, "there is no table"),
        (["none.parquet"], 1, "none.parquet"),
        (["--media"], 2, "no media metadata"),
        (["clip.parquet", "--name", "../x"], 2, "the name of the table"),
    ],
)
def test_calls_that_are_refused(place, arguments, status, said):
    assert said in run(*arguments, status=status)
