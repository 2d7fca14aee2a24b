"""A server for tests of readers, which bring the dataset."""

import pytest

from energon_stream.testing.s3server import S3Server


@pytest.fixture
def remote(folder):
    """Serves the module's ``folder`` as ``s3://bucket/data``; counters at zero."""
    with S3Server() as server:
        server.upload_folder(folder, "s3://bucket/data")
        server.reset_counters()
        yield server
