"""Costs of functions, arrays, media, and columns; in folders and stores; and where they are refused."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from packed import CAPACITY, SAMPLES, opened, taken, tokens, write

from energon_stream import (
    PlannedPacking,
    WorkerConfig,
    add_table,
    compute_costs,
    prepare_metadataset,
    read_costs,
)
from energon_stream.cli.main import main
from energon_stream.errors import ConfigError, CostsError, IndexMismatchError
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.prewarming.job import open_reader_dataset
from energon_stream.tables.expressions import parse_formula
from energon_stream.testing.datasets import write_shards
from energon_stream.tools.simulate.explain import samples_of_step

V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}


@pytest.fixture(scope="module")
def lengths():
    return np.clip(np.random.default_rng(0).lognormal(2.5, 1.1, SAMPLES), 1, 100).astype(int)


@pytest.fixture
def folder(tmp_path, lengths):
    return write(tmp_path / "texts", lengths)


def append(folder, tmp_path):
    """Append a shard of 40 samples of 7."""
    write(tmp_path / "more", [7] * 40, shard=40, first=10_000)
    shutil.copy(next((tmp_path / "more").rglob("*.tar")), f"{folder}/zz-more.tar")
    prepare_dataset(folder, split_ratio=(1, 0, 0), append=True)


def cost(*arguments):
    return CliRunner().invoke(main, ["cost", *arguments])


def pictures(folder, sizes, shards=2):
    """Images of some widths and heights, with their metadata in the index."""
    from io import BytesIO

    from PIL import Image

    def parts(number):
        file = BytesIO()
        Image.new("L", sizes[number]).save(file, "PNG")
        return {"png": file.getvalue(), "txt": b"text"}

    write_shards(folder, shards=shards, samples_per_shard=len(sizes) // shards, parts=parts)
    yaml = {"sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"}}
    prepare_dataset(
        str(folder),
        split_ratio=(1, 0, 0),
        dataset_yaml={**yaml, "field_map": {"image": "png", "caption": "txt"}},
    )
    return str(folder)


def test_media_in_the_index_give_costs_without_reading_a_shard(tmp_path):
    sizes = [(10 + n, 20) for n in range(12)]
    path = pictures(tmp_path / "pictures", sizes)
    with pytest.raises(CostsError, match="no media metadata"):
        compute_costs(path, "pixels", media="width * height")
    prepare_media(path, MediaFilter("EXTENSION"))
    for tar in (tmp_path / "pictures").glob("*.tar"):
        tar.write_bytes(bytes(tar.stat().st_size))  # nobody looks at them
    report = compute_costs(path, "patches", media="width * height / 64")
    assert (report.samples, report.computed) == (12, 0)
    assert read_costs(path, "patches").tolist() == [-(-w * h // 64) for w, h in sizes]
    ran = cost(path, "--name", "rows", "--from-media", "-(-height // 14)", "--json")
    assert ran.exit_code == 0, ran.output
    assert set(read_costs(path, "rows").tolist()) == {2}
    with pytest.raises(ConfigError, match="no number 'widht'"):
        compute_costs(path, "x", media="widht * height")
    with pytest.raises(CostsError, match="12 samples have no media with audio_duration"):
        compute_costs(path, "x", media="audio_duration")
    with pytest.raises(CostsError, match="sample 0 is inf"):
        compute_costs(path, "x", media="width / (height - height)")


@given(
    st.recursive(
        st.sampled_from(["width", "height", "2", "0.5"]),
        lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//"]), inner).map(
            lambda parts: "({} {} {})".format(*parts)
        ),
        max_leaves=6,
    )
)
def test_formulas_are_arithmetic(text):
    numbers = {"width": 28.0, "height": 14.0}
    if not any(name in text for name in numbers):
        with pytest.raises(ConfigError, match="names nothing"):
            parse_formula(text)
        return
    with np.errstate(all="ignore"):
        expected = eval(text, {name: np.array([value]) for name, value in numbers.items()})
    found = parse_formula(text).evaluate({name: np.array([value]) for name, value in numbers.items()})
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize(
    "text",
    ["", "width +", "len(width)", "width.real", "width[0]", "width ** 9", "width < 3", "'a' * width", "True * width",
     "-" * 100 + "width", "width * 1" + "0" * 400, "2 * 3", "w" * 2000],
)  # fmt: skip
def test_formulas_are_nothing_else(text):
    with pytest.raises(ConfigError, match="no formula"):
        parse_formula(text)


def test_columns_give_costs(folder, tmp_path, lengths):
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"tokens": lengths, "note": ["x"] * SAMPLES}), table)
    compute_costs(folder, "tokens", table=str(table))
    assert read_costs(folder, "tokens").tolist() == lengths.tolist()
    add_table(folder, str(table))
    ran = cost(folder, "--name", "beside", "--column", "tokens", "--json")
    assert ran.exit_code == 0, ran.output
    assert read_costs(folder, "beside").tolist() == lengths.tolist()
    with pytest.raises(ConfigError, match="no column 'words'"):
        compute_costs(folder, "x", table=str(table), column="words")
    with pytest.raises(ConfigError, match="no table of the dataset has a column 'words'"):
        compute_costs(folder, "x", column="words")
    with pytest.raises(CostsError, match="array of object"):
        compute_costs(folder, "x", column="note")
    pq.write_table(pa.table({"tokens": pa.array([None, *lengths[1:].tolist()], pa.int64())}), table)
    with pytest.raises(CostsError, match="sample 0 is nan"):
        compute_costs(folder, "x", table=str(table), column="tokens")
    pq.write_table(pa.table({"__key__": ["a"] * SAMPLES, "tokens": lengths}), table)
    with pytest.raises(ConfigError, match="any order"):
        compute_costs(folder, "x", table=str(table), column="tokens")
    for both in ({"media": "width", "column": "tokens"}, {"function": len, "values": lengths}, {}):
        with pytest.raises(ConfigError, match="one source"):
            compute_costs(folder, "x", **both)


def test_an_array_in_python_packs_like_written_costs(folder, lengths):
    compute_costs(folder, "tokens", values=lengths)
    options = {"overlong": "error"}
    assert taken(opened(folder, cost=lengths.tolist(), **options), 20) == taken(opened(folder, **options), 20)


def test_appended_shards_extend_costs_and_packs(folder, tmp_path, lengths):
    compute_costs(folder, "tokens", tokens)
    append(folder, tmp_path)
    with pytest.raises(CostsError, match="older than the shards"):
        opened(folder)
    assert compute_costs(folder, "tokens", tokens).computed == 1
    assert read_costs(folder, "tokens").tolist() == [*lengths.tolist(), *[7] * 40]
    packs = [pack for batch in opened(folder, repeat=False) for pack in batch]
    assert sum(stop - start for pack in packs for _, start, stop in pack) == lengths.sum() + 280


def test_costs_of_a_store(s3_server, tmp_path, lengths):
    s3_server.upload_folder(write(tmp_path / "texts", lengths), "s3://bucket/texts")
    storage = s3_server.storage_options
    report = compute_costs("s3://bucket/texts", "tokens", tokens, storage_options=storage)
    assert report.computed == report.shards > 1
    assert read_costs("s3://bucket/texts", "tokens", storage_options=storage).tolist() == lengths.tolist()
    again = compute_costs("s3://bucket/texts", "tokens", tokens, storage_options=storage)
    assert again.computed == 0
    assert len(taken(opened("s3://bucket/texts", storage=storage), 8)) == 8


def test_a_blend_packs_all_datasets_together(tmp_path):
    for name, length in (("a", 10), ("b", 30)):
        compute_costs(write(tmp_path / name, [length] * 60), "tokens", tokens)
    kinds = {
        "weights": {"blend": [{"path": "a", "weight": 3}, {"path": "b", "weight": 1}]},
        "repetitions": {
            "blend_epochized": [{"path": "a", "repetitions": 2}, {"path": "b", "repetitions": 1}]
        },
    }
    for kind, node in kinds.items():
        place = tmp_path / f"{kind}.yaml"
        place.write_bytes(dump_yaml({**V2, "splits": {"train": node}}))
        prepare_metadataset(str(place))
        expected = taken(opened(str(place)), 40)
        assert all(sum(stop - start for _, start, stop in pack) <= CAPACITY for pack in expected)
        found = [None] * 40
        for rank in range(2):
            found[rank::2] = taken(opened(str(place), rank, 2), 20)
        assert found == expected
        sizes = [stop - start for pack in expected for _, start, stop in pack]
        assert sizes.count(10) / len(sizes) == pytest.approx(3 / 4 if kind == "weights" else 2 / 3, abs=0.1)
    assert sum(len(pack) for batch in opened(str(place), repeat=False) for pack in batch) == 180
    with pytest.raises(ConfigError, match="one dataset only"):
        opened(str(place), cost=[1] * 120)
    shutil.rmtree(tmp_path / "b" / ".nv-meta" / "costs")
    with pytest.raises(CostsError, match="no costs 'tokens'"):
        opened(str(place))


def test_jsonl_files_take_an_array_and_no_name(tmp_path):
    place = tmp_path / "lines.jsonl"
    place.write_text("\n".join(f'{{"text": "{"x" * (5 + n % 7)}"}}' for n in range(50)))
    prepare_jsonl(str(place))
    with pytest.raises(CostsError, match="only prepared folders of tars"):
        opened(str(place))
    packing = PlannedPacking(cost=[6] * 50, capacity=30)
    options = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    dataset = open_reader_dataset(str(place), WorkerConfig(0, 1, 0), False, {**options, "packing": packing})
    assert len(samples_of_step(dataset, 2, 1)) in (4, 5)  # of 6 tokens, in a pack of 30


def test_a_table_of_an_older_index_is_refused(folder, tmp_path, lengths):
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"tokens": lengths}), table)
    add_table(folder, str(table))
    append(folder, tmp_path)
    with pytest.raises(IndexMismatchError, match="older than the index"):
        compute_costs(folder, "x", column="tokens")
