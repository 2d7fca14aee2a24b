"""Workers that are threads of the process. The oracle is an undisturbed run with worker processes."""

import decimal
import gc
import os
import random
import signal
import threading
from itertools import islice

import numpy as np
import pytest
import torch

from energon_stream import (
    BatchDataset,
    DefaultTaskEncoder,
    FileStoreCachePool,
    MapDataset,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.errors import ConfigError, WorkerError
from energon_stream.fork import run_isolated
from energon_stream.testing.datasets import prepared_text_dataset
from energon_stream.testing.operator_suite import NumbersDataset, assert_equal_values


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return str(prepared_text_dataset(folder, samples_per_shard=15))


class Encoder(DefaultTaskEncoder):
    """Draws, counts its calls, knows its worker, fails now and then, and packs."""

    def __init__(self, config):
        super().__init__()
        self.config, self.calls = config, 0

    def encode_sample(self, sample):
        self.calls += 1
        if sample.__key__.endswith(("07", "33")):
            raise ValueError("no use for it")
        active = WorkerConfig.active_worker_config
        assert active is self.config
        sample.text += f" {self.calls} {active.rank_worker_id()} {self.rng.random.random()}"
        return sample

    def select_samples_to_pack(self, samples):
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    @stateless
    def pack_selected_samples(self, samples):
        return samples[0]


def opened(texts, kind, workers=2, streams=4, **more):
    config = WorkerConfig(0, 1, workers, num_streams=streams)
    dataset = get_train_dataset(
        texts,
        worker_config=config,
        task_encoder=Encoder(config),
        batch_size=2,
        packing_buffer_size=4,
        shuffle_buffer_size=8,
        max_samples_per_sequence=5,
    )
    return get_savable_loader(dataset, worker_type=kind, **more)


def test_batches_and_states_are_those_of_processes(texts):
    dice = random.Random(3)
    with opened(texts, "fork") as loader:
        wanted, states = [], []
        for batch in islice(loader, 22):
            wanted.append((batch.__key__, batch.text))
            states.append(loader.save_state_rank())
        bad = loader.bad_samples()
    assert bad
    with opened(texts, "thread", prefetch_factor=3) as loader:
        for number, batch in enumerate(islice(loader, 22)):
            assert (batch.__key__, batch.text) == wanted[number]
            assert_equal_values(loader.save_state_rank(), states[number])
        assert loader.bad_samples() == bad
    # Keys only: an encoder that counts its calls begins anew after a restore, in processes too.
    keys, at, kinds = [], None, ["thread", "fork", "thread", "fork", "thread"]
    for kind, length in zip(kinds, [dice.randrange(1, 5) for _ in kinds], strict=True):
        with opened(texts, kind) as loader:
            loader.restore_state_rank(at)
            keys += [batch.__key__ for batch in islice(loader, length)]
            at = loader.save_state_rank()
    assert keys == [key for key, _ in wanted[: len(keys)]]


def dataset(fn=lambda number: number, workers=2, size=24):
    return MapDataset(NumbersDataset(size, WorkerConfig(0, 1, workers, num_streams=4)), fn)


def threads():
    return [each for each in threading.enumerate() if each.name.startswith("energon_stream worker")]


def test_passes_restarts_and_an_end_of_the_threads():
    wanted = list(get_savable_loader(dataset()))
    loader = get_savable_loader(dataset(), worker_type="thread")
    before = torch.get_num_threads()
    assert list(loader) == list(loader) == wanted
    assert torch.get_num_threads() == before
    assert len(threads()) == 2
    assert loader.worker_pids == ()
    found = list(islice(loader, 7))
    loader.close()
    assert not threads()
    assert found + list(loader) == wanted
    loader.close()
    loader = get_loader(dataset(), worker_type="thread")
    assert list(islice(loader, 3)) == wanted[:3]
    del loader
    gc.collect()
    assert not threads()


def test_hooks_run_beside_each_other_and_each_knows_its_worker():
    meet, config = threading.Barrier(2, timeout=60), WorkerConfig(0, 1, 2)

    def who(number):
        meet.wait()
        own = WorkerConfig.active_worker_config
        meet.wait()  # the other one is in its hook
        assert WorkerConfig.active_worker_config is own is config
        return number, own.rank_worker_id(), threading.current_thread().name

    with get_loader(MapDataset(NumbersDataset(6, config), who), worker_type="thread") as loader:
        found = list(loader)
    assert [worker for _, worker, _ in found] == [0, 1] * 3
    assert {name for _, _, name in found} == {"energon_stream worker 0", "energon_stream worker 1"}


def settings(number):
    return np.geterr(), decimal.getcontext().prec, torch.is_grad_enabled()


def test_hooks_have_the_settings_of_the_thread_that_starts_the_workers():
    found = []
    with np.errstate(all="raise"), decimal.localcontext() as context, torch.no_grad():
        context.prec = 7
        for workers in [0, 2]:
            with get_savable_loader(dataset(settings, workers), worker_type="thread") as loader:
                found.append(list(islice(loader, 4)))
    assert found[1] == found[0] == [(dict.fromkeys(np.geterr(), "raise"), 7, False)] * 4
    with get_savable_loader(dataset(settings), worker_type="thread") as loader:
        assert next(iter(loader)) == settings(0)  # nothing of it stays


def test_what_processes_cannot_send_threads_can():
    def handle(number):
        return threading.Lock(), number

    with pytest.raises(WorkerError, match="cannot send"):
        list(get_loader(dataset(handle)))
    with get_loader(dataset(handle), worker_type="thread") as loader:
        assert sorted(number for _, number in loader) == list(range(24))


class Locked:
    def __init__(self):
        self.lock, self.calls = threading.Lock(), []

    def __call__(self, number):
        with self.lock:
            self.calls.append(number)
        return number


class Shared(Locked):
    def __deepcopy__(self, memo):
        return self


def test_hooks_that_cannot_be_copied_are_named_and_may_be_shared():
    loader = get_loader(dataset(Locked()), worker_type="thread")
    with pytest.raises(ConfigError, match=r"worker 0 cannot get its own copy.*__deepcopy__"):
        list(loader)
    assert not threads()
    shared = Shared()
    with get_loader(dataset(shared), worker_type="thread") as loader:
        assert sorted(loader) == sorted(shared.calls) == list(range(24))


def test_seeds_of_all_threads_are_refused_and_those_of_the_call_are_not():
    def seeded(number):
        return number + random.random()

    fn = stateless(restore_seeds=True)(seeded)
    before = random.getstate()
    with pytest.raises(ConfigError, match=r"all threads.*self\.rng"):
        list(get_loader(dataset(fn), worker_type="thread"))
    assert random.getstate() == before
    assert list(get_loader(dataset(fn), worker_type="main")) == list(get_loader(dataset(fn)))


@pytest.mark.parametrize(
    ("sample_timeout", "options", "message"),
    [
        (
            None,
            {"on_worker_hang": "restart"},
            "on_worker_hang='restart' does not go with worker_type='thread'",
        ),
        (3.0, {}, "sample_timeout=3.0 does not go with worker_type='thread'"),
    ],
)
def test_options_that_need_processes_are_refused(sample_timeout, options, message):
    config = WorkerConfig(0, 1, 1, sample_timeout=sample_timeout)
    with pytest.raises(ConfigError, match=message):
        get_loader(NumbersDataset(4, config), worker_type="thread", **options)


def test_errors_arrive_as_they_are_and_end_the_threads():
    class OwnError(BaseException):
        pass

    def fail(number):
        if number == 9:
            raise OwnError(number)
        return number

    loader = get_loader(dataset(fail), worker_type="thread")
    with pytest.raises(OwnError):
        list(loader)
    assert not threads()


def test_a_thread_that_hangs_is_named_and_does_not_hold_up_the_end(caplog):
    go_on, is_in = threading.Event(), threading.Event()

    def hang(number):
        if number == 5:
            is_in.set()
            assert go_on.wait(60)
        return number

    options = {"watchdog_timeout_seconds": 0.05, "watchdog_initial_timeout_seconds": 60}
    loader = get_loader(dataset(hang), worker_type="thread", on_worker_hang="raise", **options)
    with pytest.raises(
        WorkerError, match=r"worker 1 \(a thread\) has returned no batch .* it is in .*hang on"
    ):
        list(loader)
    assert "goes on after its loader was closed; it is in" in caplog.text
    assert "go_on.wait" in caplog.text
    (left,) = threads()
    go_on.set()
    left.join(60)
    assert not threads()


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_signals_while_the_main_thread_waits(how):
    go_on, waits = threading.Event(), threading.Event()

    def number_of(number):
        if number == 6 and not go_on.is_set():
            assert waits.wait(60)
            os.kill(os.getpid(), signal.SIGINT if how == "interrupt" else signal.SIGUSR1)
            assert go_on.wait(60)
        return number

    def close(*_):
        go_on.set()
        loader.close()

    def take():
        for number in loader:
            found.append(number)
            if number == 5:
                waits.set()
                threading.Timer(0.2, go_on.set).start()

    before = signal.signal(signal.SIGUSR1, close)
    loader = get_savable_loader(dataset(number_of), worker_type="thread", prefetch_factor=1)
    found = []
    try:
        with pytest.raises(KeyboardInterrupt if how == "interrupt" else WorkerError):
            take()
    finally:
        signal.signal(signal.SIGUSR1, before)
        go_on.set()
    state = loader.save_state_rank()
    rest = list(get_savable_loader(dataset(number_of)).with_restored_state_rank(state))
    assert found + rest == list(range(24))


def test_a_forked_child_cannot_use_the_threads_of_its_parent():
    with get_loader(dataset(), worker_type="thread") as loader:
        batches = iter(loader)
        assert next(batches) == 0

        def in_child():
            try:
                next(batches)
            except WorkerError as error:
                loader.close()
                return str(error)

        assert "this one was forked" in run_isolated(in_child)
        assert list(batches) == list(range(1, 24))
        assert list(get_loader(dataset())) == list(range(24))  # processes, while threads run


def test_two_loaders_and_threads_of_hooks():
    def summed(number):
        found = []
        each = [threading.Thread(target=found.append, args=(number * k,)) for k in range(3)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        return sum(found)

    with (
        get_loader(dataset(summed), worker_type="thread") as one,
        get_loader(dataset(lambda number: -number, workers=3), worker_type="thread") as other,
    ):
        found = list(zip(one, other, strict=False))
    assert [first for first, _ in found] == [3 * number for number in range(24)]
    assert sorted(-second for _, second in found) == list(range(24))


def test_the_pool_and_the_statistics_of_a_loader(texts):
    class Pooled(DefaultTaskEncoder):
        def encode_sample(self, sample):
            return id(self.cache)

    config = WorkerConfig(0, 1, 2)
    dataset = get_train_dataset(texts, worker_config=config, task_encoder=Pooled(), batch_size=None)
    pool = FileStoreCachePool()
    with get_loader(dataset, worker_type="thread", cache_pool=pool) as loader:
        assert set(islice(loader, 9)) == {id(pool)}
        stats = loader.stats()
    pool.close()
    assert (stats.batches, stats.num_workers) == (9, 2)


def test_a_batch_lives_no_longer_than_the_loop_needs_it():
    class Value:
        alive = 0

        def __init__(self, number):
            Value.alive += 1

        def __del__(self):
            Value.alive -= 1

    config = WorkerConfig(0, 1, 1)
    batches = BatchDataset(MapDataset(NumbersDataset(200, config), Value), 2, list)
    with get_loader(batches, worker_type="thread", prefetch_factor=2) as loader:
        # Batches of two: in the hands of the loop, two ahead, and one that waits to be sent. A look at stacks
        # that the machine interrupts has those of both threads, with the samples of one more.
        assert max(Value.alive for _ in loader) <= 14
