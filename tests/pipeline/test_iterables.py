"""Datasets whose class writes ``__iter__``. The oracle is a run that nobody disturbs."""

import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from queue import Queue

import numpy as np
import pytest
import torch
from repetitions import is_nightly
from saved_runs import differing_saves

from energon_stream import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SavableDataset,
    ShuffleBufferDataset,
    WorkerConfig,
    get_loader,
)
from energon_stream.errors import ConfigError, StateError, StateMismatchError
from energon_stream.pipeline import iterables
from energon_stream.pipeline.node import INNER_STATE, Context
from energon_stream.testing.operator_suite import (
    NumbersDataset,
    assert_exact_resume,
    assert_restores_by_key,
    run_steps,
)


def config(workers=0, streams=0):
    return WorkerConfig(0, 1, workers, num_streams=streams)


class Wrapper(SavableDataset):
    """Base of the classes here: one inner dataset."""

    def __init__(self, dataset, **options):
        super().__init__(worker_config=dataset.worker_config)
        self.dataset = dataset
        vars(self).update(options)


class Pool(Wrapper):
    """A pool that is sorted and shuffled; the tail by draws that go on from pass to pass."""

    size = 5

    def __init__(self, dataset):
        super().__init__(dataset, draws=random.Random(3))

    def __iter__(self):
        pool = []
        for number, value in enumerate(self.dataset):
            pool.append(value)
            if len(pool) == self.size:
                random.Random(number).shuffle(pool)
                yield from pool
                pool.clear()
        self.draws.shuffle(pool)
        yield from pool

    def save_state(self):
        return self.dataset.save_state()

    def restore_state(self, state):
        self.dataset.restore_state(state)


class Packs(Wrapper):
    """Packs of numbers up to a sum; what does not fit waits in an attribute, which is saved."""

    _savable_fields = ("waiting", "draws", "made")

    def __init__(self, dataset):
        super().__init__(dataset, waiting=deque(maxlen=100), draws=np.random.default_rng(5), made=0)

    def __iter__(self):
        for value in self.dataset:
            self.waiting.append((value, {"twice": 2 * value}))
            if sum(value for value, _ in self.waiting) > 20:
                yield self.pack()
        while self.waiting:
            yield self.pack()

    def pack(self):
        count = min(len(self.waiting), int(self.draws.integers(1, 4)))
        self.made += 1
        return self.made, *[self.waiting.popleft() for _ in range(count)]


class Counting(Wrapper):
    """A counter with a state of its own, which contains all kinds of values."""

    def __init__(self, dataset):
        super().__init__(dataset)
        self.reset_state_own()

    def reset_state_own(self):
        self.count, self.seen, self.sums = 0, set(), np.zeros(2)
        self.draws = torch.Generator().manual_seed(4)

    def __iter__(self):
        for value in self.dataset:
            self.count += 1
            self.seen.add(value % 7)
            self.sums += value
            yield self.count, value, sorted(self.seen), self.sums.tolist(), self.draw()

    def draw(self):
        return int(torch.randint(100, (1,), generator=self.draws))

    def save_state(self):
        own = {"count": self.count, 7: ("seen", self.seen), "sums": self.sums, "draws": self.draws}
        return {**own, "inner": self.dataset.save_state()}

    def restore_state(self, state):
        name, self.seen = state[7]
        assert name == "seen"
        self.count, self.sums, self.draws = state["count"], state["sums"], state["draws"]
        self.dataset.restore_state(state["inner"])


class Twice(Wrapper):
    """No state; some elements twice, some never, with draws from Python's and NumPy's own generators."""

    def __iter__(self):
        for value in self.dataset:
            for _ in range(value % 3):
                yield value, random.random(), float(np.random.random()), float(torch.rand(1))


class Passes(Wrapper):
    """Reads its input twice in each pass."""

    def __iter__(self):
        yield from self.dataset
        yield "again"
        yield from self.dataset


class Kinds(Wrapper):
    """Values of all classes of dicts, NumPy's old generator, and a queue, which has a lock."""

    _savable_fields = ("last", "often", "groups", "draws")

    def __init__(self, dataset):
        super().__init__(dataset, draws=np.random.RandomState(2), queue=Queue(), _lengths=[3])
        self.last, self.often, self.groups = OrderedDict(), Counter(), defaultdict(list)

    def __iter__(self):
        for value in self.dataset:
            self.queue.put(value)
            self.last[value] = self.draws.randint(9)
            self.last.move_to_end(value, last=False)
            self.groups[value % 3].append(value)
            if len(self.last) > 3:
                self.last.popitem()
            self.often.update([value % 5])
            yield [*self.last.items()], self.often.most_common(2), [*self.groups[1]], self.queue.get()


class Drained(Wrapper):
    """A list that is saved, and is given out after the pass of the input is over."""

    _savable_fields = ("kept",)

    def __init__(self, dataset):
        super().__init__(dataset, kept=[])

    def __iter__(self):
        for value in self.dataset:
            self.kept.append(value)
            if len(self.kept) > 6:
                yield self.kept.pop(0)
        while self.kept:
            yield self.kept.pop()


