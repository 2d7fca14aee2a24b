"""Credentials and signed URLs appear in nothing that a failing run leaves: errors, logs, states, caches."""

import logging
import pickle
import traceback

import pytest
import runs

from energon_stream import ReadOptions
from energon_stream.cache import CacheConfig
from energon_stream.errors import EnergonStreamError
from energon_stream.storage import ByteRange, RetryPolicy, StorageCounters, StoreSpec
from energon_stream.testing.s3server import Rule

KEY, SECRET_KEY, TOKEN, SIGNATURE = (
    f"CANARY{name}0123456789" for name in ("KEY", "SECRET", "TOKEN", "SIGNED")
)
CANARIES = (KEY, SECRET_KEY, TOKEN, SIGNATURE)
SIGNED = (
    f"X-Amz-Credential={KEY}%2F20261124%2Fus-east-1&X-Amz-Security-Token={TOKEN}&X-Amz-Signature={SIGNATURE}"
)


def leaks(*texts):
    return [(canary, text) for text in texts for canary in CANARIES if canary in text]


def whole_chain(error, seen=None):
    """An error with all of its causes and contexts, even those that a traceback would not show."""
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return []
    seen.add(id(error))
    chain = whole_chain(error.__cause__, seen) + whole_chain(error.__context__, seen)
    attributes = [repr(value) for value in vars(error).values()]
    return [str(error), repr(error), *map(repr, error.args), *attributes, *chain]


def told(error):
    return ["".join(traceback.format_exception(error)), *whole_chain(error)]


FAULTS = {
    "403": Rule("status", status=403),
    "404": Rule("status", status=404),
    "400": Rule("status", status=400),
    "416": Rule("status", status=416),
    "503": Rule("status", status=503),
    "reset": Rule("reset"),
    "timeout": Rule("stall", seconds=1.5),
    "html": Rule("html"),
    "no_etag": Rule("no_etag"),
    "no_length": Rule("no_length"),
    "refused": None,
}


WAYS = [("s3", "obstore"), ("s3", "fsspec"), ("http", "fsspec")]
"""Schemes and transports. obstore takes no URL with a query, so those are read through fsspec."""


