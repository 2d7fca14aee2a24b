"""A metadataset in a store names its own store, and nothing else unless the user allows it."""

import json

import pytest

from energon_stream import (
    WorkerConfig,
    get_val_dataset,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
)
from energon_stream.config.reach import check_reach
from energon_stream.errors import ConfigError, UntrustedUrlError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML, write_shards
from energon_stream.testing.s3server import S3Server

ALONE = WorkerConfig(0, 1, 0)
FILE = "s3://bucket/mixtures/m.yaml"
OWN = ["s3://bucket/x", "s3://other/x", "S3://other/x", "s3a://other/x"]
FOREIGN = [
    "/etc",
    "~/data",
    "file:///etc",
    "local:///etc",
    "dss://name@version",
    "msc://__filesystem__/etc",
    "https://example.org/x",
    "http://169.254.169.254/latest/meta-data",
    "gs://bucket/x",
    "az://bucket/x",
    "simplecache::s3://bucket/x",
    "zip://a.zip::file:///etc",
    "filecache::file:///etc",
    "ssh://host/x",
    "memory://x",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("reach")
    for bucket in ("bucket", "other"):
        data = root / bucket / "data"
        text = {"txt": bucket.encode()}
        write_shards(data, shards=1, samples_per_shard=3, parts=lambda i, text=text: text)
        prepare_dataset(str(data), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    with S3Server(root) as server:
        yield server


def document(train):
    header = {"__module__": "energon_stream", "__class__": "MetadatasetV2"}
    return json.dumps({**header, "splits": {"train": train}}).encode()


def traverse(server, train, **options):
    server.put(FILE, document(train))
    return traverse_metadataset(FILE, split_part="train", storage_options=server.storage_options, **options)


@pytest.mark.parametrize("path", OWN)
def test_any_bucket_of_the_store_may_be_named(path):
    check_reach(path, named_by=FILE, allowed=())


FORMS = {
    "path": lambda url: {"path": url},
    "blend": lambda url: {"blend": [{"path": "../data"}, {"path": url}]},
    "metadataset": lambda url: {"path": f"{url}/m.yaml"},
    "jsonl": lambda url: {"path": f"{url}/m.jsonl"},
    "tars": lambda url: {"path": f"{url}/{{0..1}}.tar"},
    "aux": lambda url: {"path": "../data", "aux": {"media": url}},
    "aux folder": lambda url: {"path": "../data", "aux": {"media": {"fs_path": url}}},
    "aux file system": lambda url: {"path": "../data", "aux": {"media": f"filesystem://{url}"}},
    "aux byte ranges": lambda url: {"path": "../data", "aux": {"media": f"byterange://{url}"}},
    "join": lambda url: {
        "join": [{"path": "../data"}, {"path": url}],
        "joiner": {"__module__": "energon_stream", "__class__": "TextSample"},
    },
    "aux of a join": lambda url: {
        "join": [{"path": "../data"}, {"path": "../data", "aux": {"media": url}}],
        "joiner": {"__module__": "energon_stream", "__class__": "TextSample"},
    },
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("url", ["/etc", "https://example.org/x", "file:///etc"])
def test_no_key_of_a_metadataset_leaves_its_store(server, form, url):
    with pytest.raises(UntrustedUrlError, match="outside its store") as caught:
        traverse(server, FORMS[form](url))
    assert caught.value.where == FILE
    assert "allow_urls=[" in caught.value.hint
    assert "ENERGON_STREAM_ALLOW_URLS" in caught.value.hint
    if form != "metadataset":  # that would be read
        assert traverse(server, FORMS[form](url), allow_urls=["/etc", "https://example.org"])


@pytest.mark.parametrize("url", FOREIGN)
def test_other_schemes_hosts_and_disks_are_refused(server, url):
    with pytest.raises(UntrustedUrlError):
        traverse(server, {"path": url})
    with pytest.raises(UntrustedUrlError):
        traverse(server, {"path": url}, allow_urls=["s3://bucket/", "https://example.com/", "/home"])


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_are_checked(server, version):
    splits = {"train": {"datasets": [{"path": "/etc"}]} if version == 1 else {"path": "/etc"}}
    name = "Metadataset" if version == 1 else "MetadatasetV2"
    text = json.dumps({"__module__": "energon_stream", "__class__": name, "splits": splits})
    server.put(FILE, text.encode())
    for call in (load_dataset, prepare_metadataset):
        with pytest.raises(UntrustedUrlError):
            call(FILE, storage_options=server.storage_options)


def test_the_cache_of_a_dataset_is_no_folder_of_this_machine(server, tmp_path):
    cached = {"path": "../data", "cache": {"directory": str(tmp_path / "cache")}}
    with pytest.raises(UntrustedUrlError):
        traverse(server, cached)
    with pytest.raises(UntrustedUrlError):
        traverse(server, {"path": "../data", "cache": {"directory": "cache"}})
    assert traverse(server, cached, allow_urls=[str(tmp_path)])
    assert traverse(server, {"path": "../data", "cache": False})


def test_relative_paths_and_other_buckets_are_read(server):
    server.put(FILE, document({"blend": [{"path": "../data"}, {"path": "s3://other/data"}]}))
    options = {"storage_options": server.storage_options, "worker_config": ALONE, "batch_size": None}
    found = [sample.text for sample in get_val_dataset(FILE, split_part="train", **options)]
    assert found == ["bucket"] * 3 + ["other"] * 3


def test_a_local_metadataset_may_name_anything_but_one_that_it_names_may_not(server, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_bytes(document({"blend": [{"path": "/etc"}, {"path": "https://example.org/x"}]}))
    assert len(traverse_metadataset(own, split_part="train")) == 2
    server.put(FILE, document({"path": "/etc"}))
    own.write_bytes(document({"path": FILE}))
    with pytest.raises(UntrustedUrlError):
        traverse_metadataset(own, split_part="train", storage_options=server.storage_options)
    parsed = json.loads(document({"path": "/etc"}))
    assert len(traverse_metadataset(parsed, split_part="train")) == 1


def test_the_environment_allows_urls(server, monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_ALLOW_URLS", "https://example.org/ /etc")
    assert len(traverse(server, {"blend": [{"path": "/etc"}, {"path": "https://example.org/x"}]})) == 2
    with pytest.raises(UntrustedUrlError):
        traverse(server, {"path": "/etc"}, allow_urls=[])


PREFIXES = [
    ("https://example.org/a", "https://example.org/a/b", True),
    ("https://example.org/a/", "https://example.org/a/b", True),
    ("https://example.org/a", "https://example.org/a", True),
    ("https://example.org/a", "https://example.org/ab", False),
    ("https://example.org", "https://example.org.evil.net/a", False),
    ("https://example.org", "https://example.org@evil.net/a", False),
    ("https://example.org/a", "https://example.org/a/../b", False),
    ("https://example.org/a", "https://example.org/a/%2e%2e/b", False),
    ("https://", "https://example.org/a", True),
    ("/data", "/data/x", True),
    ("/data", "file:///data/x", True),
    ("/data", "/data/../etc", False),
    ("/data", "/database", False),
    ("/", "/etc", True),
]


@pytest.mark.parametrize(("prefix", "url", "allowed"), PREFIXES)
def test_prefixes_end_at_a_slash(prefix, url, allowed):
    if allowed:
        check_reach(url, named_by=FILE, allowed=[prefix])
    else:
        with pytest.raises(UntrustedUrlError):
            check_reach(url, named_by=FILE, allowed=[prefix])


SAME = [
    ("https://example.org/m.yaml", "https://EXAMPLE.org/x", True),
    ("https://example.org/m.yaml", "https://example.com/x", False),
    ("https://example.org/m.yaml", "http://example.org/x", False),
    ("https://example.org:8000/m.yaml", "https://example.org/x", False),
    ("https://me:secret@example.org/m.yaml", "https://example.org/x", True),
    ("https://example.org/m.yaml", "https://example.org@evil.net/x", False),
    ("gs://bucket/m.yaml", "gcs://other/x", True),
    ("gs://bucket/m.yaml", "s3://bucket/x", False),
    ("abfss://a@one.dfs.core.windows.net/m.yaml", "abfss://b@one.dfs.core.windows.net/x", True),
    ("abfss://a@one.dfs.core.windows.net/m.yaml", "abfss://a@two.dfs.core.windows.net/x", False),
    ("msc://profile/m.yaml", "msc://profile/x", True),
    ("msc://profile/m.yaml", "msc://other/x", False),
    ("zip://m.yaml::https://example.org/a.zip", "zip://x::https://example.org/a.zip", True),
    ("zip://m.yaml::https://example.org/a.zip", "zip://x::file:///a.zip", False),
    ("simplecache::s3://a/m.yaml", "simplecache::s3://b/x", True),
]


@pytest.mark.parametrize(("file", "url", "allowed"), SAME)
def test_hosts_are_compared(file, url, allowed):
    if allowed:
        check_reach(url, named_by=file, allowed=[])
    else:
        with pytest.raises(UntrustedUrlError) as caught:
            check_reach(url, named_by=file, allowed=[])
        assert "secret" not in str(caught.value)


def test_a_single_text_is_no_list():
    with pytest.raises(ConfigError, match="Pass a list"):
        traverse_metadataset({}, split_part="train", allow_urls="/etc")