class Pairs(SavableDataset):
    """Reads two datasets at once."""

    def __init__(self, *parts):
        super().__init__(parts[0].worker_config)
        self.parts = {"first": parts[0], "others": list(parts[1:])}

    def __iter__(self):
        yield from zip(self.parts["first"], *self.parts["others"], strict=False)


class OwnShuffle(ShuffleBufferDataset):
    """Derives from an operator, whose iteration it changes."""

    def __iter__(self):
        yield from enumerate(super().__iter__())


class Source(SavableDataset):
    """Makes its elements itself, in passes that grow."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        yield from range(10 * self.passes, 10 * self.passes + self.passes)


def numbers(size=23, workers=0, streams=0):
    return NumbersDataset(size, config(workers, streams))


def negative(value):
    return -value


def endless(size=23, **options):
    return RepeatDataset(numbers(size, **options))


DATASETS = {
    "pool": lambda: Pool(numbers()),
    "pool in two streams": lambda: Pool(numbers(streams=2)),
    "endless pool": lambda: Pool(endless(streams=2)),
    "packs": lambda: Packs(endless()),
    "packs in passes": lambda: Packs(numbers(streams=2)),
    "kinds of values": lambda: Kinds(endless(streams=2)),
    "counting": lambda: Counting(endless(streams=2)),
    "stateless": lambda: Twice(numbers(streams=2)),
    "nested": lambda: Pairs(Twice(Pool(Pool(numbers(31)))), Packs(Pool(endless(9)))),
    "mapped": lambda: BatchDataset(MapDataset(Pool(MapDataset(numbers(), negative)), negative), 3, list),
    "several passes": lambda: Passes(numbers(7, streams=2)),
    "drained": lambda: Drained(numbers(streams=2)),
    "drained in a sequence": lambda: ConcatDataset(Pool(numbers(7)), Drained(numbers(9))),
    "pairs": lambda: Pairs(numbers(9), Pool(numbers(7)), endless(4)),
    "blended": lambda: BlendDataset((Counting(endless(5)), 1), (Pool(endless(9)), 2)),
    "of a blend": lambda: Counting(BlendDataset((endless(5), 1), (endless(9), 2))),
    "an operator": lambda: OwnShuffle(numbers(), 6),
    "a source": lambda: Source(config(streams=2)),
    "bounded": lambda: RepeatDataset(Pool(EpochizeDataset(endless(), length=10))),
    "held in a shuffle buffer": lambda: ShuffleBufferDataset(Twice(numbers(60)), 9),
    "held in packs": lambda: PackingDataset(
        Pool(numbers(40)), 12, lambda kept: [kept[::2], kept[1::2]], tuple
    ),
}


@pytest.mark.parametrize("name", DATASETS)
def test_goes_on_identically_after_every_step(name):
    steps, tail = (30, 9) if is_nightly() else (25, 6)
    assert_exact_resume(DATASETS[name], steps=steps, tail=tail)


@pytest.mark.parametrize("kind", ["pool", "packs", "counting", "stateless"])
@pytest.mark.parametrize("saves", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_random_saves_of_a_loader(kind, saves):
    make = {"pool": Pool, "packs": Packs, "counting": Counting, "stateless": Twice}[kind]
    build = lambda workers: make(endless(37, workers=workers, streams=2))  # noqa: E731
    assert differing_saves(partial(build, 0), saves, 300 if saves > 6 else 150) == 0


def test_elements_that_are_held_are_made_from_a_state_near_them():
    assert differing_saves(lambda: ShuffleBufferDataset(Counting(endless()), 80), 4, 200) == 0


@pytest.mark.parametrize("kind", [Pool, Packs, Counting, Twice])
def test_workers_return_the_same(kind):
    found = [
        # PyTorch's generators reach forks alone: others cannot unpickle them.
        list(
            zip(
                range(40),
                get_loader(kind(endless(37, workers=workers, streams=2)), start_method="fork"),
                strict=False,
            )
        )
        for workers in (0, 2)
    ]
    assert found[0] == found[1]


def test_the_random_states_of_the_program_stay():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), float(np.random.random()), float(torch.rand(1))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    dataset = Twice(numbers())
    list(get_loader(dataset))
    dataset.worker_config.worker_activate(0)
    try:
        next(iter(dataset))
        found = random.random(), float(np.random.random()), float(torch.rand(1))
    finally:
        dataset.worker_config.worker_deactivate()
    assert found == expected


def test_a_class_may_derive_from_one_that_writes_it():
    class Doubled(Pool):
        def __iter__(self):
            for value in super().__iter__():
                yield 2 * value

    plain = [2 * value for value in Pool(numbers())]
    assert list(Doubled(numbers())) == plain
    assert_exact_resume(lambda: Doubled(numbers()), steps=12, tail=4)


def test_the_object_itself_is_a_description():
    pool = Counting(numbers())
    assert list(pool) == list(pool)
    assert pool.count == 0


def test_an_input_is_read_as_often_as_the_class_says():
    loader = get_loader(Passes(numbers(3)))
    assert [list(loader) for _ in range(2)] == [[0, 1, 2, "again", 0, 1, 2]] * 2
    assert sorted(Drained(numbers(9))) == [*range(9)]


def test_inputs_are_found_wherever_they_are():
    first, second, third = numbers(3), numbers(4), numbers(5)
    assert Pairs(first, second, third).inputs == (first, second, third)
    assert Pool(first).inputs == Pool(first).datasets == (first,)
    assert Source(config()).inputs == ()


def test_lengths_follow_the_inputs_or_the_class():
    class Half(Pool):
        def len_worker(self, worker_idx=None):
            return self.dataset.len_worker(worker_idx) // 2

    assert len(Pool(numbers(23))) == 23
    assert len(Half(numbers(23))) == 11
    assert [Half(numbers(23, streams=2)).len_stream(stream) for stream in (0, 1)] == [6, 5]
    assert Half(endless(23)).len_stream(0) is None
    assert len(list(get_loader(EpochizeDataset(Pool(endless()), length=7)))) == 7


def test_elements_are_made_again_by_the_class_or_by_iterating():
    class Restoring(Pool):
        def can_restore_sample(self):
            return True

        def restore_sample(self, restore_key):
            return self.dataset.restore_sample(restore_key)

    class Keyed(dict):
        pass

    def keyed(value):
        return Keyed(__restore_key__=None, value=value)

    def make():
        return Restoring(MapDataset(numbers(), keyed, stateless_map_fn=True))

    found = run_steps(make(), 9)
    keys = [step.value["__restore_key__"] for step in found]
    assert [make().restore_sample(key)["value"] for key in keys] == [step.value["value"] for step in found]


def test_elements_are_made_again_by_key():
    class Trusted(Pool):
        def can_restore_sample(self):
            return True

    assert_restores_by_key(lambda: MapDataset(Trusted(numbers()), negative, stateless_map_fn=True))


class Table(dict):
    """A class of a program."""


@pytest.mark.parametrize(
    "value",
    [object(), np.zeros(2, "i4,f4"), defaultdict(Table), Table()],
    ids=["object", "structured", "factory", "class"],
)
def test_a_state_that_is_not_plain_is_refused_with_a_remedy(value):
    class Holding(Counting):
        def save_state(self):
            return {"value": value, "inner": self.dataset.save_state()}

    with pytest.raises(
        StateError, match=f"the state of Holding holds .*, a {type(value).__name__}"
    ) as caught:
        run_steps(Holding(numbers()), 2)
    assert "made again" in caught.value.hint


def test_names_of_the_library_are_none_for_attributes():
    with pytest.raises(ConfigError, match=r"Counting sets the attribute inputs.*another name"):
        Counting(numbers()).inputs = [1, 2]
    Counting(numbers()).inputs = [numbers()]


def test_iterators_are_made_in_the_iteration(tmp_path):
    made = Twice(numbers(streams=2))
    made.log, made.parts = (tmp_path / "log").open("w"), {"lock": threading.Lock(), "seen": []}
    copies = [iterables.copy_for_stream(made, Context(made.worker_config, stream))[0] for stream in range(2)]
    assert copies[0].parts["seen"] is not copies[1].parts["seen"] is not made.parts["seen"]
    assert copies[0].parts["lock"] is made.parts["lock"]
    made.log.close()
    made.parts["draws"] = (value for value in range(9))
    with pytest.raises(ConfigError, match=r"the attribute parts of Twice is a generator.*in __iter__"):
        next(iter(made))


def test_a_failure_ends_the_iteration_and_is_told_again():
    class Failing(Wrapper):
        def __iter__(self):
            for value in self.dataset:
                yield 6 // (3 - value)

    loader = get_loader(Failing(numbers()))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            list(loader)


def test_states_of_other_pipelines_and_damaged_ones_are_refused():
    node = run_steps(Pool(numbers()), 3)[-1].state["node"]
    for broken in (
        {**node, INNER_STATE: []},
        {**node, "n": [0, 0, 99]},
        {**node, "saves": True, "own": [{"input": 7}]},
        {**node, "own": [["draws", {"unknown": 1}]]},
        {**node, "n": "x"},
    ):
        with pytest.raises(StateError):
            run_steps(Pool(numbers()), 1, {0: {"batches": 3, "node": broken}})
    with pytest.raises(StateMismatchError):
        Pool(numbers()).restore_many([("Map", 0, 1)], None)


def test_a_long_pass_without_a_state_is_told_once(caplog):
    run_steps(BatchDataset(Pool(endless(101)), 100, list), 103)
    told = [record.getMessage() for record in caplog.records if "_savable_fields" in record.getMessage()]
    assert len(told) == 1
    assert "Pool saves no state of its own" in told[0]


def test_a_class_without_its_iteration_says_so():
    class Empty(Wrapper):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Empty(numbers())
    with pytest.raises(ConfigError, match="cannot be indexed"):
        Pool(numbers())[0]
