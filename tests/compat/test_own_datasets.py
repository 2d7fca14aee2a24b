"""Programs' own datasets over real files: in workers, on other numbers of ranks, and without a loader.

The oracle is a run that nobody disturbs. ``tests/interop/behaviours_own.py`` compares the same kinds with
Megatron-Energon 7.4.1.
"""

import random

import pytest
from saved_runs import differing_saves

from energon_stream import (
    BatchDataset,
    DefaultTaskEncoder,
    ReadOptions,
    SavableDataset,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.compat.draws import WorkerRng
from energon_stream.compat.own_datasets import SampleIndex, SavableSampleBuffer, gc_init_worker
from energon_stream.errors import (
    ConfigError,
    StateError,
    StateMismatchError,
    WeightsError,
    WorkerError,
)
from energon_stream.pipeline.dataset import Operator
from energon_stream.state import dumps, loads
from energon_stream.testing.datasets import prepared_text_dataset


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return prepared_text_dataset(tmp_path_factory.mktemp("own") / "texts", shards=3, samples_per_shard=9)


class Encoder(DefaultTaskEncoder):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        sample.text += f" {random.randrange(100)}"
        return sample


class SortedPool(SavableDataset):
    """As four public programs have it: the state is that of the inner dataset."""

    def __init__(self, dataset, *, worker_config):
        super().__init__(worker_config=worker_config)
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __iter__(self):
        pool = []
        for number, sample in enumerate(self.dataset):
            pool.append(sample)
            if len(pool) >= 5:
                pool.sort(key=lambda sample: sample.text, reverse=True)
                random.Random(42 + number).shuffle(pool)
                yield from pool
                pool.clear()
        yield from pool

    def worker_has_samples(self):
        return self.dataset.worker_has_samples()

    def can_restore_sample(self):
        return self.dataset.can_restore_sample()

    def assert_can_restore(self):
        self.dataset.assert_can_restore()

    def restore_sample(self, index):
        return self.dataset.restore_sample(index)

    def save_state(self):
        return self.dataset.save_state()

    def restore_state(self, state):
        self.dataset.restore_state(state)

    def config(self):
        return {"type": "SortedPool", "dataset": self.dataset.config()}


class PackedPool(Operator):
    """Joins samples that a buffer holds."""

    _savable_fields = ("_buffer", "_rng", "_index")

    def __init__(self, dataset, *, worker_config):
        super().__init__(dataset, worker_config=worker_config)
        self._buffer = SavableSampleBuffer(dataset, worker_config=worker_config)
        self._rng = WorkerRng(worker_config)
        self._index = SampleIndex(worker_config, src=self)

    def __iter__(self):
        self._buffer.worker_start()
        for _ in self._buffer.append_iter():
            if len(self._buffer) > 6:
                yield self._pack(1 + self._rng.randbelow(4))
        while self._buffer.buffer:
            yield self._pack(1)

    def _pack(self, count):
        with self._index.ctx() as index:
            packed = [self._buffer.pop(self._rng.randbelow(len(self._buffer.buffer))) for _ in range(count)]
            return index, [sample.text for sample in packed]


class Numbered(Operator):
    """Counts, and saves the counter itself."""

    count = 0

    def __iter__(self):
        for sample in self.dataset:
            self.count += 1
            yield self.count, sample.text

    def save_state(self):
        return {"count": self.count, **super().save_state()}

    def restore_state(self, state):
        self.count = state["count"]
        super().restore_state(state)


class Some(Operator):
    """No state, and draws from Python's own generator."""

    def __iter__(self):
        for sample in self.dataset:
            yield from [(sample.text, random.random())] * random.randrange(3)


KINDS = [SortedPool, PackedPool, Numbered, Some]


def build(texts, kind, workers=0, *, rank=0, world_size=1, streams=2):
    config = WorkerConfig(rank, world_size, workers, num_streams=streams)
    options = {"batch_size": None, "shuffle_buffer_size": 10, "max_samples_per_sequence": None}
    options["read_options"] = ReadOptions(max_ahead=64)  # 27 samples would be planned for hundreds of passes
    dataset = get_train_dataset(texts, worker_config=config, task_encoder=Encoder(), **options)
    return BatchDataset(kind(dataset, worker_config=config), 3, list)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("saves", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_random_saves_go_on_with_the_same_samples(texts, kind, saves):
    assert differing_saves(lambda: build(texts, kind), saves, max(40, saves + 10)) == 0


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", KINDS)
def test_in_workers(texts, kind):
    with get_loader(build(texts, kind)) as plain, get_loader(build(texts, kind, 2)) as forked:
        assert list(zip(range(20), plain, strict=False)) == list(zip(range(20), forked, strict=False))
    assert differing_saves(lambda: build(texts, kind, 2), 1, 20) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_on_another_number_of_ranks(texts, kind):
    with get_savable_loader(build(texts, kind)) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        state = loads(dumps(loader.save_state_global(0)))
        expected = [next(batches) for _ in range(10)]
    found = [None] * 10
    for rank in (0, 1):
        with get_savable_loader(build(texts, kind, rank=rank, world_size=2)) as loader:
            loader.restore_state_global(state)
            found[rank::2] = [batch for _, batch in zip(range(5), loader, strict=False)]
    assert found == expected


@pytest.mark.energon(
    "SavableDataset.save_state",
    "SavableDataset.restore_state",
    "SavableDataset.reset_state_deep",
    "SavableDataset(worker_config)",
)
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_loader(texts, kind):
    def take(dataset, count):
        return [batch for _, batch in zip(range(count), dataset, strict=False)]

    dataset = build(texts, kind)
    dataset.worker_config.worker_activate(0)
    try:
        batches = iter(dataset)
        take(batches, 7)
        state = loads(dumps(dataset.save_state()))
        rest = take(batches, 6)
        again = build(texts, kind)
        again.restore_state(state)
        assert take(again, 6) == rest
        dataset.restore_state(state)
        assert take(dataset, 3) + take(dataset, 3) == rest
        with pytest.raises(WorkerError, match="the position of the dataset was set"):
            next(batches)
        start = take(build(texts, kind), 4)
        dataset.reset_state_deep()
        assert take(dataset, 4) == start
    finally:
        dataset.worker_config.worker_deactivate()
    assert take(dataset, 2) == take(dataset, 2) == start[:2]


def test_a_dataset_that_a_loader_iterates_has_no_position(texts):
    dataset = build(texts, Numbered)
    next(iter(get_loader(dataset)))
    with pytest.raises(WorkerError, match=r"after worker_activate.*save_state_rank"):
        dataset.save_state()
    dataset.worker_config.worker_activate(0)
    try:
        state = dataset.save_state()
    finally:
        dataset.worker_config.worker_deactivate()
    for wrong in ({}, None, {**state, "rotation": [0, 0, [9], 0]}, {**state, "streams": [[9, {}]]}, "x"):
        with pytest.raises(StateError):
            build(texts, Numbered).restore_state(wrong)
    with pytest.raises(StateMismatchError, match="another pipeline"):
        build(texts, Some).restore_state(state)


def test_weights_cannot_be_set_where_a_pass_is_made_again(tmp_path, texts):
    (tmp_path / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {blend: "
        f"[{{weight: 1, path: {texts}}}, {{weight: 2, path: {texts}}}]}}}}\n"
    )
    with pytest.raises(WeightsError, match="Some makes a pass again"):
        get_loader(build(tmp_path / "mix.yaml", Some)).set_weights({"texts": 1})


def test_buffers_are_lists_of_samples(texts):
    config = WorkerConfig(0, 1, 0)
    samples = [{"__restore_key__": (number,), "n": number} for number in range(5)]
    buffer = SavableSampleBuffer(None, worker_config=config)
    buffer.extend(samples[:3])
    assert buffer.append(samples[3]) is samples[3]
    assert [*buffer] == buffer.buffer == samples[:4]
    assert (buffer[1], buffer[2:], buffer.pop(1)) == (samples[1], samples[2:4], samples[1])
    assert buffer.save_state() == [(0,), (2,), (3,)]
    assert buffer.flush() == ([samples[0], *samples[2:4]], ((0,), (2,), (3,)))
    assert len(buffer) == buffer.len_worker() == 0


def test_counters_of_calls():
    config = WorkerConfig(0, 1, 0)
    index = SampleIndex(config, src=None)
    config.worker_activate(7)
    try:
        with index.ctx() as first:
            assert (first, config.active_worker_sample_index) == (0, 0)
        with index.ctx(9) as other:
            assert (other, config.active_worker_sample_index) == (9, 9)
        assert list(index.iter_ctx("ab")) == [(1, "a"), (2, "b")]
    finally:
        config.worker_deactivate()
    again = SampleIndex(config, src=None)
    again.restore_state(index.save_state())
    assert again.get_next() == index.get_next()
    assert gc_init_worker(0) is None


class ByWorker(SavableDataset):
    """Without inputs: it deals by the number of the worker, as in 7.4.1."""

    def __init__(self, *, worker_config):
        super().__init__(worker_config=worker_config)

    def __iter__(self):
        config = self.worker_config
        yield from range(config.global_worker_id(), 80, config.world_size * max(1, config.num_workers))


@pytest.mark.parametrize(("world", "workers"), [(2, 2), (4, 1), (1, 4)])
def test_a_source_that_deals_by_workers_keeps_its_shares(world, workers):
    def opened(ranks, each):
        configs = (WorkerConfig(rank, ranks, each, conventions="energon") for rank in range(ranks))
        return [get_savable_loader(ByWorker(worker_config=config), worker_type="main") for config in configs]

    loaders = opened(2, 2)
    found = [next(batches) for loader in loaders for batches in [iter(loader)] for _ in range(7)]
    states = [loader.save_state_rank() for loader in loaders]
    for loader in opened(world, workers):
        loader.restore_state_global(states)
        found += loader
    assert sorted(found) == list(range(80))


def test_a_source_that_deals_by_workers_has_no_more_streams(monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_NUM_STREAMS", "auto")
    config = WorkerConfig(0, 1, 2, conventions="energon")
    with pytest.raises(ConfigError, match=r"24 streams on 2 .*ENERGON_STREAM_NUM_STREAMS=2"):
        list(get_savable_loader(ByWorker(worker_config=config), worker_type="main"))
    monkeypatch.setenv("ENERGON_STREAM_NUM_STREAMS", "2")  # the remedy
    config = WorkerConfig(0, 1, 2, conventions="energon")
    found = list(get_savable_loader(ByWorker(worker_config=config), worker_type="main"))
    assert sorted(found) == list(range(80))
