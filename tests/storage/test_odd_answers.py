"""Answers that no store gives, redirects, and refused credentials, the same through both transports."""

import contextlib
import http.server
import re
import threading

import pytest

from energon_stream.errors import AccessDeniedError, BadAnswerError, RangeError, StorageError
from energon_stream.storage import ByteRange, RetryPolicy, StoreSpec
from energon_stream.testing.s3server import Rule

TRANSPORTS = ("obstore", "fsspec")
ODDITIES = ("html", "whole", "no_etag", "no_length")
PAYLOAD = bytes(range(256)) * 16

ACTIONS = {
    "range": lambda store: store.get_range("key", ByteRange(10, 20)).data,
    "whole": lambda store: store.get("key").data,
    "suffix": lambda store: store.get_suffix("key", 10).data,
    "head": lambda store: store.head("key").size,
    "list": lambda store: [entry.path for entry in store.list()],
}
SOUND = {
    "range": PAYLOAD[10:20],
    "whole": PAYLOAD,
    "suffix": PAYLOAD[-10:],
    "head": len(PAYLOAD),
    "list": ["key"],
}
HARMLESS = {
    ("whole", "whole"),
    ("head", "whole"),
    ("list", "whole"),
    ("list", "no_etag"),
    ("list", "no_length"),
}
"""Actions and oddities that leave the answer right; a listing ends by itself."""


@pytest.fixture(params=TRANSPORTS)
def spec(request, s3_server, tmp_bucket):
    s3_server.put(f"{tmp_bucket}/key", PAYLOAD)
    return StoreSpec(tmp_bucket, s3_server.storage_options, request.param)


def patient(spec):
    """For as long as a busy machine may need for some attempts."""
    return spec.open(policy=RetryPolicy(patience=300.0))


@pytest.mark.every(3)
@pytest.mark.parametrize("oddity", ODDITIES)
@pytest.mark.parametrize("action", ACTIONS)
def test_one_odd_answer_is_not_final(s3_server, spec, action, oddity):
    s3_server.add_rule(Rule(oddity, times=1))
    assert ACTIONS[action](patient(spec)) == SOUND[action]


@pytest.mark.every(3)
@pytest.mark.parametrize("oddity", ODDITIES)
@pytest.mark.parametrize("action", ACTIONS)
def test_lasting_ones_end_in_a_named_error(s3_server, spec, action, oddity):
    store = spec.open(policy=RetryPolicy(patience=0.2))
    s3_server.add_rule(Rule(oddity))
    if (action, oddity) in HARMLESS:
        assert ACTIONS[action](store) == SOUND[action]
        return
    with pytest.raises(BadAnswerError) as caught:
        ACTIONS[action](store)
    assert s3_server.endpoint_url in str(caught.value) or "whole objects" in str(caught.value)


