"""Threads that decode ahead of the hooks. The oracle is an undisturbed run without them."""

import io
import random
import threading
import time
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    FileStoreDecoder,
    PlannedPacking,
    SampleDecoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.errors import ConfigError
from energon_stream.fork import run_isolated
from energon_stream.testing.datasets import CRUDE_YAML, prepare_as, write_shards
from energon_stream.testing.operator_suite import assert_equal_values

DAMAGED = (7, 31, 32)


def parts(number):
    pixels = np.random.default_rng(number).integers(0, 255, (45, 60, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((180, 135)).save(buffer, "PNG")
    image = buffer.getvalue()
    return {
        "png": image[:2000] if number in DAMAGED else image,
        "txt": f"caption {number}".encode(),
        "second.png": image,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("images")
    write_shards(path, shards=4, samples_per_shard=12, parts=parts)
    return str(prepare_as(path, (1, 0, 0), CRUDE_YAML))


class Recorded(SampleDecoder):
    """Notes on which thread it decoded what."""

    thread_safe = True
    noted: list = []  # of a class that is frozen

    def decode(self, fname, raw):
        self.noted.append((fname, threading.current_thread().name))
        return super().decode(fname, raw)


class Unmarked(Recorded):
    def decode(self, fname, raw):
        return super().decode(fname, raw)


class Encoder(DefaultTaskEncoder):
    names = ("png", "txt")

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder
        self.calls = 0
        self.cookers = (Cooker(self.cook),)

    @stateless
    def cook(self, sample):
        return {"__key__": sample["__key__"], **{name: sample[name] for name in self.names}}

    @stateless
    def encode_sample(self, sample):
        self.calls += 1
        here = threading.current_thread() is threading.main_thread()
        values = [
            np.asarray(sample[name]).sum().item() if "png" in name else sample[name] for name in self.names
        ]
        return {
            "__key__": sample["__key__"],
            "values": values,
            "draw": self.rng.random.random(),
            "here": here,
        }

    @stateless
    def batch(self, samples):
        return samples


def opened(
    folder,
    decoder=None,
    workers=0,
    names=Encoder.names,
    decode_threads=0,
    streams=2,
    storage_options=None,
    **more,
):
    encoder = Encoder(decoder or SampleDecoder())
    encoder.names = names
    config = WorkerConfig(0, 1, workers, num_streams=streams)
    dataset = get_train_dataset(
        folder,
        worker_config=config,
        task_encoder=encoder,
        batch_size=3,
        storage_options=storage_options,
        shuffle_buffer_size=5,
        max_samples_per_sequence=6,
    )
    return get_savable_loader(dataset, decode_threads=decode_threads, **more)


def run(loader, count):
    found, states = [], []
    with loader:
        for batch in islice(loader, count):
            found.append(batch)
            states.append(loader.save_state_rank())
        return found, states, loader.bad_samples()


@pytest.fixture(scope="module")
def wanted(folder):
    return run(opened(folder), 26)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("workers", "kind"),
    [(2, "thread"), (2, "fork"), (0, "fork"), (0, "thread"), (1, "fork"), (1, "thread")],
)
def test_batches_states_and_failures_are_those_without_threads(folder, wanted, workers, kind):
    batches, states, bad = wanted
    found = run(opened(folder, workers=workers, decode_threads=2, worker_type=kind), 26)
    if kind == "thread" and workers:
        batches = [[{**sample, "here": False} for sample in batch] for batch in batches]
    assert_equal_values(found[0], batches)
    assert_equal_values(found[1], states) if workers < 2 else None
    assert bad
    assert sorted(map(str, found[2])) == sorted(map(str, bad))  # the lines of errors, too


@pytest.mark.parametrize("streams", [1, 3])
def test_requests_are_those_without_threads(folder, s3_server, tmp_bucket, streams):
    """Each byte once, in as many requests; and the samples are the same."""
    s3_server.upload_folder(folder, f"{tmp_bucket}/data")
    found = []
    for threads in (0, 2):
        options = {"storage_options": s3_server.storage_options, "streams": streams}
        with opened(f"{tmp_bucket}/data", decode_threads=threads, **options) as loader:
            keys = [sample["__key__"] for batch in islice(loader, 15) for sample in batch]
            io = loader.stats().io
        found.append((keys, io.total_requests, io.bytes_received))
    assert found[0][0] == found[1][0]
    assert found[1][1] <= found[0][1] + 1
    assert found[1][2] <= 1.2 * found[0][2]


def test_a_chain_of_restores_with_and_without_threads(folder, wanted):
    dice, state, found = random.Random(5), None, []
    while len(found) < 26:
        with opened(folder, decode_threads=dice.randrange(4)) as loader:
            loader.restore_state_rank(state)
            found += list(islice(loader, min(dice.randrange(1, 6), 26 - len(found))))
            state = loader.save_state_rank()
    assert_equal_values(found, wanted[0])
    assert_equal_values(state, wanted[1][-1])


@pytest.mark.parametrize(
    ("decoder", "names", "moved"),
    [
        (Recorded(), ("png", "txt"), {"png"}),
        (Recorded(), ("second.png",), {"second.png"}),
        (Unmarked(), ("png", "txt"), set()),
    ],
)
def test_parts_that_take_long_and_are_looked_at_are_decoded_ahead(folder, decoder, names, moved):
    for thread in threading.enumerate():
        if thread.name.startswith("energon_stream decode"):
            thread.join(5)  # a loader that was closed decodes what it has begun
    Recorded.noted.clear()
    found, *_ = run(opened(folder, decoder, names=names, decode_threads=2), 9)
    elsewhere = {name for name, thread in Recorded.noted if thread.startswith("energon_stream decode")}
    assert elsewhere - {"txt"} == moved  # a text may take long once, on a busy machine
    assert {name for name, _ in Recorded.noted} == set(names)
    counted = sum(name == names[0] for name, _ in Recorded.noted)
    assert counted <= 3 * len(found) + 12 + 2 * 2 * 2 + 2  # what the hooks saw, failed, shuffled, and ahead
    assert all(sample["here"] for batch in found for sample in batch)


class Settings(FileStoreDecoder):
    """Notes what numpy does on an overflow, for each thread."""

    thread_safe = True

    def __init__(self):
        self.noted = set()

    def decode(self, fname, data):
        time.sleep(0.001 * (fname == "png"))
        self.noted.add((threading.current_thread() is threading.main_thread(), np.geterr()["over"]))
        return bytes(data)[:4]


class Short(Encoder):
    @stateless
    def encode_sample(self, sample):
        return sample


def test_settings_of_numpy_hold_in_the_threads(folder):
    encoder = Short(Settings())
    config = WorkerConfig(0, 1, 0, num_streams=2)
    dataset = get_train_dataset(folder, worker_config=config, task_encoder=encoder, batch_size=3)
    with np.errstate(over="raise"), get_savable_loader(dataset, decode_threads=2) as loader:
        list(islice(loader, 12))
    assert encoder.decoder.noted == {(True, "raise"), (False, "raise")}


class Gated(FileStoreDecoder):
    """Decodes slowly, and notes how many calls there are at the same time."""

    thread_safe = True

    def __init__(self):
        self.lock, self.now, self.most, self.gate = threading.Lock(), 0, 0, threading.Event()
        self.gate.set()

    def decode(self, fname, data):
        if fname != "png":
            return bytes(data)
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.002)
        assert self.gate.wait(60)
        with self.lock:
            self.now -= 1
        return np.frombuffer(data, np.uint8)[:10].copy()


def test_as_many_at_a_time_as_threads_and_an_end_in_the_middle_of_a_call(folder):
    decoder = Gated()
    with opened(folder, decoder, decode_threads=3) as loader:
        batches = iter(loader)
        next(batches)
        for _ in range(4):
            next(batches)
        assert 2 <= decoder.most <= 3 + 1  # the main thread decodes what was not begun
        decoder.gate.clear()
        child = run_isolated(
            lambda: [sample["__key__"] for sample in next(batches)] if decoder.gate.set() is None else 0
        )
        loader.close()  # while threads decode
    decoder.gate.set()
    assert [sample["__key__"] for sample in next(iter(loader))] == child


class Packs(Encoder):
    @stateless
    def pack_selected_samples(self, samples):
        return samples


def test_planned_packs_and_their_pieces(folder):
    """The keys of pieces follow from the place of each sample, which is behind what was taken ahead."""

    def opened(threads):
        config = WorkerConfig(0, 1, 0, num_streams=2)
        packing = PlannedPacking(cost=[10 + number % 7 for number in range(48)], capacity=40)
        dataset = get_train_dataset(
            folder, worker_config=config, task_encoder=Packs(SampleDecoder()), packing=packing, batch_size=1
        )
        return get_savable_loader(dataset, decode_threads=threads)

    wanted, found = run(opened(0), 15), run(opened(2), 15)
    assert_equal_values(found[0], wanted[0])
    assert_equal_values(found[1], wanted[1])
    with opened(2) as loader:
        loader.restore_state_rank(wanted[1][6])
        assert_equal_values(list(islice(loader, 8)), wanted[0][7:])


@pytest.mark.parametrize("value", [-1, 1.5, "two", True])
def test_impossible_numbers(folder, value):
    with pytest.raises(ConfigError, match="decode_threads is"):
        opened(folder, decode_threads=value)


def test_a_limit_on_the_time_of_samples_is_refused(folder):
    config = WorkerConfig(0, 1, 0, sample_timeout=1.0)
    dataset = get_train_dataset(folder, worker_config=config, batch_size=1)
    with pytest.raises(ConfigError, match=r"sample_timeout=1.0 does not go with decode_threads=2"):
        get_savable_loader(dataset, decode_threads=2)
