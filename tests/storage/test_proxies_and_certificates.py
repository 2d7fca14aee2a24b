"""Proxies and certificates that the environment names: the same through both transports, and as in boto3."""

import asyncio
import contextlib
import http.client
import http.server
import os
import shutil
import ssl
import subprocess
import threading
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config

from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    StorageError,
    TransientStorageError,
    UnsupportedStoreError,
)
from energon_stream.storage import RetryPolicy, StoreSpec

TRANSPORTS = ("obstore", "fsspec")
DEAD = "http://127.0.0.1:9"


class Proxy(http.server.BaseHTTPRequestHandler):
    """Forwards requests; without a login, it refuses them if it wants one."""

    protocol_version = "HTTP/1.1"
    seen, login = [], None

    def do_GET(self):
        self.seen.append(self.path)
        status, headers, body = 407, [("Content-Length", "2")], b"no"
        if self.login in (None, self.headers.get("Proxy-Authorization")):
            place = urlsplit(self.path)
            connection = http.client.HTTPConnection(place.hostname, place.port)
            connection.request(self.command, place.path, headers=dict(self.headers))
            answer = connection.getresponse()
            status, headers, body = answer.status, answer.getheaders(), answer.read()
            connection.close()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        self.send_error(403)

    def log_message(self, *_):
        pass


