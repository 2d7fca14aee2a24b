"""The stand-in server against real clients, and its faults against bare HTTP."""

import http.client
import os
import socket
import subprocess
import sys
import uuid
from contextlib import ExitStack, closing
from datetime import timedelta

import boto3
import obstore
import pytest
import s3fs
from botocore.config import Config
from botocore.exceptions import ClientError
from obstore.store import S3Store

from energon_stream.errors import ConfigError, StorageError
from energon_stream.testing.s3server import Rule, S3Control, S3Server, Shaping

BIG = os.urandom(11 << 20)


@pytest.fixture(params=["memory", "folder", "process"])
def server(request, tmp_path):
    with S3Server(
        tmp_path if request.param == "folder" else None, own_process=request.param == "process"
    ) as running:
        running.create_bucket("bucket")
        yield running


def boto(server):
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}),
    )


def store(server, **options):
    config = {
        "endpoint": server.endpoint_url,
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "us-east-1",
    }
    return S3Store("bucket", config=config, client_options={"allow_http": True}, **options)


def read(server, key, byte_range=None):
    """One GET over a bare connection: status and body, or the error that ended it."""
    parts = server.endpoint_url.removeprefix("http://")
    headers = {} if byte_range is None else {"Range": f"bytes={byte_range}"}
    with closing(http.client.HTTPConnection(parts, timeout=300)) as connection:
        connection.request("GET", f"/bucket/{key}", headers=headers)
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        except (http.client.IncompleteRead, ConnectionResetError) as error:
            return answer.status, error


def test_boto3(server):
    client = boto(server)
    client.create_bucket(Bucket="other")
    assert [item["Name"] for item in client.list_buckets()["Buckets"]] == ["bucket", "other"]
    odd = "folder/a b+c&<ü>.txt"
    etag = client.put_object(Bucket="bucket", Key=odd, Body=b"0123456789")["ETag"]
    assert client.head_object(Bucket="bucket", Key=odd)["ContentLength"] == 10
    for byte_range, expected in {"2-4": b"234", "7-": b"789", "-3": b"789", "8-99": b"89"}.items():
        answer = client.get_object(Bucket="bucket", Key=odd, Range=f"bytes={byte_range}", IfMatch=etag)
        assert (answer["Body"].read(), answer["ETag"]) == (expected, etag)
    refused = [
        (client.get_object, {"Key": odd, "Range": "bytes=10-"}, 416, "InvalidRange"),
        (client.get_object, {"Key": odd, "IfMatch": '"other"'}, 412, "PreconditionFailed"),
        (client.get_object, {"Key": odd, "IfNoneMatch": etag}, 304, "304"),
        (client.get_object, {"Key": "none"}, 404, "NoSuchKey"),
        (client.get_object, {"Bucket": "none", "Key": "none"}, 404, "NoSuchBucket"),
        (client.head_object, {"Key": "none"}, 404, "404"),
        (client.put_object, {"Key": odd, "Body": b"", "IfNoneMatch": "*"}, 412, "PreconditionFailed"),
    ]
    for call, arguments, status, code in refused:
        with pytest.raises(ClientError) as error:
            call(**{"Bucket": "bucket", **arguments})
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
        assert error.value.response["Error"]["Code"] == code
    client.copy_object(Bucket="other", Key="copy", CopySource={"Bucket": "bucket", "Key": odd})
    assert server.get("s3://other/copy") == b"0123456789"
    client.delete_objects(Bucket="other", Delete={"Objects": [{"Key": "copy"}, {"Key": "absent"}]})
    client.delete_bucket(Bucket="other")
    for call in (client.list_objects, client.list_objects_v2):
        assert [item["Key"] for item in call(Bucket="bucket")["Contents"]] == [odd]


