"""The builders, read back by others: tarfile, webdataset, sqlite3."""

import io
import itertools
import json
import sqlite3
import struct
import tarfile

import pytest
import webdataset
from PIL import Image
from reference_writer import read_tar, write_reference_dataset

from energon_stream.errors import ConfigError
from energon_stream.testing.datasets import (
    binary_dataset,
    captioning_dataset,
    random_bytes,
    write_shards,
    write_tar,
)


def test_captions_are_what_webdataset_reads(tmp_path):
    paths = captioning_dataset(tmp_path, shards=3, samples_per_shard=4, image_format="PNG", with_json=True)
    samples = list(
        webdataset.WebDataset([str(path) for path in paths], shardshuffle=False, empty_check=False)
    )
    assert [sample["__key__"] for sample in samples] == [f"{i:08d}" for i in range(12)]
    assert [sample["txt"].decode() for sample in samples] == [f"caption {i}" for i in range(12)]
    assert json.loads(samples[7]["json"]) == {"index": 7, "caption": "caption 7"}
    image = Image.open(io.BytesIO(samples[7]["png"]))
    assert image.size == (16, 12)
    assert image.getpixel((0, 0)) == tuple(random_bytes(3, "colour", 7))


def test_binary_content_is_deterministic_and_incompressible(tmp_path):
    first, second = (
        binary_dataset(tmp_path / name, samples=12, payload_bytes=5000, shards=4) for name in "ab"
    )
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    with tarfile.open(first[1]) as tar:
        sizes = {member.name: member.size for member in tar}
    assert sizes == {
        f"{i:08d}.{part}": size for i in (3, 4, 5) for part, size in (("bin", 5000), ("json", 80))
    }
    assert len({random_bytes(5000, "payload", i) for i in range(50)}) == 50


def test_no_dataset_without_samples(tmp_path):
    with pytest.raises(ConfigError):
        binary_dataset(tmp_path, samples=3, shards=8)
    with pytest.raises(ConfigError, match="JPEG or PNG"):
        captioning_dataset(tmp_path, image_format="GIF")


@pytest.mark.parametrize("dialect", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_reference_index_points_at_headers_and_payloads(tmp_path, dialect):
    # Keys of 120 characters take a long-name block (GNU) or an extended header (PAX) before each member.
    key = "folder/" + "k" * 60 + "/" + "s" * 40 + "{:08d}"
    content = {0: b"", 1: b"x" * 512, 2: b"y" * 513}
    paths = write_shards(
        tmp_path,
        shards=2,
        samples_per_shard=3,
        parts=lambda i: {"left.bin": content[i % 3], "txt": str(i).encode()},
        name="sub/{:03d}.tar",
        key=key,
        tar_format=dialect,
    )
    write_reference_dataset(tmp_path, paths, exclude=["sub/000.tar/x"])
    meta = tmp_path / ".nv-meta"
    assert json.loads((meta / ".info.json").read_text())["shard_counts"] == {
        "sub/000.tar": 3,
        "sub/001.tar": 3,
    }
    with sqlite3.connect(meta / "index.sqlite") as database:
        parts = database.execute(
            "SELECT * FROM sample_parts WHERE tar_file_id=1 ORDER BY sample_index"
        ).fetchall()
        rows = database.execute("SELECT * FROM samples WHERE tar_file_id=1 ORDER BY sample_index").fetchall()
    data = paths[1].read_bytes()
    for _, index, name, offset, size in parts:
        assert data[offset : offset + size] == (str(index + 3).encode() if name == "txt" else content[index])
    offsets = struct.unpack("<4Q", (tmp_path / "sub/001.tar.idx").read_bytes())
    assert [(row[1], row[3], row[4]) for row in rows] == [
        (key.format(i + 3), offsets[i], offsets[i + 1] - offsets[i]) for i in range(3)
    ]
    assert offsets[0] == 0
    assert not any(data[offsets[3] :]), "behind the last sample are only the end-of-archive blocks"
    for start, end in itertools.pairwise(offsets):  # each range is a tar of one sample
        with tarfile.open(fileobj=io.BytesIO(data[start:end])) as tar:
            assert len(tar.getnames()) == 2


def test_read_tar_leaves_out_what_is_no_sample(tmp_path):
    names = [
        "__meta__/x.json",
        "a.txt",
        "README",
        ".hidden",
        "a.json",
        "d/__m__/b.c.txt",
        "__q__.txt",
        "a.txt",
    ]
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    samples, end = read_tar(tmp_path / "t.tar")
    found = [(sample.key, [part for part, *_ in sample.parts]) for sample in samples]
    assert found == [("a", ["txt", "json"]), ("d/__m__/b", ["c.txt"]), ("__q__", ["txt"]), ("a", ["txt"])]
    assert (samples[0].offset, end) == (512, len(names) * 512)


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_are_those_of_tarfile(tmp_path, tar_format):
    names = ("a.txt", "b/c.jpg", "é.txt", "n" * 100, "d/" * 30 + "n" * 41, "a.json")
    members = [(name, b"x" * size) for size in (0, 5, 513, 20_000) for name in names]
    with tarfile.open(tmp_path / "expected.tar", "w", format=tar_format) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    found = write_tar(tmp_path / "found.tar", members, tar_format)
    assert found.read_bytes() == (tmp_path / "expected.tar").read_bytes()
