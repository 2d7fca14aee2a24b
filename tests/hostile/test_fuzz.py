"""Random metadata files: each is read, or refused by an error of the library, in bounded memory."""

import json
import tracemalloc
import warnings

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from repetitions import examples, is_nightly

from energon_stream import Limits, WorkerConfig, get_val_dataset
from energon_stream.config.metadataset_files import MetadatasetFiles
from energon_stream.config.opening import DatasetLocation
from energon_stream.errors import EnergonStreamError
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.info_files import encode_info, load_document, parse_info, parse_split
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import TEXT_YAML, write_shards

ALONE = WorkerConfig(0, 1, 0)
LIMITS = Limits(names=10_000, references=100, document_bytes=100_000, document_values=2000)
ROOM = 32 << 20
FIXTURES = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}

EDGES = st.sampled_from(
    [
        -1,
        0,
        1,
        2**31,
        10**15,
        2**53,
        2**63,
        2**64,
        10**40,
        1e308,
        5e-324,
        float("inf"),
        float("nan"),
        "9" * 5000,
    ]
)
WORDS = st.sampled_from(
    [
        "a.tar", "{0..9}.tar", "{0..999999999}.tar", "{0..9}" * 12, "../a.tar", "/etc/passwd", "s3://b/x", "~", "",
        "a.yaml", "data", "\x1b[31m", "{", "}", "a.tar/key", "10%", "nan%", "1e999%", "end", "train",
    ]
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "__module__", "__class__", "splits", "split_parts", "exclude", "shard_counts", "energon_version", "path",
        "blend", "blend_epochized", "join", "joiner", "nonmatch", "subset", "range", "weight", "repetitions", "aux",
        "parts", "cache", "directory", "max_bytes", "block_bytes", "sample_type", "field_map", "sample_loader",
        "part_filter", "subflavors", "subflavor", "split_part", "split_config", "dataset_config", "decoder",
        "shuffle_over_epochs_multiplier", "parallel_shard_iters", "max_samples_per_sequence", "train", "datasets",
        "image_decode", "guess_content", "text", "fs_path", "shuffle_over_epochs", "a.tar",
    ]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | EDGES | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=6)


def as_yaml(value):
    with warnings.catch_warnings(action="ignore"):
        return yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False).encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw, texts):
    """A text with some bytes changed, removed or repeated."""
    data = bytearray(draw(texts))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.integers(0, 2)):
            case 0:
                data[place : place + 1] = bytes([draw(st.integers(0, 255))])
            case 1:
                del data[place : place + draw(st.integers(1, 9))]
            case 2:
                data[place:place] = draw(
                    st.sampled_from([b"[", b"{", b"- ", b"\n", b": ", b'"', b"&a ", b"*a", b"!!x "])
                )
    return bytes(data)


def refused_or(function, *arguments, **options):
    """The result of a function; None if it raises an error of the library. Anything else fails the test."""
    tracemalloc.start()
    try:
        with warnings.catch_warnings(action="ignore"):
            return function(*arguments, **options)
    except EnergonStreamError as error:
        if len(str(error)) > 2000:
            pytest.fail(f"the message has {len(str(error))} characters")
        return None
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken < ROOM


@examples(400 if is_nightly() else 200)
@given(damaged(st.binary(max_size=60) | st.builds(as_yaml, VALUES)), st.sampled_from(["x.yaml", "x.json"]))
def test_documents(data, name):
    found = refused_or(load_document, data, name, LIMITS)
    assert found is None or isinstance(found, dict)


@examples(400)
@given(VALUES)
def test_json_is_read_as_the_standard_library_does(value):
    data = json.dumps({"a": value}).encode()
    found = refused_or(load_document, data, "x.json", LIMITS)
    if found is not None:
        assert json.dumps(found) == json.dumps(json.loads(data))


@examples(400)
@given(damaged(st.builds(as_yaml, DOCUMENTS | st.fixed_dictionaries({"split_parts": VALUES}))))
def test_split_files(data):
    found = refused_or(parse_split, data, "split.yaml", LIMITS)
    if found is not None:
        assert sum(map(len, found.split_parts.values())) <= LIMITS.names


