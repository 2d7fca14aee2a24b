"""What a preparation that was stopped has read is not read again; what is wrong is said all together."""

import io
import json
import os
import shutil
import signal
import sqlite3
import tarfile
import time
from functools import partial

import children
import pytest
from click.testing import CliRunner
from hooked_store import hooked

from energon_stream import LocalEngine
from energon_stream.cli.main import main
from energon_stream.engine.tasks import Part
from energon_stream.errors import (
    AccessDeniedError,
    BadShardsError,
    ConfigError,
    DuplicateKeyError,
    IndexMismatchError,
    NotPreparedError,
    ObjectChangedError,
    StorageError,
)
from energon_stream.index.dataset import read_metadata
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import captioning_dataset, random_bytes, write_shards
from energon_stream.testing.s3server import Rule, S3Server

ONE = (1, 0, 0)


def counts(folder):
    return dict(read_metadata(StoreSpec(str(folder))).shard_counts)


def put(folder, numbers, samples=2):
    everything = folder.with_name(f"{folder.name}-all")
    if not everything.exists():
        captioning_dataset(everything, shards=8, samples_per_shard=samples, name="{:02d}.tar")
    folder.mkdir(exist_ok=True)
    for number in numbers:
        shutil.copy2(everything / f"{number:02d}.tar", folder)


@pytest.fixture
def scanned():
    """Makes URLs of folders, and notes the paths of their tars that are read, each once."""
    paths = {}

    def noted(get, path, *arguments, **options):
        if path.endswith(".tar"):
            paths[path] = True
        return get(path, *arguments, **options)

    return partial(hooked, get=noted, get_range=noted, get_suffix=noted), paths


def test_bytes_that_were_read_are_not_read_again(tmp_path):
    folder = tmp_path / "s3" / "bucket" / "d"
    write_shards(folder, shards=6, samples_per_shard=4, parts=lambda i: {"bin": random_bytes(200_000, i)})
    with S3Server(tmp_path / "s3") as server:
        how = {"storage_options": server.storage_options, "split_ratio": ONE, "workers": 1}
        prepare_dataset("s3://bucket/d", **how)
        whole = server.counters().bytes_sent
        shutil.rmtree(folder / ".nv-meta")
        for index in folder.glob("*.idx"):
            index.unlink()
        before = server.counters()
        server.add_rule(Rule("status", "*000004.tar", status=403))
        with pytest.raises(AccessDeniedError):
            prepare_dataset("s3://bucket/d", **how)
        server.clear_rules()
        assert sorted(path.name for path in (folder / ".nv-staging").iterdir())[:4] == [
            f"data-{number:06d}.tar.scan" for number in range(4)
        ]
        prepare_dataset("s3://bucket/d", **how)
        again = server.counters().bytes_sent - before.bytes_sent - whole
        assert again < whole / 6 + 20_000  # a listing and four records
        assert not (folder / ".nv-staging").exists() or not list((folder / ".nv-staging").iterdir())


def test_a_tar_that_changed_since_is_read_again(tmp_path, scanned):
    url_of, scanned = scanned
    url = url_of(tmp_path / "a")
    put(tmp_path / "a", range(4))
    (tmp_path / "a/03.tar").write_bytes(b"no tar")
    with pytest.raises(BadShardsError):
        prepare_dataset(url, split_ratio=ONE)
    shutil.copy(tmp_path / "a/01.tar", tmp_path / "new")
    os.replace(tmp_path / "new", tmp_path / "a/01.tar")
    put(tmp_path / "a", [3])
    scanned.clear()
    prepare_dataset(url, split_ratio=ONE)
    assert sorted(scanned) == ["01.tar", "03.tar"]
    (tmp_path / "a/03.tar").write_bytes(b"no tar")
    for options in ({}, {"checksums": True}, {"media_filter": MediaFilter("EXTENSION")}):
        scanned.clear()
        with pytest.raises(BadShardsError):
            prepare_dataset(url, split_ratio=ONE, force=True, **options)
        assert len(scanned) == 4  # for another purpose, the records do not hold


def test_bad_tars_are_named_together_and_may_be_left_out(tmp_path):
    folder = tmp_path / "a"
    put(folder, range(6))
    prepare_dataset(str(folder), split_ratio=ONE)
    before = {path.name: path.read_bytes() for path in (folder / ".nv-meta").iterdir()}
    for number in (1, 4):
        (folder / f"{number:02d}.tar").write_bytes(b"x" * 600)
    how = ["prepare", str(folder), "--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml"]
    result = CliRunner().invoke(main, [*how, "--force-overwrite"])
    assert result.exit_code == 1
    assert "2 of 6 tars in" in result.output
    assert "  01.tar: damaged tar header at byte 0" in result.output
    assert "  04.tar: damaged tar header at byte 0" in result.output
    assert "--skip-bad" in result.output
    assert {path.name: path.read_bytes() for path in (folder / ".nv-meta").iterdir()} == before
    result = CliRunner().invoke(main, [*how, "--force-overwrite", "--skip-bad"])
    assert result.exit_code == 0
    assert list(counts(folder)) == ["00.tar", "02.tar", "03.tar", "05.tar"]
    assert list(json.loads((folder / ".nv-meta/skipped.json").read_text())["skipped"]) == ["01.tar", "04.tar"]
    assert "Skipped 01.tar: damaged tar header" in CliRunner().invoke(main, ["info", str(folder)]).output
    put(folder, (1, 4))
    prepare_dataset(str(folder), split_ratio=ONE, append=True)
    assert len(counts(folder)) == 6
    assert not (folder / ".nv-meta/skipped.json").exists()


