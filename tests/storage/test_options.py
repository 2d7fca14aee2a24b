"""Sources of credentials, endpoint and region, and the choice of the transport."""

import pytest

from energon_stream.errors import AccessDeniedError, ConfigError, ObjectNotFoundError, UnsupportedStoreError
from energon_stream.storage import StoreSpec
from energon_stream.storage._obstore_config import resolve_config

DEAD = "http://127.0.0.1:1"


@pytest.fixture(params=["obstore", "fsspec"])
def transport(request):
    return request.param


def environment(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        (KEYS | {"AWS_ENDPOINT_URL": "URL", "AWS_REGION": "eu-west-1"}, {}),
        (
            KEYS
            | {"AWS_ENDPOINT_URL_S3": "URL", "AWS_ENDPOINT_URL": DEAD, "AWS_DEFAULT_REGION": "eu-west-1"},
            {},
        ),
        (KEYS | {"AWS_ENDPOINT_URL_S3": DEAD, "AWS_SESSION_TOKEN": "t"}, {"endpoint_url": "URL"}),
        ({"AWS_SESSION_TOKEN": "stale"}, {"key": "k", "secret": "s", "endpoint_url": "URL"}),
        ({}, {"anon": True, "client_kwargs": {"endpoint_url": "URL", "region_name": "x"}}),
    ],
    ids=["variables", "s3-variable-first", "option-first", "other-token", "anonymous"],
)
def test_settings_reach_the_server(s3_server, tmp_bucket, transport, monkeypatch, variables, options):
    def filled(value):
        if isinstance(value, dict):
            return {name: filled(inner) for name, inner in value.items()}
        return s3_server.endpoint_url if value == "URL" else value

    s3_server.put(f"{tmp_bucket}/key", b"data")
    environment(filled(variables), monkeypatch)
    assert StoreSpec(tmp_bucket, filled(options), transport).open().get("key").data == b"data"


def test_profiles_of_the_aws_files(s3_server, tmp_bucket, transport, monkeypatch, tmp_path):
    s3_server.put(f"{tmp_bucket}/key", b"data")
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id = a\naws_secret_access_key = b\n")
    (tmp_path / "config").write_text(
        f"[profile work]\nregion = eu-west-3\nendpoint_url = {s3_server.endpoint_url}\n"
    )
    environment(
        {
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
        },
        monkeypatch,
    )
    assert StoreSpec(tmp_bucket, {"profile": "work"}, transport).open().get("key").data == b"data"
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert StoreSpec(tmp_bucket, None, transport).open().get("key").data == b"data"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(AccessDeniedError, match="nobody"):
        StoreSpec(tmp_bucket, None, transport).open().get("key")


@pytest.mark.every(2)
@pytest.mark.seaweedfs
def test_wrong_missing_and_right_credentials(seaweedfs, transport):
    bucket, right = f"credentials-{transport}", seaweedfs.storage_options
    seaweedfs.create_bucket(bucket)
    StoreSpec(f"s3://{bucket}", right, transport).open().put("key", b"data")
    nobody = {name: right[name] for name in right if name not in ("key", "secret")}
    for options in (right | {"secret": "WRONG"}, nobody | {"anon": True}, nobody):
        store = StoreSpec(f"s3://{bucket}", options, transport).open()
        for request in (store.get, store.head, lambda path, store=store: list(store.list())):
            with pytest.raises(AccessDeniedError) as caught:
                request("key")
            assert "WRONG" not in str(caught.value)
    with pytest.raises(ObjectNotFoundError, match="no-such-bucket"):
        list(StoreSpec("s3://no-such-bucket", right, transport).open().list())


def test_options_that_obstore_cannot_honour(s3_server, tmp_bucket):
    options = s3_server.storage_options | {"default_fill_cache": False}
    with pytest.raises(UnsupportedStoreError, match="default_fill_cache"):
        StoreSpec(tmp_bucket, options, "obstore").open()
    StoreSpec(tmp_bucket, options).open().put("key", b"data")  # fsspec can


@pytest.mark.parametrize(
    ("url", "options", "kind", "config"),
    [
        ("gs://bucket/x", {"token": "anon"}, "gcs", {"skip_signature": True}),
        ("gs://bucket/x", {"token": "key.json"}, "gcs", {"service_account": "key.json"}),
        (
            "az://box/x",
            {"account_name": "a", "sas_token": "s"},
            "azure",
            {"account_name": "a", "sas_token": "s"},
        ),
        ("https://host:1/x", {}, "http", {}),
    ],
)
def test_configurations_of_other_clouds(url, options, kind, config):
    client, path = resolve_config(url, options)
    assert (client.kind, client.settings, path) == (kind, config, "x")


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("/data", {"storage_options": {"key": "k"}}),
        ("s3://bucket", {"transport": "carrier pigeon"}),
        ("nosuch://x", {}),
        ("https://host/x?signed=1", {"transport": "obstore"}),
    ],
)
def test_impossible_specs_are_refused(url, arguments):
    with pytest.raises((ConfigError, UnsupportedStoreError)):
        StoreSpec(url, **arguments).open()


def test_stores_of_one_bucket_share_one_client(s3_server, tmp_bucket, transport):
    spec = StoreSpec(tmp_bucket, s3_server.storage_options, transport)
    for number in range(50):
        store = spec.join(f"dataset{number}").open()
        store.put("key", b"data")
        assert store.get("key").data == b"data"
    assert s3_server.counters().connections <= 3
