"""The data of the documents, and the S3 that serves it: read by tarfile, Pillow, wave, pyarrow and boto3."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import sys
import tarfile
import wave
from pathlib import Path

import boto3
import children
import pytest
from click.testing import CliRunner
from PIL import Image

from energon_stream.cli.main import main


def demo_data(*arguments: object) -> str:
    done = CliRunner().invoke(main, ["demo-data", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(example_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the command wrote for the examples of pages."""
    return Path(shutil.copytree(example_data, tmp_path_factory.mktemp("demo") / "data"))


def test_other_programs_read_each(folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    names = []
    for tar in sorted((folder / "captions").glob("*.tar")):
        with tarfile.open(tar) as file:
            names += file.getnames()
    assert [name.partition(".")[2] for name in names] == ["jpg", "txt"] * 64
    photos = sorted((folder / "photos").rglob("*.jpg"))
    assert len(photos) == 60
    for photo in photos:
        shape, caption = photo.parent.name, photo.with_suffix(".txt").read_text()
        assert f" {shape} on " in caption
        with Image.open(photo) as image:
            assert image.size == (64, 48)
    rows = [json.loads(line) for line in (folder / "photos.jsonl").read_text().splitlines()]
    assert sorted(folder / row["file"] for row in rows) == photos
    table = parquet.read_table(folder / "photos.parquet").to_pylist()
    assert [row["caption"] for row in table] == [row["caption"] for row in rows]
    assert Image.open(io.BytesIO(table[7]["image"])).size == (64, 48)
    for sound in sorted((folder / "speech").glob("*.wav")):
        with wave.open(str(sound)) as file:
            seconds = file.getnframes() // file.getframerate()
        assert sound.with_suffix(".txt").read_text() == f"a tone of {seconds} seconds"
    assert len(list((folder / "videos").glob("*.mp4"))) == len(list((folder / "videos").glob("*.json"))) == 8


def test_it_is_the_same_everywhere_and_stays_as_it_is(folder, tmp_path):
    demo_data(tmp_path / "data")
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(tmp_path / "data") for path in (tmp_path / "data").rglob("*") if path.is_file()
    }
    for file in files:
        if file.suffix in (".tar", ".jpg", ".txt", ".jsonl", ".wav"):
            assert (tmp_path / "data" / file).read_bytes() == (folder / file).read_bytes()
    mine = tmp_path / "data/photos/circle/000.txt"
    mine.write_text("mine")
    (tmp_path / "data/mix.yaml").unlink()
    demo_data(tmp_path / "data")
    assert mine.read_text() == "mine"
    assert (tmp_path / "data/mix.yaml").read_bytes() == (folder / "mix.yaml").read_bytes()


def test_what_needs_a_missing_or_broken_package_is_left_out_and_named(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    broken = tmp_path / "streaming.py"  # which imports torchvision, beside another PyTorch than torchvision's
    broken.write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "streaming", raising=False)
    shutil.copytree(folder / "videos", tmp_path / "data" / "videos")  # what is there is not written
    datasets = json.loads(demo_data(tmp_path / "data", "--json"))["datasets"]
    missing = {Path(data["path"]).name: data["missing"] for data in datasets if data["missing"]}
    assert missing["photos.parquet"] == "run `pip install 'energon-stream[parquet]'`"
    assert missing["photos-mds"].startswith("run `pip install 'energon-stream[mds]'`")
    assert missing["photos-mds"].endswith(": operator torchvision::nms does not exist")
    assert not {path.name for path in (tmp_path / "data").iterdir()} & {"photos.parquet", "photos-mds"}
    assert not [path for path in (tmp_path / "data").iterdir() if path.name.startswith(".")]


def test_serve_prints_what_another_client_needs(folder, tmp_path, monkeypatch):
    command = ("-m", "energon_stream", "demo-data", str(folder), "--serve", "--port", "0")
    read, write = os.pipe()
    with open(read) as printed, children.start(*command, stdout=write) as child:
        os.close(write)
        words = printed.readline().split()
        assert words[0] == "export"
        for word in words[1:]:
            name, _, value = word.partition("=")
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        (page,) = client.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix="captions/")
        files = [path for path in (folder / "captions").rglob("*") if path.is_file()]
        assert {entry["Key"]: entry["Size"] for entry in page["Contents"]} == {
            str(path.relative_to(folder)): path.stat().st_size for path in files
        }
        client.put_object(Bucket="data", Key="mine/a.txt", Body=b"mine")
        assert (folder / "mine/a.txt").read_bytes() == b"mine"
        assert not list(folder.parent.glob(".upload-*"))
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0


