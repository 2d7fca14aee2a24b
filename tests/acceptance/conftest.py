"""Small datasets for the acceptance tests, and the pages' examples on the import path."""

import io
import sys
from pathlib import Path

import pytest
from PIL import Image

from energon_stream import WorkerConfig
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CAPTIONING_YAML, prepared_captioning_dataset, write_shards

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "pages"))


def of_unequal_sizes(number):
    """A white picture, whose size depends on its number, and its caption."""
    picture = io.BytesIO()
    Image.new("RGB", (4 + 4 * (number % 3), 4 + 4 * (number % 2)), "white").save(picture, "PNG")
    return {"png": picture.getvalue(), "txt": f"caption {number}".encode()}


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Prepared datasets: ``coco`` and ``coyo`` (100 of each, in 10 shards, split 8,1,1), ``unequal``
    sizes.
    """
    folder = tmp_path_factory.mktemp("data")
    for name in ("coco", "coyo"):
        prepared_captioning_dataset(folder / name, shards=10, samples_per_shard=10, name=name + "-{:03d}.tar")
    write_shards(folder / "unequal", shards=1, samples_per_shard=12, parts=of_unequal_sizes)
    yaml = {**CAPTIONING_YAML, "field_map": {"image": "png", "caption": "txt"}}
    prepare_dataset(str(folder / "unequal"), split_ratio=(1, 0, 0), dataset_yaml=yaml)
    return folder


@pytest.fixture
def in_process():
    """One rank without workers."""
    return WorkerConfig(rank=0, world_size=1, num_workers=0)
