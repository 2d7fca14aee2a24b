"""How much is planned: each window once a process, not far ahead, and in little time."""

import sys
import time

import numpy as np
import pytest
from packed import Packs, opened, write
from repetitions import is_nightly

from energon_stream import ReadOptions, stateless
from energon_stream.index.entries import OffsetCache
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.pipeline.stream_runner import StreamRunner
from energon_stream.read.consume import ReaderGroup, SampleReader
from energon_stream.schedule import (
    BlendPlan,
    JobPacks,
    LeafPlan,
    OrderSpec,
    PackSpec,
    RepeatPlan,
    build_schedule,
)
from energon_stream.testing.s3server import S3Server
from energon_stream.tools.simulate.clock import Line
from energon_stream.tools.simulate.model import Costs, StoreModel
from energon_stream.tools.simulate.virtual_fetcher import VirtualFetcher, VirtualLocator


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


class Lines(Packs):
    @stateless
    def pack_selected_samples(self, samples):
        return [int(sample["__key__"].rpartition("/")[2]) for sample in samples]


class Sizes(Packs):
    @stateless
    def pack_selected_samples(self, samples):
        return [len(samples)]


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


@pytest.mark.every(2)
@pytest.mark.parametrize(("streams", "each"), [(256, 4), (256, 1), (64, 64)])
@pytest.mark.parametrize("long", [False, True])
def test_planning_takes_microseconds_a_sample(streams, each, long):
    """CPU time, in that of a yardstick that takes 22 ms of a quiet core: 20 µs a sample at most."""
    draw = np.random.default_rng(0)
    median, spread = (5000, 0.4) if long else (600, 1.2)
    lengths = np.clip(draw.lognormal(np.log(median), spread, 100_000), 1, 8192).astype(np.int64)
    plan = RepeatPlan(LeafPlan(0, np.array([0, len(lengths)]), OrderSpec(100, 0, 16, 1)))
    spec = PackSpec(8192, streams * each, 8 if each < 64 else 1, "quadratic", "error")
    seconds = []
    for _ in range(3):  # whatever else the machine does, one of them is hardly disturbed
        job = JobPacks(build_schedule(plan, num_streams=1, stream=0, key=1), spec, (lengths,), streams, 1)
        yardstick, begin = seconds_of_work() / 0.022, time.process_time()
        window = job.window(0, 0, job.job.begin())
        seconds.append((time.process_time() - begin) / yardstick)
        if seconds[-1] < 20e-6 * window.count:
            break
    assert min(seconds) / window.count < 20e-6


def seconds_of_work():
    """Return the CPU time of fixed work in NumPy and Python, which a slow core slows down like planning."""
    begin, found = time.process_time(), 0
    for row in np.random.default_rng(0).integers(0, 8192, (600, 512)):
        order = row.argsort(kind="stable")
        found += int(np.bincount(order % 64, row[order])[3])
        found += sum(divmod(number, 7)[1] for number in range(40))
    return time.process_time() - begin


def test_of_local_files_few_windows_are_planned_before_the_first_batch(tmp_path):
    """A reader gains nothing by looking far ahead where no answer takes long: one chapter of the job."""
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n' * 20_000)
    prepare_jsonl(str(tmp_path / "texts.jsonl"))
    load = CountedLoad()
    options = {"num_streams": 16, "global_batch_size": 64, "window": 8, "read": ReadOptions()}
    dataset = opened(tmp_path / "texts.jsonl", cost=[10] * 20_000, load=load, encoder=Sizes, **options)
    load.packs = 0
    runner = StreamRunner(dataset, range(16))
    assert runner.step() is not None
    runner.close()
    assert load.packs <= 5 * 2_100  # one chapter, here the whole pass, whose packs are formed in several ways


def test_over_a_store_one_rank_plans_one_chapter_before_its_first_batch(tmp_path):
    """Planning the next one took longer than all that the batch needed."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "texts.jsonl").write_text('{"text": "a"}\n' * 50_000)
    prepare_jsonl(str(tmp_path / "bucket" / "texts.jsonl"))
    load, lengths = CountedLoad(), np.random.default_rng(0).integers(2, 15, 50_000)
    options = {"num_streams": 64, "global_batch_size": 64, "window": 2, "read": ReadOptions(), "world": 64}
    with S3Server(tmp_path) as server:
        options["storage"] = server.storage_options
        dataset = opened("s3://bucket/texts.jsonl", 1, cost=lengths, load=load, encoder=Sizes, **options)
        load.packs = 0
        runner = StreamRunner(dataset, [1])
        assert runner.step() is not None
        runner.close()
    # A chapter has 32,768 samples of 8 tokens, in packs of at most 100.
    assert load.packs <= 1.05 * (1 << 15) * 8 / 100


LINES = 4_000 if is_nightly() else 2_400


@pytest.fixture
def lines(tmp_path):
    """Lines of 14 bytes in a store, opened for 16 streams."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "texts.jsonl").write_text('{"text": "a"}\n' * LINES)
    prepare_jsonl(str(tmp_path / "bucket" / "texts.jsonl"))
    lengths = np.random.default_rng(0).integers(2, 40, LINES)
    with S3Server(tmp_path) as server:
        options = {
            "num_streams": 16,
            "read": ReadOptions(),
            "repeat": False,
            "storage": server.storage_options,
        }
        yield server, opened("s3://bucket/texts.jsonl", cost=lengths, encoder=Lines, **options)


