"""``energon-stream cache``."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from origins import BLOCK, Origin, block_files, counted, disk_bytes

from energon_stream.cache.kept_files import KeptFiles
from energon_stream.cache.object_identity import root_name
from energon_stream.cli.main import main


@pytest.fixture
def run(config, monkeypatch):
    """Run a command on the cache; gives its output, and fails unless its exit status is the expected one."""
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", config.directory)
    monkeypatch.delenv("ENERGON_STREAM_CACHE_SIZE", raising=False)

    def run(*arguments, status=0):
        result = CliRunner().invoke(main, ["cache", *arguments])
        assert result.exit_code == status, result.output
        return result.output

    return run


@pytest.fixture
def filled(cache):
    """Two datasets, the first with two objects."""
    origins = [
        Origin(3 * BLOCK, seed=1, path="a.tar"),
        Origin(2 * BLOCK, seed=2, path="b.tar", etag='"2"'),
        Origin(BLOCK, seed=3, root="s3://bucket/other", path="c.tar"),
    ]
    for origin in origins:
        origin.read(cache)
    return origins


def test_path(run, config, monkeypatch, tmp_path):
    assert run("path") == f"{config.directory}\n"
    assert run("path", "--cache-dir", str(tmp_path)) == f"{tmp_path}\n"
    monkeypatch.delenv("ENERGON_STREAM_CACHE_DIR")
    assert "no cache directory. Give --cache-dir" in run("path", status=2)
    monkeypatch.setenv("ENERGON_STREAM_CACHE_SIZE", "lots")
    assert "max_bytes is 'lots'" in run("path", "--cache-dir", str(tmp_path), status=2)


def test_ls(run, cache, filled):
    lines = run("ls").splitlines()
    assert re.match(
        r"s3://bucket/data: 1\.3 MB of 2 objects, last use \d{4}-\d\d-\d\d .* \(in use\)$", lines[0]
    )
    assert lines[1].startswith("s3://bucket/other: 266.2 kB of 1 object,")
    cache.close()
    assert "in use" not in run("ls")
    objects = run("ls", "s3://key:secret@bucket/data/").splitlines()
    assert [line.partition(" of")[0] for line in objects] == ['a.tar "1": 798.7 kB', 'b.tar "2": 532.5 kB']
    assert "no dataset s3://x" in run("ls", "s3://x", status=2)


def test_stats(run, config, cache, filled, monkeypatch):
    output = run("stats")
    assert "Quota: not set here" in output
    assert "On disk: 1.6 MB in 6 blocks of 3 objects" in output
    assert re.search(r"83\.3%\s+1\.3 MB\s+s3://bucket/data", output)
    monkeypatch.setenv("ENERGON_STREAM_CACHE_SIZE", "2GB")
    assert "Quota: 2.0 GB" in run("stats")


def test_a_cache_that_is_not_there(run, tmp_path):
    for command in ("ls", "stats", "verify", "clear"):
        assert "there is no cache" in run(command, "--cache-dir", str(tmp_path / "nothing"), status=1)
    assert not (tmp_path / "nothing").exists()


def test_verify_removes_what_is_damaged(run, config, cache, filled):
    assert "Intact: 6 blocks with 1.6 MB; damaged: 0" in run("verify")
    damaged = block_files(config)[:2]
    for path in damaged:
        with open(path, "r+b") as file:
            file.write(b"rubbish")
    assert "Intact: 4 blocks with 1.0 MB; damaged: 2" in run("verify", status=1)
    assert "Intact: 4 blocks with 1.0 MB; damaged: 0" in run("verify")
    assert disk_bytes(config) <= counted(cache).bytes
    for origin in filled:
        origin.read(cache)
    assert sum(len(origin.asked) for origin in filled) == 3 + len({os.path.dirname(path) for path in damaged})


def test_verify_corrects_the_count(run, config, cache, filled):
    right = counted(cache)
    os.truncate(f"{config.directory}/v1/usage", 0)
    run("verify")
    assert counted(cache) == right


def test_clear_one_dataset(run, config, cache, filled):
    assert run("clear", "--dataset", "s3://bucket/data") == "Removed 5 blocks, 1.4 MB\n"
    assert run("ls").startswith("s3://bucket/other: ")
    filled[0].read(cache)
    filled[2].read(cache)
    assert [len(origin.asked) for origin in filled] == [2, 1, 1]


def test_clear_everything_while_it_is_read(run, config, cache, filled):
    view = filled[0].read(cache, 0, 100)
    assert run("clear") == "Removed 6 blocks, 1.6 MB\n"
    assert view == filled[0].data[:100]
    assert block_files(config) == []
    cache.close()
    run("clear")
    assert run("ls") == ""
    assert disk_bytes(config) <= counted(cache).bytes < 50_000


@pytest.fixture
def kept(config):
    """A file of each kind, of 100 bytes: index and versions of the first dataset."""
    root = root_name("s3://bucket/data")
    names = {"indexes": f"{root}/a.idx", "openings": "ab/cd", "versions": root, "views": "x.bits"}
    for kind, name in names.items():
        KeptFiles(config.directory, kind).write(name, b"x" * 84)
    return {kind: KeptFiles(config.directory, kind).path(name) for kind, name in names.items()}


def exist(paths):
    return [kind for kind, path in paths.items() if os.path.exists(path)]


def test_kept_files_are_counted_and_cleared(run, kept):
    """Also where nothing else is cached."""
    assert "Kept beside them: 400 B in 1 indexes, 1 openings, 1 versions, 1 views" in run("stats")
    assert json.loads(run("stats", "--json"))["kept"]["indexes"] == {"files": 1, "bytes": 100}
    assert run("clear") == "Removed 0 blocks and 4 kept files, 400 B\n"
    assert exist(kept) == []
    assert "Kept beside them: 0 B" in run("stats")


def test_kept_files_of_one_dataset_are_cleared(run, cache, filled, kept):
    assert run("clear", "--dataset", "s3://bucket/data").startswith("Removed 5 blocks and 2 kept files, ")
    assert exist(kept) == ["openings", "views"]


def test_kept_files_that_are_old_are_cleared(run, config, kept):
    for path in kept.values():
        os.utime(path, (0, os.stat(path).st_mtime - 8 * 86400))
    assert KeptFiles(config.directory, "views").read("x.bits") == b"x" * 84  # and is not old any more
    assert run("clear", "--older-than", "7d") == "Removed 0 blocks and 3 kept files, 300 B\n"
    assert exist(kept) == ["views"]


def test_indices_that_a_running_process_uses_stay(run, config, kept):
    script = (
        "from energon_stream.cache.kept_files import KeptFiles; import sys; "
        "KeptFiles(sys.argv[1], 'indexes').use(sys.argv[2]); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, config.directory, root_name("s3://bucket/data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert run("clear") == "Removed 0 blocks and 3 kept files, 300 B\n"
        assert exist(kept) == ["indexes"]
        process.stdin.close()
    assert run("clear") == "Removed 0 blocks and 1 kept files, 100 B\n"


def test_clear_what_is_old(run, config, cache, filled):
    folder = os.path.dirname(block_files(config)[0])
    old = [path for path in block_files(config) if path.startswith(folder)]
    for path in old:
        os.utime(path, (0, os.stat(path).st_mtime - 8 * 86400))
    before = run("ls")
    assert run("clear", "--older-than", "9d") == "Removed 0 blocks, 0 B\n"
    assert run("ls") == before
    assert run("clear", "--older-than", "1w").startswith(f"Removed {len(old)} blocks")
    assert len(block_files(config)) == 6 - len(old)
    assert "'soon' is not a time" in run("clear", "--older-than", "soon", status=2)


def test_clear_while_a_range_is_being_fetched(run, config, cache):
    """The fetcher's file is gone; what it fetched is given out all the same, and kept by the next one."""
    origin = Origin(BLOCK)

    def get(start, stop):
        run("clear")
        return origin.get(start, stop)

    assert cache.fetch(origin.identity, 0, 1000, get) == origin.data[:1000]
    assert disk_bytes(config) <= counted(cache).bytes
    origin.read(cache, 0, 1000)
    origin.read(cache, 0, 1000)
    assert len(origin.asked) == 2


def test_a_directory_that_must_not_be_written(run, cache, filled, system):
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    system(unlink=refuse)
    assert "the cache cannot be changed: Permission denied" in run("clear", status=1)
