"""The conformance suite on HTTP, Azure, Google Cloud, multi-storage-client and chained URLs."""

import socket
import uuid

import emulators
import pytest

from energon_stream.errors import StorageError, UnsupportedStoreError
from energon_stream.storage import ByteRange, RetryPolicy, StoreSpec, run_isolated
from energon_stream.storage._obstore_config import resolve_config
from energon_stream.testing.s3server import S3Server
from energon_stream.testing.store_suite import StoreConformance


class _Obstore:
    """Overrides for obstore."""

    def test_use_after_fork(self, store):
        """obstore's runtime does not survive a fork, so an error replaces a hang (``auto`` falls back)."""
        store.get("digits")
        with pytest.raises(UnsupportedStoreError, match="fork"):
            run_isolated(store.get, "digits")


class TestHttpFsspec(StoreConformance):
    """A server with ranges, versions and conditional reads; objects are written through S3."""

    has_listing = False
    transport = "fsspec"

    @pytest.fixture
    def filling(self, s3_server, tmp_bucket):
        return StoreSpec(f"{tmp_bucket}/some folder", s3_server.storage_options, "obstore")

    @pytest.fixture
    def spec(self, s3_server, tmp_bucket):
        bucket = tmp_bucket.removeprefix("s3://")
        return StoreSpec(f"{s3_server.endpoint_url}/{bucket}/some folder", None, self.transport)


class TestHttpObstore(_Obstore, TestHttpFsspec):
    transport = "obstore"


@pytest.fixture(scope="module")
def azurite():
    if emulators.find_azurite() is None:
        pytest.skip("Azurite is not installed (make stores)")
    with emulators.Azurite() as server:
        yield server


class TestAzureFsspec(StoreConformance):
    transport = "fsspec"

    @pytest.fixture
    def spec(self, azurite):
        container = f"box-{uuid.uuid4().hex[:8]}"
        azurite.create_bucket(container)
        return StoreSpec(f"az://{container}/some folder", azurite.storage_options, self.transport)

    @pytest.fixture
    def missing_root(self, spec):
        return StoreSpec("az://no-such-container", spec.storage_options, self.transport)


class TestAzureObstore(_Obstore, TestAzureFsspec):
    transport = "obstore"
    many = 5005  # Azure's pages are larger than others'


@pytest.fixture(scope="module")
def gcp_emulator():
    with emulators.GcpEmulator() as server:
        yield server


class TestGcsFsspec(StoreConformance):
    many = 105  # the emulator lists everything in one page

    @pytest.fixture
    def spec(self, gcp_emulator):
        bucket = f"box-{uuid.uuid4().hex[:8]}"
        gcp_emulator.create_bucket(bucket)
        return StoreSpec(f"gs://{bucket}/some folder", gcp_emulator.storage_options, "fsspec")

    @pytest.fixture
    def missing_root(self, spec):
        return StoreSpec("gs://no-such-bucket", spec.storage_options, "fsspec")


class TestGcsObstore(_Obstore, StoreConformance):
    """obstore uses Google's XML API, which equals S3's for our requests, so the S3 server answers."""

    @pytest.fixture
    def spec(self, s3_server, tmp_bucket, monkeypatch, tmp_path):
        monkeypatch.setenv("GOOGLE_BASE_URL", s3_server.endpoint_url)
        bucket = tmp_bucket.removeprefix("s3://")
        return StoreSpec(f"gs://{bucket}/some folder", {"token": emulators.google_key(tmp_path)}, "obstore")

    @pytest.fixture
    def missing_root(self, spec):
        return StoreSpec("gs://no-such-bucket", spec.storage_options, "obstore")


@pytest.fixture(scope="module")
def msc_profile(tmp_path_factory):
    name, folder = f"profile-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("msc")
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        server.create_bucket("box")
        patch.setenv("MSC_CONFIG", str(emulators.msc_config(folder, name, server, "s3://box")))
        yield name, server.storage_options


