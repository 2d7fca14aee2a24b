"""64 ranks with and without workers have the same packs in the same global step as one."""

import numpy as np
import pytest
from packed import opened, write
from repetitions import is_nightly

from energon_stream import ReadOptions, compute_costs
from energon_stream.pipeline.stream_runner import StreamRunner

STREAMS, STEPS = 128, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    lengths = np.clip(np.random.default_rng(3).lognormal(2.5, 1.1, 900), 1, 260).astype(int)
    path = write(tmp_path_factory.mktemp("steps") / "texts", lengths, shard=100)
    compute_costs(path, "tokens", values=lengths)
    return path


def open_rank(folder, rank, world, workers):
    options = {"num_streams": STREAMS, "global_batch_size": STREAMS, "window": 1, "load": "linear"}
    return opened(folder, rank, world, workers, read=ReadOptions(max_ahead=8), **options)


def batches_of_streams(dataset, streams, count):
    """The first batches of each stream of one process."""
    runner = StreamRunner(dataset, streams)
    found = {stream: [] for stream in streams}
    for _ in range(count * len(streams)):
        step = runner.step()
        found[step.stream].append(step.value[0])
    runner.close()
    return found


def read_ranks(folder, world, workers, ranks):
    """What ranks get of each of their streams; each worker's streams are read as its process does."""
    found = {}
    for rank in ranks:
        dataset = open_rank(folder, rank, world, workers)
        config = dataset.worker_config
        for worker in range(max(1, workers)):
            found.update(batches_of_streams(dataset, list(config.worker_streams(worker)), STEPS))
    return found


@pytest.fixture(scope="module")
def expected(folder):
    """The batches of each stream, of one rank without workers: batch k of the job is of stream k mod 128."""
    return read_ranks(folder, 1, 0, [0])


def test_packs_of_a_global_step_do_not_depend_on_ranks_and_workers(folder, expected):
    assert any(start for own in expected.values() for pack in own for _, start, _ in pack)  # carried samples
    for world, workers, ranks in [
        (1, 2, range(1)),
        (2, 0, range(2)),
        (4, 2, range(1, 4, 2) if is_nightly() else [3]),
        (8, 0, range(0, 8, 3) if is_nightly() else [3]),
        (64, 0, (0, 21)),
        (64, 2, (42, 63)),
    ][0 if is_nightly() else 3 :: 1 if is_nightly() else 2]:
        found = read_ranks(folder, world, workers, ranks)
        assert sorted(found) == [stream for stream in range(STREAMS) if stream % world in ranks]
        assert found == {stream: expected[stream] for stream in found}


def test_64_ranks_plan_the_same_packs(folder, expected):
    """Each rank plans for itself, from costs that it has read; its packs are those that one rank read."""
    for rank in range(0, 64, 1 if is_nightly() else 7):
        reader = open_rank(folder, rank, 64, 2 * (rank % 2))
        while reader.inputs:
            reader = reader.inputs[0]
        for stream in (rank, rank + 64):
            schedule = reader.schedule(stream)
            first = schedule.pack_ends(1)[0]
            refs, _ = schedule.take(schedule.begin(), first)
            keys = [int(key.rpartition("/")[2]) for key, _, _ in expected[stream][0]]
            assert refs.index.tolist() == keys
