"""Workers that are killed, crash or hang: new ones take over, and the sequence is that of a quiet run."""

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import random
import signal
import socket
import time
from multiprocessing.forkserver import _forkserver
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from repetitions import is_nightly

from energon_stream import (
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.errors import ConfigError, WorkerError
from energon_stream.loader import workers as workers_module
from energon_stream.loader.channel import Receiver, Wire
from energon_stream.loader.observe import monitor as monitor_module
from energon_stream.loader.observe.monitor import Activity, Monitor
from energon_stream.pipeline import BatchDataset, EpochizeDataset, MapDataset, RepeatDataset
from energon_stream.state import dumps, loads
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.operator_suite import NumbersDataset, assert_equal_values

STREAMS = 6


SECONDS = {"watchdog_timeout_seconds": 1.0, "watchdog_initial_timeout_seconds": 60.0}
"""A busy machine may take long to start a worker, and not from one batch to the next."""


def config(workers):
    return WorkerConfig(0, 1, workers, num_streams=STREAMS)


def take(loader, count):
    """Elements, over the ends of passes."""
    found = []
    while len(found) < count:
        for value in loader:
            found.append(value)
            if len(found) == count:
                break
    return found


class Once:
    """Does something at one element, or each of some, in the first process that comes there."""

    def __init__(self, folder, at, action):
        self.folder, self.action = folder, action
        self.at = at if isinstance(at, tuple) else (at,)

    def __call__(self, x):
        if x in self.at:
            try:
                (self.folder / str(x)).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                self.action()
        return {"n": x, "image": torch.full((3, 40, 40), x, dtype=torch.uint8), "blob": bytes([x]) * 6000}


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    faulthandler.disable()  # pytest's would write all stacks past the capture of output
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    os._exit(3)


def hang():
    while True:
        signal.pause()


def hang_in_c():
    ctypes.PyDLL(None).pause()  # and keeps the interpreter's lock


def numbers(workers, function, size=40):
    return BatchDataset(
        MapDataset(NumbersDataset(size, config(workers)), function, stateless_map_fn=True), 2, list
    )


def expected(count, size=40):
    return take(get_loader(numbers(0, Once(Path(), -1, None), size)), count)


def kill_all(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # killed before, and not missed yet
            os.kill(pid, signal.SIGKILL)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("workers", "method", "action"),
    [
        (1, "fork", kill_itself),
        (2, "fork", crash),
        (3, "fork", leave),
        (1, "spawn", kill_itself),
        (2, "forkserver", kill_itself),
    ],
)
def test_a_worker_that_dies_is_replaced(tmp_path, caplog, forked_spawn, workers, method, action):
    made = numbers(workers, Once(tmp_path, 17, action))
    with get_savable_loader(made, on_worker_death="restart", start_method=method) as loader:
        found = take(loader, 30)  # a pass has 21 batches
        state = loader.save_state_rank()
        assert loader.worker_restarts == 1
        rest = take(loader, 10)
    assert_equal_values(found + rest, expected(40))
    assert loader.worker_restarts == 1
    assert "a new worker goes on with batch" in caplog.text
    with get_savable_loader(numbers(0, Once(tmp_path, -1, None))) as again:
        again.restore_state_rank(loads(dumps(state)))
        assert_equal_values(take(again, 10), rest)


def test_a_fork_server_that_is_killed_is_replaced_too(tmp_path, caplog, forked_spawn):
    made = numbers(2, Once(tmp_path, (18, 19), hang))  # one element of each worker
    with get_loader(made, on_worker_death="restart", start_method="forkserver") as loader:
        found = take(loader, 3)
        before = loader.worker_pids
        wait_until_hung(tmp_path, 2)  # or they might go on, and not be missed
        os.kill(_forkserver._forkserver_pid, signal.SIGKILL)
        assert_equal_values(found + take(loader, 30), expected(33))
        assert loader.worker_restarts == 2
    assert "the fork server that starts workers is gone" in caplog.text
    for pid in before:  # they lived on
        wait_until_gone(pid)


def wait_until_hung(folder, count):
    deadline = time.monotonic() + 300
    while len(list(folder.iterdir())) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(list(folder.iterdir())) == count


def wait_until_gone(pid):
    deadline = time.monotonic() + 300
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}").exists()


def test_the_default_raises(tmp_path):
    with get_loader(numbers(2, Once(tmp_path, 3, kill_itself))) as loader:
        with pytest.raises(WorkerError, match=r"died with exit code -9.*-9 is often the kernel"):
            take(loader, 30)
        assert loader.worker_restarts == 0


def fails_always(x):
    if x == 7:
        kill_itself()
    return x