@examples(400)
@given(damaged(st.builds(lambda counts: json.dumps({"shard_counts": counts}).encode(), VALUES)))
def test_info_files(data):
    found = refused_or(parse_info, data, ".info.json", LIMITS)
    if found is not None:
        assert all(0 <= count <= LIMITS.shard_samples for count in found.values())
        assert parse_info(encode_info(found), ".info.json") == found


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "data"
    write_shards(folder, shards=2, samples_per_shard=3, parts=lambda i: {"txt": b"%d" % i}, name="{}.tar")
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    return folder


def texts(folder):
    dataset = get_val_dataset(
        str(folder), split_part="train", batch_size=None, worker_config=ALONE, limits=LIMITS
    )
    return [sample.text if hasattr(sample, "text") else sample for sample in dataset]


@examples(400, **FIXTURES)
@given(damaged(st.builds(as_yaml, DOCUMENTS | DOCUMENTS.map(lambda more: {**TEXT_YAML, **more}))))
@example(b"split_part: '%s'" % (b"9" * 5000))
def test_dataset_yaml(data, document):
    (data / ".nv-meta/dataset.yaml").write_bytes(document)
    found = refused_or(texts, data)
    if found and isinstance(found[0], str):
        assert set(found) <= {str(i) for i in range(6)}


NODES = st.recursive(
    st.fixed_dictionaries({"path": st.just("data") | WORDS}, optional={"weight": SCALARS, "subset": VALUES}),
    lambda inner: (
        st.fixed_dictionaries({"blend": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"join": st.lists(inner, max_size=3), "joiner": VALUES})
    ),
    max_leaves=6,
)
HEADER = {"__module__": "energon_stream", "__class__": "MetadatasetV2"}


@examples(400, **FIXTURES)
@given(
    damaged(
        st.builds(as_yaml, DOCUMENTS)
        | (NODES | VALUES).map(lambda node: as_yaml({**HEADER, "splits": {"train": node}}))
    )
)
def test_metadatasets(data, document):
    path = data.parent / "mix.yaml"
    path.write_bytes(document)
    refused_or(DatasetLocation(str(path), "train", MetadatasetFiles(limits=LIMITS)).items)


@examples(160, **FIXTURES)
@given(
    st.lists(damaged(st.builds(lambda value: json.dumps(value).encode(), DOCUMENTS)), min_size=1, max_size=5)
)
def test_jsonl(data, lines):
    path = data.parent / "x.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    count = refused_or(prepare_jsonl, str(path))
    if count is None:
        return
    dataset = get_val_dataset(str(path), batch_size=None, worker_config=ALONE)
    with warnings.catch_warnings(action="ignore"):
        found = refused_or(lambda: [sample["json"] for sample in dataset])
    for line, value in zip(lines, found or (), strict=False):
        if len(found) == len(lines):
            assert json.dumps(json.loads(line)) == json.dumps(value)


@examples(200, **FIXTURES)
@given(
    st.dictionaries(st.sampled_from(["0.tar", "1.tar", "2.tar"]), st.integers(0, 10**7 + 1), min_size=1),
    st.lists(st.sampled_from(["0.tar", "1.tar", "{0..1}.tar", "2.tar", "0.tar/00000000"]), max_size=4),
)
def test_opened_counts(data, counts, shards):
    (data / ".nv-meta/.info.json").write_bytes(encode_info(counts))
    (data / ".nv-meta/split.yaml").write_bytes(
        as_yaml({"split_parts": {"train": shards}, "exclude": shards[:1]})
    )
    (data / ".nv-meta/dataset.yaml").write_bytes(as_yaml(TEXT_YAML))
    index = refused_or(open_webdataset, StoreSpec(str(data)), split_part="train", limits=LIMITS)
    if index is not None:
        assert np.all(np.diff(index.shard_starts) >= 0)
        assert index.num_samples == int(index.shard_counts.sum())
