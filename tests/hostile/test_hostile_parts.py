"""Parts that unpack to more than they seem: refused before the memory is taken, as errors of one sample."""

import gzip
import io
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from energon_stream import Limits, SampleDecoder, WorkerConfig, get_loader, get_val_dataset
from energon_stream.decode.unpacking import TooLargeError, gunzip
from energon_stream.errors import DecodeError, PartLimitError, SampleError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML, write_shards

LIMITS = Limits(part_bytes=1 << 20, image_pixels=1 << 20)
DECODER = SampleDecoder(limits=LIMITS)
LARGE = 40 << 20
"""Bytes of a bomb."""
ROOM = 24 << 20
"""Bytes that Python may allocate while it refuses a part: one piece of zlib and what it is joined to."""


def saved(write, value, **options):
    stream = io.BytesIO()
    write(stream, value, **options)
    return stream.getvalue()


def npy(array):
    return saved(np.save, array)


def lying_zip():
    """An archive whose directory claims 10 bytes for a member of 40 MiB."""
    data = saved(lambda stream, value: zip_of(stream, {"a.npy": value}), bytes(LARGE))
    size = LARGE.to_bytes(4, "little")
    assert data.count(size) == 2
    return data.replace(size, (10).to_bytes(4, "little"))


def zip_of(stream, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content, compresslevel=1)


def png(size):
    return saved(
        lambda stream, value: value.save(stream, "PNG", compress_level=1), Image.new("1", (size, size))
    )


