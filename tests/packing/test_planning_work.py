"""How much is planned: each window once a process, not far ahead, and in little time."""

import time

import numpy as np
import pytest
from packed import Packs, opened, write

from energon_stream import stateless
from energon_stream.pipeline.stream_runner import StreamRunner
from energon_stream.schedule import JobPacks, LeafPlan, OrderSpec, PackSpec, RepeatPlan, build_schedule


class CountedLoad:
    """A load that counts the packs that are planned."""

    __name__ = "counted"

    def __init__(self):
        self.packs = 0

    def __call__(self, lengths):
        self.packs += 1
        return float((lengths**2.0).sum())


class Keys(Packs):
    @stateless
    def pack_selected_samples(self, samples):
        return [sample.__key__ for sample in samples]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("work") / "texts", [5] * 600, shard=300)


@pytest.mark.every(3)
@pytest.mark.parametrize(("streams", "each", "length"), [(64, 1, 70), (32, 4, 60), (16, 2, 9)])
def test_streams_of_a_process_share_windows_and_do_not_look_further(folder, streams, each, length):
    """64 streams of one long sample a pack, as `plan-faults.md` had; and others."""
    window, load = 2, CountedLoad()
    lengths = np.random.default_rng(0).integers(max(1, length - 15), length + 15, 600)
    options = {"num_streams": streams, "global_batch_size": streams * each, "window": window}
    dataset = opened(folder, cost=lengths, load=load, encoder=Keys, **options)
    load.packs = 0  # opening computes some, to know the function again
    runner = StreamRunner(dataset, range(streams))
    packs = streams * each * window
    assert runner.step() is not None
    assert load.packs <= 32 * packs
    for _ in range(10 * streams * each):
        runner.step()
    runner.close()
    load.packs -= 1 + 10 * streams * each  # the load of each pack that came is measured
    # Five windows were consumed, so that as many more are looked at. None is planned twice.
    assert load.packs % packs == 0
    assert load.packs <= (32 + 12) * packs


@pytest.mark.parametrize(("streams", "each"), [(256, 4), (256, 1), (64, 64)])
@pytest.mark.parametrize("long", [False, True])
def test_planning_takes_microseconds_a_sample(streams, each, long):
    """CPU time, with ten times the time of a quiet machine: 20 µs a sample at most."""
    draw = np.random.default_rng(0)
    median, spread = (5000, 0.4) if long else (600, 1.2)
    lengths = np.clip(draw.lognormal(np.log(median), spread, 100_000), 1, 8192).astype(np.int64)
    plan = RepeatPlan(LeafPlan(0, np.array([0, len(lengths)]), OrderSpec(100, 0, 16, 1)))
    spec = PackSpec(8192, streams * each, 8 if each < 64 else 1, "quadratic", "error")
    job = JobPacks(build_schedule(plan, num_streams=1, stream=0, key=1), spec, (lengths,), streams, 1)
    begin = time.process_time()
    window = job.window(0, 0, job.job.begin())
    assert (time.process_time() - begin) / window.count < 20e-6
