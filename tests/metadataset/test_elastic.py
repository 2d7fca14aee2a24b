"""P15: the same global batches on any number of ranks and workers, through changes in the middle of
passes.
"""

import itertools
import random

import pytest
import topologies
import torch
from hypothesis import given
from hypothesis import strategies as st
from mixtures import text_dataset, v2, write
from repetitions import examples, is_nightly

from energon_stream import (
    DefaultTaskEncoder,
    ReadOptions,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.config.join_indices import prepare_metadataset
from energon_stream.errors import StateMismatchError

STREAMS, BATCHES = 24, 260 if is_nightly() else 80
WORLDS, WORKERS = (1, 2, 3, 4, 6, 8), (0, 1, 2, 3, 5)


class Packs(DefaultTaskEncoder):
    """A filter, augmentation with seeds of its own, packs of one to three samples, batches of two packs."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        if sum(sample.text.encode()) % 7 == 0:
            raise SkipSample
        return sample.__key__, sample.text, torch.rand(()).item(), len(sample.__sources__)

    def select_samples_to_pack(self, samples):
        ordered = sorted(samples, key=lambda sample: sample[2])
        return [ordered[:1], *(ordered[i : i + 3] for i in range(1, len(ordered), 3))]

    @stateless
    def pack_selected_samples(self, samples):
        return tuple(samples)

    def batch(self, packs):
        return packs


@pytest.fixture(scope="module")
def blend(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elastic")
    for name, per_shard in (("a", 12), ("b", 9), ("c", 6)):
        text_dataset(folder / name, name, per_shard=per_shard)
    joiner = {"__module__": "megatron.energon", "__class__": "TextSample"}
    joined = [{"path": "a"}, {"path": "b", "nonmatch": "skip"}]
    node = {
        "blend_epochized": [
            {"path": "b", "repetitions": 2},
            {"join": joined, "joiner": joiner, "repetitions": 1},
            {"path": "c", "repetitions": 1.5},
        ]
    }
    path = write(folder / "blend.yaml", v2(node))
    prepare_metadataset(path)
    return path


def open_loader(path, rank=0, world=1, workers=0, config=None, epoch=0):
    dataset = get_train_dataset(
        path,
        batch_size=2,
        packing_buffer_size=7,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        worker_config=config or WorkerConfig(rank, world, workers, num_streams=STREAMS),
        virtual_epoch_length=epoch // world,
        task_encoder=Packs(),
        read_options=ReadOptions(max_ahead=16),
    )
    return get_savable_loader(dataset)


def go_on(path, states, world, workers, begin, count, epoch=0):
    return topologies.go_on(
        lambda rank: open_loader(path, rank, world, workers, epoch=epoch), world, states, begin, count
    )


@pytest.fixture(scope="module")
def unbroken(blend):
    return go_on(blend, None, 1, 0, 0, BATCHES)[0]


def same_as_unbroken(path, unbroken, topologies, counts, epoch=0):
    found, states = [], None
    for (world, workers), count in zip(topologies, counts, strict=True):
        batches, states = go_on(path, states, world, workers, len(found), count, epoch)
        random.Random(len(found)).shuffle(states)  # files come in any order
        found += batches
    return found == unbroken[: len(found)]


def test_the_batches_are_worth_comparing(unbroken):
    samples = [sample for batch in unbroken for pack in batch for sample in pack]
    assert {(text[0], sources) for _, text, _, sources in samples} == {("b", 1), ("b", 2), ("c", 1)}
    assert {len(pack) for batch in unbroken for pack in batch} == {1, 3}
    assert not any(sum(text.encode()) % 7 == 0 for _, text, _, _ in samples)
    assert len({draw for _, _, draw, _ in samples}) > 0.99 * len(samples)  # the seeds are each call's


def test_every_topology_goes_on_where_another_stood(blend, unbroken):
    """All of them in one run, each begins in the middle of what the one before it did; few of them, unless it
    is night. By day, virtual epochs have the other numbers of ranks.
    """
    few = [(1, 3), (2, 0), (3, 1), (8, 0)]
    topologies = [*itertools.product(WORLDS, WORKERS)] if is_nightly() else few
    random.Random(1).shuffle(topologies)
    counts = [(7 * number) % 11 + 3 for number in range(len(topologies))]
    assert not is_nightly() or {world for world, _ in topologies} == {*WORLDS}
    assert {workers for _, workers in topologies} == ({*WORKERS} if is_nightly() else {0, 1, 3})
    assert sum(counts) <= BATCHES
    assert same_as_unbroken(blend, unbroken, topologies, counts)


@pytest.mark.slow  # as before, at random; packing/test_carried_packs.py does so by day
@given(
    st.lists(st.tuples(st.sampled_from(WORLDS), st.sampled_from((0, 0, 1, 2))), min_size=3, max_size=4),
    st.data(),
)
@examples(3)
def test_any_changes_anywhere(blend, unbroken, topologies, data):
    counts = [data.draw(st.integers(0, 40)) for _ in topologies]
    assert same_as_unbroken(blend, unbroken, topologies, counts)


@pytest.mark.every(3)
@pytest.mark.parametrize("epoch", [36, 60, 12])
def test_virtual_epochs_change_nothing_wherever_they_end(blend, unbroken, epoch):
    """They are no multiple of the streams. The second change is at an epoch's end, others in the middle of
    one.
    """
    topologies = [(4, 0), (6, 0), (2, 1), *([(1, 2), (3, 0), (12, 0)] if is_nightly() else ())]
    counts = [28, -28 % epoch, epoch, 24, 12, 24][: len(topologies)]
    assert sum(counts) <= BATCHES
    assert same_as_unbroken(blend, unbroken, topologies, counts, epoch)


@pytest.mark.slow  # as those before, and test_mixtures.py has nested blends
def test_virtual_epochs_of_a_blend_of_blends(blend):
    """Passes of the outer one end within virtual epochs, and these within passes."""
    inner = [{"path": "blend.yaml", "repetitions": 1}, {"path": "a", "repetitions": 0.5}]
    path = write(blend.parent / "nested.yaml", v2({"blend_epochized": inner}))
    expected = go_on(path, None, 1, 0, 0, 200)[0]
    samples = [sample[0] for batch in expected for pack in batch for sample in pack]
    assert len(samples) > 4 * len(set(samples))  # several passes
    assert same_as_unbroken(path, expected, [(2, 0), (3, 2), (1, 0), (6, 0)], [42, 30, 60, 60], epoch=30)


def test_an_impossible_number_of_ranks_says_which_are_possible(blend):
    _, states = go_on(blend, None, 2, 0, 0, 5)
    loader = open_loader(blend, 0, 3, 0)
    with pytest.raises(StateMismatchError, match="restore_state_global") as caught:
        loader.restore_state_rank(states[0])
    assert "[1, 2, 3, 4, 6, 8, 12, 24]" in str(caught.value)
    with pytest.raises(StateMismatchError, match="one state of every rank"):
        loader.restore_state_global(states[:1])
    for config, said in [
        (WorkerConfig(0, 5, 0), r"Possible are \[1, 2, 3, 4, 6, 8, 12, 24\] ranks"),
        (WorkerConfig(0, 3, 0, num_streams=12), "num_streams=24"),
    ]:
        with pytest.raises(StateMismatchError, match=said):
            open_loader(blend, config=config).restore_state_global(states)
