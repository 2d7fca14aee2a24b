"""Folders of JSON lines and of a user's own format, compared with json and the files themselves."""

import json
from itertools import islice

import numpy as np
import pytest
from click.testing import CliRunner
from repetitions import is_nightly

from energon_stream import (
    FileFormat,
    OpenedFile,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    open_run,
    register_dataset_format,
)
from energon_stream.cli.main import main
from energon_stream.errors import (
    ConfigError,
    EmptyDatasetError,
    EnergonStreamError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
)
from energon_stream.index.file_format import find_format
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.state import redistribute
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key

MAIN = WorkerConfig(0, 1, 0)


def write_lines(folder, counts=(40, 1, 0, 60)):
    """Write JSON lines in several files; return the records."""
    records = []
    for file, count in enumerate(counts):
        own = [{"file": file, "row": row, "text": "x" * (row % 30)} for row in range(count)]
        (folder / f"{file:02d}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in own))
        records += own
    return records


def train(path, **changes):
    given = {
        "batch_size": None,
        "shuffle_buffer_size": 40,
        "max_samples_per_sequence": 10,
        "worker_config": MAIN,
    }
    return get_train_dataset(str(path), **{**given, **changes})


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "lines"
    folder.mkdir()
    write_lines(folder)
    report = prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    assert report.shard_counts == {"00.jsonl": 40, "01.jsonl": 1, "02.jsonl": 0, "03.jsonl": 60}
    return folder


def test_a_folder_is_one_numbered_sequence(folder):
    records = write_lines(folder)
    found = list(get_val_dataset(str(folder), split_part="train", batch_size=None, worker_config=MAIN))
    assert [sample["json"] for sample in found] == records
    assert [sample["__key__"] for sample in found] == [str(number) for number in range(101)]
    assert [sample["__shard__"] for sample in found] == [f"{record['file']:02d}.jsonl" for record in records]


def test_exact_resume(folder):
    config = WorkerConfig(0, 1, 0, num_streams=2)
    steps, tail = (40, 8) if is_nightly() else (16, 4)
    assert_exact_resume(lambda: train(folder, worker_config=config), steps=steps, tail=tail)
    assert_restores_by_key(lambda: train(folder, worker_config=config))


def test_elastic_resume_with_a_record_of_the_run(folder, tmp_path):
    def loaders(ranks):
        configs = [WorkerConfig(rank, ranks, 0, num_streams=4) for rank in range(ranks)]
        return [
            get_savable_loader(train(folder, worker_config=config, repeat=False), run=tmp_path / "run")
            for config in configs
        ]

    first, seen = loaders(2), []
    for loader in first:
        seen += [sample["__key__"] for sample in islice(loader, 21)]
    states = redistribute([loader.save_state_rank() for loader in first], 4)
    for loader in first:
        loader.close()
    for loader, state in zip(loaders(4), states, strict=True):
        with loader:
            loader.restore_state_rank(state)
            seen += [sample["__key__"] for sample in loader]
    assert sorted(seen, key=int) == [str(number) for number in range(101)]
    opened = open_run(str(tmp_path / "run"))
    assert len(opened.when("7")) == 1


def test_megatron_energon_prepares_no_list_of_files(folder):
    """Then nothing but the counts is known, which is enough."""
    (folder / ".nv-meta/files.json").unlink()
    found = list(get_val_dataset(str(folder), split_part="train", batch_size=None, worker_config=MAIN))
    assert [sample["json"] for sample in found] == write_lines(folder)


def test_split_parts_exclude_and_the_command(tmp_path):
    write_lines(tmp_path, (5, 6, 7, 8))
    arguments = ["prepare", str(tmp_path), "--non-interactive", "--split-pattern", "train:0[01].jsonl"]
    result = CliRunner().invoke(main, [*arguments, "--split-pattern", "val:02.jsonl"])
    assert result.exit_code == 0, result.output
    assert len(get_val_dataset(str(tmp_path), split_part="val", batch_size=None, worker_config=MAIN)) == 7
    shown = CliRunner().invoke(main, ["info", str(tmp_path)])
    assert "26 samples in 4 shards" in shown.output or "18 samples in 3 shards" in shown.output, shown.output
    with pytest.raises(ConfigError, match="prepared already"):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    report = prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), force=True, exclude="03")
    assert report.num_samples == 18