@pytest.mark.every(3)
def test_s3fs(server):
    fs = s3fs.S3FileSystem(**server.storage_options, skip_instance_cache=True)
    fs.pipe({"bucket/d/small": b"hello", "bucket/d/big": BIG})
    assert fs.cat_file("bucket/d/small", start=1, end=3) == b"el"
    assert fs.cat("bucket/d/big") == BIG
    assert (fs.ls("bucket"), fs.find("bucket")) == (["bucket/d"], ["bucket/d/big", "bucket/d/small"])
    with fs.open("bucket/d/parts", "wb", block_size=5 << 20) as file:
        file.write(BIG)
    assert fs.info("bucket/d/parts")["size"] == len(BIG)
    fs.rm("bucket/d", recursive=True)
    assert fs.find("bucket") == []


def test_obstore(server):
    remote = store(server)
    obstore.put(remote, "a/big", BIG, use_multipart=True, chunk_size=5 << 20)
    assert bytes(obstore.get_range(remote, "a/big", start=5_000_000, length=9)) == BIG[5_000_000:5_000_009]
    etag = obstore.head(remote, "a/big")["e_tag"]
    assert (
        bytes(obstore.get(remote, "a/big", options={"if_match": etag, "range": {"suffix": 7}}).bytes())
        == BIG[-7:]
    )
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.get(remote, "a/big", options={"if_match": "other"})
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(remote, "a/big", b"", mode="create")
    with pytest.raises(FileNotFoundError):
        obstore.get(remote, "none")
    obstore.delete(remote, ["a/big"])
    assert list(obstore.list(remote)) == []


@pytest.mark.every(3)
def test_listings_of_many_keys_are_complete_in_both_versions(server, tmp_path):
    keys = sorted(f"x/{i % 7}/{i:05d}" for i in range(1100))
    for key in keys:
        path = tmp_path / "files" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    server.upload_folder(tmp_path / "files", "s3://bucket")
    client = boto(server)
    for call, pages in (("list_objects", 2), ("list_objects_v2", 2)):
        found = list(client.get_paginator(call).paginate(Bucket="bucket", Prefix="x/"))
        assert len(found) == pages
        assert [item["Key"] for page in found for item in page["Contents"]] == keys
        # Two entries a page: a common prefix must not come again on the next one.
        folders = client.get_paginator(call).paginate(
            Bucket="bucket", Prefix="x/", Delimiter="/", PaginationConfig={"PageSize": 2}
        )
        shown = [item["Prefix"] for page in folders for item in page["CommonPrefixes"]]
        assert shown == [f"x/{i}/" for i in range(7)]
    rest = client.list_objects_v2(Bucket="bucket", StartAfter=keys[-3])["Contents"]
    assert [item["Key"] for item in rest] == keys[-2:]


def test_counters_and_log(server):
    server.put("s3://bucket/k", b"0123456789")
    assert server.counters().total == 0, "what the handle does is not counted"
    read(server, "k", "2-5")
    read(server, "none")
    boto(server).list_objects_v2(Bucket="bucket")
    counters = server.counters()
    assert dict(counters.requests) == {"GET": 2, "LIST": 1}
    assert (counters.requests["HEAD"], counters.connections, counters.max_in_flight) == (0, 3, 1)
    log = server.log()
    assert [entry[:5] for entry in log[:1]] == [("GET", "bucket/k", "bytes=2-5", 206, 4)]
    assert counters.bytes_sent == sum(entry.bytes for entry in log)
    server.reset_counters()
    assert (server.counters().total, server.log()) == (0, [])


