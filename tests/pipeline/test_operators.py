import pytest
from told import told

from energon_stream.errors import ConfigError, FatalSampleError, SkipSample
from energon_stream.pipeline import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    GcDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleBufferDataset,
)
from energon_stream.testing.operator_suite import (
    NumbersDataset,
    assert_exact_resume,
    assert_restores_by_key,
    run_steps,
)
from energon_stream.worker import WorkerConfig


def config(workers=0, streams=0):
    return WorkerConfig(0, 1, workers, num_streams=streams)


def double(x):
    return 2 * x


def some(x):
    """0, 1 or 2 elements, sometimes skipped."""
    if x % 5 == 3:
        raise SkipSample
    yield from range(x, x + x % 3)


def numbered(x):
    """Depends on the call's counter, as hooks with restore_seeds do."""
    return x, WorkerConfig.active_worker_config.active_worker_sample_index


def parity(x):
    if x == 5:
        raise SkipSample
    return x % 2, None


def first_fit(values, capacity=40):
    groups = []
    for value in values:
        room = next((group for group in groups if sum(group) + value <= capacity), None)
        if room is None:
            groups.append([value])
        else:
            room.append(value)
    return groups


def halves(group):
    yield tuple(group[: len(group) // 2])
    yield tuple(group[len(group) // 2 :])


def skip_threes(x):
    if x % 3 == 0:
        raise SkipSample
    return x, WorkerConfig.active_worker_config.active_worker_sample_index


def pairs(stream):
    return zip(stream, stream, strict=False)


def numbers(n=23, streams=0):
    return NumbersDataset(n, config(streams=streams))


PIPELINES = {
    "numbers": numbers,
    "map": lambda: MapDataset(numbers(), double, stateless_map_fn=True),
    "generator": lambda: MapDataset(numbers(), some, stateless_map_fn=True),
    "counter": lambda: MapDataset(numbers(), numbered, stateless_map_fn=True),
    "batch": lambda: BatchDataset(numbers(), 4, list, batcher_stateless=True),
    "batch of generators": lambda: BatchDataset(
        MapDataset(numbers(), some, stateless_map_fn=True), 3, list, batcher_stateless=True
    ),
    "epochs": lambda: EpochizeDataset(BatchDataset(numbers(), 4, list, batcher_stateless=True), 5),
    "limit": lambda: LimitDataset(numbers(), 9),
    "limit, anew": lambda: LimitDataset(numbers(), 9, reset_after_epoch=True),
    "three streams": lambda: BatchDataset(
        MapDataset(numbers(31, 3), numbered, stateless_map_fn=True), 2, list, batcher_stateless=True
    ),
    "concat": lambda: ConcatDataset(
        BatchDataset(numbers(5), 2, list, batcher_stateless=True), numbers(4), numbers(0)
    ),
    "blend": lambda: BlendDataset((numbers(9), 2), (NumbersDataset(15, offset=100), 1), (numbers(0), 1)),
    "blend of blends, three streams": lambda: BlendDataset(
        (BlendDataset((numbers(9, 3), 2), (numbers(4, 3), 1)), 0.3), (numbers(8, 3), 0.5)
    ),
    "mix": lambda: MixBatchDataset(
        (numbers(9), 6),
        (NumbersDataset(9, offset=100), 4),
        batch_size=4,
        batch_mix_fn=list,
        batch_mix_stateless=True,
    ),
    "repeat": lambda: RepeatDataset(numbers(7), 2.5),
    "repeat for ever": lambda: RepeatDataset(BatchDataset(numbers(7), 2, list, batcher_stateless=True)),
    "limit of repeat": lambda: LimitDataset(RepeatDataset(numbers(4)), 9, reset_after_epoch=True),
    "filter": lambda: FilterDataset(numbers(), lambda x: x % 3 > 0),
    "gc and log": lambda: LogSampleDataset(GcDataset(numbers(), every_n_iter=500, freeze=False)),
    "shuffle": lambda: ShuffleBufferDataset(numbers(), 7),
    "shuffled batches of a blend": lambda: ShuffleBufferDataset(
        BatchDataset(BlendDataset((numbers(9), 1), (numbers(9), 1)), 2, list, batcher_stateless=True), 3
    ),
    "groups": lambda: GroupBatchDataset(numbers(), 3, parity, list, batcher_stateless=True),
    "groups, drop last": lambda: GroupBatchDataset(
        numbers(), None, lambda x: (x % 3, x % 3 + 2), list, batcher_stateless=True, drop_last=True
    ),
    "packs": lambda: PackingDataset(numbers(), 10, first_fit, tuple, stateless=True),
    "packs of generators": lambda: PackingDataset(
        MapDataset(numbers(31, 2), some, stateless_map_fn=True), 6, first_fit, halves, stateless=True
    ),
    "encoded packs": lambda: PackingDataset(
        numbers(), 8, first_fit, tuple, sample_encoder=skip_threes, stateless=True
    ),
    "drop last, uneven streams": lambda: BatchDataset(
        numbers(10, 3), 2, list, drop_last=True, batcher_stateless=True
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_restoring_at_every_step_continues_identically(name):
    assert_exact_resume(PIPELINES[name])


@pytest.mark.parametrize("name", PIPELINES)
def test_elements_can_be_made_again_from_their_keys(name):
    assert_restores_by_key(PIPELINES[name])


def test_iterating_a_dataset_gives_one_pass_and_again():
    dataset = BatchDataset(numbers(10), 4, list)
    assert list(dataset) == list(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(dataset) == 3
    assert list(BatchDataset(numbers(10), 4, list, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_epochs_go_on_and_limits_cut():
    steps = run_steps(EpochizeDataset(numbers(5), 3), 8)
    assert [s.value for s in steps] == [0, 1, 2, None, 3, 4, 0, None]
    assert [s.value for s in run_steps(LimitDataset(numbers(5), 3), 8)] == [0, 1, 2, None, 3, 4, None, 0]
    anew = LimitDataset(numbers(5), 3, reset_after_epoch=True)
    assert [s.value for s in run_steps(anew, 8)] == [0, 1, 2, None, 0, 1, 2, None]
    assert len(EpochizeDataset(numbers(5), 100)) == 100


def test_repeats_blends_and_concatenations_hold_what_they_should():
    assert list(RepeatDataset(numbers(4), 2.5)) == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert len(RepeatDataset(numbers(4), 2.5)) == 10
    assert list(RepeatDataset(numbers(0))) == []
    once = RepeatDataset(numbers(2), 1, restart=False)
    assert [s.value for s in run_steps(once, 5)] == [0, 1, None, None, None]
    assert list(ConcatDataset(numbers(2), NumbersDataset(2, offset=10))) == [0, 1, 10, 11]
    blend = BlendDataset((numbers(40), 3), (NumbersDataset(60, offset=100), 1))
    found = list(blend)
    assert sorted(found) == [*range(40), *range(100, 160)]
    assert len(blend) == 100
    assert [x for x in found if x < 100] == list(range(40))
    endless = BlendDataset(
        (RepeatDataset(numbers(5)), 0.6), (RepeatDataset(NumbersDataset(5, offset=100)), 0.4)
    )
    first = sum(step.value < 100 for step in run_steps(endless, 2000))
    assert abs(first / 2000 - 0.6) < 3 * (0.24 / 2000) ** 0.5


def test_what_buffers_give():
    assert sorted(ShuffleBufferDataset(numbers(20), 6)) == list(range(20))
    assert list(ShuffleBufferDataset(numbers(20), 6)) != list(range(20))
    grouped = list(GroupBatchDataset(numbers(12), 3, parity, list))
    assert grouped == [[0, 2, 4], [1, 3, 7], [6, 8, 10], [9, 11]]
    packed = list(PackingDataset(numbers(12), 8, first_fit, tuple))
    assert sorted(x for pack in packed for x in pack) == list(range(12))
    assert all(sum(pack) <= 40 for pack in packed)
    assert list(FilterDataset(numbers(6), lambda x: x % 2)) == [1, 3, 5]


def test_a_stream_function_is_run_again_after_a_restore():
    assert_exact_resume(lambda: IterMapDataset(numbers(9), pairs))
    assert list(IterMapDataset(numbers(5), pairs)) == [(0, 1), (2, 3)]
    assert not IterMapDataset(numbers(5), pairs).can_restore_sample()


@pytest.mark.parametrize("repeats", [lambda v: [v, v[:1]], lambda v: [[*v, 99]]])
def test_a_packer_that_repeats_or_makes_up_samples_is_named(repeats):
    repeats.__qualname__ = "repeats"
    with pytest.raises(ConfigError, match="repeats repeated or made up 1 samples"):
        list(PackingDataset(numbers(6), 6, repeats, tuple))


def test_a_packer_may_leave_samples_out(caplog):
    def full_pairs(values):
        return [values[at : at + 2] for at in range(0, len(values) - 1, 2)]

    with caplog.at_level("INFO", "energon_stream"):
        assert list(PackingDataset(numbers(11), 3, full_pairs, tuple)) == [(0, 1), (3, 4), (6, 7), (9, 10)]
    assert [text.partition("full_pairs ")[2] for text in told(caplog)] == [
        "left out 1 of 3 samples; samples in no group are dropped, if not pushed back",
        "left out 3 samples",
    ]
    assert_exact_resume(lambda: PackingDataset(numbers(11), 3, full_pairs, tuple))


def test_a_group_criterion_that_fails_costs_that_sample_only():
    def criterion(x):
        if x == 3:
            raise ValueError("no group")
        return 0, None

    assert list(GroupBatchDataset(numbers(6), 2, criterion, list)) == [[0, 1], [2, 4], [5]]
    assert list(GroupBatchDataset(numbers(6), 2, lambda x: (x % 2, 3 if x % 2 else None), list)) == [
        [0, 2],
        [1, 3, 5],
        [4],
    ]
    for size, batch_size in ((0, 2), (-1, 2), ("2", 2), (2.0, None), (None, None)):
        with pytest.raises(ConfigError, match="batch size"):
            list(GroupBatchDataset(numbers(6), batch_size, lambda x, size=size: (0, size), list))


def test_streams_take_turns_and_an_ended_one_is_left_out():
    assert list(numbers(8, 3)) == list(range(8))
    uneven = LimitDataset(numbers(9, 3), 7)
    assert list(uneven) == list(range(7))


def test_failures_are_skipped_up_to_the_tolerance_and_reach_the_handler():
    seen = []
    handler = WorkerConfig(
        0, 1, 0, global_error_handler=lambda e, sample, sources: seen.append((repr(e), sample))
    )

    def fails(x):
        if x % 3:
            raise ValueError(x)
        return x

    assert list(MapDataset(NumbersDataset(7, handler), fails)) == [0, 3, 6]
    assert seen == [(f"ValueError({x})", x) for x in (1, 2, 4, 5)]
    with pytest.raises(FatalSampleError, match="2 samples in a row failed"):
        list(MapDataset(numbers(), fails, failure_tolerance=2))


@pytest.mark.parametrize("error", [NameError, ImportError, MemoryError, ConfigError])
def test_programming_errors_are_never_counted_as_bad_samples(error):
    def broken(x):
        raise error("broken")

    with pytest.raises(error):
        list(MapDataset(numbers(), broken, failure_tolerance=0))


def test_a_batcher_that_returns_nothing_is_a_named_error():
    with pytest.raises(FatalSampleError, match="returned None for a batch"):
        list(BatchDataset(numbers(), 2, lambda batch: None, failure_tolerance=1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: BatchDataset(numbers(), 0, list),
        lambda: EpochizeDataset(numbers(), 0),
        lambda: LimitDataset(numbers(), -1),
        lambda: BlendDataset((numbers(), 0)),
        lambda: BlendDataset((numbers(), 1, 2)),
        lambda: BlendDataset((numbers(), 1), (NumbersDataset(3, config(2)), 1)),
        lambda: ConcatDataset(),
        lambda: RepeatDataset(numbers(), 0),
        lambda: ShuffleBufferDataset(numbers(), 0),
        lambda: PackingDataset(numbers(), 0, first_fit, tuple),
        lambda: GroupBatchDataset(numbers(), 0, parity, list),
        lambda: GcDataset(numbers(), every_n_iter=0),
        lambda: MapDataset(numbers()),
        lambda: MapDataset(numbers(), double, worker_config=config(2)),
    ],
)
def test_impossible_arguments_are_named(make):
    with pytest.raises(ConfigError):
        make()


def fail(values):
    raise ValueError("always")


@pytest.mark.parametrize(
    "make",
    [
        lambda: GroupBatchDataset(numbers(), 2, parity, fail, failure_tolerance=3),
        lambda: PackingDataset(numbers(), 4, first_fit, fail, failure_tolerance=3),
        lambda: PackingDataset(numbers(), 4, first_fit, list, sample_encoder=fail, failure_tolerance=3),
        lambda: MapDataset(numbers(), lambda x: (fail(x) for _ in range(2)), failure_tolerance=3),
    ],
)
def test_each_function_has_its_own_count_of_failures(make):
    """One function's success does not hide that another one always fails."""
    with pytest.raises(FatalSampleError, match="3 samples in a row failed, the last with ValueError: always"):
        list(make())


def test_datasets_show_what_they_are_made_of():
    dataset = BlendDataset(
        (BatchDataset(MapDataset(numbers(5), double), 4, list, drop_last=True), 0.75),
        (ShuffleBufferDataset(ConcatDataset(numbers(2), numbers(3)), 10), 0.25),
    )
    assert dataset.drawing().line() == (
        "BlendDataset("
        "0.75: BatchDataset(MapDataset(NumbersDataset(size=5), fn=double), batch_size=4, drop_last=True, batcher=list), "
        "0.25: ShuffleBufferDataset(ConcatDataset(NumbersDataset(size=2), NumbersDataset(size=3)), size=10))"
    )
