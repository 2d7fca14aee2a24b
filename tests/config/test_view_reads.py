"""Views on a store: what is read of tables and of tars, and media metadata as columns."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from energon_stream import DefaultTaskEncoder, ReadOptions, WorkerConfig, get_loader, get_train_dataset
from energon_stream.errors import ConfigError, IndexMismatchError
from energon_stream.prepare.add_tables import add_media_table, add_table, list_tables, remove_table
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, random_bytes, write_shards

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SHARDS, EACH = 4, 300
SAMPLES = SHARDS * EACH
SIZE = 3000
CHOSEN = np.random.default_rng(0).random(SAMPLES) < 0.1


class Undecoded(DefaultTaskEncoder):
    decoder = None


@pytest.fixture
def bucket(s3_server, tmp_bucket, tmp_path):
    """A dataset on the server, without its table."""
    write_shards(
        tmp_path / "data",
        shards=SHARDS,
        samples_per_shard=EACH,
        parts=lambda number: {"bin": random_bytes(SIZE, number)},
    )
    prepare_dataset(str(tmp_path / "data"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    s3_server.upload_folder(tmp_path / "data", f"{tmp_bucket}/data")
    return f"{tmp_bucket}/data"


def table(path, **values):
    pq.write_table(pa.table(values), path)
    return path


def read(server, url, waste):
    """Keys of a pass of the view, and the bytes of each distinct request to the tars."""
    server.reset_counters()
    before = len(server.log())
    dataset = get_train_dataset(
        url,
        batch_size=None,
        repeat=False,
        shuffle_buffer_size=50,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=Undecoded(),
        storage_options=server.storage_options,
        where="chosen",
        read_options=ReadOptions(first_samples=1, max_waste=waste),
    )
    keys = [sample["__key__"] for sample in get_loader(dataset)]
    asked = {
        (each.key, each.range): each.bytes
        for each in server.log()[before:]
        if each.method == "GET" and each.key.endswith(".tar") and each.status == 206
    }
    return keys, asked


def test_a_view_of_a_tenth_reads_its_payload_and_little_more(s3_server, bucket, tmp_path):
    options = {"storage_options": s3_server.storage_options}
    found = add_table(bucket, table(tmp_path / "chosen.parquet", chosen=CHOSEN), tmp_path=tmp_path, **options)
    assert list_tables(bucket, **options) == (found,)
    payload = int(CHOSEN.sum()) * (512 + -(-SIZE // 512) * 512)
    orders = []
    for waste, least, most in ((0.0, 1.0, 1.01), (0.3, 1.1, 1.3), (math.inf, 2.0, 12.0)):
        keys, asked = read(s3_server, bucket, waste)
        assert len(keys) == len({*keys}) == CHOSEN.sum()
        assert least <= sum(asked.values()) / payload <= most, waste
        orders.append((keys, len(asked)))
    assert orders[0][0] == orders[1][0] == orders[2][0]
    assert orders[0][1] > orders[1][1] > orders[2][1]  # requests are what it costs
    remove_table(bucket, "samples", **options)
    assert list_tables(bucket, **options) == ()
    with pytest.raises(ConfigError, match="no table of the dataset has a column 'chosen'"):
        read(s3_server, bucket, 0.3)


def picture(width, height):
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path):
    """Images of which each fourth is a jpg; image n is 1 + n % 7 pixels wide."""
    write_shards(
        tmp_path / "images",
        shards=3,
        samples_per_shard=8,
        parts=lambda n: {"left.png" if n % 4 else "png": picture(1 + n % 7, 5), "txt": str(n).encode()},
    )
    options = {"split_ratio": (1, 0, 0), "dataset_yaml": CRUDE_YAML}
    prepare_dataset(str(tmp_path / "images"), **options, media_filter=MediaFilter("EXTENSION"))
    return tmp_path / "images"


def numbers(path, where):
    dataset = get_train_dataset(
        path,
        batch_size=None,
        repeat=False,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=Undecoded(),
        where=where,
    )
    return sorted(int(bytes(sample["txt"])) for sample in get_loader(dataset))


def test_media_metadata_are_columns(images):
    report = add_media_table(images)
    assert report.columns == {
        f"{part}_{field}": kind
        for part in ("left_png", "png")
        for field, kind in (("width", "int64"), ("height", "int64"), ("format", "string"), ("mode", "string"))
    }
    wide = [n for n in range(24) if 1 + n % 7 >= 5]
    assert numbers(images, "left_png_width >= 5 or png_width >= 5") == wide
    assert numbers(images, "left_png_width >= 5 and left_png_format == 'PNG'") == [n for n in wide if n % 4]
    assert numbers(images, "left_png_width is None") == list(range(0, 24, 4))


def test_tables_without_media_or_with_names_that_are_taken(images, tmp_path, bucket, s3_server):
    with pytest.raises(ConfigError, match="no media metadata"):
        add_media_table(bucket, storage_options=s3_server.storage_options)
    add_media_table(images)
    with pytest.raises(ConfigError, match="has a column 'png_width', too"):
        add_table(images, table(tmp_path / "again.parquet", png_width=list(range(24))))
    with pytest.raises(ConfigError, match="there is no table 'nope'") as raised:
        remove_table(images, "nope")
    assert raised.value.hint == "the tables are media"
    with pytest.raises(ConfigError, match=r"the name of the table is '\.\./x'"):
        remove_table(images, "../x")


def test_a_table_of_an_earlier_index_is_listed_as_such(images, tmp_path):
    add_media_table(images)
    write_shards(
        images, shards=1, samples_per_shard=2, parts=lambda n: {"txt": b"1"}, name="more.tar", key="more{}"
    )
    prepare_dataset(str(images), split_ratio=(1, 0, 0), append=True)
    (found,) = list_tables(images)
    assert (found.name, found.rows, found.fits) == ("media", 24, False)
    with pytest.raises(IndexMismatchError, match="older than the index"):
        numbers(images, "png_width > 1")
    assert add_media_table(images).rows == 26
    assert list_tables(images)[0].fits
    assert numbers(images, "png_width > 1 and png_width < 4") == [
        n for n in range(0, 24, 4) if 1 < 1 + n % 7 < 4
    ]


@pytest.mark.parametrize("waste", [-0.1, math.nan])
def test_waste_that_is_no_share_is_refused(waste):
    with pytest.raises(ConfigError, match="max_waste"):
        ReadOptions(max_waste=waste)
