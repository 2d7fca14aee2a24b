"""Windows of small samples: few runs of neighbours a stream, even steps, and each sample once."""

import itertools

import numpy as np
import pytest

from energon_stream.schedule import JobPacks, LeafPlan, OrderSpec, PackSpec, RepeatPlan, build_schedule
from energon_stream.schedule.chapters import order_by_place, share_evenly

SAMPLES, SLICE, CAPACITY, WINDOW, EACH = 12_000, 100, 8192, 8, 4


def lengths_of(kind):
    draw = np.random.default_rng(0)
    found = draw.lognormal(np.log(650), 0.7, SAMPLES)
    if kind == "uniform":
        found = draw.uniform(100, 1500, SAMPLES)
    if kind == "clustered":  # shards differ in the lengths of their samples
        found *= np.repeat(draw.lognormal(0, 0.7, SAMPLES // 500), 500)
    return np.clip(found, 1, CAPACITY).astype(np.int64)


def windows_of(lengths, streams, mixed, count, chapter=0, passes=None, each=EACH, load="quadratic"):
    shards = np.append(np.arange(0, len(lengths), 500), len(lengths))
    plan = RepeatPlan(LeafPlan(0, shards, OrderSpec(SLICE, 500, 16, 1)), passes)
    order = build_schedule(plan, num_streams=1, stream=0, key=1, mixed=mixed)
    spec = PackSpec(CAPACITY, streams * each, WINDOW, load, "error", chapter=chapter)
    packs = JobPacks(order, spec, (lengths,), streams, 1)
    return list(itertools.islice(packs.windows(), count))


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", ["uniform", "lognormal", "clustered"])
@pytest.mark.parametrize(("streams", "chapter"), [(2, 0), (8, 0), (4, 3), (8, 4), (12, 2)])
def test_streams_have_few_runs_of_neighbours_and_even_steps(kind, streams, chapter):
    lengths = lengths_of(kind)
    mixed = int(streams * EACH * WINDOW * max(1, chapter) * CAPACITY / lengths.mean())
    runs, tokens, samples, packs, uneven = 0, 0, 0, 0, []
    for window in windows_of(lengths, streams, mixed, 1 if chapter else 3, chapter):
        rows = []
        for own in window.streams:
            sizes = own.stop - own.start
            bounds = [0, *own.ends]
            each = [sizes[first:last] for first, last in itertools.pairwise(bounds)]
            assert max(pack.sum() for pack in each) <= CAPACITY
            assert (sizes == lengths[own.refs.index]).all()
            rows.append([float((pack**2.0).sum()) for pack in each])
            runs += 1 + int((np.diff(np.unique(own.refs.index)) > 1).sum())
            tokens, samples, packs = tokens + int(sizes.sum()), samples + len(sizes), packs + len(each)
        whole = min(map(len, rows)) // EACH
        rows = [row[: whole * EACH] for row in rows]
        loads = np.array(rows).reshape(streams, whole, EACH).sum(axis=2)
        uneven += (loads.max(axis=0) / loads.mean(axis=0)).tolist()
    assert runs <= 4 * samples / SLICE
    assert tokens / packs >= 0.97 * CAPACITY
    assert max(uneven) <= 1.04


def runs_of(window, ranks):
    """Runs of neighbours that each rank reads of a window."""
    of_ranks = [
        np.concatenate([own.refs.index for own in window.streams[rank::ranks]]) for rank in range(ranks)
    ]
    assert len(np.unique(np.concatenate(of_ranks))) == sum(map(len, of_ranks))
    return sum(1 + int((np.diff(np.sort(own)) > 1).sum()) for own in of_ranks)


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["uniform", "lognormal"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_read_a_few_runs_of_a_chapter(kind, ranks):
    """All samples are one chapter: ranks read ranges of it, and not each a part of every slice."""
    (window,) = windows_of(lengths_of(kind), 8, SAMPLES, 2, chapter=10, passes=1)
    assert window.count == SAMPLES
    assert runs_of(window, ranks) <= 8 * ranks - 7


@pytest.mark.parametrize(
    ("samples", "streams", "each", "load"),
    [
        (2000, 32, 4, "quadratic"),
        (3000, 32, 4, "quadratic"),
        (4000, 32, 4, "quadratic"),
        (8000, 32, 1, "linear"),
    ],
)
def test_ranks_of_a_short_pass_read_a_few_runs_too(samples, streams, each, load):
    """Steps of one to three, or of one pack a rank, were uneven, so that ranks read single samples."""
    lengths = lengths_of("lognormal")[:samples]
    (window,) = windows_of(lengths, streams, samples, 2, chapter=4, passes=1, each=each, load=load)
    assert window.count == samples
    assert runs_of(window, 4) <= 4 * streams
    packs = [np.split(own.stop - own.start, own.ends[:-1]) for own in window.streams]
    whole = min(map(len, packs)) // each * each
    power = 1.0 if load == "linear" else 2.0
    loads = [[(pack**power).sum() for pack in own[:whole]] for own in packs]
    steps = np.array(loads).reshape(streams, -1, each).sum(axis=2)
    assert (steps.max(axis=0) / steps.mean(axis=0)).max() <= 1.04
    assert lengths.sum() / sum(map(len, packs)) >= 0.97 * CAPACITY


def test_each_part_of_a_chapter_has_its_share_of_each_dataset():
    leaf = np.repeat([0, 1, 2], [6000, 600, 30])
    index = np.concatenate([np.arange(6000), np.arange(600), np.arange(30)])
    order = order_by_place(
        leaf, index // 10 * 11 + index % 10, np.zeros(6630), np.ones(6630, dtype=np.int64), 1
    )
    for part in np.array_split(leaf[order], 4):
        first, second, _ = np.bincount(part, minlength=3)
        assert abs(first - 1500) <= 20
        assert abs(second - 150) <= 20


@pytest.mark.parametrize("weights", [[1, 1], [3, 1, 1], [5, 5, 5, 2], [7] * 11])
def test_parts_are_as_long_and_heavy_as_wanted(weights):
    lengths = lengths_of("lognormal")
    parts = np.stack([lengths, lengths**2], axis=1)
    owner = share_evenly(parts, weights)
    sums = np.stack([np.bincount(owner, weights=column) for column in parts.T], axis=1)
    wanted = np.outer(weights, parts.sum(axis=0)) / sum(weights)
    assert np.abs(sums / wanted - 1).max() < 0.005


@pytest.mark.parametrize("mixed", [1, 40, 700, 1600, 10**6])
@pytest.mark.parametrize(
    "order", [OrderSpec(30, 50, 8, 1), OrderSpec(None, 0, 1, None), OrderSpec(30, 64, 1, None)]
)
def test_a_pass_has_each_sample_once_whatever_is_mixed_later(mixed, order):
    plan = LeafPlan(0, np.array([0, 333, 350, 351, 1000]), order)
    schedule = build_schedule(plan, num_streams=1, stream=0, key=1, mixed=mixed)
    refs, _ = schedule.take(schedule.begin(), 2000)
    assert sorted(refs.index.tolist()) == list(range(1000))
    cursor, parts = schedule.begin(), []
    for count in (1, 7, 500, 2, 490):
        part, cursor = schedule.take(cursor, count)
        parts += part.index.tolist()
    assert parts == refs.index.tolist()


def test_nothing_mixed_later_is_the_order_of_before():
    plan = LeafPlan(0, np.array([0, 333, 1000]), OrderSpec(30, 50, 8, 1))
    one, other = (build_schedule(plan, num_streams=1, stream=0, key=1, mixed=mixed) for mixed in (0, 1))
    assert one.take(one.begin(), 1000)[0].index.tolist() == other.take(other.begin(), 1000)[0].index.tolist()