@pytest.fixture
def proxy():
    handler = type("Handler", (Proxy,), {"seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        handler.url = f"http://127.0.0.1:{server.server_port}"
        yield handler
        server.shutdown()


@pytest.fixture
def get(s3_server, tmp_bucket, monkeypatch):
    """Reads an object through a transport, or through boto3, with other variables."""
    s3_server.put(f"{tmp_bucket}/key", b"data")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def read(client, variables, endpoint=s3_server.endpoint_url, verify=None):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if client == "boto3":
            keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
            once = Config(retries={"total_max_attempts": 1})
            s3 = boto3.client("s3", endpoint_url=endpoint, config=once, verify=verify, **keys)
            return s3.get_object(Bucket=tmp_bucket.removeprefix("s3://"), Key="key")["Body"].read()
        options = {"key": "a", "secret": "b", "endpoint_url": endpoint}
        if verify is not None:
            options["client_kwargs"] = {"verify": verify}
        store = StoreSpec(tmp_bucket, options, client).open(policy=RetryPolicy(attempts=1))
        return bytes(store.get("key").data)

    return read


@pytest.mark.every(5)
@pytest.mark.parametrize("client", ["boto3", *TRANSPORTS])
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
@pytest.mark.parametrize("login", [None, "Basic dXNlcjpwYUBzcw=="])
def test_a_proxy_is_used(get, proxy, client, name, login):
    proxy.login = login
    url = proxy.url.replace("://", "://user:pa%40ss@") if login else proxy.url
    assert get(client, {name: url}) == b"data"
    assert len(proxy.seen) == 1


@pytest.mark.parametrize(
    ("query", "options", "through"),
    [("", None, 1), ("?x=1", None, 0), ("?x=1", {"client_kwargs": {"trust_env": True}}, 1)],
)
def test_web_addresses(get, proxy, s3_server, monkeypatch, query, options, through):
    """With a query, they are read through fsspec."""
    s3_server.put("s3://web/key", b"data")
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    store = StoreSpec(f"{s3_server.endpoint_url}/web{query}", options).open(policy=RetryPolicy(attempts=1))
    assert bytes(store.get("key").data) == b"data"
    assert len(proxy.seen) == through


@pytest.mark.parametrize("client", TRANSPORTS)
@pytest.mark.parametrize("variables", [{"ALL_PROXY": ""}, {"HTTP_PROXY": "without scheme"}])
def test_other_spellings_of_a_proxy(get, proxy, client, variables):
    ((name, spelling),) = variables.items()
    assert get(client, {name: proxy.url.removeprefix("http://") if spelling else proxy.url}) == b"data"
    assert len(proxy.seen) == 1


@pytest.mark.every(5)
@pytest.mark.parametrize("client", TRANSPORTS)
@pytest.mark.parametrize(
    "excluded", ["*", "x, *", "127.0.0.1", "127.0.0.0/8", "10.0.0.0/8,127.0.0.1/32", "PORT"]
)
def test_no_proxy_excludes_hosts_and_networks(get, s3_server, client, excluded):
    excluded = excluded.replace("PORT", urlsplit(s3_server.endpoint_url).netloc)
    assert get(client, {"HTTP_PROXY": DEAD, "NO_PROXY": excluded}) == b"data"


@pytest.mark.parametrize("client", TRANSPORTS)
@pytest.mark.parametrize("excluded", ["", "10.0.0.0/8", "example.com"])
def test_a_dead_proxy_is_named(get, client, excluded):
    with pytest.raises(TransientStorageError, match=rf"through the proxy {DEAD} failed.*refused.*NO_PROXY"):
        get(client, {"HTTP_PROXY": DEAD, "NO_PROXY": excluded})


@pytest.mark.parametrize("client", TRANSPORTS)
def test_a_proxy_that_wants_a_login_says_so(get, proxy, client):
    proxy.login = "Basic other"
    url = proxy.url.replace("://", "://user:CANARYPASS@")
    with pytest.raises(StorageError, match=r"the proxy wants a login.*user and the password") as caught:
        get(client, {"HTTP_PROXY": url})
    assert "CANARY" not in str(caught.value)


CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
SIGN_ITSELF = ["openssl", "req", "-x509", *CURVE]


def certificate(folder, name, *extensions):
    """Return the files of a key and of a certificate that it signs itself."""
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    command = [*SIGN_ITSELF, "-out", paths[0], "-keyout", paths[1], "-days", "2", "-subj", "/CN=gateway"]
    for extension in ("subjectAltName=IP:127.0.0.1", *extensions):
        command += ["-addext", extension]
    subprocess.run(command, check=True, capture_output=True)
    return paths


@pytest.fixture
def gateway(s3_server):
    """Starts a TLS server before the store, with a certificate."""
    place, loops = urlsplit(s3_server.endpoint_url), []

    async def copy(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def forward(reader, writer):
        behind = await asyncio.open_connection(place.hostname, place.port)
        await asyncio.gather(copy(reader, behind[1]), copy(behind[0], writer), return_exceptions=True)

    def start(paths):
        context, started = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), threading.Event()
        context.load_cert_chain(*paths)

        async def main():
            server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
            loops.append(
                (asyncio.get_running_loop(), asyncio.current_task(), server.sockets[0].getsockname()[1])
            )
            started.set()
            await asyncio.Event().wait()

        def run():
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(main())

        threading.Thread(target=run, daemon=True).start()
        started.wait()
        return f"https://127.0.0.1:{loops[-1][2]}"

    yield start
    for loop, task, _ in loops:
        loop.call_soon_threadsafe(task.cancel)


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@needs_openssl
@pytest.mark.parametrize("way", ["variable", "option"])
def test_certificates_of_a_gateway(get, gateway, tmp_path, way):
    plain = certificate(tmp_path, "plain", "basicConstraints=critical,CA:FALSE")
    authority = certificate(tmp_path, "authority", "basicConstraints=critical,CA:TRUE")
    for paths in (plain, authority):
        endpoint = gateway(paths)
        variables = {"AWS_CA_BUNDLE": str(paths[0])} if way == "variable" else {}
        verify = str(paths[0]) if way == "option" else None
        assert get("boto3", variables, endpoint, verify) == b"data"
        assert get("fsspec", variables, endpoint, verify) == b"data"
        assert get("auto", variables, endpoint, verify) == b"data"
        if paths is plain:
            assert get("obstore", variables, endpoint, verify) == b"data"
            continue
        with pytest.raises(UnsupportedStoreError, match=r"authority's \(CA:TRUE\).*transport='auto'"):
            get("obstore", variables, endpoint, verify)


@needs_openssl
def test_an_authority_with_an_address_of_its_own_is_no_server(get, gateway, tmp_path):
    """As some of the usual authorities have it: the bundle of a system must not change the transport."""
    plain = certificate(tmp_path, "plain", "basicConstraints=critical,CA:FALSE")
    authority = tmp_path / "authority.pem"
    command = [
        *SIGN_ITSELF,
        "-subj",
        "/CN=authority",
        "-keyout",
        tmp_path / "authority.key",
        "-out",
        authority,
    ]
    command += ["-days", "2", "-addext", "subjectAltName=email:ca@example.org"]
    subprocess.run(command, check=True, capture_output=True)
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(authority.read_bytes() + plain[0].read_bytes())
    for client in ("boto3", "obstore"):
        assert get(client, {"AWS_CA_BUNDLE": str(bundle)}, gateway(plain)) == b"data"


@needs_openssl
def test_a_certificate_of_an_authority_in_the_bundle(get, gateway, tmp_path):
    """The usual chain: an authority signs a server's certificate, and the bundle has others before it."""
    certificate(tmp_path, "other", "basicConstraints=critical,CA:FALSE")
    authority, key = tmp_path / "ca.pem", tmp_path / "ca.key"
    new = ["openssl", "req", *CURVE]
    request, signed = tmp_path / "server.csr", tmp_path / "server.pem"
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for command in (
        [*new, "-x509", "-subj", "/CN=authority", "-keyout", key, "-out", authority, "-days", "2"],
        [*new, "-subj", "/CN=gateway", "-keyout", tmp_path / "server.key", "-out", request],
        ["openssl", "x509", "-req", "-in", request, "-CA", authority, "-CAkey", key, "-CAcreateserial",
         "-out", signed, "-days", "2", "-extfile", tmp_path / "names"],
    ):  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes("# Größe\n".encode() + (tmp_path / "other.pem").read_bytes() + authority.read_bytes())
    endpoint = gateway((signed, tmp_path / "server.key"))
    for client in ("boto3", "obstore", "fsspec", "auto"):
        assert get(client, {"AWS_CA_BUNDLE": str(bundle)}, endpoint) == b"data"


@pytest.mark.parametrize("client", [*TRANSPORTS, "auto"])
@pytest.mark.parametrize("way", ["variable", "option"])
def test_a_bundle_that_cannot_be_used_is_named(get, tmp_path, client, way):
    (tmp_path / "binary.der").write_bytes(bytes(range(256)))
    name = "AWS_CA_BUNDLE" if way == "variable" else "client_kwargs.verify"
    for file, problem in (("missing.pem", "No such file"), ("", "directory"), ("binary.der", "no PEM")):
        path = str(tmp_path / file)
        with pytest.raises(ConfigError, match=problem) as caught:
            get(
                client,
                {"AWS_CA_BUNDLE": path} if way == "variable" else {},
                verify=path if way == "option" else None,
            )
        assert name in str(caught.value)
        assert path in str(caught.value)


def test_a_refusal_of_the_metadata_service_is_not_one_of_the_bucket(proxy, tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("AWS_") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)  # before http://169.254.169.254, which has no keys for us
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(AccessDeniedError, match=r"no credentials were found.*403.*AWS_ACCESS_KEY_ID"):
        StoreSpec("s3://bucket", transport="obstore").open().get("key")
