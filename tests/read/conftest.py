"""A server for tests of readers, which bring the dataset."""

import pytest

from energon_stream.testing.s3server import S3Server


@pytest.fixture
def index_pages(monkeypatch):
    """Sets how much of a large index is read at a time: bytes of rows, samples whose parts are looked up."""
    limits = {
        "row_bytes": "energon_stream.index.index_files.ROW_PAGE_BYTES",
        "samples": "energon_stream.read.part_locator.PAGE_SAMPLES",
    }

    def set_size(**sizes):
        for name, size in sizes.items():
            monkeypatch.setattr(limits[name], size)

    return set_size


@pytest.fixture
def remote(folder):
    """Serves the module's ``folder`` as ``s3://bucket/data``; counters at zero."""
    with S3Server() as server:
        server.upload_folder(folder, "s3://bucket/data")
        server.reset_counters()
        yield server