def test_over_a_store_streams_read_windows_together(lines):
    """Each stream once had a plan of its own: 256 streams made 3,458 requests before the first batch."""
    server, dataset = lines
    server.reset_counters()
    runner = StreamRunner(dataset, range(16))
    (first,) = runner.step().value
    opening = asked(server)
    assert len(opening) <= len(first)  # the first pack waits for its own samples only
    packs = [first]
    while (step := runner.step()) is not None:
        packs.extend(step.value)
    runner.close()
    later = asked(server) - opening
    assert sorted({line for pack in packs for line in pack}) == list(range(LINES))
    # Of the windows, seven by night, two are read together, so that a request takes several lines.
    assert len(later) <= (400 if is_nightly() else 150)
    # A stream that needs a sample before the first answers are there asks for it alone.
    assert sum(last - first + 1 for first, last in later) <= (1.02 + ReadOptions().max_waste) * 14 * LINES


def asked(server):
    """Requested ranges of lines; a late request that is made twice counts once."""
    found = (entry.range for entry in server.log() if entry.key.endswith(".jsonl"))
    return {tuple(map(int, each.removeprefix("bytes=").split("-"))) for each in found}


class VirtualReaders:
    """Readers of 16 streams in virtual time, of which each gives a pack in turn, pass after pass."""

    def __init__(self, dataset, latency, begin=lambda schedule, stream: schedule.begin()):
        while dataset.inputs:
            (dataset,) = dataset.inputs
        line = Line(Costs())
        self.fetcher = VirtualFetcher(line, StoreModel(latency), Costs(), 64, 0)
        waits = {"clock": self.fetcher.clock, "wait": self.fetcher.wait_for_first}
        self.group = ReaderGroup(dataset.reader_options(16), self.fetcher, 16, **waits)
        cache = OffsetCache()
        locators = [VirtualLocator(each, 0, self.fetcher, 1e-6) for each in dataset.open_locators(cache)]
        self.schedules = [dataset.schedule(stream) for stream in range(16)]
        self.cursors = [begin(schedule, stream) for stream, schedule in enumerate(self.schedules)]
        places = zip(self.schedules, self.cursors, strict=True)
        self.readers = [SampleReader(*place, locators, self.group) for place in places]

    def read_pass(self):
        """Return the number of requests of a pass. Before each pack, an answer may be there."""
        before, left = self.fetcher.counts.requests, dict(enumerate(self.readers))
        while left:
            for stream, reader in list(left.items()):
                _, ends = self.schedules[stream].rest_of_window(reader.cursor())
                self.group.wake(None)
                for _ in range(ends[0] if ends else 1):
                    if reader.next() is None:
                        epoch = reader.cursor().epoch + 1
                        reader.restart(self.schedules[stream].next_pass(reader.cursor(), epoch))
                        del left[stream]
        return self.fetcher.counts.requests - before


def test_however_late_answers_are_streams_stay_in_step(lines):
    """Where answers were late, a stream at its end planned the next pass alone: by ten times the requests."""
    readers = VirtualReaders(lines[1], 0.1)
    assert max(readers.read_pass(), readers.read_pass()) <= (320 if is_nightly() else 110)


def test_streams_that_begin_in_different_windows_plan_the_same_ones(lines):
    """As after a resume, when some had begun a window. Two windows are read together."""

    def begin(schedule, stream):
        _, ends = schedule.rest_of_window(schedule.begin())
        return schedule.advance(schedule.begin(), ends[-1] if stream % 2 else ends[-2])

    assert VirtualReaders(lines[1], 0.1, begin).read_pass() <= (400 if is_nightly() else 145)


def test_streams_that_wait_for_the_first_ones_samples_are_not_asked_with_each_sample(folder):
    """The first samples of the first stream go on before others, which 128 streams once asked 128 times."""
    options = {"num_streams": 128, "read": ReadOptions()}
    runner = StreamRunner(opened(folder, cost=[30] * 600, encoder=Keys, **options), range(128))
    assert runner.step() is not None
    calls = 0

    def count(frame, event, _argument):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_name == "may_plan_soon"

    sys.setprofile(count)
    for _ in range(127):
        runner.step()
    sys.setprofile(None)
    runner.close()
    assert calls < 128


class CountedOrder:
    """A schedule that counts the references that are asked of it."""

    def __init__(self, schedule):
        self.schedule, self.asked = schedule, 0

    def remaining(self, cursor):
        return self.schedule.remaining(cursor)

    def take(self, cursor, count):
        self.asked += count
        return self.schedule.take(cursor, count)

    def advance(self, cursor, count):
        self.asked += count
        return self.schedule.advance(cursor, count)


def test_a_window_counts_its_references_once():
    """The place behind a window was counted from its begin, for each way to pack it: three times in all."""
    lengths = np.random.default_rng(0).integers(20, 300, 60_000)
    leaf = LeafPlan(0, np.arange(0, 60_001, 1000), OrderSpec(100, 1000, 4, 1))
    plan = BlendPlan((RepeatPlan(leaf), RepeatPlan(leaf)), (2.0, 1.0), even=True)
    job = CountedOrder(build_schedule(plan, num_streams=1, stream=0, key=1))
    spec = PackSpec(2048, 256, 8, "quadratic", "error").in_chapters(2048 / lengths.mean(), 64)
    start = job.schedule.begin()
    window = JobPacks(job, spec, (lengths,), 64, 1).window(0, 0, start)
    assert window.after == job.schedule.advance(start, window.count)
    assert window.count > 20_000
    assert job.asked < window.count + 4 * 4096
