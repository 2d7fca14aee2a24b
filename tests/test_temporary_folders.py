"""Folders of processes that were killed are removed, and those of running ones stay."""

import os
import signal
import subprocess
import sys

from energon_stream import FileStoreCachePool, SystemFileStore
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.temporary_folders import temporary_folder
from energon_stream.testing.datasets import TEXT_YAML, write_shards

PROGRAM = """
import sys, time
from energon_stream import FileStoreCachePool, SystemFileStore
from energon_stream.temporary_folders import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    open(f"{folder}/index.sqlite", "w").write("x")
    pool = FileStoreCachePool(sys.argv[1])
    pool.get_lazy(SystemFileStore(sys.argv[1]), "file").get()
    print("ready", flush=True)
    time.sleep(600)
"""


def test_only_folders_of_ended_processes_are_removed(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "energon-data").mkdir()  # of a user
    with subprocess.Popen([sys.executable, "-c", PROGRAM, tmp_path], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        theirs = {*os.listdir(tmp_path)} - {"file", "energon-data"}
        assert len(theirs) == 2
        with temporary_folder(tmp_path) as mine:
            FileStoreCachePool(tmp_path).close()
            assert theirs < {*os.listdir(tmp_path)}
            child.send_signal(signal.SIGKILL)
            child.wait()
            with temporary_folder(tmp_path):
                pool = FileStoreCachePool(tmp_path)
                assert pool.get_lazy(SystemFileStore(str(tmp_path)), "file").get() == b"x"
                pool.close()
            assert {*os.listdir(tmp_path)} == {"file", "energon-data", os.path.basename(mine)}


WRITER = """
import sys, time
from energon_stream.atomic_files import replacing
with replacing(sys.argv[1]) as temporary:
    open(temporary, "w").write("x")
    print("ready", flush=True)
    time.sleep(600)
"""


def test_prepare_removes_files_that_a_killed_process_was_writing(tmp_path):
    write_shards(tmp_path, shards=1, samples_per_shard=2, parts=lambda i: {"txt": b"x"})

    def prepared():
        prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML, force=True)
        return [path for path in tmp_path.rglob(".*") if path.name.endswith(".energon-tmp")]

    old = tmp_path / f".{32 * 'a'}.energon-tmp"  # as earlier versions name them
    old.touch()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path / ".nv-meta/costs/a.npy"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"ready\n"
        assert len(prepared()) == 2
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert prepared() == [old]
    os.utime(old, (0, 0))
    assert prepared() == []
