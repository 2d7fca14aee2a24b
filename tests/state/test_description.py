"""What states say of datasets, and how large they get where there are many sources."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from repetitions import is_nightly

from energon_stream import WorkerConfig, get_savable_loader
from energon_stream.errors import StateError, StateMismatchError
from energon_stream.index.dataset import WebDatasetIndex
from energon_stream.pipeline import BatchDataset, BlendDataset
from energon_stream.pipeline.leaf import DatasetLeaf
from energon_stream.pipeline.reader_dataset import ReaderDataset
from energon_stream.schedule import BlendPlan, CursorCodec, LeafPlan, OrderSpec, RepeatPlan, in_place
from energon_stream.state import dumps, loads, with_digest
from energon_stream.state.description import Description, describe, fingerprint, read_leaves
from energon_stream.storage import StoreSpec


def source_dataset(shards, weights=None, streams=1, order=None):
    """Sources of which nothing is read: each has so many shards of some hundred samples."""
    counts = [700 + (np.arange(size) * 37 + number * 11) % 600 for number, size in enumerate(shards)]
    leaves, plans = [], []
    for number, each in enumerate(counts):
        paths = tuple(f"data-{shard:06d}.tar" for shard in range(len(each)))
        index = WebDatasetIndex(StoreSpec(f"/lake/{number}"), "train", paths, each)
        leaves.append(DatasetLeaf(index, None))
        plans.append(RepeatPlan(LeafPlan(number, index.shard_starts, order or OrderSpec(100, 100, 16, 1))))
    plan = BlendPlan(tuple(plans), tuple(weights or [1.0] * len(plans)))
    return ReaderDataset(leaves, plan, worker_config=WorkerConfig(0, 1, 0, num_streams=streams))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=150))
def test_numbers_of_shards_come_back(shards):
    described = describe(BatchDataset(source_dataset(shards), 2, list))
    (found,) = read_leaves(loads(dumps(described.leaves)))
    assert found.shards == tuple(shards)
    assert len(found.marks) == (len(shards) if len(shards) <= 64 else 0)


@pytest.mark.parametrize("number", [3, 65])
def test_torch_loads_leaves_with_its_default_arguments(number, tmp_path):
    described = describe(source_dataset([2] * number))
    torch.save(described.leaves, tmp_path / "leaves.pt")
    (found,) = read_leaves(torch.load(tmp_path / "leaves.pt"))
    assert found.shards == (2,) * number


def test_each_part_of_the_fingerprint_is_of_one_thing():
    def prints(shards=(3, 2), weights=(1.0, 2.0), order=None, size=2, outer=1.0):
        blended = source_dataset(shards, list(weights), order=order)
        return describe(BlendDataset((BatchDataset(blended, size, list), outer))).prints

    base = prints()
    changed = {
        "weights": [prints(weights=(1.0, 3.0)), prints(outer=2.0)],
        "order": [prints(order=OrderSpec(100, 99, 16, 1))],
        "pipeline": [prints(size=3)],
    }
    for part, others in changed.items():
        for other in others:
            assert {name for name in base if base[name] != other[name]} == {part}
    grown = prints(shards=(3, 3))
    assert {name for name in base if base[name] != grown[name]} == {"data", "order"}


def test_a_dataset_of_then_has_the_hashes_of_then():
    then, now = source_dataset((3, 2)), source_dataset((3, 2, 4))
    pipeline = BatchDataset(now, 2, list)
    found = fingerprint(pipeline.config(), [now.config(in_place((3, 2)))])
    assert found["order"] == describe(BatchDataset(then, 2, list)).prints["order"]
    assert found["data"] == describe(BatchDataset(then, 2, list)).prints["data"]
    assert found["pipeline"] == describe(pipeline).prints["pipeline"]


@pytest.mark.parametrize(
    "saved", [None, 3, [[1, b"\1", b"ab"]], [[2, b"", b""]], [[1]], [[1, b"x" * 9, b"ab"]]]
)
def test_damaged_sources_are_named(saved):
    with pytest.raises(StateError, match="the datasets with which it was saved"):
        read_leaves(saved)


def test_a_refused_state_names_the_options_that_differ():
    def open_loader(size=2, order=None):
        return get_savable_loader(BatchDataset(source_dataset((3, 2), order=order), size, list))

    state = loads(dumps(open_loader().save_state_rank()))
    wide = OrderSpec(100, 400, 16, -1)
    for loader, said in [
        (open_loader(8), ["batch_size of BatchDataset was 2, is 8"]),
        (
            open_loader(order=wide),
            ["shuffle_buffer_size was 100, is 400", "shuffle_over_epochs_multiplier was 1, is -1"],
        ),
        (get_savable_loader(source_dataset((3, 2))), ["the pipeline was a BatchDataset, is a ReaderDataset"]),
    ]:
        for on_change in ("error", "continue"):
            with pytest.raises(StateMismatchError) as caught:
                loader.restore_state_rank(state, on_change=on_change)
            assert all(text in str(caught.value) for text in said)
    for options in (None, 3, {}, {"pipeline": [], "orders": 1}, {"pipeline": 1, "orders": [[1]]}):
        with pytest.raises(StateMismatchError, match="pipeline"):
            open_loader(8).restore_state_rank(with_digest({**state, "options": options}))


def rank_state(loader, source, cursor, samples):
    """The state of a loader whose one stream stands at a cursor."""
    at = CursorCodec(source.schedule(0)).pack(cursor)
    batches = samples // 32
    node = {"in": {"epoch": 0, "at": at}, "n": batches, "end": False}
    streams = {"0": {"batches": batches, "node": node}}
    return with_digest({**loader.save_state_rank(), "rotation": [0, [], batches, 0, 0], "streams": streams})


def test_a_thousand_sources_take_three_kilobytes_a_stream_and_seven_bytes_each():
    """Also in a stream of which every source is in a pass of a share of then, after shards were appended to
    one. Of 300 sources by day.
    """
    random, number = np.random.default_rng(5), 1000 if is_nightly() else 300
    shards = np.maximum(1, random.lognormal(1.1, 1, number)).astype(int)
    weights = random.lognormal(0, 1, number).tolist()
    source = source_dataset(shards, weights)
    loader = get_savable_loader(BatchDataset(source, 32, list))
    schedule = source.schedule(0)
    cursor, samples = schedule.begin(), 0
    for steps in (100 * number, 900 * number):
        cursor, samples = schedule.advance(cursor, steps), samples + steps
        state = rank_state(loader, source, cursor, samples)
        loader.restore_state_rank(loads(dumps(state)))
        assert len(dumps(loader.save_state_rank())) < 800 + 9.4 * number
        restored = loader.save_state_rank()["streams"]["0"]["node"]["in"]["at"]
        assert CursorCodec(schedule).unpack(restored) == cursor
    assert max(passes for _, passes, _ in cursor[2]) >= 5

    many, more = (source_dataset([first, *shards[1:]], weights, streams=7) for first in (5, 6))
    moved = [before != after for before, after in zip(shares(many), shares(more), strict=True)]
    assert sum(moved) > number / 5
    loader = get_savable_loader(BatchDataset(many, 32, list))
    schedule = many.schedule(0)
    at = CursorCodec(schedule).pack(schedule.advance(schedule.begin(), 1000 * number))
    state = {"batches": 1, "node": {"in": {"epoch": 0, "at": at}, "n": 1, "end": False}}
    streams = {**dict.fromkeys(map(str, range(7))), "0": state}
    state = with_digest({**loader.save_state_rank(), "rotation": [1, [], 1, 0, 0], "streams": streams})
    loader = get_savable_loader(BatchDataset(more, 32, list))
    loader.restore_state_rank(state, on_change="continue")
    report = loader.restore_report
    assert [change.change for change in report.leaves[:1]] == ["grown"]
    assert {change.change for change in report.leaves[1:]} == {"dealt"}
    assert f"shares of {len(report.leaves) - 1} other datasets" in str(report)
    assert str(report).count("\n") == 2
    assert len(dumps(loader.save_state_rank())) < 800 + 10.4 * number


def shares(source):
    return [(leaf.inner.table.start, leaf.inner.table.stop) for leaf in source.schedule(0).children]


def test_earlier_packs_are_known_beside_even_draws():
    """Where a pipeline has both, and the draws are the same, the order tells."""
    described = Description({"draws": "2"}, [], None, None, (), {"an order": 6})
    assert described.earlier_version({"draws": "2", "order": "an order"}) == 6
    assert described.earlier_version({"draws": "2", "order": "another"}) is None