@pytest.mark.parametrize("option", ["append", "checksums", "fix_duplicates"])
def test_options_of_tars_are_refused(tmp_path, option):
    write_lines(tmp_path)
    with pytest.raises(ConfigError, match=f"{option} is for tars"):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), **{option: True})


BAD = {
    "no object": (b'{"a": 1}\n[1]\n', MetadataError, "line 2 is not a JSON object"),
    "cut off": (b'{"a": 1}\n{"a":', MetadataError, "line 2"),
    "nothing": (b"\n\n", EmptyDatasetError, "no samples"),
    "utf-16": ('{"a": 1}\n'.encode("utf-16"), MetadataError, "line 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lines(tmp_path, name):
    data, error, words = BAD[name]
    (tmp_path / "x.jsonl").write_bytes(data)
    with pytest.raises(error, match=words):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    assert not (tmp_path / ".nv-meta").exists()


def test_marks_carriage_returns_and_blank_lines(tmp_path):
    rows = ['\ufeff{"a": 0}\r\n', "\r\n", '  {"a": 1}\t\r\n', "\n", '{"a": "é"}']
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("".join(rows), newline="")
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    found = get_val_dataset(str(tmp_path), split_part="train", batch_size=None, worker_config=MAIN)
    assert [sample["json"]["a"] for sample in found] == [0, 1, "é"] * 2


@pytest.mark.parametrize("change", ["longer", "shorter", "gone"])
def test_an_index_of_another_version(folder, change):
    path = folder / "03.jsonl"
    if change == "gone":
        (folder / "03.jsonl.idx").unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data + b'{"more": 1}\n' if change == "longer" else data[:-30])
    error = (NotPreparedError, IndexMismatchError, EnergonStreamError)
    if change == "longer":  # the samples that are known are still there
        assert len(list(train(folder, repeat=False))) == 101
        return
    with pytest.raises(error, match=r"03\.jsonl"):
        list(train(folder, repeat=False))


def test_the_list_of_files_must_fit(folder):
    listed = folder / ".nv-meta/files.json"
    good = json.loads(listed.read_text())
    for path, entry in [
        ("00.jsonl", ["1-a", 5, [41], []]),
        ("00.jsonl", ["1-a", 5, [-1], []]),
        ("00.jsonl", 7),
    ]:
        listed.write_text(json.dumps({"files": {**good["files"], path: entry}}))
        with pytest.raises(MetadataError, match=r"files\.json.*prepare"):
            train(folder)


def test_files_of_several_formats(tmp_path):
    write_lines(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match="several formats"):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    assert prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), exclude=r"\.bin$").num_samples == 101


class Fives(FileFormat):
    """Records of five bytes."""

    name, suffix = "fives", ".fives"

    def open(self, place, limits):
        size = place.store.head(place.path).size
        return OpenedFile((size // 5,), f"{size}-0", size)

    def places(self, store, path, file, first, last):
        starts = 5 * np.arange(first, last)
        return np.stack([starts, starts + 5], axis=1)

    def cut(self, row, data, file):
        return {"txt": data}


def test_a_format_of_ones_own(tmp_path):
    register_dataset_format(Fives())
    register_dataset_format(Fives())
    folder = tmp_path / "data"
    folder.mkdir()
    for file in range(2):
        (folder / f"{file}.fives").write_bytes(b"".join(b"%05d" % (20 * file + row) for row in range(20)))
    single = get_val_dataset(str(folder / "1.fives"), batch_size=None, worker_config=MAIN)
    assert [sample["txt"] for sample in single] == [f"{number:05d}" for number in range(20, 40)]
    prepare_dataset(str(folder), split_ratio=(1, 0, 0))
    found = get_val_dataset(str(folder), split_part="train", batch_size=None, worker_config=MAIN)
    assert [int(sample["txt"]) for sample in found] == list(range(40))
    with get_savable_loader(train(folder, worker_config=WorkerConfig(0, 1, 2), repeat=False)) as loader:
        assert sorted(int(sample["txt"]) for sample in loader) == list(range(40))
    assert_exact_resume(lambda: train(folder), steps=30 if is_nightly() else 12, tail=4)


def test_only_formats_are_registered_and_names_are_unique():
    with pytest.raises(ConfigError, match="not a format"):
        register_dataset_format("jsonl")

    class Other(Fives):
        suffix = ".other"

    register_dataset_format(Fives())
    with pytest.raises(ConfigError, match="another format of the name 'fives'"):
        register_dataset_format(Other())
    assert find_format("x.fives") is not None
    assert find_format("x.other") is None
