"""One small image-caption dataset for all tests here; each test that changes it takes a copy."""

import shutil

import pytest
from runs import SECRET

from energon_stream.testing.datasets import prepared_captioning_dataset


@pytest.fixture(scope="session")
def captions(tmp_path_factory):
    """A prepared folder: 64 samples in 4 shards, all in ``train``."""
    folder = tmp_path_factory.mktemp("end-to-end") / "captions"
    return prepared_captioning_dataset(folder, split_ratio=(1, 0, 0), shards=4, samples_per_shard=16)


@pytest.fixture
def own_captions(captions, tmp_path):
    """A copy to damage."""
    return shutil.copytree(captions, tmp_path / "captions")


@pytest.fixture
def captions_url(s3_server, captions):
    """The dataset on the stand-in server of the test."""
    s3_server.upload_folder(captions, "s3://bucket/captions")
    return "s3://bucket/captions"


@pytest.fixture
def options(s3_server):
    """Storage options of the stand-in server, with a secret to be kept."""
    return s3_server.storage_options | {"secret": SECRET}
