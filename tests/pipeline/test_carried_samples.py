"""Packs whose selectors push samples back, cut them, or take as many as they need."""

import random
import time
import weakref
from contextlib import suppress
from itertools import islice, pairwise

import numpy as np
import pytest
import torch

from energon_stream.errors import ConfigError, FatalSampleError, SkipSample, StateError
from energon_stream.pipeline import (
    ConcatDataset,
    MapDataset,
    PackedSamplesOutput,
    PackingDataset,
    PartialSample,
    ShuffleBufferDataset,
)
from energon_stream.pipeline.node import Context
from energon_stream.testing.operator_suite import (
    NumbersDataset,
    assert_exact_resume,
    assert_restores_by_key,
    run_steps,
)
from energon_stream.worker import WorkerConfig

SIZE, CAPACITY = 8, 40


def numbers(size=31, streams=0, handler=None, offset=0):
    config = WorkerConfig(0, 1, 0, num_streams=streams, global_error_handler=handler)
    return NumbersDataset(size, config, offset)


class Text(str):
    """A sample with an identity of its own: small integers are one object."""

    __slots__ = ("__weakref__",)


def text(number):
    return Text("x" * (number % 17 + 1) + str(number))


def length(sample):
    if not isinstance(sample, PartialSample):
        return len(sample)
    return len(sample.sample[sample.slice])


def in_order(samples):
    """Fills packs in order, and pushes the last one back, unless no more samples come."""
    packs, room = [[]], CAPACITY
    for sample in samples:
        if length(sample) > room:
            packs.append([])
            room = CAPACITY
        packs[-1].append(sample)
        room -= length(sample)
    ended = len(samples) < SIZE
    return PackedSamplesOutput(packs if ended else packs[:-1], () if ended else packs[-1])


def lonely(samples):
    """Takes the longest sample, with the shortest ones; the others wait."""
    ordered = sorted(samples, key=length)
    pack = [ordered.pop()]
    while ordered and sum(map(length, pack)) + length(ordered[0]) <= CAPACITY:
        pack.append(ordered.pop(0))
    return PackedSamplesOutput([pack], [sample for sample in samples if sample in ordered])


def cutting(samples):
    """Fills packs to the last place: what does not fit is cut, and its rest waits."""
    packs, pack, room, rest = [], [], CAPACITY // 2, list(samples)
    while rest:
        sample = rest.pop(0)
        size = length(sample)
        if size <= room:
            pack.append(sample)
            room -= size
            continue
        is_part = isinstance(sample, PartialSample)
        whole, begin = (sample.sample, sample.slice.start) if is_part else (sample, 0)
        if room:
            pack.append(PartialSample(whole, slice(begin, begin + room)))
        rest.insert(0, PartialSample(whole, slice(begin + room, begin + size)))
        packs.append(pack)
        pack, room = [], CAPACITY // 2
        if len(rest) < SIZE - 3 <= len(samples) - 3:
            break
    if len(samples) < SIZE:
        return PackedSamplesOutput([*packs, pack])
    return PackedSamplesOutput(packs, [*pack, *rest])


def next_in_order(samples):
    pack, room = [], CAPACITY
    for sample in samples:
        if length(sample) > room:
            return PackedSamplesOutput([pack], [sample])
        pack.append(sample)
        room -= length(sample)
    return [pack]


def next_cut(samples):
    """Packs of exactly 20 characters, the last one of a pass apart."""
    pack, room = [], 20
    for sample in samples:
        size, is_part = length(sample), isinstance(sample, PartialSample)
        if size <= room:
            pack.append(sample)
            room -= size
        else:
            whole, begin = (sample.sample, sample.slice.start) if is_part else (sample, 0)
            head = PartialSample(whole, slice(begin, begin + room))
            tail = PartialSample(whole, slice(begin + room, begin + size))
            return PackedSamplesOutput([[*pack, head] if room else pack], [tail])
        if not room:
            break
    return [pack]


