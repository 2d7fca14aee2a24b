"""Traces: requests, looks and waits of all processes of a loader, in one file."""

import json
import os
import time

import pytest

from energon_stream import WorkerConfig, get_loader, get_train_dataset
from energon_stream.errors import ConfigError, StorageError
from energon_stream.loader.observe import monitor
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.tracing import TraceRecorder, current_recorder, start_recording, stop_recording

SAMPLES, BATCH, BYTES = 60, 10, 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("trace") / "data", shards=2, samples=SAMPLES, payload_bytes=BYTES
    )


def open_loader(path, workers=0, **options):
    dataset = get_train_dataset(
        path,
        batch_size=BATCH,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, workers),
        repeat=False,
        **options,
    )
    return get_loader(dataset)


def events(path, category=None):
    found = json.loads(path.read_text())["traceEvents"]
    return [event for event in found if category is None or event.get("cat") == category]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trace_has_all_requests_and_batches(folder, s3_server, tmp_bucket, tmp_path, workers):
    s3_server.upload_folder(folder, f"{tmp_bucket}/data")
    path = tmp_path / "trace.json"
    options = {"storage_options": s3_server.storage_options}
    loader = open_loader(f"{tmp_bucket}/data", workers, **options)
    with loader.trace(path):
        assert sum(1 for _ in loader) == SAMPLES // BATCH
        pids = set(loader.worker_pids) or {os.getpid()}
        loader.close()  # the workers end before the trace does
    requests = [
        {**event["args"], "pid": event["pid"]} for event in events(path, "request") if event["name"] == "get"
    ]
    # A late request is made twice, and the answer that comes last is dropped. Two workers may read one range.
    answered = [request for request in requests if request.get("reason") and "bytes" in request]
    planned = list({(each["pid"], each["object"], each["start"]): each for each in answered}.values())
    assert sum(request["bytes"] for request in planned) >= SAMPLES * BYTES
    assert {request["object"].rpartition("/")[0] for request in planned} == {f"{tmp_bucket}/data"}
    assert all(request["stop"] - request["start"] == request["bytes"] for request in planned)
    assert {request["attempt"] for request in planned} == {0}
    stats = loader.stats()
    assert len(planned) == sum(stats.io.reasons.values())
    assert {event["pid"] for event in events(path, "request") if event["args"].get("reason")} == pids
    batches = [event["args"] for event in events(path, "batch")]
    assert [batch["batch"] for batch in batches] == list(range(SAMPLES // BATCH))
    assert sum(batch["samples"] for batch in batches) == SAMPLES
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events(path, "batch"))
    assert current_recorder() is None


def test_workers_that_start_under_a_trace_record_from_their_start(
    folder, s3_server, tmp_bucket, tmp_path, monkeypatch
):
    s3_server.upload_folder(folder, f"{tmp_bucket}/data")

    def late():
        time.sleep(0.3)
        start_recording()

    monkeypatch.setattr(monitor, "start_recording", late)
    loader = open_loader(f"{tmp_bucket}/data", 2, storage_options=s3_server.storage_options)
    with loader.trace(tmp_path / "trace.json"):
        assert sum(1 for _ in loader) == SAMPLES // BATCH
        pids = set(loader.worker_pids)
        loader.close()
    found = {event["pid"] for event in events(tmp_path / "trace.json", "request")}
    assert found == pids


def test_a_trace_may_begin_under_way(folder, tmp_path):
    path = tmp_path / "trace.json"
    with open_loader(folder, 2) as loader:
        batches = iter(loader)
        next(batches)
        with loader.trace(path):
            next(batches)
        next(batches)
        first = [event["args"]["batch"] for event in events(path, "batch")]
        with loader.trace(path):
            next(batches)
    assert first == [1]
    assert [event["args"]["batch"] for event in events(path, "batch")] == [3]
    names = {event["args"]["name"] for event in events(path) if event["name"] == "process_name"}
    assert len(names) == 3
    assert "training loop" in names


def test_a_trace_ends_by_itself(folder, tmp_path):
    path = tmp_path / "trace.json"
    loader = open_loader(folder)
    trace = loader.trace(path, seconds=0.05)
    list(loader)
    deadline = time.monotonic() + 60
    while trace.is_running:  # it is locked while it is written
        assert time.monotonic() < deadline
        time.sleep(0.01)
    trace.close()  # once more does nothing
    before = path.read_text()
    list(loader)
    assert path.read_text() == before
    assert json.loads(before)["traceEvents"]


def test_one_trace_at_a_time(folder, tmp_path):
    loader = open_loader(folder)
    with loader.trace(tmp_path / "a.json"), pytest.raises(ConfigError, match="already"):
        loader.trace(tmp_path / "b.json")
    with pytest.raises(ConfigError, match="seconds is 0"):
        loader.trace(tmp_path / "b.json", seconds=0)
    with pytest.raises(StorageError, match="cannot be written"):
        loader.trace(tmp_path / "missing" / "b.json")
    with loader.trace(tmp_path / "c.json"):
        list(loader)
    assert events(tmp_path / "c.json", "batch")


def test_looks_in_a_row_are_one_event():
    recorder = TraceRecorder(clock=iter([0.0, 0.05, 0.1, 0.15, 5.0]).__next__)
    for cause, function in [
        ("store", None),
        ("store", None),
        ("encode", "f"),
        ("encode", "g"),
        ("store", None),
    ]:
        recorder.look(cause, function, thread=1)
    found = [event for event in recorder.events("worker") if event["ph"] == "X"]
    assert [(event["name"], round(event["dur"])) for event in found] == [
        ("store", 100_000),
        ("encode", 50_000),
        ("encode", 0),
        ("store", 0),
    ]


def test_too_many_events_are_counted():
    recorder = TraceRecorder(most=2)
    for number in range(5):
        recorder.add("get", "request", number, number + 1)
    assert len([event for event in recorder.events("worker") if event["ph"] == "X"]) == 2
    assert recorder.dropped == 3


def test_a_forked_process_records_nothing():
    start_recording()
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if current_recorder() is None else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert current_recorder() is not None
    finally:
        stop_recording()
