"""Records of runs whose digests are right and whose values are not: an answer, or a named error, and soon."""

import copy
import hashlib
import itertools
import json
import shutil
import zlib

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from repetitions import examples

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset, open_run
from energon_stream.errors import EnergonStreamError, RunDamagedError
from energon_stream.testing.datasets import prepared_captioning_dataset

values = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        7,
        1 << 20,
        1 << 40,
        1 << 70,
        0.5,
        float("nan"),
        "",
        "x",
        "../..",
        [],
        [[]],
        {},
        {"a": 1},
    ]
)
_numbers = itertools.count()


def places(value, path=()):
    """All places in a tree of values."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def put(value, path, new):
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = put(value[path[0]], path[1:], new)
    return value


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    path = prepared_captioning_dataset(folder / "data", shards=2, samples_per_shard=10, split_ratio=(1, 0, 0))
    dataset = get_train_dataset(
        str(path),
        worker_config=WorkerConfig(0, 1, 0, num_streams=2),
        batch_size=3,
        shuffle_buffer_size=4,
        max_samples_per_sequence=5,
    )
    with get_savable_loader(dataset, run=folder / "run") as loader:
        for _ in zip(range(5), loader, strict=False):
            pass
        loader.save_state_rank()
    return folder / "run"


def ask(run):
    """Ask everything; only this library's errors may come."""
    for question in (
        lambda opened: opened.which(0),
        lambda opened: opened.which(4, rank=0),
        lambda opened: opened.when("00000003", until=20),
        lambda opened: opened.end,
    ):
        try:
            question(open_run(str(run)))
        except EnergonStreamError as error:
            assert str(run.parent) in str(error)  # noqa: PT017


@given(st.integers(0, 1 << 30), values)
@example(0, [])
@example(1789043, "")  # a dataset without a path
@example(68, "x")  # the dataset of another path
@examples(200)
def test_a_forged_description(run, at, value):
    fields = json.loads((run / "run.json").read_text())
    known = [path for path in places(fields) if path != ("digest",)]
    forged = put(fields, known[at % len(known)], value)
    if isinstance(forged, dict):
        forged.pop("digest", None)
        text = json.dumps(json.loads(json.dumps(forged)), sort_keys=True)
        forged["digest"] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    other = shutil.copytree(run, run.parent / f"forged{next(_numbers)}")
    (other / "run.json").write_text(json.dumps(forged))
    ask(other)
    shutil.rmtree(other)


@pytest.mark.parametrize("size", [0, -1, True, 1 << 19, 1 << 40])
def test_batches_of_an_impossible_size_are_refused_at_once(run, size):
    other = shutil.copytree(run, run.parent / f"forged{next(_numbers)}")
    fields = json.loads((run / "run.json").read_text())
    fields["datasets"][0]["batch_size"] = size
    del fields["digest"]
    text = json.dumps(fields, sort_keys=True)
    fields["digest"] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    (other / "run.json").write_text(json.dumps(fields))
    with pytest.raises(RunDamagedError, match=f"its batches have {size} samples"):
        open_run(str(other)).when("00000003", until=20)


@given(st.integers(0, 1 << 30), values)
@examples(200)
def test_a_forged_log(run, at, value):
    other = shutil.copytree(run, run.parent / f"forged{next(_numbers)}")
    log = next(path for path in other.rglob("*.log"))
    content = log.read_bytes()
    magic = content[: content.index(b"\x78\x9c") - 16]
    fields = msgpack.unpackb(zlib.decompress(content[len(magic) + 16 :]), strict_map_key=False)
    known = list(places(fields))
    try:
        body = zlib.compress(msgpack.packb(put(fields, known[at % len(known)], value)))
    except OverflowError:  # msgpack has no such number
        body = b""
    log.write_bytes(magic + hashlib.blake2b(body, digest_size=16).digest() + body)
    ask(other)
    shutil.rmtree(other)