@pytest.mark.every(3)
def test_shares_of_faults_are_counted_exactly_and_repeat_with_the_seed(server):
    server.put("s3://bucket/k", BIG[:100_000])

    def run():
        server.shape(share_503=0.2, share_reset=0.2, share_truncate=0.2, slow_tail=(0.1, 2), seed=3)
        server.reset_counters()
        seen = []
        for _ in range(60):
            status, body = read(server, "k")
            seen.append("status" if status == 503 else "ok" if body == BIG[:100_000] else type(body).__name__)
        return seen, server.counters().faults

    (first, faults), (second, again) = run(), run()
    assert faults == again
    assert [outcome == "ok" for outcome in first] == [outcome == "ok" for outcome in second]
    assert first.count("status") == faults["status"] > 0
    # A reset may overtake the bytes before it or the end of the stream; in sum they must agree.
    cut = first.count("IncompleteRead") + first.count("ConnectionResetError")
    assert cut == faults["reset"] + faults["truncate"] == faults["reset"] + first.count("IncompleteRead")
    assert min(faults["reset"], faults["truncate"], faults["slow"]) > 0


def test_rules_hit_what_they_name_as_often_as_they_say(s3_server):
    for key in ("a", "b"):
        s3_server.put(f"s3://bucket/{key}", b"0123456789")
    s3_server.add_rule(Rule("truncate", pattern="bucket/a", times=1))
    s3_server.add_rule(Rule("delay", pattern="bucket/b", times=1, seconds=0.01))
    s3_server.add_rule(Rule("stall", pattern="bucket/b", times=1, seconds=0.01))
    assert isinstance(read(s3_server, "a")[1], http.client.IncompleteRead)
    assert [read(s3_server, key) for key in "abb"] == [(200, b"0123456789")] * 3
    assert s3_server.counters().faults == {"truncate": 1, "delay": 1, "stall": 1}
    s3_server.fail_next(2, 500)
    assert [read(s3_server, "a")[0] for _ in range(3)] == [500, 500, 200]
    s3_server.add_rule(Rule("status", status=403))
    assert read(s3_server, "a")[0] == 403
    s3_server.clear_rules()
    assert read(s3_server, "a")[0] == 200


def test_a_reset_is_a_reset(s3_server):
    s3_server.put("s3://bucket/k", b"0123456789")
    s3_server.add_rule(Rule("reset"))
    host, port = s3_server.endpoint_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(b"GET /bucket/k HTTP/1.1\r\nHost: x\r\n\r\n")

        def drain():
            while connection.recv(1 << 16):
                pass

        with pytest.raises(ConnectionResetError):
            drain()


def test_a_permanent_503_ends_in_the_client_and_is_counted_per_try(s3_server):
    s3_server.put("s3://bucket/k", b"x")
    s3_server.shape(share_503=1.0)
    remote = store(
        s3_server, retry_config={"max_retries": 2, "backoff": {"init_backoff": timedelta(milliseconds=1)}}
    )
    with pytest.raises(obstore.exceptions.BaseError):
        obstore.get(remote, "k")
    assert s3_server.counters().requests["GET"] == s3_server.counters().faults["status"] == 3


def test_latency_and_rate_hold_back_the_bytes(s3_server):
    s3_server.put("s3://bucket/k", BIG[:400_000])
    s3_server.shape(first_byte_latency=0.1, rate=2e6)
    read(s3_server, "k")
    assert read(s3_server, "k") == (200, BIG[:400_000])
    first, second = (entry.time for entry in s3_server.log())
    # A lower bound only: a slow machine may take longer, but nothing may come early.
    assert second - first >= 0.1 + 400_000 / 2e6


def test_hundred_connections_are_served_side_by_side(s3_server):
    s3_server.put("s3://bucket/k", b"x" * 1000)
    s3_server.hold()
    host, port = s3_server.endpoint_url.removeprefix("http://").split(":")
    with ExitStack() as stack:
        connections = []
        for _ in range(100):
            connections.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=300)))
            connections[-1].sendall(b"GET /bucket/k HTTP/1.1\r\nConnection: close\r\n\r\n")
        while s3_server.counters().max_in_flight < 100:
            pass  # each look is a request of its own
        assert s3_server.counters().bytes_sent == 0
        s3_server.release()
        answers = [connection.makefile("rb").read() for connection in connections]
    assert all(answer.endswith(b"\r\n\r\n" + b"x" * 1000) for answer in answers)
    assert (s3_server.counters().max_in_flight, s3_server.counters().connections) == (100, 100)


