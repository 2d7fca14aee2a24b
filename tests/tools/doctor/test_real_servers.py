"""The doctor on real servers: what works, a wrong key, a bucket in another region, no bucket."""

import uuid

import boto3
import pytest

from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.tools.doctor import diagnose


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("doctor") / "data", shards=2, samples=20, payload_bytes=500
    )


@pytest.fixture(
    params=[pytest.param("localstack", marks=(pytest.mark.localstack, pytest.mark.slow)), "seaweedfs"]
)
def server(request):
    return request.getfixturevalue(request.param)


def upload(folder, url, options):
    store = StoreSpec(url, options).open()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())


@pytest.fixture
def bucket(server):
    name = f"doctor-{uuid.uuid4().hex[:8]}"
    server.create_bucket(name)
    return f"s3://{name}"


def findings(url, options):
    found = diagnose(url, storage_options=options, seconds=0.05)
    return found, {each.name: each for each in found.findings}


def test_a_dataset_is_healthy(server, bucket, folder):
    upload(folder, f"{bucket}/data", server.storage_options)
    found, named = findings(f"{bucket}/data", server.storage_options)
    assert found.is_healthy, found.findings
    assert "20 samples in 2 shards" in named["dataset"].text
    assert named["clock"].level == "ok"
    assert [speed.in_flight for speed in found.speeds] == [1, 4, 16, 64]
    assert found.settings["max_in_flight"] >= 1


def test_a_bucket_that_is_not_there_is_named(server):
    found, named = findings("s3://nobody-made-this/data", server.storage_options)
    assert not found.is_healthy
    assert "no such bucket" in found.verdict
    assert "Check bucket" in named["store"].hint


def test_a_wrong_secret_is_named(seaweedfs):
    options = {**seaweedfs.storage_options, "secret": "not the secret"}
    found, named = findings("s3://anything/data", options)
    assert not found.is_healthy
    assert "access" in named["store"].text.lower() or "signature" in named["store"].text.lower()


@pytest.mark.localstack
def test_a_bucket_in_another_region_is_named(localstack):
    options, name = localstack.storage_options, f"doctor-{uuid.uuid4().hex[:8]}"
    client = boto3.client(
        "s3",
        endpoint_url=localstack.endpoint_url,
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        region_name="eu-west-1",
    )
    client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    found, named = findings(f"s3://{name}/data", options)
    assert not found.is_healthy
    assert named["region"].level == "error"
    assert "eu-west-1" in named["region"].hint
