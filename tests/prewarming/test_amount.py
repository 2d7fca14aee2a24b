"""How many samples of which streams, against the turns that training takes."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energon_stream.errors import ConfigError
from energon_stream.pipeline.stream_runner import Rotation
from energon_stream.prewarming.amount import Amount, amounts_of_streams, node_ranks
from energon_stream.worker import WorkerConfig


class Dataset:
    """As much of a dataset as turns need."""

    pass_length = 0
    packing = None

    def __init__(self, config):
        self.worker_config = config


def steps_of_rank(dataset, rank):
    config = dataset.worker_config
    rotation = Rotation.start(dataset, range(rank, config.num_streams, config.world_size))
    while True:
        yield rotation.current()
        rotation.advance()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 30), st.integers(1, 8), st.data())
def test_streams_have_as_many_steps_as_their_turns(world_size, per_rank, steps, batch_size, data):
    dataset = Dataset(WorkerConfig(0, world_size, 0, num_streams=world_size * per_rank))
    ranks = sorted(data.draw(st.sets(st.integers(0, world_size - 1), min_size=1)))
    taken = Counter(stream for rank in ranks for stream in islice(steps_of_rank(dataset, rank), steps))
    amounts = amounts_of_streams(dataset, ranks, Amount.of(steps, None, None, batch_size, 2))
    found = {stream: each.samples for stream, each in amounts.items()}
    assert list(found) == [s for s in range(world_size * per_rank) if s % world_size in ranks]
    assert {stream: count for stream, count in found.items() if count} == {
        stream: count * batch_size for stream, count in taken.items()
    }


def test_ranks_of_a_node():
    config = WorkerConfig(1, 4, 0)
    assert node_ranks(config, None) == (1,)
    assert node_ranks(config, [3, 0, 3]) == (0, 3)
    for ranks in ([], [4], [-1]):
        with pytest.raises(ConfigError, match="not ranks of world_size 4"):
            node_ranks(config, ranks)
