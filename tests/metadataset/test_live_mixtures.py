"""Weights that change under way: on schedule, by the program, through restores and other topologies."""

import threading
from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest
from mixtures import Texts, text_dataset, v2, write
from ranks import in_ranks
from repetitions import is_nightly

from energon_stream import (
    ReadOptions,
    SkipSample,
    WorkerConfig,
    compute_costs,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.errors import (
    ConfigError,
    MetadataError,
    StateError,
    StateMismatchError,
    StepPassedError,
    WeightsError,
)
from energon_stream.schedule import ALONG_LINES, IN_STAIRS, UNFORESEEN
from energon_stream.state import dumps, loads, with_digest

STREAMS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("live")
    for name, size in {"a": 24, "b": 16, "c": 12}.items():
        text_dataset(made / name, name, per_shard=size, shards=3, split_ratio=(1, 0, 0))
    return made


class Skipping(Texts):
    @stateless
    def encode_sample(self, sample):
        if sample.text[-1] in "13579":
            raise SkipSample
        return sample.text


def blend(**weights):
    return [{"weight": weight, "path": name} for name, weight in weights.items()]


def mix(folder, name="mix", **weights):
    weights = weights or {"a": 3, "b": 2, "c": 1}
    return write(folder / f"{name}.yaml", v2({"blend": blend(**weights)}))


def open_loader(path, rank=0, world=1, workers=0, **options):
    config = WorkerConfig(rank, world, workers, num_streams=options.pop("streams", STREAMS))
    arguments = {
        "batch_size": 3,
        "shuffle_buffer_size": 10,
        "max_samples_per_sequence": 4,
        "read_options": ReadOptions(max_ahead=32),
        "task_encoder": Texts(),
        **options,
    }
    return get_savable_loader(get_train_dataset(path, worker_config=config, **arguments))


def step(loaders, count):
    """The batches of the job, in order, in so many steps of all ranks."""
    iterators = [iter(loader) for loader in loaders]
    return [batch for _ in range(count) for batch in [next(each) for each in iterators]]


def sources(batches):
    return {text[0] for batch in batches for text in batch}


CHANGE = {"a": 0, "b": 1, "c": 1}


def test_a_schedule_switches_at_the_same_batch_of_the_job_on_any_topology(folder):
    path = mix(folder, "steps", a={0: 1, 25: 0}, b={0: 0, 25: 1})
    expected = step([open_loader(path)], 48)
    assert (sources(expected[:25]), sources(expected[25:])) == ({"a"}, {"b"})
    for world, workers in ((2, 0), (6 if is_nightly() else 3, 1)):
        loaders = [open_loader(path, rank, world, workers) for rank in range(world)]
        assert step(loaders, 48 // world) == expected
        for loader in loaders:
            loader.close()


def test_a_ramp_is_followed_by_its_mean(folder):
    path = mix(folder, "ramp", a={0: 1, 80: {"to": 0, "ramp": "linear"}}, b=1, c={0: 0, 1: 0})
    loader = open_loader(path, streams=1, draws="even")
    batches = step([loader], 160)
    assert sources(batches[80:]) == {"b"}
    counts = [
        sum(text[0] == "a" for batch in batches[at : at + 20] for text in batch) for at in (0, 20, 40, 60)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[3] > 0


def test_a_long_ramp_is_the_same_after_restores_on_other_ranks(folder):
    """Rounds are within one of the line, and ``mixture()`` has its weights."""
    path = mix(folder, "long", a={0: 0, 160: {"to": 4, "ramp": "linear"}}, b=1, c={0: 1, 80: 0})
    expected = step([open_loader(path, draws="even")], 160)
    behind = {"a": 0.0, "b": 0.0, "c": 0.0}
    for at, batch in enumerate(expected):
        weights = {"a": (at + 0.5) / 40, "b": 1, "c": at < 80}
        for name in behind:
            behind[name] += 3 * weights[name] / sum(weights.values()) - sum(text[0] == name for text in batch)
        assert (at + 1) % STREAMS or max(map(abs, behind.values())) <= 1 + 1e-9
    got, states = [], None
    for world, until in ((1, 36), (2, 72), (6, 144), (2, 160)):
        loaders = [open_loader(path, rank, world, draws="even") for rank in range(world)]
        for loader in loaders:
            loader.restore_state_global(states)
        shares = {source.name: source.weight for source in loaders[0].mixture().sources}
        weights = {"a": (len(got) + 0.5) / 40, "b": 1, "c": len(got) < 80}
        total = sum(weights.values())
        assert shares == pytest.approx({name: weight / total for name, weight in weights.items()})
        got += step(loaders, (until - len(got)) // world)
        states = [loads(dumps(loader.save_state_rank())) for loader in loaders]
    assert got == expected


def test_changes_and_topologies_keep_shares_within_one_and_lose_nothing(folder):
    """The same batches as on one rank that was told all weights at once, and even shares in every round."""
    topologies = ((1, 1, 60), (4, 0, 120), (3, 0, 180), (2, 0, 240))
    if not is_nightly():  # a third of the changes
        topologies = ((1, 1, 24), (4, 0, 48), (3, 0, 72))
    path, steps = mix(folder), topologies[-1][-1]
    told = {n: {"a": 1 + n % 3, "b": 1 + n % 5, "c": n % 2} for n in range(12, steps, 12)}
    alone = open_loader(path, draws="even")
    for at, weights in told.items():
        alone.set_weights(weights, at_step=at)
    expected = step([alone], steps)
    got, states, position = [], None, 0
    for world, workers, until in topologies:
        loaders = [open_loader(path, rank, world, workers, draws="even") for rank in range(world)]
        for loader in loaders:
            loader.restore_state_global(states)
        while position < until:
            for loader in loaders:
                now = loader.mixture().step  # over all topologies
                for at in [at for at in told if position < at <= position + 12]:
                    loader.set_weights(told[at], at_step=now + (at - position) // world)
            got += step(loaders, 12 // world)
            position += 12
        states = [loads(dumps(loader.save_state_rank())) for loader in loaders]
        for loader in loaders:
            loader.close()
    assert got == expected
    behind = dict.fromkeys("abc", Fraction(0))
    for begin in range(0, steps, STREAMS):
        weights = told.get(begin, {"a": 3, "b": 2, "c": 1})
        texts = Counter(text[0] for batch in expected[begin : begin + STREAMS] for text in batch)
        for name, weight in weights.items():
            behind[name] += Fraction(weight, sum(weights.values())) * texts.total() - texts[name]
        assert max(map(abs, behind.values())) <= 1 + 1e-9
    assert alone.mixture().step == steps
    assert sum(source.samples for source in alone.mixture().sources) == 3 * steps
    counted = {source.name: source.samples for source in alone.mixture().sources}
    assert counted == {name: sum(text[0] == name for batch in expected for text in batch) for name in "abc"}


@pytest.mark.parametrize("workers", [0, 2])
def test_weights_reach_what_workers_had_made_ahead(folder, workers):
    path = mix(folder)
    loader = open_loader(path, workers=workers, streams=2)
    before = step([loader], 5)
    loader.set_weights(CHANGE, at_step=5)
    after = step([loader], 30)
    loader.close()
    assert sources(before) > {"a"}
    assert sources(after) == {"b", "c"}
    plain = open_loader(path, streams=2)
    assert step([plain], 5) == before
    plain.set_weights(CHANGE)
    assert step([plain], 30) == after


class Packs(Texts):
    """Packs of two to six samples, of a buffer that is as long: batches take any number of references."""

    def select_samples_to_pack(self, samples):
        return [samples]

    @stateless
    def pack_selected_samples(self, samples):
        return samples

    def batch(self, packs):
        return [text for pack in packs for text in pack]


class Groups(Texts):
    """Batches of texts that end alike: a group waits for its last sample while others are drawn."""

    def batch_group_criterion(self, sample):
        return int(sample[-1]) % 2, 1

    def batch(self, texts):
        return texts


@pytest.mark.every(3)
@pytest.mark.parametrize("size", [2, 6])
@pytest.mark.parametrize("way", ["file", "program"])
def test_a_step_is_one_of_the_loop_where_packs_have_several_samples(folder, way, size):
    """The weights of a step hold from its batch on, not from that many samples on."""
    name = f"packs-{way}-{size}"
    schedule = {"a": {0: 1, 24: 0}, "b": {0: 0, 24: 1}} if way == "file" else {"a": 1, "b": {0: 0, 10000: 0}}
    options = {"batch_size": 2, "packing_buffer_size": size, "task_encoder": Packs(), "streams": 4}
    path = mix(folder, name, **schedule)
    loader = open_loader(path, **options)
    found = step([loader], 5)
    if way == "program":
        loader.set_weights({"a": 0, "b": 1}, at_step=24)
    found += step([loader], 35)
    assert {len(batch) for batch in found} == {2 * size}
    assert (sources(found[:24]), sources(found[24:])) == ({"a"}, {"b"})
    if way == "file":
        for world, workers in ((2, 0), (4, 1)) if is_nightly() else ((2, 1),):
            loaders = [open_loader(path, rank, world, workers, **options) for rank in range(world)]
            assert step(loaders, 40 // world) == found
            for each in loaders:
                each.close()


@pytest.mark.parametrize("kept", ["packs", "groups"])
def test_a_step_of_the_loop_resumes_on_any_ranks_with_samples_that_are_held(folder, kept):
    """A buffer of 16, packs of 4, or groups: what is held at a change was drawn before it."""

    class Four(Packs):
        def select_samples_to_pack(self, samples):
            return [samples[at : at + 4] for at in range(0, len(samples), 4)]

    options = {"streams": 4, "batch_size": 3, "task_encoder": Groups()}
    if kept == "packs":
        options |= {"packing_buffer_size": 16, "task_encoder": Four(), "batch_size": 1}
    else:
        options |= {"batch_size": None}
    path = mix(
        folder, f"held-{kept}", a={0: 1, 20: 0, 44: 1}, b={0: 0, 20: 1, 44: {"to": 0, "ramp": "linear"}}
    )
    loader, straight, states = open_loader(path, **options), [], {}
    for at in (8, 20, 24, 36, 44, 60, 80):
        straight += step([loader], at - len(straight))
        states[at] = [loads(dumps(loader.save_state_rank()))]
    assert sources(straight[:20]) == {"a"}
    assert "b" in sources(straight[20:24] if kept == "groups" else straight[32:36])
    ranks = ((1, 1), (2, 0), (4, 0))
    every = [(at, *each) for at in (8, 20, 24, 36, 44, 60) for each in ranks]
    for at, world, workers in every if is_nightly() else [(20, 1, 1), (36, 4, 0), (60, 2, 0)]:
        loaders = [open_loader(path, rank, world, workers, **options) for rank in range(world)]
        for loader in loaders:
            loader.restore_state_global(states[at])
        assert step(loaders, 16 // world) == straight[at : at + 16], (at, world, workers)
        for loader in loaders:
            loader.close()


def test_states_keep_weights_that_are_still_to_come(folder):
    loader = open_loader(mix(folder), streams=2)
    step([loader], 3)
    bare = len(dumps(loader.save_state_rank()))
    loader.set_weights(CHANGE, at_step=9)
    state = loader.save_state_rank()
    assert len(dumps(state)) - bare < 60
    expected = step([loader], 20)
    assert sources(expected[:6]) > {"a"}
    assert sources(expected[6:]) == {"b", "c"}
    for restore in ("rank", "dict"):
        resumed = open_loader(mix(folder), streams=2)
        if restore == "rank":
            resumed.restore_state_rank(dumps(state))
        else:
            again = open_loader(mix(folder), streams=2)
            again.restore_state_rank(state)
            resumed.load_state_dict(again.state_dict())
        assert step([resumed], 20) == expected


def test_a_source_is_added_and_removed_on_restore(folder):
    loader = open_loader(mix(folder, "two", a=1, b=1), draws="even", streams=2)
    step([loader], 7)
    loader.set_weights({"a": 1, "b": 2})
    step([loader], 2)
    grown = open_loader(mix(folder, "three", a={0: 1, 20: 0}, b=1, c=1), draws="even", streams=2)
    grown.restore_state_rank(loader.save_state_rank(), on_change="continue")
    assert grown.restore_report.dropped == 1
    batches = step([grown], 40)
    assert (sources(batches[:11]), sources(batches[11:])) == ({"a", "b", "c"}, {"b", "c"})
    again = open_loader(mix(folder, "three", a={0: 1, 20: 0}, b=1, c=1), draws="even", streams=2)
    again.restore_state_rank(grown.save_state_rank())
    assert step([again], 5) == step([grown], 5)


def test_even_draws_of_an_earlier_version_are_named_and_begin_anew(folder):
    loader = open_loader(mix(folder), draws="even", streams=2)
    step([loader], 8)
    saved = loader.save_state_rank()
    for state in saved["streams"].values():
        reader = state["node"]
        while "at" not in reader:
            reader = reader["in"]
        reader["at"] = (*reader["at"][:3], 0, 5)  # as they were: a reference, and bits
    old, again = with_digest(saved), open_loader(mix(folder), draws="even", streams=2)
    again.restore_state_rank(old)
    with pytest.raises(StateError, match=r'even draws of an earlier version.*on_change="continue"'):
        step([again], 1)
    again = open_loader(mix(folder), draws="even", streams=2)
    again.restore_state_rank(old, on_change="continue")
    assert step([again], 20) == step([loader], 20)


@pytest.mark.every(5)
@pytest.mark.parametrize("draws", ["random", "even"])
@pytest.mark.parametrize("order", ["cab", "bca", "acb"])
def test_weights_follow_their_sources_to_other_places(folder, draws, order):
    """Each source has a weight of its own in the file, by steps, and from the program, before and after."""
    weights = {"a": {0: 3, 25: 0}, "b": 2, "c": 1}

    def open_mix(names):
        mixture = mix(folder, "-".join(names), **{name: weights[name] for name in names})
        return open_loader(mixture, draws=draws, streams=2)

    loader = open_mix("abc")
    step([loader], 7)
    plain, plain_run = loader.save_state_rank(), step([loader], 40)
    loader = open_mix("abc")
    loader.restore_state_rank(plain)
    loader.set_weights({"a": 1, "b": 3, "c": 0})
    loader.set_weights({"a": 0, "b": 0, "c": 1}, at_step=19)
    set_weights, set_run = loader.save_state_rank(), step([loader], 40)
    for state, undisturbed in ((plain, plain_run), (set_weights, set_run)):
        moved = open_mix(order)
        moved.restore_state_rank(state, on_change="continue")
        report = moved.restore_report
        assert (report.weights, report.dropped) == (False, 0)
        assert "weights" not in str(report)
        assert {change.change for change in report.leaves} <= {"moved", "dealt"}
        found = step([moved], 40)
        for begin, stop in ((0, 11), (13, 17), (19, 40)):
            assert sources(found[begin:stop]) == sources(undisturbed[begin:stop])
        shares = [Counter(text[0] for batch in run[:12] for text in batch) for run in (found, undisturbed)]
        assert max(abs(shares[0][name] - shares[1][name]) for name in "abc") <= (3 if draws == "even" else 15)
        again = open_mix(order)
        again.restore_state_rank(moved.save_state_rank())
        assert step([again], 9) == step([moved], 9)


@pytest.mark.parametrize("made", [6, 8, 13])
def test_even_draws_take_weights_from_the_first_round_that_no_stream_has_begun(folder, made):
    """Before, streams that had begun the round, and those that had not, counted on by other weights."""
    options = {"streams": 4, "batch_size": 1, "draws": "even"}
    first = -(-made // 4) * 4
    alone, loader = open_loader(mix(folder), **options), open_loader(mix(folder), **options)
    alone.set_weights(CHANGE, at_step=first)
    got = step([loader], made)
    if made < first:
        with pytest.raises(StepPassedError, match=f"first step possible is {first}"):
            loader.set_weights(CHANGE, at_step=first - 1)
    loader.set_weights(CHANGE)
    assert got + step([loader], 40 - made) == step([alone], 40)


def of_before(loader, version=UNFORESEEN):
    """The loader with even draws that foresee nothing."""
    loader.restore_state_rank(None)
    loader._plan_as(version)
    return loader


@pytest.mark.parametrize(
    ("saved_at", "version", "draws"),
    [
        (2, UNFORESEEN, None),
        (30, UNFORESEEN, None),
        (30, IN_STAIRS, "2a957e555a5fe165"),
        (30, ALONG_LINES, "782a1753ccc48739"),
    ],
)
def test_states_of_earlier_even_draws_go_on_with_theirs(folder, saved_at, version, draws):
    """Some streams have not begun in the first one. Fingerprints are those of the versions before."""
    path = mix(folder, "unforeseen", a={0: 9, 16: 0}, b={0: 4, 16: 1}, c={0: 2, 16: 5, 40: 1})
    if version != UNFORESEEN:
        c = {0: 2, 13: 11, 27: 0, 37: 7}
        path = mix(folder, "ramp", a={0: 9, 21: 3, 110: {"to": 0.5, "ramp": "linear"}}, b=4, c=c)
    options = {"streams": 4, "draws": "even", "shuffle_buffer_size": 1}
    count = 60 if is_nightly() else 48
    expected = step([of_before(open_loader(path, **options), version)], count)
    assert expected != step([open_loader(path, **options)], count)
    loader = of_before(open_loader(path, **options), version)
    got = step([loader], saved_at)
    state = loads(dumps(loader.save_state_rank()))
    assert state["fingerprint"].get("draws") == draws
    for world in (1, 2) if is_nightly() else (2,):
        others = [open_loader(path, rank, world, **options) for rank in range(world)]
        for each in others:
            each.restore_state_global([state])
        assert got + step(others, (count - saved_at) // world) == expected


def test_a_step_that_is_over_or_chosen_is_named_with_the_first_possible(folder):
    loader = open_loader(mix(folder), streams=2)
    step([loader], 7)
    with pytest.raises(StepPassedError, match=r"step 6 is over: the next one is 7.*first step possible is 7"):
        loader.set_weights(CHANGE, at_step=6)
    skipping = open_loader(mix(folder), streams=1, task_encoder=Skipping())
    step([skipping], 4)
    with pytest.raises(StepPassedError, match="has samples that are chosen already") as found:
        skipping.set_weights(CHANGE, at_step=4)
    first = int(found.value.hint.rsplit(" ", 1)[1])
    skipping.set_weights(CHANGE, at_step=first)
    state = skipping.save_state_rank()
    expected = step([skipping], 12)
    assert sources(expected) <= {"b", "c"} or first > 4
    resumed = open_loader(mix(folder), streams=1, task_encoder=Skipping())
    resumed.restore_state_rank(state)
    assert step([resumed], 12) == expected


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1, "b": 1, "d": 1}, "'d' is no source of the mixture.*The sources are a, b, c"),
        ({"a": 1, "b": 1}, "have no c"),
        ({"a": 1, "b": -1, "c": 1}, "finite numbers from 0 on"),
        ({"a": 1, "b": float("nan"), "c": 1}, "finite numbers from 0 on"),
        ({"a": 0, "b": 0, "c": 0}, "all weights are 0"),
        ({"a": "1", "b": 1, "c": 1}, "weight of 'a' is '1'"),
        ([1, 2, 3], "weights is a list"),
    ],
)
def test_wrong_weights_are_named(folder, weights, message):
    loader = open_loader(mix(folder))
    with pytest.raises(WeightsError, match=message):
        loader.set_weights(weights, at_step=5)


@pytest.mark.parametrize("at", [-1, 2.5, True, "9"])
def test_wrong_steps_are_named(folder, at):
    with pytest.raises(WeightsError, match="at_step is"):
        open_loader(mix(folder)).set_weights(CHANGE, at_step=at)


def test_weights_are_set_between_batches_only(folder):
    made, errors = [], []

    class Setting(Texts):
        def encode_batch(self, batch):
            made.append(batch)
            if len(made) == 3:
                thread = threading.Thread(target=set_now)
                thread.start()
                thread.join()
            return super().encode_batch(batch)

    def set_now():
        try:
            loader.set_weights(CHANGE)
        except WeightsError as error:
            errors.append(str(error))

    expected = step([open_loader(mix(folder))], 5)
    with open_loader(mix(folder), task_encoder=Setting()) as loader:
        assert step([loader], 5) == expected
    (error,) = errors
    assert "a batch is being made. Call set_weights between two batches" in error


def test_what_is_no_blend_by_weights_is_named(folder):
    with pytest.raises(WeightsError, match="no blend by weights"):
        open_loader(folder / "a", streams=2).set_weights({"a": 1}, at_step=5)
    with pytest.raises(ConfigError, match="no blend by weights"):
        open_loader(folder / "a", draws="even")
    with pytest.raises(ConfigError, match="draws is 'odd'"):
        open_loader(mix(folder), draws="odd")


def test_ranks_with_other_weights_are_told_at_restore(folder):
    ranks = [open_loader(mix(folder), rank, 2) for rank in range(2)]
    for rank, loader in enumerate(ranks):
        loader.set_weights({**CHANGE, "c": 1 + rank}, at_step=24)
    states = [loader.save_state_rank() for loader in ranks]
    with pytest.raises(StateMismatchError, match="different weights"):
        open_loader(mix(folder)).restore_state_global(states)


@pytest.mark.parametrize(
    "damaged", [3, [[5]], [[5, 1.0, -1.0, 1.0]], [[5, 1, 1, 1], [5, 1, 1, 1]], [[5, 1.0, 1.0]]]
)
def test_damaged_weights_in_states_are_named(folder, damaged):
    state = with_digest({**open_loader(mix(folder)).save_state_rank(), "weights": damaged})
    with pytest.raises(StateError, match="weights"):
        open_loader(mix(folder)).restore_state_rank(state)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ({5: 1}, "Begin with 0"),
        ({}, "Begin with 0"),
        ({0: 1, 9: 2, 4: 1}, "ascending order"),
        ({0: 1, "x": 2}, "'x' is no batch"),
        ({0: 1, -3: 2}, "'-3' is no batch"),
        ({0: 1, 5: -2}, "weight at batch 5 is -2"),
        ({0: 1, 5: "much"}, "weight at batch 5 is 'much'"),
        ({0: 1, 5: None}, "weight at batch 5 is None"),
        ({0: {"to": 1, "ramp": "linear"}}, "at a batch after 0"),
        ({0: 1, 5: {"to": 1, "ramp": "cubic"}}, "Use {to: 1, ramp: linear}"),
        ({0: 1, 5: {"too": 1}}, "unknown key 'too'"),
        ([1, 2], "'weight' is"),
    ],
)
def test_wrong_schedules_are_named_with_their_place(folder, weight, message):
    path = mix(folder, "wrong", a=weight, b=1)
    with pytest.raises(MetadataError, match=message) as found:
        open_loader(path)
    assert "wrong.yaml: splits.train.blend[0]" in found.value.where


def test_schedules_without_any_weight_are_named(folder):
    path = mix(folder, "zero", a={0: 1, 7: 0}, b={0: 1, 5: 0})
    with pytest.raises(MetadataError, match="all weights are 0 from batch 7 on"):
        open_loader(path)


def test_nested_schedules_multiply(folder):
    inner = {"blend": blend(a={0: 1, 20: 0}, b={0: 0, 30: 1})}
    write(folder / "inner.yaml", v2(inner))
    with pytest.raises(MetadataError, match="all weights are 0 from batch 20 on"):
        open_loader(write(folder / "outer.yaml", v2({"blend": [{"path": "inner.yaml"}]})))
    outer = v2({"blend": [{"weight": {0: 1, 40: 3}, "path": "inner.yaml"}, {"weight": 1, "path": "c"}]})
    loader = open_loader(write(folder / "outer.yaml", outer), streams=1, draws="even")
    batches = step([loader], 80)
    assert sources(batches[:20]) == {"a", "c"}
    assert sources(batches[20:30]) == {"c"}
    assert sources(batches[30:]) == {"b", "c"}
    assert sum(text[0] == "b" for batch in batches[40:] for text in batch) == 90


def test_underscores_and_yaml_numbers_are_steps(folder):
    path = folder / "written.yaml"
    path.write_text(
        "__module__: energon_stream\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {weight: {0: 1, 1_0: 0}, path: a}\n      - {weight: {0: 0, 1_0: 2.5}, path: b}\n"
    )
    batches = list(islice(open_loader(path, streams=1), 20))
    assert (sources(batches[:10]), sources(batches[10:])) == ({"a"}, {"b"})


def _set_on_rank(rank, world, path, answers):
    loader = open_loader(path, rank, world)
    step([loader], 2)
    loader.set_weights(CHANGE, at_step=8)
    outcomes = []
    for weights in ({**CHANGE, "c": 1 + rank}, CHANGE if rank else {"a": 1}):
        try:
            loader.set_weights(weights, at_step=12)
        except WeightsError as error:
            outcomes.append(error.what)
    (answers / str(rank)).write_text("\n".join(outcomes))


def test_ranks_that_set_other_weights_are_all_told_at_once(folder, tmp_path):
    in_ranks(2, _set_on_rank, mix(folder), tmp_path)
    told = [(tmp_path / str(rank)).read_text().splitlines() for rank in range(2)]
    assert told[0] == told[1]
    assert "differs from the others in the weights" in told[0][0]
    assert told[0][1].startswith("rank 0 of 2 cannot set the weights, so no rank does: ")
    assert "have no b, c" in told[0][1]


def test_sources_have_their_costs(folder):
    compute_costs(str(folder / "a"), "tokens", values=[2.5] * 72)
    loader = open_loader(mix(folder, "costs", a=1, b=1))
    for _, _ in zip(range(6), loader, strict=False):
        pass
    a, b = loader.mixture().sources
    assert a.costs == {"tokens": 2.5 * a.samples}
    assert not b.costs
    assert " tokens" in str(loader.mixture())
