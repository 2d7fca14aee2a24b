"""Folders of processes that were killed are removed, and those of running ones stay."""

import os
import signal
import subprocess
import sys

from energon_stream import FileStoreCachePool, SystemFileStore
from energon_stream.temporary_folders import temporary_folder

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