def test_a_batch_that_always_kills_its_worker_ends_the_run():
    """Number 7 is the second element of stream 1."""
    made = MapDataset(NumbersDataset(40, config(2)), fails_always)
    with get_loader(made, on_worker_death="restart") as loader:
        place = "the 4th in a row that was lost at batch 1 of stream 1"
        with pytest.raises(WorkerError, match=rf"exit code -9; it is {place}.*-9 is often the kernel"):
            list(loader)
        assert loader.worker_restarts == workers_module.RESTARTS_IN_A_ROW == 3


def plain(workers):
    return numbers(workers, Once(Path(), -1, None))


def epochs(workers):
    return EpochizeDataset(RepeatDataset(plain(workers)), 7)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("restart") / "data"
    prepared_binary_dataset(folder, samples=120, shards=3, payload_bytes=50)
    (folder.parent / "blend.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {weight: 2, path: data}\n      - {weight: 1, path: data}\n"
    )
    return folder


class Packing(DefaultTaskEncoder):
    """Packs two or three samples, as many as their keys say."""

    decoder = None

    @stateless
    def encode_sample(self, sample):
        return {"__key__": sample["__key__"], "__restore_key__": (), "bin": bytes(sample["bin"])[:8]}

    @stateless
    def select_samples_to_pack(self, samples):
        packs, rest = [], list(samples)
        while rest:
            size = 2 + int(rest[0]["__key__"][-1]) % 2
            packs.append(rest[:size])
            rest = rest[size:]
        return packs

    @stateless
    def pack_selected_samples(self, samples):
        keys = [sample["__key__"] for sample in samples]
        return {
            "__key__": "+".join(keys),
            "__restore_key__": (),
            "bins": [sample["bin"] for sample in samples],
        }

    @stateless
    def batch(self, samples):
        return [(sample["__key__"], sample["bins"]) for sample in samples]


def of_files(path, **options):
    def build(workers):
        return get_train_dataset(
            path,
            batch_size=2,
            worker_config=config(workers),
            shuffle_buffer_size=7,
            max_samples_per_sequence=6,
            task_encoder=Packing(),
            packing_buffer_size=9,
            read_options=ReadOptions(max_ahead=64),  # a tiny dataset would be planned for hundreds of passes
            **options,
        )

    return build


@pytest.mark.every(3)
@pytest.mark.parametrize("pipeline", ["packed", "plain", "blend", "virtual epochs", "epochs"])
def test_kills_at_random_moments_change_nothing(data, pipeline):
    """Whatever is in the channel, and whichever streams are in the middle of what."""
    build = {
        "plain": plain,
        "epochs": epochs,
        "packed": of_files(data),
        "blend": of_files(data.parent / "blend.yaml"),
        "virtual epochs": of_files(data, virtual_epoch_length=11),
    }[pipeline]
    steps = 60 if is_nightly() else 30
    reference = take(get_savable_loader(build(0)), steps + 6)
    draws = random.Random(pipeline)
    with get_savable_loader(build(3), on_worker_death="restart", prefetch_factor=1) as loader:
        found, kills = [], 0
        while len(found) < steps:
            found += take(loader, min(draws.randint(1, 9), steps - len(found)))
            victims = draws.sample(loader.worker_pids, draws.randint(0, 2))
            kill_all(victims)
            kills += len(victims)
            state = loads(dumps(loader.save_state_rank()))
        assert_equal_values(found, reference[:steps])
        assert 0 < loader.worker_restarts <= kills
    with get_savable_loader(build(2)) as again:
        again.restore_state_rank(state)
        assert_equal_values(take(again, 6), reference[steps:])


@settings(max_examples=5 if is_nightly() else 3)
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=4))
def test_any_kills_change_nothing(workers, kills):
    reference = expected(sum(count for count, _ in kills) + 25)
    with get_savable_loader(plain(workers), on_worker_death="restart") as loader:
        found = take(loader, 1)
        for count, victim in kills:
            kill_all([loader.worker_pids[victim % workers]])
            found += take(loader, count)
        found += take(loader, 24)
    assert_equal_values(found, reference)


def shared_maps():
    return Path("/proc/self/maps").read_text().count("energon-stream")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")
def test_nothing_of_the_lost_workers_is_kept():
    with get_loader(plain(2), on_worker_death="restart") as loader:
        take(loader, 1)
        gc.collect()  # what other tests left
        descriptors = len(os.listdir("/proc/self/fd"))
        assert shared_maps() == 2
        for _ in range(2):
            kill_all(loader.worker_pids)
            take(loader, 20)
        assert loader.worker_restarts == 4
        assert shared_maps() == 2
        assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert shared_maps() == 0


def leave_a_child():
    """Die while a process lives on that has inherited the pipe, and so keeps it open."""
    if os.fork():
        kill_itself()
    signal.alarm(30)
    hang()


