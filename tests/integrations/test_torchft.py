"""torchft: replica groups that are killed and come back train on each batch of the job once, in its order.

``make frameworks`` runs it, in an environment with torchft.
"""

import json
import multiprocessing
import multiprocessing.connection
import os
import random
import threading
import time
from datetime import timedelta

import pytest

pytest.importorskip("torchft", reason="no torchft (make frameworks)")

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.errors import StateInUseError
from energon_stream.integrations.torchft import ReplicaLoader
from energon_stream.testing.datasets import prepared_text_dataset

SAMPLES = 1200
BATCH = 2
HANG = 900  # seconds, which end a hang
LAST, HOLD, READY = range(3)  # of the pace: the step to end with, that to wait at, and groups ready to begin


class Numbers(DefaultTaskEncoder):
    """Batches are the numbers of their texts."""

    def batch(self, samples):
        return torch.tensor([int(sample.text.split()[1]) for sample in samples])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return prepared_text_dataset(folder, shards=12, samples_per_shard=SAMPLES // 12)


def open_loader(data, streams):
    def open_of(rank, ranks):
        config = WorkerConfig(rank, ranks, 0, num_streams=streams)
        options = {"shuffle_buffer_size": 50, "max_samples_per_sequence": 10, "repeat": False}
        dataset = get_train_dataset(
            data, batch_size=BATCH, worker_config=config, task_encoder=Numbers(), **options
        )
        return get_savable_loader(dataset)

    return open_of


def lighthouse(address):
    # A group without a heartbeat has left. A step waits for all others, however slow they are.
    clocks = {"join_timeout_ms": 1000 * HANG, "quorum_tick_ms": 20, "heartbeat_timeout_ms": 3000}
    server = LighthouseServer(bind="[::]:0", min_replicas=2, **clocks)
    address.send(server.address())
    threading.Event().wait()


def group(name, address, data, streams, pace, column, record, options):
    """Train in a replica group: the gradient tells whose samples were trained on."""
    os.environ["TORCHFT_LIGHTHOUSE"] = address
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=lambda state: None,
        state_dict=dict,
        min_replica_size=2,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=f"group{name}",
        timeout=timedelta(seconds=60),
        quorum_timeout=timedelta(seconds=HANG),
        connect_timeout=timedelta(seconds=HANG),
        hostname="localhost",
        **options,
    )
    loader = ReplicaLoader(open_loader(data, streams), manager, *column)
    pace[READY] = name
    while manager.current_step() < pace[LAST]:
        while manager.current_step() >= pace[HOLD]:
            time.sleep(0.02)
        manager.start_quorum()
        try:
            batch = next(loader)
        except StopIteration:
            break
        gradient = torch.zeros(SAMPLES)
        gradient[batch] = 1
        manager.allreduce(gradient, reduce_op=dist.ReduceOp.SUM).wait()
        step = manager.current_step()
        if manager.should_commit():
            with open(record, "a") as file:
                file.write(json.dumps([step, {i: n for i, n in enumerate(gradient.tolist()) if n}]) + "\n")
        time.sleep(0.03)
    manager.shutdown()


class Job:
    def __init__(self, data, folder, *, streams=12, steps=10_000, column=(0, 1), **options):
        self.context = multiprocessing.get_context("fork")
        receive, send = self.context.Pipe()
        self.lighthouse = self.context.Process(target=lighthouse, args=(send,), daemon=True)
        self.lighthouse.start()
        self.pace = self.context.RawArray("q", [steps, 1 << 62, -1])
        self.arguments = (receive.recv(), data, streams, self.pace, column)
        self.folder, self.options, self.groups = folder, options, {}

    def start(self, name):
        arguments = (name, *self.arguments, self.folder / f"record{name}", self.options)
        self.groups[name] = self.context.Process(target=group, args=arguments, daemon=True)
        self.groups[name].start()

    def kill(self, name):
        self.groups[name].kill()
        self.groups[name].join()

    def steps(self):
        """The samples of each committed step, of which all groups have to tell the same."""
        found = {}
        for path in self.folder.glob("record*"):
            for line in path.read_text().splitlines():
                step, samples = json.loads(line)
                assert found.setdefault(step, samples) == samples, step
        return found

    def wait(self, is_due):
        """Wait until the list of the samples of each step is as ``is_due`` wants it."""
        deadline = time.monotonic() + HANG
        while not is_due(samples := [found for _, found in sorted(self.steps().items())]):
            assert time.monotonic() < deadline, list(map(len, samples))
            time.sleep(0.05)
        return len(samples)

    def wait_for(self, groups, steps=4):
        """Wait for some steps in a row in which so many groups take part."""
        return self.wait(lambda found: list(map(len, found[-steps:])) == [groups * BATCH] * steps)

    def bring_back(self, name):
        """Start a group again. The others go on, and wait for it before they run out of samples."""
        self.pace[READY], self.pace[HOLD] = -1, len(self.steps()) + 8
        self.start(name)
        self.wait(lambda _: self.pace[READY] == name)
        self.pace[HOLD] = 1 << 62

    def end(self):
        """Wait for a group to end; one that has to heal for the last step is then left alone."""
        ended = [process.sentinel for process in self.groups.values()]
        assert multiprocessing.connection.wait(ended, HANG)
        for process in self.groups.values():
            process.join(5)
            assert not process.exitcode
            process.kill()
        self.lighthouse.kill()
        return self.steps()


