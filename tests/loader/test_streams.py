"""The number of streams where the program has no place to say it: the environment, and a saved state.

The expected batches are those of an undisturbed run on one rank that names the number.
"""

import pickle
import random
import re
from itertools import islice

import pytest
from repetitions import is_nightly
from topologies import go_on, over_epochs

from energon_stream import (
    BasicDataLoader,
    BatchDataset,
    DefaultTaskEncoder,
    LimitDataset,
    PlannedPacking,
    ReadOptions,
    SavableDataset,
    WorkerConfig,
    compute_costs,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.errors import ConfigError, StateInUseError, StateMismatchError
from energon_stream.testing.datasets import prepared_text_dataset
from energon_stream.testing.operator_suite import NumbersDataset

VARIABLE = "ENERGON_STREAM_NUM_STREAMS"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name, samples in (("a", 60), ("b", 35)):
        prepared_text_dataset(folder / name, shards=4, samples_per_shard=samples, split_ratio=(8, 2, 0))
    (folder / "mix.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {path: a, weight: 2}\n      - {path: b, weight: 1}\n  val: {path: a}\n"
    )
    return folder


class Packs(DefaultTaskEncoder):
    """Packs in order, with a draw and the seed of the program's own configuration in each sample."""

    def __init__(self, config):
        self.config = config

    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        return sample.__key__, random.random(), self.config.worker_seed()

    def select_samples_to_pack(self, samples):
        return [samples[:2], samples[2:]]

    @stateless
    def pack_selected_samples(self, samples):
        return samples

    @stateless
    def batch(self, samples):
        return samples


class Planned(DefaultTaskEncoder):
    @stateless
    def pack_selected_samples(self, samples):
        return samples


def configured(rank=0, world=1, workers=0, streams=0, **more):
    return WorkerConfig(rank, world, workers, num_streams=streams, **more)


def opened(texts, config, path="mix.yaml", **options):
    given = {
        "batch_size": 2,
        "shuffle_buffer_size": 8,
        "max_samples_per_sequence": 5,
        "packing_buffer_size": 5,
        "read_options": ReadOptions(max_ahead=32),
    }
    encoder = Packs(config)
    dataset = get_train_dataset(
        str(texts / path), worker_config=config, task_encoder=encoder, **given | options
    )
    return get_savable_loader(dataset, worker_type="fork" if config.num_workers == 2 else "main")


def taken(loader, count):
    with loader:
        return list(islice(over_epochs(loader), count))


def test_the_environment_says_it_and_workers_know(texts, monkeypatch):
    expected = taken(opened(texts, configured(streams=6)), 12)
    monkeypatch.setenv(VARIABLE, "6")
    config = configured(workers=2)
    monkeypatch.delenv(VARIABLE)
    assert pickle.loads(pickle.dumps(config)).num_streams == 6  # as spawned workers get it
    assert taken(opened(texts, config), 12) == expected


@pytest.mark.parametrize("conventions", ["own", "energon"])
def test_who_wins(monkeypatch, conventions):
    monkeypatch.setenv(VARIABLE, "24")
    assert configured(1, 4, 2, conventions=conventions).num_streams == 24
    assert configured(1, 4, 2, conventions=conventions).dealt_to == 1  # as for num_streams=24
    assert configured(1, 4, 2, 16, conventions=conventions).num_streams == 16
    assert WorkerConfig(1, 4, 2, logical_workers=4, conventions=conventions).num_streams == 4
    assert WorkerConfig.default_worker_config(2).num_streams == 24
    monkeypatch.setenv(VARIABLE, "auto")
    found = [
        configured(0, ranks, workers).num_streams for ranks, workers in ((8, 2), (1, 0), (5, 1), (64, 4))
    ]
    assert found == [48, 24, 120, 768]
    monkeypatch.setenv(VARIABLE, "")
    assert configured(1, 4, 2, conventions=conventions).num_streams == 8


@pytest.mark.parametrize("value", ["0", "-24", "many", "2.5", "24,8"])
def test_an_environment_that_cannot_be(monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ConfigError, match=VARIABLE):
        configured()
    assert configured(streams=4).num_streams == 4


def test_an_environment_that_does_not_fit_the_ranks(monkeypatch):
    monkeypatch.setenv(VARIABLE, "24")
    with pytest.raises(ConfigError, match=f"{VARIABLE} 24 is not a multiple of world_size 5"):
        configured(world=5)
    monkeypatch.setenv(VARIABLE, "120")  # the remedy: a multiple of every world size
    assert configured(4, 5).num_streams == 120


@pytest.mark.parametrize("conventions", ["own", "energon"])
def test_a_restore_adopts_the_number_of_the_state(texts, conventions):
    """Three ranks of four workers name nothing; then others, which would have other numbers of streams."""

    def of_rank(world, workers=0):
        return lambda rank: opened(texts, configured(rank, world, workers, conventions=conventions))

    found, states = go_on(of_rank(3, 4), 3, None, 0, 13)
    dealt = {"own": 1, "energon": 3}[conventions]
    whole = configured(streams=12, dealt_to=dealt, conventions=conventions)
    expected = taken(opened(texts, whole), 53)
    assert found == expected[:13]
    topologies = ((1, 0), (4, 1), (2, 0), (6, 3), (1, 2))
    for world, workers in topologies if is_nightly() else topologies[1::3]:
        more, states = go_on(of_rank(world, workers), world, states, len(found), 8)
        found += more
    assert found == expected[: len(found)]


def test_each_way_to_restore_adopts(texts):
    first, other = opened(texts, configured(streams=4)), opened(texts, configured())
    batches = iter(first)
    list(islice(batches, 7))
    state, by_stream = first.save_state_rank(), first.state_dict()
    expected = list(islice(batches, 6))
    other.restore_state_rank(state)
    assert (other.worker_config.num_streams, len(other.state_dict()["streams"])) == (4, 4)
    assert taken(other, 6) == expected
    other = opened(texts, configured())
    other.load_state_dict(by_stream)
    assert taken(other, 6) == expected
    other = opened(texts, configured())
    other.restore_state_rank(state)
    other.restore_state_rank(None)  # the start, as if nothing had been restored
    assert taken(other, 6) == taken(opened(texts, configured()), 6)


def test_the_end_of_passes_is_measured_anew(texts):
    """``ends`` depends on the streams, and so does the state's fingerprint."""
    given = {"path": "a", "batch_size": 3, "ends": "drop", "packing_buffer_size": None, "repeat": False}
    whole = opened(texts, configured(streams=6), **given)
    batches = iter(whole)
    list(islice(batches, 3))
    state = whole.save_state_rank()
    resumed = opened(texts, configured(), **given)
    resumed.restore_state_rank(state)
    assert list(resumed) == list(batches)


def test_a_number_that_was_named_is_not_replaced(texts, monkeypatch):
    loader = opened(texts, configured(streams=12))
    next(iter(loader))
    state = loader.save_state_rank()
    for named in (configured(streams=6), WorkerConfig(0, 1, 6, logical_workers=6)):
        other = opened(texts, named)
        with pytest.raises(StateMismatchError, match=r"num_streams 12 -> 6. Set num_streams=12"):
            other.restore_state_rank(state)
        assert other.worker_config is named
    monkeypatch.setenv(VARIABLE, "6")  # a default for new jobs
    other = opened(texts, configured())
    other.restore_state_rank(state)
    assert other.worker_config.num_streams == 12


def test_ranks_that_do_not_divide_the_streams(texts):
    states = go_on(lambda rank: opened(texts, configured(rank, 2, 4)), 2, None, 0, 4)[1]
    hint = r"ossible are \[1, 2, 4, 8\] ranks"
    with pytest.raises(StateMismatchError, match=rf"8 streams cannot be dealt to 3 ranks. P{hint}"):
        opened(texts, configured(0, 3)).restore_state_global(states)
    with pytest.raises(StateMismatchError, match=rf"8 streams cannot be dealt to 3 ranks: p{hint}"):
        opened(texts, configured(0, 3)).restore_state_rank(states[0])
    with pytest.raises(StateMismatchError, match=r"restore_state_global; .* ranks are possible"):
        opened(texts, configured(0, 4)).restore_state_rank(states[0])
    opened(texts, configured(0, 4)).restore_state_global(states)  # the remedy


def test_the_cure_that_the_refusal_names_lets_other_ranks_go_on(texts, monkeypatch):
    states = go_on(lambda rank: opened(texts, configured(rank, 2, 4)), 2, None, 0, 4)[1]
    with pytest.raises(StateMismatchError) as refused:
        opened(texts, configured(0, 3)).restore_state_global(states)
    name, value = re.search(r"(ENERGON_STREAM_\w+)=(\w+)", str(refused.value)).groups()
    monkeypatch.setenv(name, value)
    states = go_on(lambda rank: opened(texts, configured(rank, 2, 4)), 2, None, 0, 6)[1]
    whole = taken(opened(texts, configured(0, 1)), 12)[6:]
    ranks = [opened(texts, configured(rank, 3)) for rank in range(3)]
    for loader in ranks:
        loader.restore_state_global(states)
    found = [taken(loader, 2) for loader in ranks]
    assert [found[at % 3][at // 3] for at in range(6)] == whole


def test_packs_that_were_planned_for_a_number_need_it(texts, monkeypatch):
    """A step has four micro-batches of each stream, so that the plan depends on their number."""
    compute_costs(str(texts / "b"), "length", lambda sample: len(sample["txt"]))
    packing = PlannedPacking(cost="length", capacity=64)

    def planned(config):
        dataset = get_train_dataset(
            str(texts / "b"), worker_config=config, task_encoder=Planned(), packing=packing, batch_size=1
        )
        return get_savable_loader(dataset)

    state = planned(configured(streams=4)).save_state_rank()
    with pytest.raises(StateMismatchError, match=VARIABLE):
        planned(configured()).restore_state_rank(state)
    monkeypatch.setenv(VARIABLE, "4")  # the remedy
    planned(configured()).restore_state_rank(state)


def test_other_datasets_of_the_same_configuration_stay_as_they_are(texts):
    loader = opened(texts, configured(streams=6))
    state = loader.save_state_rank()
    config = configured(workers=2)

    def validation():
        return get_loader(get_val_dataset(str(texts / "a"), batch_size=4, worker_config=config))

    expected = [batch.__key__ for batch in validation()]
    val, train = validation(), opened(texts, config)
    train.restore_state_rank(state)
    assert (config.num_streams, train.worker_config.num_streams, val.worker_config.num_streams) == (2, 6, 2)
    assert [batch.__key__ for batch in val] == expected


def test_loaders_of_one_dataset_do_not_mix_streams(texts):
    state = opened(texts, configured(streams=6)).save_state_rank()
    first = opened(texts, configured())
    second, third = get_savable_loader(first.dataset), BasicDataLoader(first.dataset)
    second.restore_state_rank(state)
    for other in (first, third):
        with pytest.raises(StateInUseError, match="another loader"):
            next(iter(other))
    begun = opened(texts, configured())
    next(iter(begun))
    with pytest.raises(StateMismatchError, match="num_streams 6 -> 1"):
        get_savable_loader(begun.dataset).restore_state_rank(state)


def test_pipelines_that_share_a_dataset_do_not_mix_streams():
    def numbers(streams=0):
        return BatchDataset(NumbersDataset(40, configured(streams=streams)), 2, list)

    state = get_savable_loader(numbers(6)).save_state_rank()
    shared = numbers()
    limited = get_savable_loader(LimitDataset(shared, 12, reset_after_epoch=True))
    batches = over_epochs(limited)
    found = list(islice(batches, 3))
    with pytest.raises(StateMismatchError, match="num_streams 6 -> 1"):
        get_savable_loader(shared).restore_state_rank(state)
    found += islice(batches, 21)
    assert found == taken(get_savable_loader(LimitDataset(numbers(), 12, reset_after_epoch=True)), 24)
    shared = numbers()
    limited = get_savable_loader(LimitDataset(shared, 12))  # not begun
    get_savable_loader(shared).restore_state_rank(state)
    with pytest.raises(StateInUseError, match="another loader"):
        next(iter(limited))


class Numbered(SavableDataset):
    """Keeps the configuration under a name of its own, too."""

    def __init__(self, dataset, *, worker_config):
        super().__init__(worker_config=worker_config)
        self.dataset, self.job = dataset, worker_config

    def __iter__(self):
        for value in self.dataset:
            yield value, self.job.num_streams, self.job.stream_seed(1)


def test_datasets_of_ones_own_see_the_streams_adopted():
    def loader(streams=0, dealt_to=0):
        config = configured(streams=streams, dealt_to=dealt_to)
        return get_savable_loader(Numbered(NumbersDataset(90, config), worker_config=config))

    whole = loader(6, 3)
    batches = iter(whole)
    list(islice(batches, 7))
    resumed = loader()
    resumed.restore_state_rank(whole.save_state_rank())
    assert list(resumed) == list(batches)


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_streams_beyond_all_reason_are_refused(by, monkeypatch):
    if by == "variable":
        monkeypatch.setenv(VARIABLE, "100M")
    with pytest.raises(
        ConfigError, match=r"(num_streams|NUM_STREAMS) 100,000,000 is more than 65,536 for each"
    ):
        WorkerConfig(0, 4, 0, num_streams=100_000_000 if by == "argument" else 0)
    assert WorkerConfig(0, 4, 0, num_streams=1 << 18).num_streams == 1 << 18
