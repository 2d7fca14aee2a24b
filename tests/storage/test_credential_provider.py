"""The storage option ``credential_provider``: keys that rotate and expire in the middle of a run."""

import http.client
import http.server
import pickle
import re
import threading
import traceback
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

import pytest

from energon_stream import WorkerConfig, get_loader, get_train_dataset
from energon_stream.errors import ConfigError, StorageError, TransientStorageError
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import RetryPolicy, StoreSpec
from energon_stream.storage._obstore import ObstoreStore
from energon_stream.storage._s3fs import S3fsStore
from energon_stream.testing.datasets import TEXT_YAML, write_shards

TRANSPORTS = ("obstore", "fsspec")
SIGNER = re.compile(r"Credential=(\w+)/")
REFUSED = "<Error><Code>{}</Code><Message>refused</Message></Error>"
LIFE = 4  # requests for which a key is accepted


class Gate:
    """A proxy that accepts one key, which expires after some requests, and then only the next one."""

    def __init__(self, server, rotates=True):
        self.key, self.left, self.refused, self.tokens = 0, LIFE, 0, set()
        self._target, self._rotates, self._lock = urlsplit(server.endpoint_url), rotates, threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.forward(self)

            do_HEAD = do_GET

            def log_message(self, *args):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"

    def accepts(self, headers):
        signer = SIGNER.search(headers.get("Authorization", ""))
        with self._lock:
            if signer is None or signer[1] != f"KEY{self.key}":
                self.refused += 1
                return False
            self.tokens.add(headers.get("x-amz-security-token"))
            self.left -= 1
            if self._rotates and self.left == 0:
                self.key, self.left = self.key + 1, LIFE
            return True

    def forward(self, request):
        if self.accepts(request.headers):
            connection = http.client.HTTPConnection(self._target.hostname, self._target.port)
            connection.request(request.command, request.path, headers=dict(request.headers))
            answer = connection.getresponse()
            status, headers, body = answer.status, answer.getheaders(), answer.read()
            connection.close()
        else:
            body = REFUSED.format("ExpiredToken").encode()
            status, headers = 400, [("Content-Length", str(len(body)))]
        request.send_response(status)
        for name, value in headers:
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def credentials(self):
        """The user's function: the key that is accepted now."""
        until = datetime.now(UTC) + timedelta(hours=1)
        key = {"access_key_id": f"KEY{self.key}", "secret_access_key": "secret"}
        return key | {"token": f"token{self.key}", "expires_at": until}

    def __enter__(self):
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture(autouse=True)
def at_once(renew_every):
    renew_every(0.0)


def options(endpoint, provider):
    region = {"region_name": "us-east-1"}
    return {"endpoint_url": endpoint, "credential_provider": provider, "client_kwargs": region}