def test_a_child_of_the_worker_that_keeps_the_pipe_open_does_not_hide_its_death(tmp_path):
    with get_loader(numbers(1, Once(tmp_path, 5, leave_a_child)), on_worker_death="restart") as loader:
        assert_equal_values(take(loader, 30), expected(30))
        assert loader.worker_restarts == 1


def test_a_message_that_breaks_off_is_the_end_of_the_worker():
    for sent in (b"", b"\0\0", b"\0\0\0\x09", b"\0\0\0\x09abc"):
        wire = Wire(0, 1)
        os.write(wire.child.fileno(), sent)
        wire.close_child()
        with pytest.raises(EOFError):
            Receiver(wire).receive()


@pytest.fixture
def impatient(monkeypatch):
    """Wait for the answer of a worker only for a moment."""
    monkeypatch.setattr(monitor_module, "ANSWER_SECONDS", 0.1)


@pytest.mark.parametrize("action", [hang, hang_in_c])
def test_a_worker_that_hangs_is_replaced(tmp_path, caplog, request, action):
    if action is hang_in_c:  # it does not answer
        request.getfixturevalue("impatient")
    made = numbers(2, Once(tmp_path, 17, action))
    options = {**SECONDS, "on_worker_hang": "restart"}
    with get_loader(made, **options) as loader:
        assert_equal_values(take(loader, 30), expected(30))
        assert loader.worker_restarts >= 1
    assert f"in {action.__name__}" in caplog.text  # the stack
    if action is hang:
        assert "it is in Once on sample 17" in caplog.text


@pytest.mark.usefixtures("impatient")
def test_a_stopped_worker_is_replaced():
    with get_loader(plain(1), **SECONDS, on_worker_hang="restart") as loader:
        take(loader, 3)
        os.kill(loader.worker_pids[0], signal.SIGSTOP)
        assert_equal_values(take(loader, 20), expected(23)[3:])
        assert loader.worker_restarts >= 1


class Hangs(DefaultTaskEncoder):
    """Hangs at the third sample."""

    decoder = None
    count = 0

    def encode_sample(self, sample):
        self.count += 1
        if self.count > 2:
            hang()
        return bytes(sample["bin"])

    def batch(self, samples):
        return samples


def test_a_hang_is_an_error_with_the_function_and_the_sample(data, caplog):
    made = get_train_dataset(
        data,
        batch_size=2,
        worker_config=config(1),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Hangs(),
        read_options=ReadOptions(max_ahead=64),
    )
    options = {**SECONDS, "on_worker_hang": "raise"}
    with get_loader(made, **options) as loader:
        sample = r"data-\d+\.tar/\d+"
        with pytest.raises(
            WorkerError, match=rf"no batch for 1 s; it is in Hangs\.encode_sample on sample {sample}"
        ):
            take(loader, 2)
    assert "in encode_sample" in caplog.text
    assert "Thread MainThread" in caplog.text


def test_a_hang_at_the_same_batch_again_and_again_ends_the_run():
    def hangs(x):
        hang()

    made = MapDataset(NumbersDataset(6, config(1)), hangs)
    # However far the worker has come by then, it is lost.
    loader = get_loader(made, watchdog_timeout_seconds=0.2, on_worker_hang="restart")
    with loader, pytest.raises(WorkerError, match=r"the 4th in a row that was lost at batch 0 of stream 0"):
        list(loader)


def test_without_workers_the_stacks_are_logged(caplog):
    slow = logging.getLogger("energon_stream.loader.session")

    class Told(logging.Handler):
        """Lets the function end."""

        def emit(self, record):
            os.write(writing, b"!")

    reading, writing = os.pipe()
    handler = Told()
    slow.addHandler(handler)
    try:
        waits = MapDataset(NumbersDataset(1, WorkerConfig(0, 1, 0)), lambda x: os.read(reading, 1) and x)
        assert list(get_loader(waits, watchdog_timeout_seconds=0.05, on_worker_hang="raise")) == [0]
    finally:
        slow.removeHandler(handler)
        os.close(reading)
        os.close(writing)
    assert "<lambda> on sample 0" in caplog.text
    assert "Thread MainThread" in caplog.text
    assert "on_worker_hang" in caplog.text


def test_a_worker_that_is_still_starting_gets_no_signal():
    ours, _theirs = socket.socketpair()
    with contextlib.closing(Monitor(ours, os.getpid())) as monitor:
        assert monitor.ask() == Activity(stacks="the worker is still starting")
        _theirs.send(b"!")
        _theirs.close()
        assert monitor.ask() == Activity(stacks="the worker is gone")


def test_what_cannot_be_chosen():
    for options in (
        {"on_worker_death": "ignore"},
        {"on_worker_hang": "kill"},
        {"on_worker_hang": "restart", "fail_on_timeout": True},
    ):
        with pytest.raises(ConfigError, match="on_worker"):
            get_loader(plain(1), **options)
