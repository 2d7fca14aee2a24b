"""Saving asks no worker: what the main process has is enough, whatever the workers do."""

import multiprocessing
import os
import signal
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest

from energon_stream import WorkerConfig, get_savable_loader
from energon_stream.pipeline import BatchDataset, EpochizeDataset, MapDataset
from energon_stream.state import dumps
from energon_stream.testing.operator_suite import NumbersDataset

STREAMS, GIVEN = 6, 7


class Gate:
    """Where workers wait, if they are to."""

    def __init__(self):
        context = multiprocessing.get_context("fork")
        self.opens, self.waiting = context.Event(), context.Semaphore(0)

    def wait(self):
        self.waiting.release()
        self.opens.wait()


gates = []


@pytest.fixture
def gate():
    """A gate that workers find, which are forked."""
    gates.append(Gate())
    yield gates[0]
    gates.clear()


def passes(number):
    """The second sample of a stream's third batch waits."""
    if gates and number // STREAMS >= 5:
        gates[0].wait()
    return number


def open_loader(workers):
    config = WorkerConfig(0, 1, workers, num_streams=STREAMS)
    numbers = MapDataset(NumbersDataset(2000, config), passes)
    # Forked workers have the gate that a test sets.
    return get_savable_loader(EpochizeDataset(BatchDataset(numbers, 2, list), 1000), start_method="fork")


def take(loader, count):
    batches = iter(loader)
    return [next(batches) for _ in range(count)]


@pytest.fixture(scope="module")
def expected():
    """The state after as many batches of a loader that has no workers, and reads nothing ahead."""
    loader = open_loader(0)
    take(loader, GIVEN)
    return loader.save_state_rank(), loader.state_dict(), loader.save_state_global()


@contextmanager
def nothing_sent_or_received(monkeypatch):
    def forbidden(*_):
        raise AssertionError("a worker was asked")

    with monkeypatch.context() as patched:
        for name in ("poll", "recv", "recv_bytes", "recv_bytes_into", "send", "send_bytes"):
            patched.setattr(Connection, name, forbidden)
        yield


def assert_saves(loader, expected, monkeypatch):
    with nothing_sent_or_received(monkeypatch):
        saved = loader.save_state_rank(), loader.state_dict(), loader.save_state_global()
    assert saved == expected
    assert dumps(saved[0]) == dumps(expected[0])


@pytest.mark.parametrize("sent", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("workers", [1, 3])
def test_while_workers_are_stopped_or_dead(expected, monkeypatch, sent, workers):
    with open_loader(workers) as loader:
        take(loader, GIVEN)
        for pid in loader.worker_pids:
            os.kill(pid, sent)
        assert_saves(loader, expected, monkeypatch)
        for pid in loader.worker_pids:
            os.kill(pid, signal.SIGCONT)


def test_while_workers_are_in_the_middle_of_a_batch(expected, gate, monkeypatch):
    with open_loader(2) as loader:
        batches = iter(loader)
        found = [next(batches) for _ in range(GIVEN)]
        for _ in range(2):
            gate.waiting.acquire()
        assert_saves(loader, expected, monkeypatch)
        gate.opens.set()
        found += [next(batches) for _ in range(GIVEN)]
    monkeypatch.undo()
    assert found == take(open_loader(0), 2 * GIVEN)