def in_pairs_of_lists(samples):
    """A generator of packs, with slices that are no slices."""
    for sample in samples:
        yield [PartialSample(sample, ["head", (0, None)]), PartialSample(sample, ["tail", (1, 2.5)])]


SELECTORS = {
    "in order": (in_order, SIZE),
    "lonely": (lonely, SIZE),
    "cutting": (cutting, SIZE),
    "next in order": (next_in_order, "stream"),
    "next, cut": (next_cut, "stream"),
    "generator": (in_pairs_of_lists, 5),
}


def plain(sample):
    return (sample.sample, sample.slice) if isinstance(sample, PartialSample) else sample


def joined(pack):
    return tuple(map(plain, pack))


def texts(size=31, streams=0):
    return MapDataset(numbers(size, streams), text, stateless_map_fn=True)


def packs_of(name, streams=0, size=31, inner=None, **options):
    selector, buffer = SELECTORS[name]
    inner = texts(size, streams) if inner is None else inner
    return PackingDataset(inner, buffer, selector, joined, stateless=True, **options)


def simulated(samples, selector, size):
    """What the selector makes of samples, by a few lines of plain Python: the oracle."""
    waiting, coming, found = [], iter(samples), []

    def stream():
        while waiting:
            yield waiting.pop(0)
        yield from coming

    while True:
        if size == "stream":
            try:
                waiting = [next(stream())]
            except StopIteration:
                return found
            returned = selector(stream())
        else:
            buffer = [*waiting, *islice(coming, max(0, size - len(waiting)))]
            buffer, waiting = buffer[:size], buffer[size:]
            if not buffer:
                return found
            returned = selector(buffer)
        if not isinstance(returned, PackedSamplesOutput):
            returned = PackedSamplesOutput(returned)
        found += [joined(pack) for pack in returned.packs if pack]
        waiting = [*returned.pushback, *waiting]


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 31, 100])
def test_packs_are_those_of_a_plain_loop_over_the_samples(name, size):
    expected = simulated(map(text, range(size)), *SELECTORS[name])
    assert list(packs_of(name, size=size)) == expected
    members = [
        (member, slice(None)) if isinstance(member, str) else member for pack in expected for member in pack
    ]
    if name != "generator":  # each character once
        assert sorted("".join(whole[part] for whole, part in members)) == sorted(
            "".join(map(text, range(size)))
        )
        if name == "next, cut":
            assert {sum(map(length_of, pack)) for pack in expected[:-1]} <= {20}


def length_of(member):
    return len(member) if isinstance(member, str) else len(member[0][member[1]])


@pytest.mark.every(2)
@pytest.mark.parametrize("name", SELECTORS)
def test_restoring_at_every_step_continues_identically(name):
    assert_exact_resume(lambda: packs_of(name))
    assert_exact_resume(lambda: packs_of(name, streams=3, size=60), steps=30)


@pytest.mark.parametrize("name", SELECTORS)
def test_packs_can_be_made_again_from_their_keys(name):
    assert_restores_by_key(lambda: packs_of(name))


