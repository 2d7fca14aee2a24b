"""Virtual epochs and limits: whatever the number of ranks, batch k of the job comes from stream k modulo
their number.
"""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples, is_nightly

from energon_stream import WorkerConfig, get_savable_loader
from energon_stream.errors import SkipSample, StateMismatchError
from energon_stream.pipeline import (
    BatchDataset,
    BlendDataset,
    EpochizeDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    RepeatDataset,
)
from energon_stream.pipeline.epochs import share_of_stream
from energon_stream.state import dumps, loads
from energon_stream.testing.operator_suite import NumbersDataset

STREAMS = 12
WORLDS = (1, 2, 3, 4, 6, 12)
WORKERS = (0, 0, 2, 3) if is_nightly() else (0, 0, 0, 2)


def batches_of(config):
    """Streams of 22 or 21 batches, so that the inner passes end within epochs, and not all at once."""
    return BatchDataset(NumbersDataset(257, config, offset=1000), 1, list, batcher_stateless=True)


def epochs(config, length):
    return EpochizeDataset(batches_of(config), length // config.world_size)


def wrapped(config, length):
    return LogSampleDataset(MapDataset(epochs(config, length), tuple))


def nested(config, length):
    """Epochs of a blend that has epochs of its own; the inner ones have a third as many."""
    inner = EpochizeDataset(batches_of(config), length // config.world_size)
    other = RepeatDataset(BatchDataset(NumbersDataset(130, config), 2, list))
    return EpochizeDataset(BlendDataset((inner, 2), (other, 1)), length // config.world_size)


def limits(config, length):
    return LimitDataset(RepeatDataset(batches_of(config)), length // config.world_size)


def anew(config, length):
    return LimitDataset(batches_of(config), length // config.world_size, reset_after_epoch=True)


class Job:
    """The loaders of all ranks, each of which iterates pass after pass as a training loop does."""

    def __init__(self, make, length, world, workers, states, waits=False):
        configs = [WorkerConfig(rank, world, workers, num_streams=STREAMS) for rank in range(world)]
        self.length = length
        self.loaders = [get_savable_loader(make(config, length)) for config in configs]
        for loader in self.loaders:
            loader.restore_state_global(states)
        self.passes = [iter(loader) for loader in self.loaders]
        if waits:  # the states are of the last batch of a pass, which has yet to end
            self.end_pass()

    def end_pass(self):
        assert [next(batches, None) for batches in self.passes] == [None] * len(self.loaders)
        self.passes = [iter(loader) for loader in self.loaders]

    def take(self, begin, count, *, see_the_end=True):
        """Batches of the job from number ``begin`` on; whether, at the end of a pass, the loops are left."""
        found = []
        for number in range(begin, begin + count):
            found.append(next(self.passes[number % len(self.passes)]))
            if (number + 1) % self.length == 0 and (see_the_end or number + 1 < begin + count):
                self.end_pass()
        return found

    def close(self):
        """The states of all ranks."""
        states = [loads(dumps(loader.save_state_rank())) for loader in self.loaders]
        for loader in self.loaders:
            loader.close()
        return states


def unbroken(make, length, count):
    """What one rank gives, and what the definition says it should."""
    job = Job(make, length, 1, 0, None)
    try:
        return job.take(0, count)
    finally:
        job.close()


@given(st.data())
@examples(200)
def test_shares_are_those_of_the_job(data):
    streams = data.draw(st.integers(1, 9))
    begin, length = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    counted = Counter(number % streams for number in range(begin, begin + length))
    for stream in range(streams):
        assert share_of_stream(begin, begin + length, streams, stream) == counted[stream]


def test_batch_k_comes_from_stream_k_in_epochs_of_any_length():
    endless = get_savable_loader(RepeatDataset(batches_of(WorkerConfig(0, 1, 0, num_streams=STREAMS))))
    expected = list(itertools.islice(endless, 200))
    for length, world in [(12, 4), (18, 1), (18, 6), (20, 2), (6, 3), (1, 1), (7, 1)]:
        job = Job(epochs, length, world, 0, None)
        assert job.take(0, 200) == expected
        assert {len(loader) for loader in job.loaders} == {length // world}
        job.close()


@pytest.mark.every(2)
@pytest.mark.parametrize("make", [epochs, wrapped, nested, limits, anew])
@given(st.data())
@examples(12)
def test_any_changes_of_ranks_in_and_between_epochs(make, data):
    length = data.draw(st.sampled_from([4, 6, 12, 18, 30, 36, 50]), "batches of an epoch of all ranks")
    expected = unbroken(make, length, 150)
    worlds = [world for world in WORLDS if length % world == 0]
    found, states, waits = [], None, False
    for _ in range(data.draw(st.integers(3, 4), "topologies")):
        world, workers = data.draw(st.sampled_from(worlds)), data.draw(st.sampled_from(WORKERS))
        to_the_end = -len(found) % length
        count = data.draw(st.sampled_from([0, to_the_end, to_the_end + length]) | st.integers(0, 37))
        see_the_end = data.draw(st.booleans(), "whether the loops are left at an end")
        if len(found) + count > len(expected) - STREAMS:
            break
        job = Job(make, length, world, workers if world < 4 else 0, states, waits)
        found += job.take(len(found), count, see_the_end=see_the_end)
        waits = not see_the_end and count > 0 and len(found) % length == 0
        states = job.close()
    job = Job(make, length, 1, 0, states, waits)
    found += job.take(len(found), STREAMS)
    job.close()
    assert found == expected[: len(found)]


@pytest.mark.every(2)
@pytest.mark.parametrize("workers", [0, 2])
def test_states_by_stream_go_over_the_end_of_an_epoch(workers):
    """As torch.distributed.checkpoint deals them; 18 batches are no multiple of 12 streams."""
    expected = unbroken(epochs, 18, 90)
    for steps, see_the_end in [(18, True), (18, False), (36, True), (24, True)]:
        job = Job(epochs, 18, 3, workers, None)
        job.take(0, steps, see_the_end=see_the_end)
        entries = {}
        for loader in job.loaders:
            entries |= loader.state_dict()["streams"]
        like = job.loaders[0].state_dict()
        job.close()
        for world in (1, 2, 6):
            job = Job(epochs, 18, world, workers if world < 6 else 0, None)
            for loader in job.loaders:
                loader.load_state_dict(like | {"streams": entries})
            job.passes = [iter(loader) for loader in job.loaders]
            if not see_the_end:
                job.end_pass()
            assert job.take(steps, 50) == expected[steps : steps + 50]
            job.close()


def test_another_length_is_refused_and_the_right_one_named():
    job = Job(epochs, 36, 2, 0, None)
    job.take(0, 20)
    states = job.close()
    for world, length, said in [
        (4, 18 * 4, r"36 batches over all ranks, this dataset has .* of 72 .*virtual_epoch_length=9:"),
        (12, 18 * 12, "virtual_epoch_length=3:"),
        (2, 34, "virtual_epoch_length=18:"),
    ]:
        with pytest.raises(StateMismatchError, match=said):
            Job(epochs, length, world, 0, states)
    with pytest.raises(StateMismatchError, match=r"this dataset has no virtual epochs\. .*=36:"):
        Job(limits, 36, 1, 0, states)
    with pytest.raises(StateMismatchError, match="Leave virtual_epoch_length out"):
        Job(epochs, 36, 2, 0, Job(limits, 36, 1, 0, None).close())
    odd = Job(epochs, 10, 2, 0, None).close()
    with pytest.raises(StateMismatchError, match=r"10 batches cannot be dealt to 4 ranks; .* \[1, 2\] ranks"):
        Job(epochs, 12, 4, 0, odd)


def test_ranks_on_two_sides_of_an_epochs_end_are_refused():
    """With one batch an epoch, the place in the round alone does not tell."""
    for length in (2, 24):
        job = Job(epochs, length, 2, 0, None)
        job.take(0, length, see_the_end=False)
        assert next(job.passes[1], None) is None
        states = job.close()
        with pytest.raises(StateMismatchError, match=r"different passes: 0 to 1 passes are over"):
            Job(epochs, length, 1, 0, states)
        Job(epochs, length, 2, 0, states).close()  # where they were saved they fit
        entries = {}
        for loader in job.loaders:
            entries |= loader.state_dict()["streams"]
        alone = Job(epochs, length, 1, 0, None).loaders[0]
        with pytest.raises(StateMismatchError, match="different steps"):
            alone.load_state_dict(alone.state_dict() | {"streams": entries})


def test_epochs_by_passes_over_the_data_are_of_the_whole_job():
    """257 batches are no multiple of the ranks, and their epochs no multiple of the streams."""
    expected = unbroken(epochs, 257, 600)

    def ranks(world):
        configs = [WorkerConfig(rank, world, 0, num_streams=STREAMS) for rank in range(world)]
        return [EpochizeDataset(batches_of(config), num_epochs=1) for config in configs]

    for world in (1, 3):
        datasets = ranks(world)
        assert sum(len(dataset) for dataset in datasets) == 257
        found = [
            [batch for _ in range(2) for batch in loader] for loader in map(get_savable_loader, datasets)
        ]
        for rank, batches in enumerate(found):
            assert batches == expected[rank::world][: len(batches)]
        assert sum(len(batches) for batches in found) == 2 * 257
    assert ranks(1)[0].config() == ranks(3)[0].config()


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_turns_go_on_where_streams_give_less_than_their_share(workers):
    """Processes agree on whose turn it is also where a function skips, so that the last of a pass may be
    anyone's.
    """

    def skips(batch):
        if batch[0] % 5 in (1, 2):
            raise SkipSample
        return batch

    def make(workers, number=0):
        config = WorkerConfig(0, 1, workers, num_streams=6)
        numbers = NumbersDataset(600, config)
        return MapDataset(EpochizeDataset(BatchDataset(numbers, 1, list), 7), skips)

    expected = [list(loader) for loader in [get_savable_loader(make(0))] for _ in range(20)]
    assert len({len(some) for some in expected}) > 1
    with get_savable_loader(make(workers)) as loader:
        assert [list(loader) for _ in range(20)] == expected
    for epoch in range(5):
        for steps in range(len(expected[epoch])):
            with get_savable_loader(make(0)) as loader:
                for _ in range(epoch):
                    list(loader)
                rest = iter(loader)
                for _ in range(steps):
                    next(rest)
                state = loader.save_state_rank()
            if workers and steps % 3:  # each starts processes
                continue
            with get_savable_loader(make(workers)) as loader:
                loader.restore_state_rank(state)
                assert list(loader) == expected[epoch][steps:]
                assert list(loader) == expected[epoch + 1]


def test_a_worker_whose_streams_have_all_ended_waits_for_the_others():
    """Stream 1 ends long before stream 0; the state is from where it has ended."""

    def make(workers):
        config = WorkerConfig(0, 1, workers, num_streams=2)
        return MapDataset(NumbersDataset(12, config), few)

    expected = list(get_savable_loader(make(0)))
    assert expected == [0, 1, 2, 4, 6, 8, 10]
    loader = get_savable_loader(make(0))
    assert list(itertools.islice(loader, 5)) == expected[:5]
    state = loader.save_state_rank()
    with get_savable_loader(make(2)) as loader:
        loader.restore_state_rank(state)
        assert list(loader) == expected[5:]
        assert list(loader) == expected


def few(number):
    if number % 2 and number > 1:
        raise SkipSample
    return number
