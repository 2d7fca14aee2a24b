"""The real servers start, serve, and tell what is wrong when they do not start."""

import sys

import pytest
import s3fs

from energon_stream.errors import StorageError
from energon_stream.testing.servers import LocalStack


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("localstack", marks=pytest.mark.localstack),
        pytest.param("seaweedfs", marks=pytest.mark.seaweedfs),
    ],
)
def test_real_servers_serve(name, request):
    server = request.getfixturevalue(name)
    server.create_bucket("serves")
    fs = s3fs.S3FileSystem(**server.storage_options, skip_instance_cache=True)
    fs.pipe("serves/a/b", b"0123456789")
    assert (fs.find("serves"), fs.cat_file("serves/a/b", start=2, end=5)) == (["serves/a/b"], b"234")


@pytest.mark.seaweedfs
@pytest.mark.parametrize("wrong", [{"secret": "wrong"}, {"key": None, "secret": None, "anon": True}])
def test_seaweedfs_checks_signatures(seaweedfs, wrong):
    fs = s3fs.S3FileSystem(**{**seaweedfs.storage_options, **wrong}, skip_instance_cache=True)
    with pytest.raises(PermissionError):
        fs.cat("some/object")


def test_a_server_that_does_not_start_shows_its_log():
    # This interpreter has no LocalStack.
    server = LocalStack(sys.executable)
    with pytest.raises(StorageError, match=r"(?s)ended: 1.*No module named .*localstack"):
        server.start()