def test_copies_of_public_datasets_are_as_odd_as_these(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    names = ("cc12m", "finevideo", "librispeech", "llava-onevision", "nemotron-vlm-v2", "obelics")
    demo_data(tmp_path, *(word for name in names for word in ("--like", name)))
    assert sorted(path.name for path in tmp_path.iterdir()) == list(names)

    shard = tmp_path / "cc12m/00000.tar"
    with tarfile.open(shard) as tar:
        keys = sorted({name.partition(".")[0] for name in tar.getnames()})
    rows = parquet.read_table(shard.with_suffix(".parquet")).to_pylist()
    assert keys == [row["key"] for row in rows if row["status"] == "success"]
    assert json.loads((tmp_path / "cc12m/00000_stats.json").read_text())["successes"] == len(keys) < len(rows)
    with pytest.raises(tarfile.ReadError), tarfile.open(tmp_path / "cc12m/00002.tar") as tar:
        tar.getmembers()
    assert not (tmp_path / "cc12m/00002_stats.json").exists()

    rows = parquet.read_table(next((tmp_path / "llava-onevision").glob("ai2d*/*0-of*"))).to_pylist()
    assert len({row["id"] for row in rows}) < len(rows)
    modes = {row["image"] and Image.open(io.BytesIO(row["image"]["bytes"])).mode for row in rows}
    assert modes == {"RGB", "RGBA", "P", "L", None}

    for row in parquet.read_table(tmp_path / "obelics/data").to_pylist():
        assert all(
            (image is None) != (text is None) for image, text in zip(row["images"], row["texts"], strict=True)
        )
    for chapter in (tmp_path / "librispeech").rglob("*.trans.txt"):
        files = {file.stem for file in chapter.parent.glob("*.flac")}
        assert files == {line.split(" ")[0] for line in chapter.read_text().splitlines()}
    media = tmp_path / "nemotron-vlm-v2/sparsetables/media"
    members: set[str] = set()
    for shard in media.glob("*.tar"):
        with tarfile.open(shard) as tar:
            members.update(tar.getnames())
    lines = [json.loads(line) for line in (media.parent / "sparsetables.jsonl").read_text().splitlines()]
    assert {line["messages"][0]["content"][0]["image"] for line in lines} == members


def test_a_copy_of_something_unknown_is_named(tmp_path):
    done = CliRunner().invoke(main, ["demo-data", str(tmp_path / "new"), "--like", "laion"])
    assert done.exit_code == 2
    assert "no copy like ['laion']" in done.output
    assert "cc12m" in done.output
    assert not (tmp_path / "new").exists()


def test_a_port_that_is_taken_is_said(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ["demo-data", str(folder), "--serve", "--port", str(port)])
    assert done.exit_code == 1
    assert "choose another" in done.output


def test_a_command_runs_beside_the_store_and_has_its_status(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    body = "boto3.client('s3').get_object(Bucket='data', Key='mine.txt')['Body'].read()"
    program = f"import boto3, sys; sys.exit(len({body}))"
    command = ("demo-data", str(tmp_path), "--serve", "--", children.launcher(), "-c", program)
    with children.start("-m", "energon_stream", *command) as child:
        assert child.wait(60) == len("mine")
    assert os.listdir(tmp_path) == ["mine.txt"]  # a folder with files gets none


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--serve", "no-such-program"), "'no-such-program' cannot be run"),
        (("ls",), "add --serve"),
        (("--serve", "--json", "ls"), "put -- before it"),
    ],
)
def test_a_command_that_cannot_run_is_named(folder, words, said):
    done = CliRunner().invoke(main, ["demo-data", str(folder), *words])
    assert done.exit_code == 2
    assert said in done.output
