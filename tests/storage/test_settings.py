"""Settings with signs that do not belong there: stripped, or refused by the option's or variable's name."""

import pytest

from energon_stream.errors import ConfigError, StorageError, UnsupportedStoreError
from energon_stream.storage import RetryPolicy, StoreSpec

TRANSPORTS = ("auto", "fsspec")
OPTIONS = {
    "endpoint": "endpoint_url",
    "region": "region_name",
    "key": "key",
    "secret": "secret",
    "token": "token",
}
VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
}


@pytest.fixture
def opened(s3_server, tmp_bucket, monkeypatch):
    """Opens a store whose settings come from options or from the environment, and reads an object."""
    s3_server.put(f"{tmp_bucket}/key", b"data")
    sound = {"endpoint": s3_server.endpoint_url, "region": "us-east-1", "key": "a" * 20, "secret": "b" * 40}

    def read(source, transport, **changes):
        values = sound | {"token": "c" * 40} | changes
        options = {}
        if source == "options":
            options = {OPTIONS[name]: value for name, value in values.items() if name != "region"}
            options["client_kwargs"] = {"region_name": values["region"]}
        for name, variable in VARIABLES.items():
            if source == "options":
                monkeypatch.delenv(variable, raising=False)
            else:
                monkeypatch.setenv(variable, values[name])
        store = StoreSpec(tmp_bucket, options, transport).open(policy=RetryPolicy(attempts=1))
        return bytes(store.get("key").data), [entry.path for entry in store.list()]

    read.endpoint = s3_server.endpoint_url
    return read


@pytest.mark.every(7)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("source", ["options", "environment"])
@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize(("before", "after"), [("", "\n"), (" ", "\r\n"), ("\t", " ")])
def test_white_space_around_a_setting_is_stripped(opened, transport, source, name, before, after):
    values = {"endpoint": opened.endpoint, "region": "us-east-1"}
    spoiled = f"{before}{values.get(name, 'd' * 40)}{after}"
    assert opened(source, transport, **{name: spoiled}) == (b"data", ["key"])


WRONG = {
    "endpoint": [
        "127.0.0.1:9000",
        "localhost",
        "//127.0.0.1:9000",
        "ftp://127.0.0.1",
        "http://",
        "https:///path",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://[::1",
        "http://127.0. 0.1",
        "http://exämple.com",
        '"http://127.0.0.1:9000"',
        "http://127.0.0.1:9000/?bucket=x",
        "http://127.0.0.1:9000\nhttp://127.0.0.1:9001",
        "“http://127.0.0.1:9000”",
        "http://127.0.0.1.1:9000",
        "http://a%41:9000",
        "http://[fe80::1%eth0]:9000",
    ],
    "region": ["us east", "üs-east-1", "'us-east-1'", "us-east-1\neu-west-1"],
    "key": ["AKIA\nEXAMPLE", '"AKIAEXAMPLE"', "AKIA\x7fEXAMPLE"],
    "secret": ["secret\nsecret", "'secretsecret'"],
    "token": ["token\ntoken", '"tokentoken"', "token\x1btoken"],
}


