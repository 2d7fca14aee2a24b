"""Statistics as metrics: of an interval, as scalars, as lines of a log, beside a bar."""

import io
import json
import logging
import threading
import time

import pytest
from told import told

from energon_stream import WorkerConfig, get_loader, get_train_dataset
from energon_stream.errors import ConfigError
from energon_stream.loader.observe.metrics import METRICS, Recent
from energon_stream.testing.datasets import prepared_binary_dataset

SAMPLES, BATCH = 60, 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared_binary_dataset(
        tmp_path_factory.mktemp("metrics") / "data", shards=2, samples=SAMPLES, payload_bytes=100
    )


def open_loader(folder, workers=0):
    dataset = get_train_dataset(
        folder,
        batch_size=BATCH,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(0, 1, workers),
        repeat=False,
    )
    return get_loader(dataset)


class Writer:
    def __init__(self):
        self.written = []

    def log_metrics(self, values, step):
        self.written.append((step, values))


@pytest.mark.parametrize("workers", [0, 1])
def test_statistics_of_an_interval_add_up_to_those_of_all(folder, workers):
    with open_loader(folder, workers) as loader:
        recent = Recent()
        parts = [recent.take(loader.stats()) for _ in loader]
        whole = loader.stats()
    parts.append(recent.take(whole))
    assert [part.batches for part in parts] == [1] * (SAMPLES // BATCH) + [0]
    assert sum(part.samples for part in parts) == whole.samples == SAMPLES
    assert sum(part.wait_seconds for part in parts) == pytest.approx(whole.wait_seconds)
    assert sum(part.seconds for part in parts) == pytest.approx(whole.seconds)
    assert sum(part.profile.looks for part in parts) == whole.profile.looks
    rates = [part.samples_per_second * part.seconds for part in parts]
    assert rates == pytest.approx([0, *[BATCH] * (len(parts) - 2), 0])
    assert parts[1].verdict.cause in ("consumer", "unknown", *whole.shares)


def test_scalars_are_plain_numbers(folder):
    loader = open_loader(folder)
    empty = loader.stats().scalars()
    list(loader)
    values = loader.stats().scalars()
    assert values.keys() == empty.keys()
    assert all(type(value) is float and name.startswith("energon_stream/") for name, value in values.items())
    assert values["energon_stream/samples_per_second"] > 0
    assert {"energon_stream/wait_p50", "energon_stream/share/store"} <= values.keys()
    json.dumps(values)


def test_scalars_are_those_since_the_last_call(folder):
    writer, loader = Writer(), open_loader(folder)
    for step, _ in enumerate(loader):
        loader.log_stats(writer, step)
    assert [step for step, _ in writer.written] == list(range(SAMPLES // BATCH))
    rates = [values["energon_stream/samples_per_second"] for _, values in writer.written]
    assert rates[0] == 0.0
    assert all(rates[1:])


@pytest.mark.parametrize("writer", [object(), logging.getLogger("x")])
def test_what_takes_no_scalars_is_refused(folder, writer):
    with pytest.raises(ConfigError, match="takes no scalars"):
        open_loader(folder).log_stats(writer, 0)


def test_other_writers(folder):
    class TensorBoard:
        def add_scalar(self, name, value, step):
            found[name] = (value, step)

    class Run:
        def log(self, values, step):
            found.update({name: (value, step) for name, value in values.items()})

    loader = open_loader(folder)
    list(loader)
    names = set(loader.stats().scalars())
    for writer in (TensorBoard(), Run()):
        found = {}
        loader.log_stats(writer, 7)
        assert set(found) == names
        assert {step for _, step in found.values()} == {7}


def test_a_line_of_the_log_has_fields(folder, caplog):
    with caplog.at_level(logging.INFO, "energon_stream.stats"):
        loader = open_loader(folder)
        with loader.log_every(3600):
            list(loader)
        with loader.log_every(3600):
            pass  # no batch, no line
    (first,) = [record for record in caplog.records if record.name == "energon_stream.stats"]
    assert (first.rank, first.verdict) == (0, first.stats["verdict"]["cause"])
    assert first.samples_per_second > 0
    assert 0 <= first.waiting <= 1
    assert first.stats["samples"] == SAMPLES
    assert "samples/s, waiting" in first.getMessage()
    json.dumps(first.stats)
    assert not [thread for thread in threading.enumerate() if thread.name == "energon_stream stats"]


def test_lines_come_while_the_loop_runs_and_none_without_batches(folder, caplog):
    was_told = threading.Event()
    told_handler = logging.Handler()
    told_handler.emit = lambda record: was_told.set()
    log = logging.getLogger("energon_stream.stats")
    log.addHandler(told_handler)
    try:
        with caplog.at_level(logging.INFO, log.name):
            loader = open_loader(folder)
            with loader.log_every(0.01):
                next(iter(loader))
                assert was_told.wait(60)
            assert len(told(caplog, log.name)) == 1
    finally:
        log.removeHandler(told_handler)


def test_seconds_must_be_positive(folder):
    with pytest.raises(ConfigError, match="seconds is 0"), open_loader(folder).log_every(0):
        pass


def test_a_bar_yields_the_batches_and_says_rate_and_waiting(folder):
    file, loader = io.StringIO(), open_loader(folder)
    shown = iter(loader.progress(file=file, disable=False, mininterval=0))
    first = len(next(shown)["__key__"])
    time.sleep(1.0)  # for which rate and waiting stand
    assert first + sum(len(batch["__key__"]) for batch in shown) == SAMPLES
    assert "samples/s, waiting" in file.getvalue()
    assert f"{SAMPLES // BATCH}/{SAMPLES // BATCH}" in file.getvalue()
    assert list(loader.progress(["a", "b"], total=2, file=file, disable=False)) == ["a", "b"]


def test_a_bar_ends_with_the_loop(folder):
    file, loader = io.StringIO(), open_loader(folder)
    for _ in loader.progress(file=file, disable=False):
        break
    assert loader.stats().batches == 1
    assert sum(1 for _ in loader) == SAMPLES // BATCH - 1


def test_exporters_may_read_in_other_threads(folder):
    loader, over, errors = open_loader(folder, 1), threading.Event(), []

    def read():
        last = loader.stats()
        while not over.is_set():
            now = loader.stats()
            for metric in METRICS:
                before = metric.read(last)
                if metric.kind == "counter" and any(
                    value < before.get(label, 0) for label, value in metric.read(now).items()
                ):
                    errors.append((metric.name, before, metric.read(now)))
            last = now

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(3):
            assert sum(1 for _ in loader) == SAMPLES // BATCH
            loader.close()
    finally:
        over.set()
        thread.join()
    assert errors == []
