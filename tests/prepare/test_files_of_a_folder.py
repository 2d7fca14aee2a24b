"""Files of a folder that are no shards, and those that grew after it was prepared."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from in_order import read_in_order

from energon_stream import DefaultTaskEncoder
from energon_stream.cli.main import main
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML, write_shards

APPLE = b"\0\5\x16\7\0\2\0\0Mac OS X        "


class Texts(DefaultTaskEncoder):
    def batch(self, samples):
        return [sample.text for sample in samples]


@pytest.mark.parametrize("form", ["tars", "plain tars", "parquet", "jsonl"])
def test_hidden_files_are_no_shards(tmp_path, form, caplog):
    if form == "parquet":
        name = "a.parquet"
        pq.write_table(pa.table({"text": ["0", "1"]}), tmp_path / name)
    elif form == "jsonl":
        name = "a.jsonl"
        (tmp_path / name).write_text('{"text": "0"}\n{"text": "1"}\n')
    else:
        name = "data-000000.tar"
        write_shards(tmp_path, shards=1, samples_per_shard=2, parts=lambda n: {"txt": b"%d" % n})
    (tmp_path / f"._{name}").write_bytes(APPLE)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    shutil.copy(tmp_path / name, tmp_path / ".ipynb_checkpoints" / name)
    options = {"sample_type": "TextSample", "field_map": {"text": "txt"}}
    if form != "plain tars":
        field = {"data-000000.tar": "txt", "a.jsonl": "json[text]"}.get(name, "text")
        yaml = {**TEXT_YAML, "field_map": {"text": field}}
        report = prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=yaml)
        assert report.shard_counts == {name: 2}
        options = {}
    assert sorted(read_in_order(tmp_path, Texts(), batch_size=2, **options)) == ["0", "1"]
    assert "2 hidden files left out, such as ._" in caplog.text


def test_media_of_a_table_have_another_way(tmp_path):
    pq.write_table(pa.table({"text": ["0"]}), tmp_path / "a.parquet")
    options = ["prepare-media", "--media-metadata-by-extension"]
    result = CliRunner().invoke(main, [*options, str(tmp_path)])
    assert result.exit_code == 2
    assert f"`energon-stream convert {tmp_path} NEW_FOLDER`" in result.output
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "a.parquet"), str(tmp_path / "new")])
    assert done.exit_code == 0, done.output


def test_a_file_that_grew_is_read_as_it_was_prepared(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"text": "0"}\n{"text": "1"}\n')
    yaml = {**TEXT_YAML, "field_map": {"text": "json[text]"}}
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=yaml)
    assert sorted(read_in_order(tmp_path, Texts(), batch_size=2)) == ["0", "1"]
    assert "has grown" not in caplog.text
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": "2"}\n')
    for _ in range(2):
        assert sorted(read_in_order(tmp_path, Texts(), batch_size=2)) == ["0", "1"]
    assert caplog.text.count("a.jsonl has grown: its first 28 bytes are read") == 1
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=yaml, force=True)
    assert sorted(read_in_order(tmp_path, Texts(), batch_size=2)) == ["0", "1", "2"]
