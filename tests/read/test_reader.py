import functools
import itertools
import shutil
import threading
import traceback
from concurrent.futures import Future

import numpy as np
import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_writer import write_reference_dataset
from repetitions import examples

from energon_stream.errors import (
    IndexMismatchError,
    NotPreparedError,
    ObjectChangedError,
    TransientStorageError,
)
from energon_stream.index.dataset import open_webdataset
from energon_stream.index.entries import Load
from energon_stream.read import budget as budgets
from energon_stream.read.at_once import fetch_samples
from energon_stream.read.consume import ReaderGroup, SampleReader
from energon_stream.read.fetch import wait_for_first
from energon_stream.read.generation import cut_generation
from energon_stream.read.read_options import ReadOptions
from energon_stream.read.tar_locator import TarLocator
from energon_stream.rng import derive_key
from energon_stream.schedule import LeafPlan, OrderSpec, Refs, RepeatPlan, build_schedule
from energon_stream.storage import Fetcher, RetryPolicy, StoreSpec, default_counters
from energon_stream.storage.request_pool import RequestPool
from energon_stream.testing.datasets import random_bytes, write_shards
from energon_stream.testing.s3server import Rule

SHARDS, PER_SHARD, PAYLOAD = 6, 40, 9_000


@functools.cache
def parts(index):
    return {"bin": random_bytes(PAYLOAD + index * 17 % 3000, index), "txt": str(index).encode()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader") / "data"
    tars = write_shards(folder, shards=SHARDS, samples_per_shard=PER_SHARD, parts=parts)
    write_reference_dataset(folder, tars, split={"train": [tar.name for tar in tars]}, exclude=[])
    return folder


def open_sources(url, options=None):
    return [TarLocator(0, open_webdataset(StoreSpec(str(url), options), split_part="train"))]


def schedule_of(source, order=None, repeat=None):
    order = order or OrderSpec(10, 20, 4, 1)
    leaf = LeafPlan(0, source.index.shard_starts, order)
    return build_schedule(RepeatPlan(leaf, repeat), num_streams=1, stream=0, key=derive_key(3))


def make_reader(locators, schedule, cursor=None, in_flight=8, **options):
    return make_counted_reader(locators, schedule, cursor, in_flight, **options)[0]


def make_counted_reader(locators, schedule, cursor=None, in_flight=8, **options):
    """A reader, and the budget that counts its bytes."""
    cursor = schedule.begin() if cursor is None else cursor
    limits, fetcher = ReadOptions(**options), Fetcher(in_flight)
    group = ReaderGroup(limits, fetcher)
    return SampleReader(schedule, cursor, locators, group), group.budget


def read(reader, count):
    return [reader.next() for _ in range(count)]


def check(sample, index):
    assert (sample.leaf, sample.index) == (0, index)
    assert {name: bytes(view) for name, view in sample.parts.items()} == parts(index)


@pytest.mark.every(7)
@pytest.mark.parametrize(
    "order", [OrderSpec(10, 20, 4, 1), OrderSpec(), OrderSpec(1, 0, 2, 1), OrderSpec(None, 9)]
)
@pytest.mark.parametrize("budget", [1, 200_000, 1 << 28])
def test_samples_come_in_the_schedules_order_with_their_bytes(folder, remote, order, budget):
    local, s3 = open_sources(folder), open_sources("s3://bucket/data", remote.storage_options)
    schedule = schedule_of(local[0], order, repeat=1)
    expected = schedule.take(schedule.begin(), 10**6)[0].index.tolist()
    for locators in (local, s3):
        reader = make_reader(locators, schedule, byte_budget=budget, first_samples=8)
        for index in expected:
            check(reader.next(), index)
        assert reader.next() is None
        reader.close()


def test_a_cursor_taken_anywhere_continues_there(folder):
    locators = open_sources(folder)
    schedule = schedule_of(locators[0])
    expected = [sample.index for sample in read(make_reader(locators, schedule), 500)]
    reader = make_reader(locators, schedule, byte_budget=300_000)
    for at in range(0, 480, 37):
        again = make_reader(locators, schedule, reader.cursor())
        assert [sample.index for sample in read(again, 20)] == expected[at : at + 20]
        read(reader, 37)


def test_requests_grow_from_exact_ranges_to_large_ones_and_nothing_is_fetched_twice(remote):
    """P4, P7, P8 in counters: a first batch costs its bytes, an epoch few requests, and no HEAD ever."""
    before = default_counters().snapshot()
    locators = open_sources("s3://bucket/data", remote.storage_options)
    again = default_counters().snapshot() - before  # what a busy machine loses
    opened = remote.counters().requests["GET"]
    assert 0 <= opened - 4 <= again.retries  # the dataset has no file of sizes
    schedule = schedule_of(locators[0], OrderSpec(40, 30, 3, 1), repeat=1)
    total = SHARDS * PER_SHARD
    reader = make_reader(locators, schedule, in_flight=1, first_samples=8)  # the log is in order of urgency
    first = read(reader, 8)
    sizes = [entry.bytes for entry in remote.log() if entry.key.endswith(".tar")]
    exact = sum(-(-len(view) // 512) * 512 + 512 for sample in first for view in sample.parts.values())
    opening = next(total for total in itertools.accumulate(sizes) if total >= exact)
    assert opening <= exact + 7 * 2 * ReadOptions().max_gap
    read(reader, total - 8)
    counters = remote.counters()
    payload = sum(entry.bytes for entry in remote.log() if entry.key.endswith(".tar"))
    stored = sum(locators[0].locate(np.arange(total))[2] - locators[0].locate(np.arange(total))[1])
    assert payload - 2 * opening <= 1.02 * stored  # later requests may span those of the first batch
    assert set(counters.requests) == {"GET"}
    again = default_counters().snapshot() - before
    assert counters.requests["GET"] <= 4 + SHARDS + 8 + 16 + again.retries


@examples(40)
@given(st.integers(1, 600_000), st.integers(1, 100_000), st.integers(1, 64), st.integers(0, 5000))
def test_the_byte_budget_holds(folder, budget, request, first, gap):
    """Requested and unconsumed bytes stay within the budget; only what must be larger alone may exceed it."""
    locators = open_sources(folder)
    schedule = schedule_of(locators[0], OrderSpec(10, 40, 5, 1), repeat=1)
    reader, budget_of = make_counted_reader(
        locators, schedule, byte_budget=budget, max_request=request, first_samples=first, max_gap=gap
    )
    first_batch = (
        sum(
            int((stop - start).sum())
            for _, start, stop in [locators[0].locate(schedule.take(schedule.begin(), first)[0].index)]
        )
        if reader.next() is not None
        else 0
    )
    one = 13 * 1024
    while reader.next() is not None:
        assert 0 <= budget_of.outstanding_bytes <= max(budget, one) + first_batch + one
    assert budget_of.outstanding_bytes == 0


def test_a_replaced_shard_is_an_error_not_a_wrong_sample(remote):
    locators = open_sources("s3://bucket/data", remote.storage_options)
    schedule = schedule_of(locators[0], OrderSpec(None, 0, 1, None), repeat=1)
    reader = make_reader(locators, schedule, byte_budget=40_000, first_samples=2)
    read(reader, 3)
    key = f"data/{locators[0].index.shard_paths[0]}"
    remote.replace(f"s3://bucket/{key}", remote.get(f"s3://bucket/{key}")[::-1])
    with pytest.raises(ObjectChangedError, match=r"replaced|changed|version"):
        read(reader, PER_SHARD)


def test_a_request_crosses_at_most_eight_files_on_its_way_to_the_wire(remote, monkeypatch):
    crossed = set()

    def note():
        files = (frame.filename.rpartition("energon_stream/")[2] for frame in traceback.extract_stack())
        # Of other threads, the transport alone: what earlier tests asked for may still be under way.
        rooms = ("read/", "storage/") if threading.current_thread() is threading.main_thread() else "storage/"
        crossed.update(file for file in files if file.startswith(rooms))

    def noted(function):
        return lambda *args, **kwargs: (note(), function(*args, **kwargs))[1]

    locators = open_sources("s3://bucket/data", remote.storage_options)
    read(make_reader(locators, schedule_of(locators[0])), SHARDS * PER_SHARD)  # now the index is in memory
    for owner, name in ((RequestPool, "submit"), (obstore, "get")):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    read(make_reader(locators, schedule_of(locators[0])), 30)
    assert "storage/_obstore.py" in crossed
    assert "read/consume.py" in crossed
    assert len(crossed) <= 8, crossed


class GatedSource(TarLocator):
    """Holds back the index of shard 3; notes which were asked for."""

    def __post_init__(self):
        super().__post_init__()
        self.gate, self.asked = threading.Event(), []

    def claim_loads(self, samples):
        loads = super().claim_loads(samples)
        self.asked.extend(load.read.args[0] for load in loads)
        return [Load(load.store, functools.partial(self._held, load)) for load in loads]

    def _held(self, load, store):
        if load.read.args[0] == 3:
            assert self.gate.wait(300)
        return load.read(store)


def test_a_late_index_is_not_planned_for_in_vain_and_holds_up_no_other(remote, monkeypatch):
    plans = []
    for module in ("consume", "read_options"):
        monkeypatch.setattr(f"energon_stream.read.{module}.CHUNK", PER_SHARD)
    monkeypatch.setattr(
        "energon_stream.read.request_planner.cut_generation", lambda *a: plans.append(1) or cut_generation(*a)
    )
    source = GatedSource(0, open_sources("s3://bucket/data", remote.storage_options)[0].index)
    schedule = schedule_of(source, OrderSpec(None, 0, 1, None), repeat=1)
    reader = make_reader([source], schedule, first_samples=30, max_ahead=4 * PER_SHARD)
    for index in range(2 * PER_SHARD + 30):
        check(reader.next(), index)
    assert len(plans) <= 10
    assert source.asked[:5] == [0, 1, 2, 3, 4]
    source.gate.set()
    for index in range(2 * PER_SHARD + 30, SHARDS * PER_SHARD):
        check(reader.next(), index)
    assert reader.next() is None


class HeldAnswer(Future):
    """An answer that comes when it is awaited."""

    def __init__(self, fetcher):
        super().__init__()
        self.fetcher = fetcher

    def result(self, timeout=None):
        while not self.done():
            self.fetcher.release()
        return super().result(timeout)


class HeldFetcher(Fetcher):
    """From when ``held`` is set, answers come only when one is awaited, in order."""

    held = None
    arrived = 0  # bytes of these
    at_once = False  # whether the first samples arrive before their requests are noted
    early = 0  # bytes that were asked for before: when they arrive depends on the machine

    def submit(self, store, path, byte_range, **options):
        request = functools.partial(super().submit, store, path, byte_range, **options)
        if self.held is None:
            self.early += len(byte_range)
            answer = request()
            if self.at_once and options["deadline"] < 2:
                answer.result()
            return answer
        answer = HeldAnswer(self)
        self.held.append((len(byte_range), answer, request))
        return answer

    def wait(self, answers, seconds):
        if self.held:
            self.release()
        else:
            wait_for_first(answers, seconds)

    def release(self):
        size, answer, request = self.held.pop(0)
        answer.set_result(request().result())
        self.arrived += size


@pytest.mark.every(2)
@pytest.mark.parametrize("at_once", [False, True])
def test_few_requests_are_under_way_until_the_line_is_known(at_once, folder, remote, monkeypatch):
    """A slow start: as much as a fast line holds, and what has arrived besides. Then the budget alone
    counts.
    """
    first = 64_000
    monkeypatch.setattr(budgets, "slow_start_bytes", lambda latency: first)
    locators = open_sources("s3://bucket/data", remote.storage_options)
    schedule = schedule_of(locators[0], OrderSpec(10, 20, 4, 1), repeat=2)
    fetcher, options = HeldFetcher(8), ReadOptions(byte_budget=1_000_000, max_request=16_000, first_samples=2)
    fetcher.at_once = at_once
    group = ReaderGroup(options, fetcher, wait=fetcher.wait)
    reader = SampleReader(schedule, schedule.begin(), locators, group)
    read(reader, 2)
    fetcher.held, count, most = [], 2, 0
    assert not at_once or fetcher.early <= 2 * first  # else what has arrived meanwhile lets more be asked for
    while count < 2 * SHARDS * PER_SHARD:
        group.look_ahead(reader)
        under_way = sum(size for size, _, _ in fetcher.held)
        most = max(most, under_way)
        assert under_way <= first + fetcher.early + fetcher.arrived
        count += reader.next() is not None
    assert 5 * first < most <= options.fetch_bytes


def test_an_index_that_does_not_fit_its_tar_is_named(folder, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(folder, copy)
    index = next(copy.glob("*.idx"))
    offsets = np.frombuffer(index.read_bytes(), dtype="<u8").copy()
    offsets[3] += 512
    index.write_bytes(offsets.tobytes())
    locators = open_sources(copy)
    reader = make_reader(locators, schedule_of(locators[0], repeat=1))
    with pytest.raises(IndexMismatchError, match=rf"{index.stem}.*prepare"):
        read(reader, SHARDS * PER_SHARD)
    index.unlink()
    locators = open_sources(copy.rename(tmp_path / "other"))
    with pytest.raises(NotPreparedError, match="no index"):
        read(make_reader(locators, schedule_of(locators[0], repeat=1)), SHARDS * PER_SHARD)


def test_faults_are_retried_and_nothing_is_lost(remote):
    locators = open_sources("s3://bucket/data", remote.storage_options)
    schedule = schedule_of(locators[0], repeat=1)
    remote.shape(share_503=0.2, share_reset=0.05, share_truncate=0.05, seed=5)
    expected = schedule.take(schedule.begin(), 10**6)[0].index.tolist()
    reader = make_reader(locators, schedule, byte_budget=400_000, max_request=30_000)
    for index in expected:
        check(reader.next(), index)
    assert sum(remote.counters().faults.values()) > 10


def test_a_permanent_fault_is_an_error_and_the_next_sample_can_be_read(remote):
    locators = open_sources("s3://bucket/data", remote.storage_options)
    schedule = schedule_of(locators[0], OrderSpec(None, 0, 1, None), repeat=1)
    victim = locators[0].index.shard_paths[1]
    locators[0].store = locators[0].index.spec.open(
        policy=RetryPolicy(attempts=3, sleep=lambda seconds: None)
    )
    reader = make_reader(locators, schedule, first_samples=1, max_request=1, byte_budget=100_000)
    remote.add_rule(Rule("status", pattern=f"*{victim}", status=503))
    read(reader, PER_SHARD)
    with pytest.raises(TransientStorageError, match=victim):
        reader.next()
    remote.clear_rules()
    lost, sample = 1, None
    while sample is None:  # what was read ahead has failed as well
        try:
            sample = reader.next()
        except TransientStorageError:
            lost += 1
    assert lost < PER_SHARD
    check(sample, PER_SHARD + lost)


def test_samples_by_number_take_one_request_for_each_neighbourhood(remote):
    locators = open_sources("s3://bucket/data", remote.storage_options)
    fetch_samples(locators, Refs(np.zeros(2, dtype=np.int32), np.array([0, 99])), Fetcher(4), ReadOptions())
    remote.reset_counters()  # the indices are at hand
    wanted = [5, 3, 4, 100, 101, 5]
    refs = Refs(np.zeros(6, dtype=np.int32), np.array(wanted))
    for index, sample in zip(wanted, fetch_samples(locators, refs, Fetcher(4), ReadOptions()), strict=True):
        check(sample, index)
    assert remote.counters().requests == {"GET": 2}
    assert fetch_samples(locators, Refs.concatenate([]), Fetcher(1), ReadOptions()) == []


def test_excluded_samples_are_skipped(folder, tmp_path):
    copy = tmp_path / "data"
    shutil.copytree(folder, copy)
    tars = sorted(copy.glob("*.tar"))
    source = open_sources(copy)[0]
    first = make_reader([source], schedule_of(source, OrderSpec(), repeat=1)).next()
    write_reference_dataset(
        copy, tars, split={"train": [tar.name for tar in tars]}, exclude=[f"{first.shard}/{first.key}"]
    )
    source = open_sources(copy)[0]
    reader = make_reader([source], schedule_of(source, OrderSpec(), repeat=1))
    found = [sample.index for sample in iter(reader.next, None)]
    assert found == list(range(1, SHARDS * PER_SHARD))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=80, unique=True),
    st.integers(1, 100_000),
)
def test_a_generation_is_between_a_quarter_and_all_of_what_is_wanted(places, wanted):
    objects = np.array([place[0] for place in places])
    starts = np.array([place[1] for place in places]) * 1000
    count = cut_generation(objects, starts, starts + 1000, wanted)
    assert 1 <= count <= len(places)
    if count < len(places):
        assert count * 1000 <= max(wanted, 1000)
        assert (count + 1) * 1000 > wanted // 4


def test_a_generation_ends_where_a_group_ends():
    """Two groups of slices, interleaved within themselves: the cut falls between them."""
    one = np.stack([np.arange(30), 100 + np.arange(30)], axis=1).ravel()
    other = np.stack([200 + np.arange(30), 300 + np.arange(30)], axis=1).ravel()
    index = np.concatenate([one, other])
    assert cut_generation(np.zeros(120, dtype=np.int64), index * 10, index * 10 + 10, 1000) == 60


def test_a_generation_ends_where_a_group_ends_although_few_of_the_next_group_are_seen():
    """Both groups are shuffled, and the last references to be seen have their neighbours after these."""
    draw = np.random.default_rng(3)
    one, other = draw.permutation(60), 100 + draw.permutation(60)
    starts = 10 * np.concatenate([one, other[:20]])
    objects = np.zeros(80, dtype=np.int64)
    assert cut_generation(objects, starts, starts + 10, 1000, 80, False) == 60


def test_a_generation_ends_where_a_pass_ends():
    """The next pass has the same ranges again, in another order."""
    one = np.random.default_rng(1).permutation(60)
    other = np.random.default_rng(2).permutation(60)
    index = np.concatenate([one, other])
    assert cut_generation(np.zeros(120, dtype=np.int64), index * 10, index * 10 + 10, 1000) == 60


def test_no_more_than_a_few_passes_are_planned_ahead():
    options = ReadOptions()
    assert options.within(1_000_000) is options
    assert ReadOptions(max_gap=7).share(2).max_gap == 7
    assert options.within(1000).max_ahead == 4000
    assert options.within(2).max_ahead == 64
    assert ReadOptions(max_ahead=7).within(2).max_ahead == 7
    assert ReadOptions(max_gap=7).share(2).max_gap == 7
