"""How many requests the page makes to a store, counted there."""

import http.client
import time

import pytest
from browse_client import Client, image_bytes, write_dataset

from energon_stream.index.sample_sizes import MOST_BYTES
from energon_stream.testing.s3server import Rule
from energon_stream.tools.browse import serving

IMAGE = image_bytes((64, 64))
BUDGET = 60


def samples_of(shards, per_shard, **more):
    return [
        {f"{shard:04d}{number:03d}": {"png": IMAGE, "txt": b"text", **more} for number in range(per_shard)}
        for shard in range(shards)
    ]


def first_page(server, url):
    """Open the page as a browser does; return the requests until the last of the first 50 pictures."""
    server.reset_counters()
    with serving(url, storage_options=server.storage_options) as served:
        client = Client(served)
        client.ask("catalog")
        found = client.ask("samples")["samples"]
        for sample in found:
            query = {"source": sample["source"], "number": sample["number"], "part": 0}
            status, _, body = client.get("picture", query)
            assert (status, body[:2]) == (200, b"\xff\xd8")
        assert len(found) == 50
        # On a busy machine, requests are late, and are sent a second time.
        return len({entry[:3] for entry in server.log()})


@pytest.mark.every(3)
@pytest.mark.parametrize("per_shard", [4, 25])
@pytest.mark.parametrize("keeps_sizes", [True, False])
def test_the_first_page_takes_few_requests(s3_server, tmp_bucket, tmp_path, per_shard, keeps_sizes):
    write_dataset(tmp_path / "data", samples_of(200 // per_shard, per_shard))
    if not keeps_sizes:
        without_sizes(tmp_path / "data")
    s3_server.upload_folder(tmp_path / "data", f"{tmp_bucket}/data")
    requests = first_page(s3_server, f"{tmp_bucket}/data")
    shards = -(-50 // per_shard)
    # Metadata, then an index and a range a shard.
    assert requests <= 5 + (1 if keeps_sizes else 2) * shards <= BUDGET


def test_one_sample_a_shard_takes_few_requests(s3_server, tmp_bucket, tmp_path):
    write_dataset(tmp_path / "data", samples_of(60, 1))
    without_sizes(tmp_path / "data")
    s3_server.upload_folder(tmp_path / "data", f"{tmp_bucket}/data")
    assert first_page(s3_server, f"{tmp_bucket}/data") <= BUDGET


def test_large_parts_are_read_when_they_are_played(s3_server, tmp_bucket, tmp_path):
    write_dataset(tmp_path / "data", samples_of(1, 50, mp4=bytes(1_200_000)))
    s3_server.upload_folder(tmp_path / "data", f"{tmp_bucket}/data")
    s3_server.reset_counters()
    with serving(f"{tmp_bucket}/data", storage_options=s3_server.storage_options) as served:
        client = Client(served)
        client.ask("samples")
        assert s3_server.counters().bytes_sent < 2_000_000  # of 60 MB
        s3_server.reset_counters()
        query = {"source": 0, "number": 7, "part": 2}
        assert len(client.get("part", query, Range="bytes=100-199")[2]) == 100
        assert [entry.bytes for entry in s3_server.log()] == [100]


def without_sizes(folder):
    """Remove the sizes of samples behind the index, as an older version or a large dataset has none."""
    path = folder / ".nv-meta" / "index.sqlite"
    data = path.read_bytes()
    pages = int.from_bytes(data[28:32], "big") * int.from_bytes(data[16:18], "big")
    assert 0 < len(data) - pages <= MOST_BYTES
    path.write_bytes(data[:pages])


def test_nothing_is_read_for_a_client_that_has_left(s3_server, tmp_bucket, tmp_path):
    write_dataset(tmp_path / "data", samples_of(2, 150))
    s3_server.upload_folder(tmp_path / "data", f"{tmp_bucket}/data")
    with serving(f"{tmp_bucket}/data", storage_options=s3_server.storage_options) as served:
        client = Client(served)
        client.ask("samples")
        s3_server.add_rule(Rule("delay", seconds=0.1))
        s3_server.reset_counters()
        leaving = http.client.HTTPConnection("127.0.0.1", served.port)
        leaving.request("GET", f"/{served.token}/api/samples?count=2&first=50&field=txt&value=nowhere")
        while not s3_server.log():
            time.sleep(0.01)
        leaving.close()
        before = -1
        while before < len(s3_server.log()):
            before = len(s3_server.log())
            time.sleep(1)
        assert before < 60  # of 125
        s3_server.clear_rules()
        assert client.ask("samples", count=2)["loaded"] == 2