@pytest.mark.every(2)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_pass_outlives_its_keys(tmp_path, s3_server, tmp_bucket, transport):
    write_shards(tmp_path, shards=12, samples_per_shard=8, parts=lambda index: {"txt": b"%d" % index})
    prepare_dataset(str(tmp_path), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    s3_server.upload_folder(tmp_path, f"{tmp_bucket}/data")
    with Gate(s3_server) as gate:
        dataset = get_train_dataset(
            f"{tmp_bucket}/data",
            batch_size=8,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            repeat=False,
            worker_config=WorkerConfig(0, 1, 0),
            storage_options=options(gate.endpoint, gate.credentials),
            transport=transport,
        )
        found = [text for batch in get_loader(dataset) for text in batch.text]
    assert sorted(map(int, found)) == list(range(96))
    assert gate.key >= 3
    assert gate.refused >= 3
    assert gate.tokens == {f"token{number}" for number in range(len(gate.tokens))}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_provider_that_fails_is_asked_again(s3_server, tmp_bucket, transport):
    s3_server.put(f"{tmp_bucket}/key", b"data")
    failures = []
    with Gate(s3_server, rotates=False) as gate:

        def provider():
            if len(failures) < 2:
                failures.append(1)
                raise OSError("the key service is down")
            return gate.credentials()

        # Patience with an unknown store is seconds, which a busy machine spends on making the client.
        spec = StoreSpec(tmp_bucket, options(gate.endpoint, provider), transport)
        assert bytes(spec.open(policy=RetryPolicy(patience=300)).get("key").data) == b"data"
    assert len(failures) == 2


@pytest.mark.parametrize("kind", [ObstoreStore, S3fsStore])
def test_requests_that_are_refused_together_all_get_the_new_key(s3_server, tmp_bucket, kind, renew_every):
    s3_server.put(f"{tmp_bucket}/key", b"data")
    with Gate(s3_server, rotates=False) as gate:
        store = kind(tmp_bucket, options(gate.endpoint, gate.credentials))
        store.get("key")
        gate.key += 1
        renew_every(60.0)
        renew = partial(store.renew_credentials, is_expired=False)
        assert [renew() for _ in range(3)] == [True] * 3
        assert bytes(store.get("key").data) == b"data"
        renew_every(0.0)
        assert not renew()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_that_never_works_is_named(s3_server, tmp_bucket, transport):
    def provider():
        raise OSError("https://keys/v1?token=CANARY0123456789 is down, key CANARY9876543210")

    spec = StoreSpec(tmp_bucket, options(s3_server.endpoint_url, provider), transport)
    expected = r"credential provider failed with OSError in test_credential_provider.py, line \d+"
    with pytest.raises(TransientStorageError, match=expected) as caught:
        spec.open(policy=RetryPolicy(patience=0.1)).get("key")
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_end_of_a_line_after_a_key_is_stripped(s3_server, tmp_bucket, transport):
    s3_server.put(f"{tmp_bucket}/key", b"data")
    with Gate(s3_server, rotates=False) as gate:
        texts = {name: value for name, value in gate.credentials().items() if name != "expires_at"}

        def provider():
            return {name: f"{value}\n" for name, value in texts.items()}

        store = StoreSpec(tmp_bucket, options(gate.endpoint, provider), transport).open()
        assert bytes(store.get("key").data) == b"data"
        assert gate.tokens == {"token0"}


def test_what_is_no_function_is_refused(tmp_bucket):
    with pytest.raises(ConfigError, match="credential_provider is a dict"):
        StoreSpec(tmp_bucket, {"credential_provider": {"key": "x"}}).open()


def keys():
    return {"access_key_id": "KEY0", "secret_access_key": "secret"}


def test_stores_with_one_provider_share_a_client_and_travel(s3_server, tmp_bucket):
    def counting():
        asked.append(1)
        return keys()

    asked = []
    s3_server.put(f"{tmp_bucket}/key", b"data")
    spec = StoreSpec(tmp_bucket, options(s3_server.endpoint_url, keys))
    assert bytes(pickle.loads(pickle.dumps(spec)).open().get("key").data) == b"data"
    shared = StoreSpec(tmp_bucket, options(s3_server.endpoint_url, counting))
    for _ in range(2):
        shared.open().get("key")
    assert len(asked) == 1  # by one client
    assert "secret" not in repr(spec)


@pytest.mark.parametrize(
    ("url", "variable"), [("gs://bucket", "GOOGLE_BASE_URL"), ("az://container", "AZURE_STORAGE_ENDPOINT")]
)
def test_obstore_takes_tokens_for_google_and_azure(url, variable, monkeypatch):
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        given = {"credential_provider": lambda: {"token": "canary"}}
        if url.startswith("gs"):
            monkeypatch.setenv(variable, endpoint)
        else:
            given |= {"connection_string": f"AccountName=account;BlobEndpoint={endpoint}"}
        with pytest.raises(StorageError):
            StoreSpec(url, given, "obstore").open().get("key")
        server.shutdown()
    assert seen
    assert set(seen) == {"Bearer canary"}