@pytest.mark.every(3)
@pytest.mark.parametrize(("scheme", "transport"), WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_errors_and_logs_of_a_store(s3_server, caplog, transport, scheme, fault):
    caplog.set_level(logging.DEBUG, "energon_stream")
    s3_server.put("s3://bucket/key", bytes(100_000))
    if FAULTS[fault] is None:
        s3_server.stop()
    else:
        s3_server.add_rule(FAULTS[fault])
    if scheme == "s3":
        keys = {"key": KEY, "secret": SECRET_KEY, "token": TOKEN}
        options = s3_server.storage_options | keys | {"config_kwargs": {"read_timeout": 1}}
        spec = StoreSpec("s3://bucket", options, transport)
    else:
        spec = StoreSpec(f"{s3_server.endpoint_url}/bucket?{SIGNED}", transport=transport)
    counters = StorageCounters()
    policy = RetryPolicy(attempts=2, patience=0.1, sleep=lambda seconds: None)
    store = spec.open(policy=policy, counters=counters)
    actions = (
        lambda: store.get_range("key", ByteRange(10, 90_000)),
        lambda: store.get("key"),
        lambda: store.head("key"),
        lambda: list(store.list()),
    )
    errors = []
    for action in actions[: 1 if fault == "timeout" else 4]:
        try:
            action()
        except EnergonStreamError as error:
            errors.append(error)
    # Over HTTP, versions are optional, and the time-out is longer than the stall.
    assert errors or (scheme, fault) in (("http", "no_etag"), ("http", "timeout"))
    texts = [text for error in errors for text in told(error)]
    texts += [text for error in errors for text in told(pickle.loads(pickle.dumps(error)))]
    texts += [repr(spec), repr(store), repr(policy), repr(counters.snapshot())]
    assert not leaks(*texts)
    assert not leaks(caplog.text, *(str(record.args) for record in caplog.records))


NAMES = (
    "access_token",
    "api_key",
    "password",
    "auth",
    "sig",
    "X-Goog-Signature",
    "code",
    "q",
    "jwt",
    "Key-Pair-Id",
)
"""Of queries, as servers and gateways name what lets a client in."""


@pytest.mark.every(3)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("status", [403, 404, 503])
def test_queries_of_any_name(s3_server, caplog, name, status):
    for logger in ("energon_stream", "fsspec", "fsspec.http", "fsspec.asyn"):
        caplog.set_level(logging.DEBUG, logger)
    s3_server.put("s3://bucket/key", b"data")
    spec = StoreSpec(
        f"{s3_server.endpoint_url.replace('://', f'://{KEY}:{SECRET_KEY}@')}/bucket?{name}={TOKEN}"
    )
    store = spec.open(policy=RetryPolicy(attempts=1))
    assert bytes(store.get("key").data) == b"data"
    s3_server.add_rule(Rule("status", status=status))
    texts = [repr(spec), str(store.url)]
    for request in (store.get, store.head, lambda path: list(store.list(path))):
        try:
            request("key")
        except EnergonStreamError as error:  # but a folder that is refused may look empty
            texts += told(error)
    assert any(str(status) in text for text in texts)
    assert not leaks(*texts, caplog.text, *(str(record.args) for record in caplog.records))


@pytest.mark.parametrize(("transport", "workers"), [("obstore", 1), ("fsspec", 0)])
def test_what_a_run_leaves(s3_server, captions, tmp_path, caplog, transport, workers):
    caplog.set_level(logging.DEBUG, "energon_stream")
    s3_server.upload_folder(captions, "s3://bucket/captions")
    s3_server.shape(share_503=0.1, share_reset=0.05, share_truncate=0.05, seed=5)
    cache = CacheConfig(str(tmp_path / "cache"), 50_000_000, min_free_bytes=0)
    options = s3_server.storage_options | {"key": KEY, "secret": SECRET_KEY, "token": TOKEN}
    arguments = {"options": options, "transport": transport, "workers": workers, "cache": cache}
    quick = ReadOptions(retry_deadline=0, max_ahead=64)
    texts = []
    with runs.open_loader("s3://bucket/captions", **arguments) as loader:
        runs.take(loader, 6)
        states = loader.save_state_rank(), loader.save_state_global(global_dst_rank=0)
        texts += [repr(loader), repr(loader.dataset), repr(loader.io_counters()), *map(repr, states)]
        runs.save(states[0], str(tmp_path / "state.pth"))
        (tmp_path / "pickled").write_bytes(pickle.dumps(states))
    s3_server.shape(share_503=0.0, share_reset=0.0, share_truncate=0.0)
    s3_server.add_rule(Rule("status", pattern="*.tar", status=403))
    arguments["cache"] = False
    with (
        pytest.raises(EnergonStreamError) as caught,
        runs.open_loader("s3://bucket/captions", **arguments, read_options=quick) as loader,
    ):
        runs.take(loader, 30)
    texts += told(caught.value)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert not leaks(*texts, caplog.text, *map(str, files))
    for path in files:
        assert not [canary for canary in CANARIES if canary.encode() in path.read_bytes()], path


@pytest.mark.parametrize(
    ("workers", "query"), [(0, SIGNED), (1, SIGNED), (0, f"password={TOKEN}&x={SIGNATURE}")]
)
def test_a_signed_url_as_dataset(s3_server, captions, tmp_path, caplog, workers, query):
    for logger in ("energon_stream", "fsspec", "fsspec.http", "fsspec.asyn"):
        caplog.set_level(logging.DEBUG, logger)
    s3_server.upload_folder(captions, "s3://bucket/captions")
    url = f"{s3_server.endpoint_url}/bucket/captions?{query}"
    texts = []
    changes = {"cache": str(tmp_path / "cache"), "run": str(tmp_path / "run")}
    with runs.open_loader(url, workers=workers, **changes) as loader:
        with loader.trace(str(tmp_path / "trace.json")):
            batches = runs.take(loader, 4)
        states = loader.save_state_rank(), loader.save_state_global(global_dst_rank=0)
        texts += [repr(loader), repr(loader.dataset), repr(loader.io_counters()), *map(repr, states)]
        texts += [repr(batch) for batch in batches]
        (tmp_path / "pickled").write_bytes(pickle.dumps(states))
    s3_server.add_rule(Rule("status", pattern="*.tar", status=403))
    with (
        pytest.raises(EnergonStreamError) as caught,
        runs.open_loader(url, workers=workers, cache=False) as loader,
    ):
        runs.take(loader, 60)
    texts += told(caught.value)
    assert not leaks(*texts, caplog.text)
    for path in tmp_path.rglob("*"):
        assert not leaks(str(path))
        if path.is_file():
            assert not [canary for canary in CANARIES if canary.encode() in path.read_bytes()], path
