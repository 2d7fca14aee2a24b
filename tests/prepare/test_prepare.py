"""Preparing: against an independent writer, over S3, and with tars that are damaged."""

import itertools
import os
import shutil
import sqlite3
import tarfile
from pathlib import Path

import pytest
from reference_writer import read_tar, write_reference_dataset

from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import (
    BadShardsError,
    ConfigError,
    DuplicateKeyError,
    FieldError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.dataset import open_webdataset
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CAPTIONING_YAML, captioning_dataset, random_bytes, write_shards

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def rows(folder):
    """All rows of ``index.sqlite`` and the names of its indices."""
    database = sqlite3.connect(folder / ".nv-meta" / "index.sqlite")
    queries = (
        "SELECT * FROM samples",
        "SELECT * FROM sample_parts",
        "SELECT type, name, tbl_name FROM sqlite_master",
    )
    found = [sorted(database.execute(query), key=repr) for query in queries]
    database.close()
    return found


def files(folder):
    """Content of all files but tars and those that differ by nature."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".tar" and path.name not in ("index.sqlite", "index.uuid")
    }


@pytest.mark.parametrize("tar_format", FORMATS)
def test_the_files_are_those_of_an_independent_writer(tmp_path, tar_format):
    def parts(index):
        return (
            {"jpg": random_bytes(700 * (index % 3), index), "left.txt": b"x", "n" * 110: b"y"}
            if (tar_format != tarfile.USTAR_FORMAT)
            else {"jpg": random_bytes(700 * (index % 3), index), "txt": b"x"}
        )

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    tars = write_shards(
        ours, shards=5, samples_per_shard=3, parts=parts, name="s/x_{:02d}.tar", tar_format=tar_format
    )
    shutil.copytree(ours, theirs)
    names = [tar.relative_to(ours).as_posix() for tar in tars]
    write_reference_dataset(
        theirs, [theirs / name for name in names],
        split={"train": ["s/x_{00..02}.tar"], "val": ["s/x_03.tar"], "test": ["s/x_04.tar"]},
    )  # fmt: skip
    seen = []
    report = prepare_dataset(
        str(ours), split_ratio=(6, 2, 2), dataset_yaml=CAPTIONING_YAML, workers=3,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert files(ours) == files(theirs)
    assert rows(ours) == rows(theirs)
    assert seen == [(done, 5) for done in range(1, 6)]
    assert report.num_samples == 15
    assert list(report.shard_counts) == names
    assert set(report.files) == set(files(ours)) | {".nv-meta/index.sqlite", ".nv-meta/index.uuid"}
    assert report.parts == tuple(sorted(parts(0)))


def test_preparing_over_s3_gives_the_same_and_skips_large_payloads(tmp_path, s3_server, tmp_bucket):
    folder = tmp_path / "data"
    sizes = itertools.cycle([3_000_000, 200, 40_000])
    write_shards(
        folder,
        shards=3,
        samples_per_shard=6,
        parts=lambda i: {"bin": random_bytes(next(sizes), i), "json": b"{}"},
    )
    s3_server.upload_folder(folder, f"{tmp_bucket}/d")
    total = sum(path.stat().st_size for path in folder.iterdir())
    before = s3_server.counters()
    remote = prepare_dataset(
        f"{tmp_bucket}/d",
        split_ratio=(1, 1, 1),
        dataset_yaml=CAPTIONING_YAML,
        storage_options=s3_server.storage_options,
    )
    sent = s3_server.counters().bytes_sent - before.bytes_sent
    assert sent < total / 5, "large payloads were downloaded"
    # A listing of nothing is compared with a HEAD, for a web page would look the same.
    assert s3_server.counters().requests.get("HEAD", 0) <= before.requests.get("HEAD", 0) + 1

    local = prepare_dataset(str(folder), split_ratio=(1, 1, 1), dataset_yaml=CAPTIONING_YAML)
    assert remote == local
    store = StoreSpec(f"{tmp_bucket}/d", s3_server.storage_options).open()
    copy = tmp_path / "copy"
    for path in remote.files:
        target = copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.get(path).data)
    assert files(copy) == files(folder)
    assert rows(copy) == rows(folder)

    before = s3_server.counters().requests
    index = open_webdataset(StoreSpec(f"{tmp_bucket}/d", s3_server.storage_options), split_part="val")
    after = s3_server.counters().requests
    assert {
        kind: after[kind] - before.get(kind, 0) for kind in after if after[kind] != before.get(kind, 0)
    } == {"GET": 4}
    assert index.num_samples == 6
    assert [row[:3] for row in rows(copy)[0] if row[1] == "00000007"] == [(1, "00000007", 1)]
    parts = WebdatasetFileStore(StoreSpec(f"{tmp_bucket}/d", s3_server.storage_options))
    assert parts["00000007.json"][0] == b"{}"
    with pytest.raises(FieldError, match="nothing"):
        parts["nothing.json"]
    with pytest.raises(NotPreparedError):
        WebdatasetFileStore(StoreSpec(tmp_bucket, s3_server.storage_options))["00000007.json"]


def test_a_missing_bucket_and_an_unprepared_prefix_are_named(s3_server, tmp_bucket):
    for url, error in (
        (f"{tmp_bucket}/none", NotPreparedError),
        ("s3://no-such-bucket/x", ObjectNotFoundError),
    ):
        with pytest.raises(error, match=url):
            open_webdataset(StoreSpec(url, s3_server.storage_options), split_part="train")
        with pytest.raises(ObjectNotFoundError, match=url):
            prepare_dataset(url, split_ratio=(1, 0, 0), storage_options=s3_server.storage_options)


def damage(path, kind):
    samples, _ = read_tar(path)
    data = bytearray(path.read_bytes())
    second = samples[1].offset
    if kind == "header":
        data[second + 10] ^= 0xFF
        return path.write_bytes(data), second
    if kind == "zeros":
        data[second : second + 512] = bytes(512)
        return path.write_bytes(data), second
    cut = {"payload": second + 600, "in header": second + 100}[kind]
    return path.write_bytes(data[:cut]), second


@pytest.mark.parametrize("kind", ["header", "zeros", "payload", "in header"])
@pytest.mark.parametrize("remote", [False, True])
def test_a_damaged_tar_is_an_error_that_names_shard_and_offset(tmp_path, s3_server, tmp_bucket, kind, remote):
    tars = captioning_dataset(tmp_path, shards=3, samples_per_shard=4)
    _, offset = damage(tars[1], kind)
    url, options = str(tmp_path), None
    if remote:
        s3_server.upload_folder(tmp_path, tmp_bucket)
        url, options = tmp_bucket, s3_server.storage_options
    with pytest.raises(BadShardsError, match=rf"1 of 3 tars .*\n  data-000001\.tar: .*byte {offset}"):
        prepare_dataset(url, split_ratio=(1, 0, 0), storage_options=options)
    with pytest.raises(NotPreparedError):
        open_webdataset(StoreSpec(url, options), split_part="train")
    report = prepare_dataset(url, split_ratio=(1, 0, 0), exclude="0{5}1", storage_options=options)
    assert report.num_samples == 8


def test_duplicate_keys_name_both_places(tmp_path):
    tars = captioning_dataset(tmp_path, shards=2, samples_per_shard=4)
    shutil.copy(tars[0], tmp_path / "zz.tar")
    with pytest.raises(
        DuplicateKeyError, match=r"'00000000'.*sample 0 of data-000000.tar and sample 0 of zz.tar"
    ):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))
    with tarfile.open(tmp_path / "zz.tar", "w") as out:
        for name in ("k.a", "l.a", "k.b"):
            out.addfile(tarfile.TarInfo(name))
    with pytest.raises(DuplicateKeyError, match=r"'k'.*sample 0 of zz.tar and sample 2 of zz.tar"):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))


def test_options_and_what_they_refuse(tmp_path):
    captioning_dataset(tmp_path, shards=4, samples_per_shard=2, name="{:03d}.tar")
    path = str(tmp_path)
    report = prepare_dataset(path, tar_index_only=True)
    assert sorted(os.listdir(path)) == sorted([f"{i:03d}.tar{end}" for i in range(4) for end in ("", ".idx")])
    assert report.files == tuple(f"{i:03d}.tar.idx" for i in range(4))
    report = prepare_dataset(path, shards="{000..002}.tar", split_patterns=["train:00[01]", "odd:002"])
    assert report.split == {"train": ("000.tar", "001.tar"), "odd": ("002.tar",)}
    with pytest.raises(ConfigError, match="prepared already"):
        prepare_dataset(path, split_ratio=(1, 0, 0))
    report = prepare_dataset(path, shuffle_tars=True, split_ratio=(1, 0, 0), force=True)
    assert list(report.shard_counts) == sorted(report.split["train"]) != list(report.split["train"])
    for options in (
        {},
        {"split_ratio": (1, 0, 0), "split_patterns": ["train:0"]},
        {"split_ratio": (1, 0, 0), "workers": 0},
    ):
        with pytest.raises(ConfigError):
            prepare_dataset(path, force=True, **options)
    with pytest.raises(ObjectNotFoundError, match=r"none of the 4 tars is selected.*000\.tar"):
        prepare_dataset(path, shards="x*.tar", split_ratio=(1, 0, 0), force=True)
    with tarfile.open(Path(path) / "empty.tar", "w"):
        pass
    with pytest.raises(BadShardsError, match=r"empty\.tar"):
        prepare_dataset(path, shards="empty.tar", split_ratio=(1, 0, 0), force=True)


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["a.tar.gz", "b.tgz"], ConfigError, r"all 2 tars .* compressed, such as 'a\.tar\.gz'.*Decompress"),
        (["a.csv"], ObjectNotFoundError, r"no \.tar files; it has 1 other file, such as 'a\.csv'"),
        ([], ObjectNotFoundError, r"no \.tar files \["),
    ],
)
def test_a_folder_without_tars_says_what_it_has(tmp_path, names, error, message):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(error, match=message):
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0))


def test_compressed_tars_beside_others_are_left_out_with_a_warning(tmp_path, caplog):
    captioning_dataset(tmp_path, shards=2, samples_per_shard=2)
    (tmp_path / "z.tar.gz").write_bytes(b"x")
    assert prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0)).num_samples == 4
    assert "1 compressed tars are left out, such as z.tar.gz" in caplog.text
