"""Reading some parts: the same samples as by reading all, for fewer bytes where that is so."""

import contextlib
import itertools
import json
import os
import shutil
import sqlite3
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_writer import write_reference_dataset
from repetitions import examples, is_nightly

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.errors import IndexMismatchError
from energon_stream.index.database import shared_indices
from energon_stream.index.index_files import index_path
from energon_stream.index.part_places import PartPlaces
from energon_stream.index.sample_sizes import SampleSizes
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.read.part_ranges import find_part_ranges
from energon_stream.tar.format import TAR_RECORD
from energon_stream.testing.datasets import CRUDE_YAML, prepared_binary_dataset, random_bytes, write_shards
from energon_stream.testing.s3server import S3Server

SHARDS, PER_SHARD = 3, 30
SMALL_GAP = ReadOptions(max_gap=600, first_samples=3)
TEXT = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "json[index]"},
}
FILTER = "def keep(part):\n    return part.startswith('js') or part == 'txt'\n"


@pytest.fixture(autouse=True)
def _nothing_left_open():
    """Indices that earlier tests opened are shared while they live, and cycles or late requests may keep
    them.
    """
    shared_indices.clear()


def padded(size):
    return -(-size // TAR_RECORD) * TAR_RECORD


@st.composite
def tars(draw):
    """Parts of neighbouring samples as they may lie in a tar, and which of them are wanted."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    sizes = [draw(st.sampled_from([0, 1, 80, 511, 512, 513, 5_000, 40_000])) for _ in range(sum(counts))]
    wanted = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    begin = draw(st.integers(0, 3)) * TAR_RECORD
    starts, at = [], begin
    for size in sizes:
        starts.append(
            at + TAR_RECORD * draw(st.sampled_from([1, 1, 3]))
        )  # long names take headers of their own
        at = starts[-1] + padded(size)
    samples = np.repeat(np.arange(len(counts)), counts)
    return samples, np.array(starts), np.array(sizes), np.array(wanted), begin, at


@given(tars(), st.sampled_from([0, 600, 32 << 10]), st.integers(1, 4))
def test_ranges_hold_the_wanted_parts_and_no_large_others(tar, max_gap, width):
    samples, starts, sizes, wanted, begin, end = tar
    places = PartPlaces(samples, starts, sizes, wanted, begin)
    found = find_part_ranges(places, max_gap=max_gap, width=width)
    ends = starts + [padded(size) for size in sizes]
    headers = np.array([begin, *ends[:-1]])
    read = 0
    for sample in range(samples[-1] + 1):
        mine = np.flatnonzero(samples == sample)
        ranges = [
            (first, last)
            for first, last in zip(found.starts[sample], found.stops[sample], strict=True)
            if first >= 0
        ]
        read += sum(last - first for first, last in ranges)
        assert 1 <= len(ranges) <= width
        assert ranges == sorted(ranges)
        inside = [part for part in mine if any(a <= headers[part] and ends[part] <= b for a, b in ranges)]
        needed = [part for part in mine if wanted[part]]
        if not needed:
            assert sizes[inside].tolist() == [sizes[mine].min()]
            continue
        assert set(needed) <= set(inside)
        assert {first for first, _ in ranges} <= set(headers[needed])
        assert {last for _, last in ranges} <= set(ends[needed])
        if len(ranges) < width:  # ranges are split wherever that saves enough
            for part, other in itertools.pairwise(needed):
                together = any(a <= headers[part] and ends[other] <= b for a, b in ranges)
                assert together == (headers[other] - ends[part] <= max_gap)
    assert found.skipped == end - begin - read


@pytest.mark.parametrize(
    ("samples", "starts"), [([0, 0], [512, 600]), ([0, 2], [512, 2048]), ([1, 1], [512, 2048])]
)
def test_places_that_no_tar_has_are_refused(samples, starts):
    with pytest.raises(ValueError, match="follow each other"):
        find_part_ranges(
            PartPlaces(
                np.array(samples), np.array(starts), np.array([80, 80]), np.array([True, False]), begin=0
            ),
            max_gap=0,
            width=1,
        )


def parts(index):
    """Uneven samples: most have all parts, in another order now and then, and some have no json."""
    found = {
        "txt": f"text {index}".encode(),
        "bin": random_bytes(3_000 + 100 * (index % 7), index),
        "json": json.dumps({"index": f"{index}"}).encode(),
        "left.json": b"[1]" * (index % 5),
        "jpg": random_bytes(2_000, "jpg", index),
    }
    if index % 11 == 3:
        found = dict(reversed(found.items()))
    if index % 13 == 5:
        del found["json"]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s3") / "bucket" / "data"
    tars = write_shards(folder, shards=SHARDS, samples_per_shard=PER_SHARD, parts=parts)
    names = [tar.name for tar in tars]
    split = {"train": names[1:], "val": names[:1]}  # so that ids of shards are not their places
    crude = dump_yaml(CRUDE_YAML).decode()
    write_reference_dataset(folder, tars, split=split, exclude=[f"{names[1]}/00000032"], dataset_yaml=crude)
    (folder / ".nv-meta" / "keep.py").write_text(FILTER)
    for name, document in {
        "keep": {**CRUDE_YAML, "part_filter": "keep.py:keep"},
        "typed": TEXT,
        "undecoded": {**TEXT, "field_map": {"text": "txt"}},
    }.items():
        (folder / ".nv-meta" / f"{name}.yaml").write_bytes(dump_yaml(document))
    bare = shutil.copytree(folder, folder.parent / "bare")
    (bare / ".nv-meta" / "index.sqlite").unlink()
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with S3Server(folder.parent.parent) as server:
        yield server


class Plain(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return [plain(sample) for sample in samples]


def plain(sample):
    """Whatever a sample is, as a dict; the place where it was read differs between ways."""
    found = (
        dict(sample)
        if isinstance(sample, dict)
        else {f.name: getattr(sample, f.name) for f in fields(sample)}
    )
    found["__sources__"] = [
        (source.index, source.shard_name, source.file_names) for source in found["__sources__"]
    ]
    return {
        name: bytes(value) if isinstance(value, (bytes, memoryview)) else value
        for name, value in found.items()
    }


def open_dataset(url, server=None, *, workers=0, config="dataset", encoder=None, **changes):
    given = {
        "batch_size": 7,
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 9,
        "read_options": SMALL_GAP,
        "repeat": False,
        **changes,
    }
    return get_train_dataset(
        os.fspath(url),
        worker_config=WorkerConfig(0, 1, workers, num_streams=max(1, workers)),
        task_encoder=encoder or Plain(),
        dataset_config=f"{config}.yaml",
        trust_dataset_code=True,
        storage_options=server and server.storage_options,
        **given,
    )


def read_all(*where, **how):
    with get_savable_loader(open_dataset(*where, **how)) as loader:
        return list(loader)


URL, BARE = "s3://bucket/data", "s3://bucket/bare"


@examples(12)
@given(
    st.lists(st.sampled_from(["txt", "bin", "json", "left.json", "jpg", "none"]), unique=True, max_size=5),
    st.sampled_from([None, 1, 5, 40]),
    st.sampled_from([None, 4]),
    st.sampled_from([0, 600, 2_500, 1 << 20]),
    st.sampled_from(["dataset", "keep"]),
)
def test_samples_are_the_same_as_where_all_is_read(folder, server, names, buffer, sequence, max_gap, config):
    how = {
        "parts": names,
        "shuffle_buffer_size": buffer,
        "max_samples_per_sequence": sequence,
        "read_options": ReadOptions(max_gap=max_gap, first_samples=3),
        "config": config,
    }
    assert read_all(URL, server, **how) == read_all(folder, **how)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("workers", "how"),
    [
        (0, {"parts": ["json"]}),
        (1, {"parts": ["json"]}),
        (0, {"config": "keep"}),
        (0, {"config": "undecoded"}),
    ],
)
def test_a_dataset_without_an_index_is_read_whole(folder, server, workers, how):
    expected = read_all(folder, **how)
    assert sum(map(len, expected)) == SHARDS * PER_SHARD - PER_SHARD - 1
    assert read_all(BARE, server, workers=workers, **how) == expected
    assert read_all(URL, server, workers=workers, **how) == expected


@pytest.mark.parametrize(
    "damage", ["DROP TABLE sample_parts", "DELETE FROM sample_parts WHERE sample_index = 4"]
)
def test_an_index_that_is_of_no_use_is_not_used(folder, server, damage, caplog):
    damaged = shutil.copytree(folder, folder.parent / f"damaged{len(damage)}", dirs_exist_ok=True)
    with sqlite3.connect(damaged / ".nv-meta" / "index.sqlite") as database:
        database.execute(damage)
    samples = read_all(f"s3://bucket/{damaged.name}", server, parts=["json"])
    assert samples == read_all(folder, parts=["json"])
    assert "whole samples are read" in caplog.text


TEXT_ROWS = "WHERE part_name = 'txt' AND sample_index > 0"
DAMAGE = {
    "number": f"UPDATE sample_parts SET sample_index = 'x' {TEXT_ROWS}",
    "third": "UPDATE sample_parts SET sample_index = 'x' WHERE rowid % 3 = 2",
    "no number": f"UPDATE sample_parts SET sample_index = NULL {TEXT_ROWS}",
    "half": f"UPDATE sample_parts SET sample_index = sample_index + 0.5 {TEXT_ROWS}",
    "offset": "UPDATE sample_parts SET content_byte_offset = 'x' WHERE rowid % 3 = 0",
    "large": "UPDATE sample_parts SET content_byte_size = 9223372036854775807 WHERE rowid % 3 = 0",
    "bytes": "UPDATE sample_parts SET content_byte_size = x'00' WHERE rowid % 7 = 0",
    "name": "UPDATE sample_parts SET part_name = NULL WHERE part_name = 'bin'",
    "shard": f"UPDATE sample_parts SET tar_file_id = 'x' {TEXT_ROWS}",
    "rows": f"DELETE FROM sample_parts {TEXT_ROWS}",
    "some rows": f"DELETE FROM sample_parts {TEXT_ROWS} AND sample_index % 4 = 1",
    "shifted": "UPDATE sample_parts SET sample_index = sample_index + 1 WHERE part_name = 'jpg'",
    "beyond": "UPDATE sample_parts SET content_byte_offset = content_byte_offset + 512 WHERE part_name = 'jpg'",
}


@pytest.fixture
def page(request, index_pages):
    """How many samples are looked up together."""
    index_pages(samples=request.param)
    return request.param


@pytest.mark.every(5)
@pytest.mark.parametrize("page", [7, 1024], indirect=True)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("has_sizes", [True, False])
def test_a_damaged_index_loses_no_part(folder, server, damage, page, has_sizes):
    """The samples are right, or an error names the file and what to do."""
    name = f"{damage.replace(' ', '-')}-{page}-{has_sizes}"
    damaged = shutil.copytree(folder, folder.parent / name, dirs_exist_ok=True)
    index = damaged / ".nv-meta" / "index.sqlite"
    database = sqlite3.connect(index)
    with contextlib.closing(database):
        database.execute(DAMAGE[damage])
        database.commit()
    if has_sizes:
        sizes, info = SampleSizes(), (folder / ".nv-meta" / ".info.json").read_bytes()
        for shard in json.loads(info)["shard_counts"]:
            sizes.add(np.fromfile(folder / index_path(shard), dtype="<u8").tolist())
        index.write_bytes(index.read_bytes() + sizes.encode(info))
    how = {"parts": ["txt"], "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    expected = read_all(folder, **how)
    try:
        assert read_all(f"s3://bucket/{name}", server, **how) == expected
    except IndexMismatchError as error:
        assert "prepare` again" in str(error)  # noqa: PT017
        assert name in str(error)  # noqa: PT017


def test_names_that_are_exchanged_in_the_index_are_an_error(folder, server):
    damaged = shutil.copytree(folder, folder.parent / "exchanged")
    database = sqlite3.connect(damaged / ".nv-meta" / "index.sqlite")
    with contextlib.closing(database):
        database.execute(
            "UPDATE sample_parts SET part_name = iif(part_name = 'txt', 'jpg', 'txt') "
            "WHERE part_name IN ('txt', 'jpg') AND sample_index % 5 = 2"
        )
        database.commit()
    with pytest.raises(
        IndexMismatchError, match=r"has 1 wanted parts in index\.sqlite, and 0 in the tar.*again"
    ):
        read_all("s3://bucket/exchanged", server, parts=["txt"])


@pytest.mark.every(3)
@pytest.mark.parametrize(("workers", "ways"), [(0, (URL, BARE)), (0, (BARE, URL)), (1, (URL, BARE))])
def test_a_state_goes_on_the_other_way(server, ways, workers):
    how = {"workers": workers, "parts": ["json", "txt"]}
    first, second = (open_dataset(url, server, **how) for url in ways)
    expected = read_all(ways[0], server, **how)
    with get_savable_loader(first) as loader:
        before = [batch for _, batch in zip(range(3), loader, strict=False)]
        state = loader.save_state_rank()
    with get_savable_loader(second) as loader:
        loader.restore_state_rank(state)
        assert before + list(loader) == expected


@pytest.mark.parametrize("page", [7], indirect=True)
@pytest.mark.usefixtures("page")
def test_shards_of_many_samples_are_looked_up_page_by_page(folder, server):
    assert read_all(URL, server, parts=["json"]) == read_all(folder, parts=["json"])


class Packing(Plain):
    """Holds samples back, so that restoring reads them by their keys."""

    def select_samples_to_pack(self, samples):
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples):
        return samples[0]


def test_held_samples_are_read_again_by_their_parts(server):
    how = {"parts": ["json"], "packing_buffer_size": 12, "encoder": Packing(), "batch_size": 2}
    expected = read_all(URL, server, **how)
    with get_savable_loader(open_dataset(URL, server, **how)) as loader:
        before = [batch for _, batch in zip(range(4), loader, strict=False)]
        state = loader.save_state_rank()
    with get_savable_loader(open_dataset(URL, server, **how)) as loader:
        loader.restore_state_rank(state)
        assert before + list(loader) == expected


# D40: what it costs.

SAMPLES, PAYLOAD = 4000 if is_nightly() else 2000, 40_080


@pytest.fixture(scope="module")
def d40(tmp_path_factory):
    root = tmp_path_factory.mktemp("d40")
    folder = prepared_binary_dataset(root / "bucket" / "d40", samples=SAMPLES, shards=8)
    for name, document in {"typed": TEXT, "bins": {**TEXT, "field_map": {"text": "bin"}}}.items():
        (folder / ".nv-meta" / f"{name}.yaml").write_bytes(dump_yaml(document))
    with S3Server(root) as server:
        yield server


@stateless
def cook(sample):
    assert set(sample) >= {"json"}
    assert "bin" not in sample
    return {**basic_sample_keys(sample), "json": bytes(sample["json"])}


class Cooking(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(cook)]

    def batch(self, samples):
        return [json.loads(sample["json"])["index"] for sample in samples]


class Texts(DefaultTaskEncoder):
    def batch(self, samples):
        return [sample.text for sample in samples]


COOKED, LEARNT = {"parts": ["json"], "encoder": Cooking()}, {"config": "typed", "encoder": Texts()}


@pytest.mark.parametrize(
    ("workers", "how"),
    [(0, COOKED), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, COOKED), (0, LEARNT)))],
)
def test_a_pass_over_small_parts_costs_a_twentieth_of_the_bytes(d40, workers, how):
    """P8, the bytes of all indices included."""
    d40.reset_counters()
    batches = read_all(
        "s3://bucket/d40",
        d40,
        workers=workers,
        read_options=None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        batch_size=32,
        **how,
    )
    assert sorted(index for batch in batches for index in batch) == list(range(SAMPLES))
    books = d40.counters()
    assert set(books.requests) == {"GET"}
    once = {(entry.key, entry.range): entry.bytes for entry in d40.log()}  # late ones are asked twice
    assert sum(once.values()) <= 0.05 * SAMPLES * PAYLOAD
    assert len(once) <= 1.1 * SAMPLES
    ranges = {entry.range for entry in d40.log() if entry.key.endswith("index.sqlite")}
    assert len(ranges) == 2  # one for the sizes of samples


@pytest.mark.every(2)
@pytest.mark.parametrize(("how", "asked"), [({"parts": ["bin"]}, 1), ({"config": "bins"}, 0)])
def test_samples_are_read_whole_where_little_could_be_skipped(d40, how, asked):
    """Parts of 40 kB are needed; a field map is no reason to read the index for the rest."""
    d40.reset_counters()
    read_all(
        "s3://bucket/d40",
        d40,
        read_options=None,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        batch_size=32,
        encoder=Bins(),
        **how,
    )
    books = d40.counters()
    assert len([entry for entry in d40.log() if entry.key.endswith("index.sqlite")]) == 1 + asked
    assert books.total <= 0.04 * SAMPLES
    assert books.bytes_sent <= 1.08 * SAMPLES * PAYLOAD


class Bins(DefaultTaskEncoder):
    decoder = None

    def batch(self, samples):
        return len(samples)