@pytest.mark.parametrize("action", ["range", "whole"])
def test_one_spurious_416_is_not_final(s3_server, spec, action):
    store = patient(spec)
    s3_server.add_rule(Rule("status", times=1, status=416))
    assert ACTIONS[action](store) == SOUND[action]
    s3_server.add_rule(Rule("status", status=416))
    s3_server.reset_counters()
    with pytest.raises(RangeError, match="416"):
        ACTIONS[action](store)
    assert s3_server.counters().requests["GET"] == 4


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer = None  # (method, path, key that signed) → status, headers, body

    def do_GET(self):
        signer = re.search(r"Credential=(\w+)/", self.headers.get("authorization") or "")
        status, headers, body = type(self).answer(self.command, self.path, signer and signer[1])
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(answer):
    handler = type("Handler", (Handler,), {"answer": staticmethod(answer)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def error(code, extra=""):
    return f"<Error><Code>{code}</Code><Message>{code}</Message>{extra}</Error>".encode()


DATA = (200, {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, b"data")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_names_the_region(transport, status):
    headers = {"x-amz-bucket-region": "eu-west-1"}
    with serving(lambda *_: (status, headers, error("PermanentRedirect"))) as endpoint:
        options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
        with pytest.raises(StorageError, match=r"region, eu-west-1.*AWS_REGION=eu-west-1"):
            StoreSpec("s3://bucket", options, transport).open().get("key")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_wrong_region_is_named(transport):
    body = error("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>")
    with serving(lambda *_: (400, {}, body)) as endpoint:
        options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
        with pytest.raises(StorageError, match=r"region, eu-west-1.*AWS_REGION=eu-west-1"):
            StoreSpec("s3://bucket", options, transport).open().get("key")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_redirect_within_the_server_is_followed(transport):
    def answer(method, path, signer):
        return (
            DATA
            if "elsewhere" in path
            else (307, {"Location": "/bucket/elsewhere"}, error("TemporaryRedirect"))
        )

    with serving(answer) as endpoint:
        store = StoreSpec(
            "s3://bucket", {"key": "k", "secret": "s", "endpoint_url": endpoint}, transport
        ).open()
        assert store.get("key").data == b"data"


class Keys:
    """A profile's key, and a server that accepts one."""

    def __init__(self, path, monkeypatch, renew_every):
        self.path, self.accepted, self.refused, self.code = path, "OLDKEYOLDKEY", 0, "InvalidAccessKeyId"
        self.rotate_after = None
        self.write("OLDKEYOLDKEY")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
        renew_every(0.0)

    def write(self, key):
        self.path.write_text(f"[job]\naws_access_key_id = {key}\naws_secret_access_key = secretsecret\n")

    def answer(self, method, path, signer):
        if signer == self.accepted:
            return DATA
        self.refused += 1
        if self.refused == self.rotate_after:
            self.write(self.accepted)
        return 403, {}, error(self.code)


@pytest.fixture
def keys(tmp_path, monkeypatch, renew_every):
    return Keys(tmp_path / "credentials", monkeypatch, renew_every)


def profile(endpoint, transport):
    options = {"profile": "job", "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    return StoreSpec("s3://bucket", options, transport).open()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rotated_credentials_of_a_profile_are_read_again(keys, transport):
    with serving(keys.answer) as endpoint:
        store = profile(endpoint, transport)
        assert store.get("key").data == b"data"
        keys.accepted = "NEWKEYNEWKEY"
        keys.write(keys.accepted)
        assert store.get("key").data == b"data"
        assert keys.refused == 1
        assert store.get("key").data == b"data"
        assert keys.refused == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_expired_credentials_are_waited_for(keys, transport):
    with serving(keys.answer) as endpoint:
        store = profile(endpoint, transport)
        assert store.get("key").data == b"data"
        keys.accepted, keys.code, keys.rotate_after = "NEWKEYNEWKEY", "ExpiredToken", 3
        assert store.get("key").data == b"data"
        assert keys.refused == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "AccessDenied", "ExpiredToken"])
def test_a_static_key_that_is_refused_says_so_at_once(keys, transport, code):
    keys.accepted, keys.code = "NEWKEYNEWKEY", code
    with serving(keys.answer) as endpoint:
        options = {"key": "OLDKEYOLDKEY", "secret": "secretsecret", "endpoint_url": endpoint}
        with pytest.raises(AccessDeniedError, match=code) as caught:
            StoreSpec("s3://bucket", options, transport).open().get("key")
    assert keys.refused == 1
    assert ("have expired" in str(caught.value)) == (code == "ExpiredToken")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_profile_that_has_nothing_newer_is_refused_at_once(keys, transport):
    with serving(keys.answer) as endpoint:
        store = profile(endpoint, transport)
        keys.accepted, keys.code = "NEWKEYNEWKEY", "AccessDenied"
        with pytest.raises(AccessDeniedError, match="AccessDenied"):
            store.get("key")
    assert keys.refused <= 2