def test_only_bad_tars_are_an_error_also_if_bad_ones_may_be_left_out(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"x")
    with pytest.raises(BadShardsError, match="1 of 1 tars"):
        prepare_dataset(str(tmp_path), split_ratio=ONE, skip_bad=True)


@pytest.mark.parametrize("remove", [False, True])
def test_a_source_that_changes_while_it_is_read_is_named(tmp_path, remove):
    put(tmp_path / "a", range(3))
    prepare_dataset(str(tmp_path / "a"), split_ratio=ONE)
    put(tmp_path / "a", range(4))

    def change(read, path, *arguments, **options):
        if path == "03.tar" and (tmp_path / "a/02.tar").exists():
            (tmp_path / "a/02.tar").unlink() if remove else (tmp_path / "a/02.tar").write_bytes(b"x" * 9999)
        return read(path, *arguments, **options)

    url = hooked(tmp_path / "a", get=change, get_range=change)
    with pytest.raises(ObjectChangedError, match=r"1 tars changed .*: 02\.tar"):
        prepare_dataset(url, split_ratio=ONE, force=True, workers=1)
    assert len(counts(tmp_path / "a")) == 3


def test_duplicate_keys_leave_the_old_dataset(tmp_path):
    put(tmp_path / "a", range(3))
    prepare_dataset(str(tmp_path / "a"), split_ratio=ONE)
    shutil.copy(tmp_path / "a/00.tar", tmp_path / "a/zz.tar")
    for options in ({"force": True}, {"append": True}):
        with pytest.raises(DuplicateKeyError, match=r"00\.tar.*zz\.tar"):
            prepare_dataset(str(tmp_path / "a"), split_ratio=ONE, **options)
        assert list(counts(tmp_path / "a")) == ["00.tar", "01.tar", "02.tar"]


def test_a_full_disk_is_named_and_leaves_the_old_dataset(tmp_path, monkeypatch):
    put(tmp_path / "a", range(3))
    prepare_dataset(str(tmp_path / "a"), split_ratio=ONE)
    put(tmp_path / "a", range(5))
    opened = sqlite3.connect

    def small(path, **options):
        database = opened(path, **options)
        database.execute("PRAGMA max_page_count = 3")  # SQLite says the same of a full disk
        return database

    monkeypatch.setattr("energon_stream.index.sqlite_index.sqlite3.connect", small)
    with pytest.raises(StorageError, match=r"disk is full.*index\.sqlite.*Free some space"):
        prepare_dataset(str(tmp_path / "a"), split_ratio=ONE, force=True)
    monkeypatch.undo()
    assert len(counts(tmp_path / "a")) == 3
    assert len(prepare_dataset(str(tmp_path / "a"), split_ratio=ONE, force=True).shard_counts) == 5


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, s3_server, tmp_bucket):
    put(tmp_path / "a", range(3))
    s3_server.upload_folder(tmp_path / "a", tmp_bucket)
    s3_server.add_rule(Rule("status", "*", method="PUT", status=403))
    try:
        with pytest.raises(AccessDeniedError, match=r"\.scan"):
            prepare_dataset(tmp_bucket, split_ratio=ONE, storage_options=s3_server.storage_options)
    finally:
        s3_server.clear_rules()
    assert prepare_dataset(tmp_bucket, split_ratio=ONE, storage_options=s3_server.storage_options).num_samples


def test_append_reads_new_tars_only(tmp_path, scanned):
    url_of, scanned = scanned
    folder = tmp_path / "a"
    url = url_of(folder)
    put(folder, [0, 3])
    prepare_dataset(url, split_ratio={"train": 1, "extra": 1}, media_filter=MediaFilter("EXTENSION"))
    long_ago = time.time() - 100
    for tar in folder.glob("*.tar"):
        os.utime(tar, (long_ago, long_ago))
    scanned.clear()
    put(folder, [1, 2])
    report = prepare_dataset(url, split_ratio={"train": 1, "new": 1}, append=True)
    assert sorted(scanned) == ["01.tar", "02.tar"]
    assert list(report.shard_counts) == ["00.tar", "03.tar", "01.tar", "02.tar"]
    assert report.split == {"train": ("00.tar", "01.tar"), "extra": ("03.tar",), "new": ("02.tar",)}
    assert report.media is not None
    assert report.media.stored == 4  # by the filter that the dataset has
    with sqlite3.connect(folder / ".nv-meta/index.sqlite") as database:
        assert database.execute("SELECT count(*) FROM media_metadata").fetchone() == (8,)
        rows = database.execute("SELECT DISTINCT tar_file_id FROM samples ORDER BY 1").fetchall()
    assert rows == [(0,), (1,), (2,), (3,)]
    scanned.clear()
    again = prepare_dataset(url, split_ratio=ONE, append=True)
    assert (again.shard_counts, again.split, again.files) == (report.shard_counts, report.split, ())
    assert not scanned or set(scanned) <= {"00.tar", "01.tar", "02.tar", "03.tar"}