@pytest.mark.every(5)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("source", ["options", "environment"])
@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_what_cannot_be_sent_is_refused_by_name(opened, transport, source, name, value, capfd):
    with pytest.raises(ConfigError) as caught:
        opened(source, transport, **{name: value})
    assert (OPTIONS if source == "options" else VARIABLES)[name] in str(caught.value)
    if name in ("key", "secret", "token"):
        assert value not in str(caught.value)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_endpoint_is_none(transport, blank, monkeypatch, capfd):
    """Then the requests go to AWS, which this machine need not reach."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", blank)
    options = {"key": "k", "secret": "s", "config_kwargs": {"connect_timeout": 1}}
    with pytest.raises(StorageError):
        StoreSpec("s3://no-such-bucket-here", options, transport).open(policy=RetryPolicy(attempts=1)).get(
            "x"
        )
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", [int, float, str.encode])
def test_numbers_for_keys_are_refused_by_name(opened, transport, kind):
    """YAML makes a number of a key of digits."""
    with pytest.raises(ConfigError, match=r"key must be text.*in quotes"):
        opened("options", transport, key=kind("12345678"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("endpoint_url = 127.0.0.1:9000\nregion = x", "endpoint_url of the AWS profile does not begin"),
        ("endpoint_url = 'http://127.0.0.1:9000'\nregion = x", "quotation mark"),
        ("endpoint_url = http://127.0.0.1:9000\nregion = us east", "region of the AWS profile is 'us east'"),
    ],
)
def test_settings_of_a_profile_are_refused_by_name(tmp_path, monkeypatch, content, expected):
    (tmp_path / "config").write_text(f"[default]\n{content}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(ConfigError, match=expected):
        StoreSpec("s3://bucket").open()


ODD = [
    "a bucket",
    "bucket\n",
    "127.0.0.1\t",
    "b\0",
    "a<b",
    "a>b",
    'a"b',
    "a`b",
    "a{b}",
    "a|b",
    "a^b",
    "a\\b",
    "\ud800",
]


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "http", "https"])
@pytest.mark.parametrize("name", ODD)
def test_buckets_and_hosts_with_odd_signs_are_refused(scheme, name):
    with pytest.raises(ConfigError, match="has the character"):
        StoreSpec(f"{scheme}://{name}/x").open()


HOSTS = [
    "xn--",
    "xn--a",
    "a.xn--.b",
    "1.2.3.4.5",
    "256.1.1.1",
    "0xg.1",
    "h%00",
    "%",
    "[zz]",
    "[",
    "[]",
    "a:99999",
    "a:b",
]


@pytest.mark.parametrize("kind", ["http", "s3", "gs", "az"])
@pytest.mark.parametrize("host", HOSTS)
def test_hosts_that_cannot_be_asked_are_refused_before_a_request(kind, host, capfd, monkeypatch):
    url, options = f"{kind}://bucket/x", {}
    if kind == "http":
        url = f"http://{host}/x"
    elif kind == "s3":
        options = {"endpoint_url": f"http://{host}", "key": "k", "secret": "s"}
    elif kind == "gs":
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://{host}")
        options = {"anon": True}
    else:
        options = {"connection_string": f"AccountName=a;AccountKey=YWJj;BlobEndpoint=http://{host}"}
    with pytest.raises(ConfigError):
        StoreSpec(url, options, "obstore").open(policy=RetryPolicy(attempts=1)).get("y")
    assert "panicked" not in capfd.readouterr().err


def test_names_in_other_scripts_are_asked_for():
    """A host that is not there, and not one whose name is refused."""
    with pytest.raises(StorageError, match="cannot resolve"):
        StoreSpec("http://ä.invalid/x", {}, "obstore").open(policy=RetryPolicy(attempts=1)).get("y")


@pytest.mark.parametrize(
    ("options", "variables", "named"),
    [
        ({"account_name": "a{b"}, {}, "account_name is 'a{b', which names no account"),
        ({"connection_string": "AccountName=a b;AccountKey=YWJj"}, {}, "AccountName is 'a b'"),
        ({}, {"AZURE_STORAGE_ACCOUNT_NAME": "xn--"}, "AZURE_STORAGE_ACCOUNT_NAME is 'xn--'"),
        ({"account_name": "a", "tenant_id": "a{b"}, {}, "tenant_id is 'a{b', which names no tenant"),
        ({"account_name": "a"}, {"AZURE_TENANT_ID": "a/b"}, "AZURE_TENANT_ID is 'a/b'"),
        ({"account_name": "a"}, {"AZURE_STORAGE_ENDPOINT": "http://a{b"}, "AZURE_STORAGE_ENDPOINT has"),
        ({"connection_string": "AccountName=a;EndpointSuffix=a{b"}, {}, "endpoint of the connection string"),
    ],
)
def test_names_that_azure_makes_hosts_of_are_refused(options, variables, named, monkeypatch, capfd):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=named):
        StoreSpec("az://box", options, "obstore").open(policy=RetryPolicy(attempts=1)).get("x")
    assert "panicked" not in capfd.readouterr().err


def test_virtual_hosts_of_other_scripts_are_left_to_fsspec(capfd):
    options = {"config_kwargs": {"s3": {"addressing_style": "virtual"}}, "key": "k", "secret": "s"}
    with pytest.raises(UnsupportedStoreError, match="virtual hosts with 'xn--'"):
        StoreSpec("s3://xn--a", options, "obstore").open(policy=RetryPolicy(attempts=1)).get("x")
    assert "panicked" not in capfd.readouterr().err


def test_a_panic_of_obstore_is_an_error_of_the_store(capfd, monkeypatch):
    """What nothing here looks at, such as the host of an authority."""
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", "https://a{b")
    options = {"account_name": "a", "client_id": "c", "client_secret": "SECRET", "tenant_id": "t"}
    with pytest.raises(StorageError, match="obstore failed") as caught:
        StoreSpec("az://box", options, "obstore").open(policy=RetryPolicy(attempts=1)).get("x")
    assert "SECRET" not in f"{caught.value} {caught.value.__cause__}"
    assert "panicked" in capfd.readouterr().err  # which cannot be helped
