"""``mount``: the tree of files, its operations, and a mounted folder where the machine has FUSE."""

import errno
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

import pytest
from click.testing import CliRunner

from energon_stream.cli.main import energon, main
from energon_stream.cli.mount import FileOperations
from energon_stream.errors import NotPreparedError, ObjectNotFoundError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import captioning_dataset, random_bytes, write_shards
from energon_stream.tools.file_tree import FileTree

LARGE = random_bytes(9 << 20, 1)
RUN = "from energon_stream.cli import run; run()"


def content(index):
    return {"txt": f"text {index}".encode(), "left.jpg": LARGE if index == 0 else b"jpg" * index}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Keys at the root, in folders, and one that is both a sample and a folder."""
    path = tmp_path_factory.mktemp("mount") / "data"
    for number, key in enumerate(["s{}", "a/b/s{}", "a/z{}", "s0/x{}", "s0-{}"]):
        write_shards(path, shards=1, samples_per_shard=2, parts=content, name=f"{number}.tar", key=key)
    prepare_dataset(str(path), split_ratio=(1, 0, 0))
    return path


@pytest.fixture(scope="module")
def older(folder, tmp_path_factory):
    """The dataset with an index as older versions wrote it."""
    path = tmp_path_factory.mktemp("mount") / "older"
    path.mkdir()
    for tar in folder.glob("*.tar"):
        (path / tar.name).symlink_to(tar)
    prepare_dataset(str(path), split_ratio=(1, 0, 0))
    with closing(sqlite3.connect(path / ".nv-meta" / "index.sqlite")) as database:
        database.execute("DROP TABLE sample_parts")
        database.commit()
    return path


def walk(tree, path=""):
    """All files below a folder, with their bytes."""
    found = {}
    for name in tree.names(path):
        inner = f"{path}/{name}" if path else name
        size = tree.size(inner)
        if size is None:
            assert tree.is_folder(inner)
            found |= walk(tree, inner)
        else:
            found[inner] = tree.read(inner, 0, size)
    return found


def expected(separator):
    keys = ["s{}", "a/b/s{}", "a/z{}", "s0/x{}", "s0-{}"]
    return {
        f"{key.format(index)}{separator}{part}": data
        for key in keys for index in (0, 1) for part, data in content(index).items()
    }  # fmt: skip


@pytest.mark.energon("cli: mount --sample-folders/-s")
@pytest.mark.parametrize(("sample_folders", "separator"), [(False, "."), (True, "/")])
def test_all_parts_are_files(folder, sample_folders, separator):
    tree = FileTree(StoreSpec(str(folder)), sample_folders=sample_folders)
    assert walk(tree) == expected(separator)
    names = list(tree.names(""))
    assert len(names) == len(set(names))


@pytest.mark.energon("cli: mount --allow-slow/-w", differs="works without --sample-folders too")
@pytest.mark.parametrize(("sample_folders", "separator"), [(False, "."), (True, "/")])
def test_an_older_index_is_slow(older, sample_folders, separator):
    spec = StoreSpec(str(older))
    with pytest.raises(NotPreparedError, match="allow_slow"):
        FileTree(spec, sample_folders=sample_folders)
    assert walk(FileTree(spec, sample_folders=sample_folders, allow_slow=True)) == expected(separator)


def test_any_range_of_a_file_can_be_read(folder):
    tree = FileTree(StoreSpec(str(folder)))
    for offset, size in (
        (0, 10),
        (4 << 20, 5),
        ((4 << 20) - 3, 7),
        (len(LARGE) - 4, 100),
        (len(LARGE), 1),
        (0, 1 << 30),
    ):
        assert tree.read("s0.left.jpg", offset, size) == LARGE[offset : offset + size]
    with pytest.raises(ObjectNotFoundError, match="no such file"):
        tree.read("s9.txt", 0, 1)


def test_files_on_object_storage_are_read_by_ranges(folder, s3_server, tmp_bucket):
    s3_server.upload_folder(folder, f"{tmp_bucket}/d")
    tree = FileTree(StoreSpec(f"{tmp_bucket}/d", s3_server.storage_options))
    s3_server.reset_counters()
    assert set(tree.names("a/b")) == {"s0.txt", "s0.left.jpg", "s1.txt", "s1.left.jpg"}
    assert tree.read("a/b/s1.txt", 0, 100) == b"text 1"
    assert tree.read("s0.left.jpg", 5 << 20, 3) == LARGE[5 << 20 : (5 << 20) + 3]
    assert s3_server.counters().requests["GET"] == 2  # the names come from what the tree has of the index
    assert s3_server.counters().bytes_sent < len(LARGE)


@pytest.mark.energon("cli: mount")
def test_operations_of_the_file_system(folder):
    files = FileOperations(FileTree(StoreSpec(str(folder)), sample_folders=True))
    assert set(files.readdir("/a/z1", 0)) == {".", "..", "txt", "left.jpg"}
    attributes = files.getattr("/a/z1/txt")
    assert (attributes["st_mode"], attributes["st_size"]) == (stat.S_IFREG | 0o444, 6)
    for path in ("/", "/a", "/a/b", "/a/b/s0", "/s0"):
        assert stat.S_ISDIR(files.getattr(path)["st_mode"])
    assert files.read("/a/z1/txt", 4, 2, 0) == b"xt 1"
    for path in ("/b", "/a/z1/gif", "/a/z1/txt/x", "/\udcff"):
        with pytest.raises(FileNotFoundError) as raised:
            files.getattr(path)
        assert raised.value.errno == errno.ENOENT
    with pytest.raises(OSError, match="Input/output error"):
        files.read("/b", 1, 0, 0)


def test_only_prepared_folders_are_mounted(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    for command in (main, energon):
        result = CliRunner().invoke(command, ["mount", "mix.yaml", str(tmp_path)])
        assert (result.exit_code, "only a prepared folder of tars" in result.output) == (2, True)
        result = CliRunner().invoke(command, ["mount", str(tmp_path), str(tmp_path / "at")])
        assert (result.exit_code, "pip install 'energon-stream[mount]'" in result.output) == (1, True)
    captioning_dataset(tmp_path, shards=1, samples_per_shard=1)
    with pytest.raises(NotPreparedError, match="only prepared datasets have files"):
        FileTree(StoreSpec(str(tmp_path)))


def can_mount():
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError):
        return False
    return os.access("/dev/fuse", os.R_OK | os.W_OK)


@pytest.mark.skipif(not can_mount(), reason="needs mfusepy, libfuse and /dev/fuse")
@pytest.mark.energon("cli: mount", "cli: mount --detach/-d")
def test_a_mounted_folder(folder, tmp_path):
    at = tmp_path / "at"
    command = [sys.executable, "-c", RUN, "mount", "--detach", str(folder), str(at)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode and "cannot mount" in done.stderr:
        pytest.skip(f"FUSE is not allowed here: {done.stderr}")
    assert (done.returncode, "Mount is ready to go." in done.stdout) == (0, True), done.stderr
    try:
        assert sorted(os.listdir(at)) == sorted(
            [
                "a",
                "s0",
                "s0.txt",
                "s0.left.jpg",
                "s1.txt",
                "s1.left.jpg",
                "s0-0.txt",
                "s0-0.left.jpg",
                "s0-1.txt",
                "s0-1.left.jpg",
            ]
        )
        assert (at / "a" / "b" / "s1.txt").read_bytes() == b"text 1"
        assert (at / "s0.left.jpg").read_bytes() == LARGE
        with pytest.raises(OSError, match="Read-only"):
            (at / "new").write_bytes(b"")
    finally:
        subprocess.run(["umount", str(at)], check=True)
    assert not os.listdir(at)


@pytest.mark.skipif(not can_mount(), reason="needs mfusepy, libfuse and /dev/fuse")
def test_errors_are_shown_before_a_detached_command_ends(tmp_path):
    command = [sys.executable, "-c", RUN, "mount", "-d", str(tmp_path / "none"), str(tmp_path / "at")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "only prepared datasets" in done.stderr) == (1, True), done.stderr