class TestMsc(StoreConformance):
    """multi-storage-client with a profile of the S3 server. It has a client per profile, so one is enough."""

    @pytest.fixture
    def spec(self, msc_profile):
        return StoreSpec(f"msc://{msc_profile[0]}/{uuid.uuid4().hex[:8]}")

    @pytest.mark.slow  # the other listings are not
    def test_long_listing(self, spec, msc_profile):
        folder = spec.url.rpartition("/")[2]
        filling = StoreSpec(f"s3://box/{folder}", msc_profile[1], "obstore")  # it writes faster
        super().test_long_listing(spec, filling)


class _Chained(StoreConformance):
    """Reads through fsspec's caches on disk, which do not check versions of cached objects."""

    has_versions = False
    many = 105  # pages are those of s3fs, which has its own test
    cache = ""

    @pytest.fixture
    def filling(self, s3_server, tmp_bucket):
        return StoreSpec(f"{tmp_bucket}/some folder", s3_server.storage_options, "obstore")

    @pytest.fixture
    def spec(self, filling, tmp_path):
        options = {
            "s3": dict(filling.storage_options or {}) | {"skip_instance_cache": True},
            self.cache: {"cache_storage": str(tmp_path / "cache"), "skip_instance_cache": True},
        }
        return StoreSpec(f"{self.cache}::{filling.url}", options)


class TestSimplecache(_Chained):
    cache = "simplecache"


@pytest.mark.slow
class TestFilecache(_Chained):
    cache = "filecache"


@pytest.mark.slow
class TestBlockcache(_Chained):
    cache = "blockcache"


@pytest.mark.parametrize("transport", ["obstore", "fsspec"])
def test_http_servers_without_versions_or_ranges(tmp_path, transport):
    """Without versions a replaced object goes unnoticed; without ranges a read is an error."""
    (tmp_path / "digits").write_bytes(b"0123456789")
    with emulators.PlainHttp(tmp_path) as server:
        store = StoreSpec(server.endpoint_url, None, transport).open()
        assert store.head("digits").etag is None
        assert bytes(store.get_range("digits", ByteRange(3, 7)).data) == b"3456"
        assert bytes(store.get_suffix("digits", 3).data) == b"789"
    with emulators.PlainHttp(tmp_path, ranges=False) as server:
        store = StoreSpec(server.endpoint_url, None, transport).open()
        assert bytes(store.get("digits").data) == b"0123456789"
        with pytest.raises(UnsupportedStoreError, match="byte ranges"):
            store.get_range("digits", ByteRange(3, 7))


def test_connection_strings_of_azure_reach_obstore(monkeypatch):
    """They are passed, or set in the environment; passed ones win."""
    text = "DefaultEndpointsProtocol=https;AccountName=name;AccountKey=a2V5;EndpointSuffix=core.example"
    passed = resolve_config("az://box/x", {"connection_string": text})[0].settings
    assert passed == {
        "account_name": "name",
        "account_key": "a2V5",
        "endpoint": "https://name.blob.core.example",
    }
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert resolve_config("az://box/x", {})[0].settings == passed
    assert resolve_config("az://box/x", {"account_name": "other"})[0].settings == {"account_name": "other"}


def test_obstore_refuses_an_emulator_of_google(monkeypatch):
    """obstore does not read the variable, and would connect to Google."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    with pytest.raises(UnsupportedStoreError, match="STORAGE_EMULATOR_HOST"):
        resolve_config("gs://bucket/x", {"token": "anon"})


def test_hugging_face_urls():
    """Without network: the URL is passed on unchanged, and errors name a dead server."""
    pytest.importorskip("huggingface_hub")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    spec = StoreSpec("hf://datasets/user/name/set", {"endpoint": endpoint, "token": False})
    assert spec.join("a/b.tar").url == "hf://datasets/user/name/set/a/b.tar"
    with pytest.raises(StorageError, match="hf://datasets/user/name/set/a"):
        spec.open(policy=RetryPolicy(attempts=1)).get("a")