def test_packs_of_packs_and_generators_resume_exactly():
    def halves(pack):
        yield joined(pack[: len(pack) // 2])
        yield joined(pack[len(pack) // 2 :])

    def skipping(sample):
        if plain(sample) == "x" * 4 + "3":
            raise SkipSample
        index = WorkerConfig.active_worker_config.active_worker_sample_index
        return plain(sample), index

    def again():
        inner = packs_of("cutting", inner=ConcatDataset(texts(9), texts(20)), sample_encoder=skipping)
        return PackingDataset(inner, "stream", two_at_most, halves, stateless=True)

    assert_exact_resume(again)
    assert_restores_by_key(again)


def two_at_most(packs):
    first, *second = islice(packs, 2)
    return PackedSamplesOutput([[first]], second)


def test_a_cut_sample_is_made_again_once_however_many_parts_wait():
    """The state has the key of each part, and the sample is read once; its parts share it."""
    made = []

    def many(samples):
        if not isinstance(samples[0], PartialSample):
            return PackedSamplesOutput(
                [samples[:1]], [PartialSample(samples[1], (at, at + 1)) for at in range(5)]
            )
        return [samples[:]]

    def noted(number):
        made.append(number)
        return text(number)

    def make():
        return PackingDataset(MapDataset(numbers(2), noted, stateless_map_fn=True), 2, many, joined)

    state = run_steps(make(), 1)[0].state["node"]
    assert len(state["kept"]) == 5
    assert "x" not in repr(state)
    made.clear()
    node = make().make_node(Context(numbers().worker_config, 0), state)
    value = node.next().value
    assert made == [1]
    assert len({id(whole) for whole, _ in value}) == 1
    assert [part for _, part in value] == [(0, 1), (1, 2)]


def test_equal_objects_in_a_buffer_are_told_apart():
    """Interned texts and small numbers are one object each time they come."""
    same = MapDataset(numbers(10), lambda number: ("a", "b")[number % 2])
    found = list(
        PackingDataset(same, 4, lambda samples: PackedSamplesOutput([samples[:2]], samples[2:]), joined)
    )
    assert sorted(x for pack in found for x in pack) == ["a"] * 5 + ["b"] * 5
    with pytest.raises(ConfigError, match="repeated or made up 1 samples"):
        list(PackingDataset(same, 4, lambda samples: [[*samples, "a"]], joined))


WRONG = {
    "repeated": lambda s: PackedSamplesOutput([s], s[:1]),
    "pushed back twice": lambda s: PackedSamplesOutput([s[1:]], [s[0], s[0]]),
    "made up": lambda s: PackedSamplesOutput([s], [Text("new")]),
    "whole and cut": lambda s: PackedSamplesOutput([s], [PartialSample(s[0], 1)]),
    "cut, then whole": lambda s: [[PartialSample(s[0], 1), *s]],
    "cut of a foreign sample": lambda s: [[*s, PartialSample(Text("new"), 1)]],
    "a part twice": lambda s: [[PartialSample(s[0], 1), PartialSample(s[0], 1), *s[1:]]],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_sample_of_the_buffer_is_named(name):
    with pytest.raises(ConfigError, match="repeated or made up 1 samples"):
        list(PackingDataset(texts(), 4, WRONG[name], joined))


@pytest.mark.parametrize(
    ("size", "selector", "said"),
    [
        (4, lambda s: None, "returned None"),
        (4, lambda s: s, "returned a sample in place of a pack"),
        ("stream", lambda s: [next(s), next(s)], "returned a sample in place of a pack"),
        ("stream", lambda s: [[next(s)], [], [next(s)]], "returned 2 packs"),
        (4, lambda s: [[PartialSample(s[0], {1})]], "the slice of a PartialSample is"),
        (4, lambda s: [[PartialSample(s[0], slice(np.arange(3)))]], "the slice of a PartialSample is"),
    ],
)
def test_wrong_results_are_named(size, selector, said):
    with pytest.raises(ConfigError, match=said) as caught:
        list(PackingDataset(texts(), size, selector, joined))
    assert isinstance(caught.value, ValueError)  # as Megatron-Energon 8 raises for two packs


def test_slices_of_arrays_are_numbers():
    part = PartialSample("text", slice(np.int64(1), torch.tensor(3)))
    assert part.slice == slice(1, 3)
    assert type(part.slice.start) is type(part.slice.stop) is int
    assert PartialSample("text", [1, [None, b"x"]]).slice == (1, (None, b"x"))


@pytest.mark.parametrize(
    ("size", "selector"),
    [
        (4, lambda s: PackedSamplesOutput([], s)),
        (4, lambda s: PackedSamplesOutput([[]], reversed(s))),
        ("stream", lambda s: PackedSamplesOutput([], [next(s)])),
        ("stream", lambda s: []),  # it takes nothing
    ],
)
@pytest.mark.parametrize("tolerance", [0, 7])
def test_a_selector_that_only_pushes_back_ends_the_run(size, selector, tolerance):
    with pytest.raises(
        FatalSampleError, match=f"made no pack {tolerance + 1 if tolerance else 101} times"
    ) as caught:
        list(PackingDataset(texts(400), size, selector, joined, failure_tolerance=tolerance))
    assert isinstance(caught.value, RuntimeError)  # as Megatron-Energon 8 raises
    assert "Make a pack of what there is" in str(caught.value)


def test_a_selector_that_never_ends_a_pass_is_told_so():
    """It waits for a full pack, of which the last samples of a pass are too few."""

    def full(samples):
        return PackedSamplesOutput(
            [samples[:3]] if len(samples) > 2 else [], samples[3:] or samples[:2][: len(samples) % 3]
        )

    assert len(list(PackingDataset(texts(9), 3, full, joined))) == 3
    with pytest.raises(FatalSampleError, match="pushed back 1 samples, at the end of a pass"):
        list(PackingDataset(texts(10), 3, full, joined))


@pytest.mark.parametrize("size", [4, "stream"])
def test_an_error_in_the_selector_costs_what_it_took(size):
    bad = []
    calls = iter(range(100))

    def selector(samples):
        taken = list(islice(samples, 4))
        if next(calls) == 2:
            raise ValueError("odd")
        return PackedSamplesOutput([taken[:3]], taken[3:])

    inner = MapDataset(numbers(16, handler=lambda error, sample, sources: bad.append(sample)), text)
    found = [x for pack in PackingDataset(inner, size, selector, joined) for x in pack]
    assert bad == [text(6)]
    assert found == [text(number) for number in range(16) if not 6 <= number < 6 + 4]


def test_errors_of_the_data_are_not_the_selectors():
    """Neither the handler nor the count of failures sees them, even where the selector catches everything."""

    def breaks(number):
        if number == 5:
            raise FatalSampleError("the disk is gone")
        return text(number)

    def catches(samples):
        taken = []
        with suppress(Exception):
            taken += samples
        return [taken]

    for selector in (catches, list, lambda samples: [list(samples)]):
        with pytest.raises(FatalSampleError, match="the disk is gone"):
            list(PackingDataset(MapDataset(numbers(9), breaks), "stream", selector, joined))


def test_samples_skipped_in_the_middle_of_a_buffer_leave_no_gap():
    def some(number):
        if number % 5 == 3:
            raise SkipSample
        if number % 7 == 2:
            raise ValueError(number)
        return text(number)

    kept = [text(n) for n in range(60) if n % 5 != 3 and n % 7 != 2]
    for name, (selector, size) in SELECTORS.items():
        found = list(packs_of(name, inner=MapDataset(numbers(60), some)))
        assert found == simulated(kept, selector, size), name


def test_an_iterator_that_is_kept_gives_nothing_later():
    streams = []

    def keeps(samples):
        streams.append(samples)
        return [[next(samples)]]

    assert len(list(PackingDataset(texts(5), "stream", keeps, joined))) == 5
    assert [list(stream) for stream in streams] == [[]] * 5


def test_memory_is_bounded_by_the_buffer():
    """At most a buffer of samples is alive, however many passes and however much is pushed back."""
    alive = weakref.WeakSet()

    def tracked(number):
        made = text(number)
        alive.add(made)
        return made

    most = 0
    for _ in PackingDataset(MapDataset(numbers(500), tracked), SIZE, lonely, lambda pack: None):
        most = max(most, len({id(sample) for sample in alive}))
    assert 0 < most <= SIZE


@pytest.mark.parametrize("seed", range(20))
def test_random_selectors_lose_and_repeat_nothing(seed):
    """Packs, pushes back and cuts at random, by a generator that the samples seed."""

    def selector(samples):
        draw = random.Random(f"{seed} {[plain(sample) for sample in samples]}").random
        packs, back = [[]], []
        for sample in samples:
            if draw() < 0.3 and len(samples) == SIZE:
                back.append(sample)
            elif draw() < 0.3 and length(sample) > 1:
                whole, part = (
                    plain(sample) if isinstance(sample, PartialSample) else (sample, slice(0, len(sample)))
                )
                middle = (part.start + part.stop) // 2
                packs[-1].append(PartialSample(whole, slice(part.start, middle)))
                (back if len(samples) == SIZE else packs[-1]).append(
                    PartialSample(whole, slice(middle, part.stop))
                )
            else:
                packs[-1].append(sample)
            if draw() < 0.4:
                packs.append([])
        return PackedSamplesOutput(packs, back)

    found = list(PackingDataset(texts(40), SIZE, selector, joined))
    assert found == simulated(map(text, range(40)), selector, SIZE)
    pieces = [(x, slice(0, len(x))) if isinstance(x, str) else x for pack in found for x in pack]
    for number in range(40):
        mine = sorted((part.start, part.stop) for whole, part in pieces if whole == text(number))
        assert mine[0][0] == 0
        assert mine[-1][1] == len(text(number))
        assert all(one[1] == other[0] for one, other in pairwise(mine))
    assert_exact_resume(lambda: PackingDataset(texts(40), SIZE, selector, joined), steps=12, tail=6)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"kept": [["PartialSample", 0, ["Map", 0, {}, None, None], 1]]}, "damaged|key"),
        ({"kept": [["Map", 0, ["Number", 1], None, None]] * 9}, "buffer of 8"),
        ({"kept": 3}, "'kept' is 3"),
        ({"kept": [[]]}, "key"),
    ],
)
def test_damaged_states_are_named(damage, said):
    state = run_steps(packs_of("in order"), 2)[1].state
    state["node"].update(damage)
    with pytest.raises(StateError, match=said):
        run_steps(packs_of("in order"), 1, {0: state})


def test_the_time_limit_of_a_selector_leaves_out_its_samples():
    """Five samples take 0.3 s each, and a pack of them longer than the limit of a call."""

    def slow(number):
        time.sleep(0.3)
        return number

    numbers = NumbersDataset(6, worker_config=WorkerConfig(0, 1, 0, sample_timeout=1))
    packs = PackingDataset(MapDataset(numbers, slow), "stream", lambda taken: [[*islice(taken, 5)]], list)
    assert list(packs) == [[0, 1, 2, 3, 4], [5]]


def copied(samples):
    """Packs of samples, of changed copies, and of samples that come again."""
    return [[Text(f"{sample}!") for sample in samples[:2]], samples, [*samples[1:3], Text("new")], []]


def packs_of_copies(size=23):
    config = WorkerConfig(0, 1, 0, num_streams=2, conventions="energon")
    of_texts = MapDataset(NumbersDataset(size, config), Text, stateless_map_fn=True)
    return PackingDataset(of_texts, 5, copied, joined, final_packer_stateless=True)


def test_copies_that_a_selector_makes_are_made_again():
    """Under the conventions of Megatron-Energon, where such selectors are usual."""
    assert_exact_resume(packs_of_copies, steps=16)
    assert_exact_resume(lambda: ShuffleBufferDataset(packs_of_copies(), 4), steps=16)
    assert_restores_by_key(packs_of_copies)
    state = run_steps(packs_of_copies(), 1)[0].state["node"]
    assert len(state["made"][0]) == 5  # each sample of the selection once, whatever the groups have of it


def test_damaged_selections_are_refused():
    state = run_steps(packs_of_copies(), 1)[0].state
    for made in (["x"], [[("Map", 0, ("Number", 1))], 0, 0], None):
        broken = {**state, "node": {**state["node"], "made": made}}
        with pytest.raises(StateError):
            run_steps(packs_of_copies(), 1, {0: broken})