# Made when a test needs one: processes that run other tests need not spend a second on them.
BOMBS = {
    "txt.gz": lambda: gzip.compress(bytes(LARGE), 1),
    "two members.txt.gz": lambda: gzip.compress(bytes(900 << 10)) + gzip.compress(bytes(LARGE), 1),
    "nested.txt.gz.gz": lambda: gzip.compress(gzip.compress(bytes(LARGE), 1), 1),
    "npz": lambda: saved(np.savez_compressed, np.zeros(LARGE // 8)),
    "npz.gz": lambda: gzip.compress(saved(np.savez_compressed, np.zeros(LARGE // 8))),
    "png": lambda: png(5000),
    "beyond pillow's own.png": lambda: png(13_500),
    "a view.pth": lambda: saved(
        lambda stream, value: torch.save(value, stream), torch.zeros(1).expand(10**10)
    ),
    "deflated.pth": lambda: saved(zip_of, {"archive/data.pkl": b"", "archive/data/0": bytes(LARGE)}),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_the_memory(name):
    bomb = BOMBS[name]()
    tracemalloc.start()
    try:
        with pytest.raises(PartLimitError) as caught:
            DECODER.decode(name, bomb)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()
    limit = "image_pixels" if "png" in name else "part_bytes"
    assert repr(name) in caught.value.what
    assert f"the limit {limit} is 1,048,576" in str(caught.value)
    assert f"Limits({limit}=…)" in caught.value.hint
    assert f"ENERGON_STREAM_LIMITS={limit}=…" in caught.value.hint
    assert isinstance(caught.value, SampleError)  # handlers may skip the sample


HUGE = b"(9999999999999,)"
DAMAGED = {
    "a header that claims too much.npy": npy(np.zeros(2)).replace(b"(2,)", HUGE),
    "negative.npy": npy(np.zeros(2)).replace(b"(2,)", b"(-2,)"),
    "inside.npz": saved(zip_of, {"a.npy": npy(np.zeros(2)).replace(b"(2,)", HUGE)}),
    "a claim of 10 bytes.npz": lying_zip,
    "another method.npz": saved(zip_of, {"a.npy": npy(np.zeros(2))}, method=zipfile.ZIP_BZIP2),
    "objects.npy": saved(np.save, np.array([{}]), allow_pickle=True),
    "a bytearray of 4 GB.pth": b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x01\x85R.",
    "deep.json": b"[" * 100_000,
    "long number.json": b"9" * 10_000,
    "long number.cls": b"9" * 10_000,
    "many.mp": b"\xdd\xff\xff\xff\xff",
    "deep.mp": b"\x91" * 100_000,
    "many.cbor": bytes.fromhex("9b0000001000000000"),
    "deep.cbor": b"\x81" * 100_000,
    "cut off.txt.gz": gzip.compress(bytes(1000))[:-4],
    "no gzip.txt.gz": b"text",
    "postscript.jpg": saved(lambda stream, value: value.save(stream, "EPS"), Image.new("RGB", (8, 8))),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_false_claims_and_deep_nesting_are_errors_of_the_sample(name):
    part = DAMAGED[name]
    part = part() if callable(part) else part
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="part"):
            DECODER.decode(name, part)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(0),
        np.array(3.5),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["a", "bcd"]),
        np.zeros((2, 0, 3), "<i2"),
        np.arange(12, dtype=">u4").reshape(3, 4)[:, ::2],
        np.array([(1.5, 2)], dtype=[("x", "<f4"), ("y", "i1")]),
        np.zeros(3, "V0"),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_arrays_are_those_of_numpy(array):
    for decoded in (
        DECODER.decode("npy", npy(array)),
        DECODER.decode("npz", saved(np.savez, array))["arr_0"],
    ):
        expected = np.load(io.BytesIO(npy(array)))
        assert decoded.dtype == expected.dtype
        assert decoded.shape == expected.shape
        assert decoded.strides == expected.strides or not array.size
        assert decoded.tobytes() == expected.tobytes()
        assert decoded.flags.writeable


def test_gzip_is_unpacked_as_the_standard_library_does():
    data = np.random.default_rng(0).bytes(3 << 20)
    packed = (
        gzip.compress(data[:100]) + gzip.compress(b"") + bytes(700) + gzip.compress(data[100:]) + bytes(5)
    )
    assert gunzip(packed, len(data)) == gzip.decompress(packed) == data
    with pytest.raises(TooLargeError):
        gunzip(packed, len(data) - 1)


def test_the_members_of_a_gzip_take_time_in_proportion():
    assert gunzip(gzip.compress(b"a") * 20_000, 1 << 20) == b"a" * 20_000  # quadratic: minutes


def test_a_part_that_does_not_grow_may_have_any_size():
    array = np.random.default_rng(0).random(200_000)
    assert len(DECODER.decode("npz", saved(np.savez, array))["arr_0"]) == 200_000


def test_pillows_own_limit_plays_no_part_below_it(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(PartLimitError, match="5,000 x 5,000 pixels"):
        DECODER.decode("png", BOMBS["png"]())
    with warnings.catch_warnings(action="error"):
        larger = SampleDecoder("pill", limits=Limits(image_pixels=25_000_000))
        assert larger.decode("png", BOMBS["png"]()).size == (5000, 5000)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_limits_of_a_dataset_reach_its_workers_and_the_sample_is_skipped(workers, tmp_path):
    sizes = [10, 10, 10, 2 << 20, 10, 10]
    write_shards(
        tmp_path, shards=1, samples_per_shard=6, parts=lambda i: {"txt.gz": gzip.compress(b"x" * sizes[i])}
    )
    dataset_yaml = {**TEXT_YAML, "field_map": {"text": "txt.gz"}}
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=dataset_yaml)
    config = WorkerConfig(0, 1, workers)
    open_with = {"batch_size": None, "split_part": "train", "worker_config": config}
    limits = Limits(part_bytes=1 << 20)
    dataset = get_val_dataset(str(tmp_path), limits=limits, **open_with)
    assert [len(sample.text) for sample in get_loader(dataset)] == [10] * 5
    dataset = get_val_dataset(str(tmp_path), **open_with)
    assert sum(len(sample.text) > 10 for sample in get_loader(dataset)) == 1
