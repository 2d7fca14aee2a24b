"""A folder of small text datasets: samples of ``a`` are ``a0``, ``a1``, …; ten shards each, 8:1:1."""

import pytest
from mixtures import text_dataset


@pytest.fixture(scope="session")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lake")
    text_dataset(folder / "a", "a", per_shard=4)
    text_dataset(folder / "b", "b", per_shard=4)
    text_dataset(folder / "c", "c", per_shard=2, subflavors={"of": "c", "kept": 1})
    return folder
