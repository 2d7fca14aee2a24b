"""Metadata needs no PyTorch, no Pillow, no client of object storage, and nothing that only Linux has."""

import json
import subprocess
import sys

import pytest

from energon_stream.testing.datasets import captioning_dataset

BLOCK = """
import sys
BLOCKED = {"torch", "PIL", "s3fs", "aiobotocore", "botocore", "obstore"}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is imported")
sys.meta_path.insert(0, Blocked())
"""
OPEN = """
import json
import energon_stream.errors, energon_stream.media, energon_stream.samples
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.files_index import open_file
from energon_stream.index.jsonl_index import JsonlFormat, prepare_jsonl
from energon_stream.index.plain import list_tars, open_plain
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.media import FolderFileStore
from energon_stream.storage import StoreSpec
folder = sys.argv[1]
plain = open_plain(StoreSpec(folder), list_tars(StoreSpec(folder)), split_part="train")
report = prepare_dataset(folder, split_ratio=(1, 1, 0))
index = open_webdataset(StoreSpec(folder), split_part="val")
records = prepare_jsonl(folder + "/x.jsonl")
assert open_file(StoreSpec(folder + "/x.jsonl"), JsonlFormat()).num_samples == records
assert FolderFileStore(folder)["x.jsonl"][0] == b"{}\\n"
print(json.dumps([plain.num_samples, report.num_samples, index.num_samples, records]))
"""
NO_LINUX = """
import ctypes, fcntl, mmap, os
for module, names in {
    os: ["RWF_NOWAIT", "preadv", "posix_fadvise", "copy_file_range", "sendfile", "sched_getaffinity"],
    fcntl: ["F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"],
    mmap: ["MADV_POPULATE_READ", "MADV_HUGEPAGE", "MAP_POPULATE"],
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
def no_library(name, *args, **options):
    raise OSError("no such library")
ctypes.CDLL = no_library
"""


@pytest.mark.every(2)
@pytest.mark.parametrize("system", ["", NO_LINUX], ids=["linux", "elsewhere"])
def test_datasets_are_prepared_and_opened_without_what_only_training_needs(tmp_path, monkeypatch, system):
    """One fresh interpreter each: in a fork, the modules would be imported already."""
    captioning_dataset(tmp_path / "data", shards=4, samples_per_shard=3)
    (tmp_path / "data" / "x.jsonl").write_text("{}\n")
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + system + OPEN, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [12, 12, 6, 1]
