"""Keys that people find in their buckets, some of which are no paths. What boto3 lists is the truth."""

import boto3
import pytest

from energon_stream.index.dataset import read_metadata
from energon_stream.index.shard_names import only_tars
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import TEXT_YAML, write_shards

TRANSPORTS = ("obstore", "fsspec")
PATHS = (
    "a.tar", "sub/b.tar", "sp ace.tar", " lead.tar", "trail.tar ", "per%cent.tar", "%2F.tar", "ü.tar", "u\u0308.tar",
    "😀.tar", "back\\slash.tar", "q?.tar", "h#.tar", "{a,b}.tar", "*.tar", "~.tar", "a:b.tar", "a::b.tar", "'\".tar",
    "&lt;.tar", "plus+.tar", "..tar", "...", ".hidden", "\x85.tar", "\u200b.tar", "|^`.tar", "empty.tar",
)  # fmt: skip
NO_PATHS = (
    "/lead.tar", "mid//c.tar", "tab\t.tar", "./dot.tar", "up/../d.tar", "nl\n.tar", "del\x7f.tar", "end/.", "end/..",
    "a/../../../e.tar", "//",
)  # fmt: skip
MARKERS = ("x.tar/", "folder/", "sub/")


@pytest.fixture
def client(s3_server):
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=s3_server.endpoint_url, **keys)


def put_and_list(client, bucket, keys):
    for key in keys:
        body = b"" if key.endswith("/") or key == "empty.tar" else b"data"
        client.put_object(Bucket=bucket, Key=f"data/{key}", Body=body)
    return {item["Key"].removeprefix("data/") for item in client.list_objects_v2(Bucket=bucket)["Contents"]}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_paths_are_listed_and_read_and_others_left_aside(
    s3_server, tmp_bucket, client, caplog, transport
):
    bucket = tmp_bucket.removeprefix("s3://")
    listed = put_and_list(client, bucket, (*PATHS, *NO_PATHS, *MARKERS))
    assert listed == {*PATHS, *NO_PATHS, *MARKERS}
    store = StoreSpec(f"{tmp_bucket}/data", s3_server.storage_options, transport).open()
    for _ in range(2):
        found = {entry.path: entry.meta.size for entry in store.list()}
        assert found.keys() == {*PATHS}
    for path, size in found.items():
        assert len(store.get(path).data) == size == (0 if path == "empty.tar" else 4)
    assert caplog.text.count("left aside: 10, such as") == 1


@pytest.mark.every(3)
@pytest.mark.parametrize("key", [*NO_PATHS, *MARKERS])
def test_one_such_key_does_not_end_preparing(s3_server, tmp_bucket, client, tmp_path, key):
    url, options = f"{tmp_bucket}/data", s3_server.storage_options
    arguments = {"split_ratio": (1, 0, 0), "storage_options": options}
    for shards in (1, 2):
        write_shards(tmp_path, shards=shards, samples_per_shard=2, parts=lambda index: {"txt": b"%d" % index})
        s3_server.upload_folder(tmp_path, url)
        client.put_object(Bucket=tmp_bucket.removeprefix("s3://"), Key=f"data/{key}", Body=b"")
        prepare_dataset(url, dataset_yaml=TEXT_YAML if shards == 1 else None, append=shards == 2, **arguments)
        tars = dict.fromkeys(sorted(path.name for path in tmp_path.glob("*.tar")), 2)
        assert read_metadata(StoreSpec(url, options)).shard_counts == tars
    assert [tar.path for tar in only_tars(StoreSpec(url, options).open().list(), url)] == list(tars)
