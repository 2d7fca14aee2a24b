"""Marks of shards tell datasets from each other, and are the same wherever the same tars lie."""

import shutil

import numpy as np
import pytest

from energon_stream.index.dataset import open_webdataset, read_metadata, select_split_part
from energon_stream.index.shard_marks import decode_marks, encode_marks
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import TEXT_YAML, write_shards

PATHS = ["a.tar", "b.tar", "c.tar"]


def put(folder, word, shards=4, **options):
    parts = lambda number: {"txt": f"{word}{number:03d}".encode()}  # noqa: E731
    write_shards(folder, shards=shards, samples_per_shard=5, parts=parts)
    prepare_dataset(str(folder), split_ratio=(1, 1, 0), dataset_yaml=TEXT_YAML, **options)
    return folder


def marks(folder, part="train"):
    return open_webdataset(StoreSpec(str(folder)), split_part=part).marks.tolist()


def test_marks_are_of_the_tars_and_of_nothing_else(tmp_path):
    first = marks(put(tmp_path / "one", "one"))
    assert len({*first, *marks(tmp_path / "one", "val")}) == 4
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert marks(tmp_path / "copy") == first
    for tar in (tmp_path / "copy").glob("*.tar"):  # other names of the same tars
        tar.rename(tar.with_name(f"x{tar.name}"))
    prepare_dataset(str(tmp_path / "copy"), split_ratio=(1, 1, 0), force=True, checksums=True)
    assert marks(tmp_path / "copy") == first
    assert not {*marks(put(tmp_path / "two", "two"))} & {*first}  # keys and sizes are equal


def test_each_changed_byte_is_noticed():
    good = encode_marks([1, 2**32 - 1, 3], PATHS)
    assert decode_marks(memoryview(b"pages" + good), PATHS).tolist() == [1, 2**32 - 1, 3]
    for place in range(len(good)):
        damaged = bytearray(good)
        damaged[place] ^= 1
        assert decode_marks(memoryview(damaged), PATHS) is None
    assert decode_marks(memoryview(good), [*PATHS, "d.tar"]) is None
    assert decode_marks(memoryview(good), PATHS[::-1]) is None
    assert decode_marks(memoryview(good[3:]), PATHS) is None
    assert decode_marks(memoryview(b""), PATHS) is None


@pytest.mark.parametrize("number", [16_000, 17_000])
def test_too_many_or_unknown_marks_are_left_out(number):
    paths = [f"{shard}.tar" for shard in range(number)]
    encoded = encode_marks([7] * number, paths)
    assert bool(encoded) == (number == 16_000)
    assert encode_marks([7] * (number - 1) + [None], paths) == b""
    if encoded:
        assert np.array_equal(decode_marks(memoryview(encoded), paths), np.full(number, 7))


def test_many_marks_are_read_by_a_second_request(s3_server, tmp_path):
    """Where mixtures are large, four kilobytes of an index are read, which have most marks."""
    folder = tmp_path / "many"
    write_shards(folder, shards=1100, samples_per_shard=1, parts=lambda _: {"txt": b"text"})
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    s3_server.upload_folder(folder / ".nv-meta", "s3://bucket/many/.nv-meta")
    spec = StoreSpec("s3://bucket/many", s3_server.storage_options)
    few = select_split_part(spec, "train", read_metadata(spec))
    assert few.sizes is None
    assert few.marks.tolist() == marks(folder)