@pytest.mark.parametrize(
    ("harm", "says"), [("gone", "01.tar is gone"), ("shorter", "is shorter"), ("other", "has other content")]
)
def test_append_refuses_when_old_shards_changed(tmp_path, harm, says):
    folder = tmp_path / "a"
    put(folder, [0, 1])
    prepare_dataset(str(folder), split_ratio=ONE)
    put(folder, [2])
    data = (folder / "01.tar").read_bytes()
    if harm == "gone":
        (folder / "01.tar").unlink()
    else:
        (folder / "01.tar").write_bytes(data[:512] if harm == "shorter" else b"\1" + data[1:])
    with pytest.raises(IndexMismatchError, match=rf"{says}.*restore them, or prepare .* again"):
        prepare_dataset(str(folder), split_ratio=ONE, append=True)
    assert list(counts(folder)) == ["00.tar", "01.tar"]


@pytest.mark.parametrize("place", ["local", "local, an old file", "s3"])
def test_append_refuses_a_tar_of_equal_headers_and_other_content(tmp_path, place, s3_server):
    folder, options = tmp_path / "a", None
    put(folder, [0, 1])
    (tmp_path / "other").mkdir()
    with tarfile.open(folder / "01.tar") as source, tarfile.open(tmp_path / "other/01.tar", "w") as target:
        for member in source:
            target.addfile(member, io.BytesIO(b"x" * member.size))
    prepare_dataset(str(folder), split_ratio=ONE)
    url = str(folder)
    if place == "s3":
        url, options = "s3://bucket/a", s3_server.storage_options
        s3_server.upload_folder(folder, url)
        s3_server.upload_folder(tmp_path / "other", url)
        put(tmp_path / "more", [2])
        s3_server.upload_folder(tmp_path / "more", url)
    else:
        shutil.copy(tmp_path / "other/01.tar", folder / "01.tar")
        if "old" in place:
            os.utime(folder / "01.tar", (0, 0))
        put(folder, [2])
    with pytest.raises(IndexMismatchError, match=r"01.tar has other content"):
        prepare_dataset(url, split_ratio=ONE, append=True, storage_options=options)


def test_append_says_what_it_needs(tmp_path):
    put(tmp_path / "a", [0, 1])
    with pytest.raises(NotPreparedError, match="no prepared dataset"):
        prepare_dataset(str(tmp_path / "a"), split_ratio=ONE, append=True)
    prepare_dataset(str(tmp_path / "a"), split_ratio=ONE)
    with pytest.raises(ConfigError, match="has no checksums"):
        prepare_dataset(str(tmp_path / "a"), split_ratio=ONE, append=True, checksums=True)
    with pytest.raises(ConfigError, match="append excludes fix_duplicates"):
        prepare_dataset(str(tmp_path / "a"), split_ratio=ONE, append=True, fix_duplicates=True)


def test_array_jobs_and_engines_give_the_same(tmp_path, scanned):
    url_of, scanned = scanned
    url = url_of(tmp_path / "b")
    for name in "ab":
        put(tmp_path / name, range(5))
    prepare_dataset(str(tmp_path / "a"), split_ratio=ONE, checksums=True)
    for number in range(2):
        part = prepare_dataset(
            url, split_ratio=ONE, checksums=True, part=Part(number, 2), engine=LocalEngine(0)
        )
        assert len(part.shard_counts) == 3 - number
    assert not (tmp_path / "b/.nv-meta").exists()
    assert len(scanned) == 5
    scanned.clear()
    prepare_dataset(url, split_ratio=ONE, checksums=True, engine=LocalEngine(0))
    assert not scanned
    one, other = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    assert one == other


@pytest.mark.every(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_soon_and_says_how_to_go_on(tmp_path, number):
    bucket, errors = tmp_path / "s3" / "bucket", tmp_path / "errors"
    captioning_dataset(bucket / "d", shards=3, samples_per_shard=2)
    how = ["prepare", "s3://bucket/d", "--non-interactive", "--split-ratio", "1,0,0", "--skip-dataset-yaml"]
    with S3Server(tmp_path / "s3") as server:
        server.add_rule(Rule("stall", "*.tar", seconds=600))
        for key, value in server.storage_options.items():
            how += ["--storage-option", f"{key}={json.dumps(value)}"]
        program = "from energon_stream.cli import run; run()"
        with errors.open("w") as file, children.start("-c", program, *how, stderr=file) as child:
            while not server.counters().faults["stall"]:
                assert child.poll() is None
                time.sleep(0.01)
            child.send_signal(number)
            assert child.wait(300) == 130  # the requests would take 600 s; on an idle machine it is 1 s
    assert "it goes on, and reads no tar twice" in errors.read_text()
    assert "Traceback" not in errors.read_text()