def check(found, data, streams, *, in_order=True, column=(0, 1)):
    """After each step, what was trained on is what a run that nothing disturbs has read first; return how
    many batches the steps had.
    """
    whole = [sorted(batch.tolist()) for batch in open_loader(data, streams)(*column)]
    number_of = {sample: number for number, batch in enumerate(whole) for sample in batch}
    assert sorted(found) == list(range(len(found)))
    trained, counts = [], []
    for step in sorted(found):
        assert set(found[step].values()) == {1.0}, "a sample twice in a step"
        numbers = sorted({number_of[int(sample)] for sample in found[step]})
        assert sorted(map(int, found[step])) == sorted(
            sample for number in numbers for sample in whole[number]
        )
        trained += numbers
        counts.append(len(numbers))
        if in_order:
            assert sorted(trained) == list(range(len(trained))), step
    assert sorted(trained) == list(range(len(trained)))
    return counts


def run(data, folder, **options):
    """Train with three groups, of which the second leaves; the job goes on until it has come back."""
    job = Job(data, folder, **options)
    for name in range(3):
        job.start(name)
    job.wait_for(3)
    job.kill(1)
    job.wait_for(2)
    job.bring_back(1)
    job.pace[LAST] = job.wait_for(3) + 4
    return job.end()


@pytest.mark.parametrize("is_async", [True, False])
def test_a_group_leaves_and_comes_back(data, tmp_path, is_async):
    found = run(data, tmp_path, use_async_quorum=is_async, init_sync=False)
    assert {2, 3} <= set(check(found, data, 12))


def test_the_first_step_may_count_without_some_groups(data, tmp_path):
    """torchft's default lets the groups take the model of the first, and their gradients are nothing."""
    found = run(data, tmp_path)
    counts = check(found, data, 12, in_order=False)
    assert counts[0] == 1
    assert {2, 3} <= set(counts)


def test_any_number_of_groups(data, tmp_path):
    """Three, and two, do not divide the streams."""
    found = run(data, tmp_path, streams=5, init_sync=False)
    assert {2, 3} <= set(check(found, data, 5))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_of_groups_of_two_reads_its_share(data, tmp_path, rank):
    """The processes of one rank of all groups exchange states, without those of the other."""
    found = run(data, tmp_path, init_sync=False, column=(rank, 2))
    assert {2, 3} <= set(check(found, data, 12, column=(rank, 2)))


def test_all_groups_end_with_the_same_step(data, tmp_path):
    job = Job(data, tmp_path, init_sync=False)
    for name in range(2):
        job.start(name)
    counts = check(job.end(), data, 12)
    assert SAMPLES / 2 - 12 <= sum(counts) <= SAMPLES / 2


@pytest.mark.slow
def test_ten_kills(data, tmp_path):
    random.seed(5)
    job = Job(data, tmp_path, steps=150, init_sync=False)
    for name in range(3):
        job.start(name)
    step = 0
    for _ in range(10):
        step += random.randint(5, 10)
        job.wait(lambda found, step=step: len(found) > step)
        name = random.randrange(3)
        job.kill(name)
        step += random.randint(0, 5)
        job.wait(lambda found, step=step: len(found) > step)
        job.start(name)
    counts = check(job.end(), data, 12)
    assert len(counts) == 150
    assert {2, 3} <= set(counts)


class Alone:
    """The part of torchft's manager that the loader uses, for one group."""

    def __init__(self):
        self.step = 0

    def start_quorum(self):
        pass

    def register_state_dict_fn(self, key, load_state_dict, state_dict):
        pass

    def participating_rank(self):
        return 0

    def num_participants(self):
        return 1

    def current_step(self):
        return self.step

    def errored(self):
        return None

    def allreduce(self, tensor, reduce_op):
        future = torch.futures.Future()
        future.set_result(tensor)
        return future


def test_a_checkpoint_goes_on_and_mistakes_are_refused(data):
    def steps(loader, manager, count):
        for _ in range(count):
            manager.start_quorum()
            yield next(loader).tolist()
            manager.step += 1

    manager = Alone()
    loader = ReplicaLoader(open_loader(data, 12), manager)
    whole = list(steps(loader, manager, 9))
    manager = Alone()
    loader = ReplicaLoader(open_loader(data, 12), manager)
    assert list(steps(loader, manager, 4)) == whole[:4]
    with pytest.raises(StateInUseError, match="no quorum was started"):
        next(loader)
    saved = loader.state_dict()
    manager.start_quorum()
    assert next(loader).tolist() == whole[4]
    manager.start_quorum()  # the step was not committed
    assert next(loader).tolist() == whole[4]
    other = Alone()
    again = ReplicaLoader(open_loader(data, 12), other)
    again.load_state_dict(saved)
    other.start_quorum()
    with pytest.raises(StateInUseError, match="committed 0 steps, the loader 4"):
        next(again)
    other.step = 4
    assert list(steps(again, other, 5)) == whole[4:]
