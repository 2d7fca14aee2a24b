"""Workers have Megatron-Energon's numbers: N ranks of W workers read the samples of one of N * W."""

import dataclasses
from itertools import islice

import pytest

from energon_stream import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, open_run
from energon_stream.errors import StateError, StateInUseError, StateMismatchError, WorkerError
from energon_stream.state import redistribute, with_digest
from energon_stream.testing.datasets import prepared_captioning_dataset


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    prepared_captioning_dataset(folder, shards=4, samples_per_shard=25, split_ratio=(1, 0, 0))
    return str(folder)


class Numbered(DefaultTaskEncoder):
    """Tells which worker made a sample, and with which seed."""

    def encode_sample(self, sample):
        config = WorkerConfig.active_worker_config
        return {"key": sample.__key__, "worker": config.global_worker_id(), "seed": config.worker_seed()}

    def batch(self, samples):
        return samples[0]


def configured(ranks, workers, rank=0, **more):
    return WorkerConfig(rank, ranks, workers, conventions="energon", **more)


def loader(path, config, **options):
    dataset = get_train_dataset(
        path,
        worker_config=config,
        batch_size=1,
        shuffle_buffer_size=4,
        max_samples_per_sequence=5,
        task_encoder=Numbered(),
    )
    return get_savable_loader(dataset, **options)


def keys(found):
    return [sample["key"] for sample in found]


def by_worker(path, ranks, workers, number):
    found = {}
    for rank in range(ranks):
        with loader(path, configured(ranks, workers, rank)) as each:
            for sample in islice(each, number):
                found.setdefault(sample["worker"], []).append(sample)
    return found


@pytest.mark.energon("WorkerConfig.global_worker_id", "lanes: N ranks of W workers read as 1 of N * W")
def test_workers_read_the_same_whatever_rank_they_are_of(captions):
    two, one = by_worker(captions, 2, 2, 8), by_worker(captions, 1, 4, 16)
    assert sorted(two) == sorted(one) == [0, 1, 2, 3]
    assert two == one
    assert [configured(2, 2, 1).global_worker_id(worker) for worker in range(2)] == [2, 3]
    assert configured(2, 0, 1).global_worker_id() == 1  # in 7.4.1 0, as on rank 0


def test_a_number_of_streams_keeps_the_order_of_the_job(captions):
    """With ``num_streams``, the global order does not depend on ranks and workers: the library's own rule."""
    with loader(captions, configured(1, 0, num_streams=4)) as each:
        expected = keys(islice(each, 16))
    found = []
    for rank in range(2):
        with loader(captions, configured(2, 2, rank, num_streams=4)) as each:
            found.append(keys(islice(each, 8)))
    assert [key for pair in zip(*found, strict=True) for key in pair] == expected


def rank_states(path, number, **options):
    """Return the samples of two ranks up to a step and after it, and their states there."""
    heads, tails, states = [], [], []
    for rank in range(2):
        with loader(path, configured(2, 2, rank), **options) as each:
            samples = iter(each)
            heads.append(keys(islice(samples, number)))
            states.append(each.save_state_rank())
            tails.append(keys(islice(samples, 12)))
    return heads, tails, states


@pytest.mark.parametrize("ranks", [1, 4])
def test_another_number_of_ranks_goes_on_in_the_order_of_the_job(captions, ranks):
    _, tails, states = rank_states(captions, 6)
    job = [key for pair in zip(*tails, strict=True) for key in pair]
    found = []
    for rank in range(ranks):
        with loader(captions, configured(ranks, 4 // ranks, rank)) as each:
            each.restore_state_global(states)
            found.append(keys(islice(each, 24 // ranks)))
            again = each.save_state_rank()
        assert again["dealt_to"] == 2  # the states of this run as well
    assert [key for step in zip(*found, strict=True) for key in step] == job
    assert redistribute(states, 4)[3]["dealt_to"] == 2


def test_states_from_before_go_on_as_they_were_dealt(captions):
    config = dataclasses.replace(configured(2, 2, 1), dealt_to=1)  # as all states before
    with loader(captions, config) as each:
        samples = iter(each)
        list(islice(samples, 3))
        state = each.save_state_rank()
        expected = keys(islice(samples, 10))
    assert (state["version"], "dealt_to" in state) == (4, False)
    with loader(captions, configured(2, 2, 1)) as each:
        each.restore_state_rank(state)
        assert keys(islice(each, 10)) == expected
    with loader(captions, configured(2, 2, 1)) as each:
        fresh = keys(islice(each, 10))
    with loader(captions, configured(2, 2, 1)) as each:
        each.restore_state_rank(state)
        each.restore_state_rank(None)  # the start, as it is dealt now
        assert keys(islice(each, 10)) == fresh


def test_what_does_not_belong_together_is_refused(captions):
    _, _, states = rank_states(captions, 2)
    assert states[0]["version"] == 5  # readers that do not know dealt_to refuse it
    for wrong in (0, 3, "2", None, 10**9):
        with pytest.raises(StateError), loader(captions, configured(2, 2)) as each:
            each.restore_state_rank(with_digest({**states[0], "dealt_to": wrong}))
        assert each.worker_config.dealt_to == 2
    other = with_digest({k: v for k, v in {**states[1], "version": 4}.items() if k != "dealt_to"})
    with pytest.raises(StateMismatchError, match="different jobs"):
        redistribute([states[0], other], 1)


def test_two_loaders_of_a_dataset_cannot_be_dealt_differently(captions):
    with loader(captions, dataclasses.replace(configured(2, 2), dealt_to=1)) as each:
        state = each.save_state_rank()
    with loader(captions, configured(2, 2)) as begun:
        next(iter(begun))
        restored = get_savable_loader(begun.dataset)
        restored.restore_state_rank(state)
        with pytest.raises(StateInUseError, match="another loader"):
            begun.save_state_rank()


def test_the_record_of_a_run_knows_it(captions, tmp_path):
    heads, _, _ = rank_states(captions, 6, run=str(tmp_path))
    run = open_run(str(tmp_path))
    for step in range(6):
        found = [[sample.key for sample in each.samples] for each in run.which(step)]
        assert found == [[head[step]] for head in heads]
    assert {each.step for each in run.when(heads[1][4])} == {4}


def test_attributes_may_be_assigned_until_a_dataset_is_made(captions):
    config = configured(1, 4)
    config.num_workers, config.world_size, config.rank = 2, 2, 1
    assert (config.num_streams, config.dealt_to, config.global_worker_id(1)) == (4, 2, 3)
    with pytest.raises(Exception, match="rank 1 does not fit"):
        config.world_size = 1
    assert config.world_size == 2
    with pytest.raises(AttributeError, match="WorkerConfig has no attribute 'workers'"):
        config.workers = 3
    loader(captions, config)
    with pytest.raises(WorkerError, match="after a dataset was made"):
        config.num_workers = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        WorkerConfig(0, 1, 4).num_workers = 1


def test_a_configuration_that_was_left_active_is_cleared():
    config = configured(1, 0)
    config.worker_activate(3)
    WorkerConfig.active_worker_config = None
    config.worker_activate(4)
    assert config.active_worker_sample_index == 4
    config.worker_deactivate()
    assert WorkerConfig.active_worker_config is None