def test_folder_and_handle(tmp_path):
    local = tmp_path / "local"
    (local / "deep").mkdir(parents=True)
    (local / "deep" / "f.bin").write_bytes(BIG)
    (local / "odd #?%.txt").write_bytes(b"odd")
    (tmp_path / "root").mkdir()
    with S3Server(tmp_path / "root") as server:
        server.upload_folder(local, "s3://data/set")
        assert (tmp_path / "root/data/set/deep/f.bin").read_bytes() == BIG
        assert S3Control(server.endpoint_url).get("s3://data/set/odd #?%.txt") == b"odd"
        etag = boto(server).head_object(Bucket="data", Key="set/deep/f.bin")["ETag"]
        server.replace("s3://data/set/deep/f.bin", BIG)
        assert boto(server).head_object(Bucket="data", Key="set/deep/f.bin")["ETag"] != etag
        (tmp_path / "root/data/late").write_bytes(b"seen at once")
        assert server.get("s3://data/late") == b"seen at once"
        server.delete("s3://data/late")
        for wrong in (server.get, lambda url: server.replace(url, b"")):
            with pytest.raises(StorageError, match="404"):
                wrong(f"s3://data/{uuid.uuid4()}")
        with pytest.raises(StorageError, match="400"):
            server.put("s3://data/../outside", b"")
        with pytest.raises(ConfigError):
            server.get("/data/late")
        with pytest.raises(ConfigError, match="Known are"):
            server.shape(latency=1)
        with pytest.raises(ConfigError):
            server.start()
    server.stop()


def test_command_line(tmp_path):
    flags = "--port 0 --latency 0.01 --rate 5e6 --share-503 0.1 --share-reset 0.2 --share-truncate 0.3"
    command = [sys.executable, "-m", "energon_stream.testing.s3server", *flags.split()]
    command += ["--slow-tail", "0.02", "20", "--seed", "9", "--root", str(tmp_path), "--until-stdin-closes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        control = S3Control(process.stdout.readline().strip())
        assert control.shaping() == Shaping(0.01, 5e6, 0.1, 0.2, 0.3, (0.02, 20.0), 9)
        control.put("s3://bucket/key", b"x")
        process.stdin.close()
        assert process.wait(timeout=300) == 0
    assert (tmp_path / "bucket" / "key").read_bytes() == b"x"


@pytest.mark.parametrize(
    "wrong", [{"share_503": 1.5}, {"rate": 0}, {"slow_tail": (0.5, 0.5)}, {"first_byte_latency": -1}]
)
def test_impossible_shaping_is_refused(wrong):
    with pytest.raises(ConfigError):
        S3Server(**wrong)


def test_unknown_fault_is_refused():
    with pytest.raises(ConfigError, match="unknown fault"):
        Rule("explode")


@pytest.mark.parametrize("http_chunks", [False, True])
@pytest.mark.parametrize("end", [b"0;chunk-signature=b\r\n\r\n", b"0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n"])
def test_bodies_in_signed_chunks_and_in_http_chunks(http_chunks, end):
    """Amazon's own chunks may be sent in chunks of HTTP once more."""
    body = b"5;chunk-signature=a\r\nab\r\nc\r\n" + end
    headers = {"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}
    with S3Server() as server:
        server.create_bucket("bucket")
        connection = http.client.HTTPConnection(server.endpoint_url.removeprefix("http://"), timeout=10)
        with closing(connection):
            for key in ("one", "two"):
                content = iter([body[:9], body[9:]]) if http_chunks else body
                connection.request("PUT", f"/bucket/{key}", content, headers, encode_chunked=http_chunks)
                assert connection.getresponse().read() == b""
        assert [server.get(f"s3://bucket/{key}") for key in ("one", "two")] == [b"ab\r\nc"] * 2
