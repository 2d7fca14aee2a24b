"""States restored into datasets that changed since: what is kept, what the report says, and what is
refused.
"""

import logging
import shutil
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import text_dataset, v2, write
from repetitions import examples, is_nightly
from told import told

from energon_stream import (
    BlendDataset,
    ConcatDataset,
    Cooker,
    DefaultTaskEncoder,
    EvenDataset,
    IterMapDataset,
    ReadOptions,
    RepeatDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_stream.config.join_indices import prepare_metadataset
from energon_stream.errors import ConfigError, StateError, StateMismatchError
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.pipeline.reader_dataset import find_readers
from energon_stream.schedule import BY_SEGMENTS, in_place, stream_shares
from energon_stream.state import ChangeReport, dumps, loads, with_digest

PER_SHARD = {"a": 7, "b": 5, "c": 4}


@pytest.fixture(scope="module", autouse=True)
def written(tmp_path_factory):
    """The sources that were written already, by name and number of shards."""
    grow.written = tmp_path_factory.mktemp("written")


@pytest.fixture
def folder(tmp_path):
    for name in PER_SHARD:
        grow(tmp_path, name, 6)
    return tmp_path


def grow(folder, name, shards):
    """Write the source again with so many shards; those that were there are the same again."""
    shutil.rmtree(folder / name, ignore_errors=True)
    source = grow.written / f"{name}{shards}"
    if not source.exists():
        text_dataset(source, name, per_shard=PER_SHARD[name], shards=shards, split_ratio=(1, 0, 0))
    shutil.copytree(source, folder / name)


class Texts(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return sample.text

    def batch(self, texts):
        return texts


def open_dataset(target, config=None, **options):
    arguments = {
        "batch_size": 1,
        "shuffle_buffer_size": 10,
        "max_samples_per_sequence": 4,
        "read_options": ReadOptions(max_ahead=32),
        "task_encoder": Texts(),
    }
    config = config or WorkerConfig(0, 1, 0)
    return get_train_dataset(target, worker_config=config, **{**arguments, **options})


def open_loader(target, config=None, **options):
    return get_savable_loader(open_dataset(target, config, **options))


def after(loader, count):
    """Texts of the next batches, and the state then, through its bytes."""
    with loader:
        found = [text for batch in islice(loader, count) for text in batch]
        return found, loads(dumps(loader.save_state_rank()))


def resumed(loader, state, count):
    loader.restore_state_rank(state, on_change="continue")
    return after(loader, count)[0]


def numbers(texts, name):
    return sorted(int(text.removeprefix(name)) for text in texts if text.startswith(name))


def mix(folder, **weights):
    """A blend; all but its first source are in another metadataset, as blends may be."""
    (first, weight), *rest = weights.items()
    inner = {"blend": [{"path": name, "weight": w} for name, w in rest]}
    write(folder / "inner.yaml", v2(inner))
    node = {
        "blend": [
            {"path": first, "weight": weight},
            {"path": "inner.yaml", "weight": sum(w for _, w in rest)},
        ]
    }
    return write(folder / "mix.yaml", v2(node))


@pytest.mark.every(4)
@pytest.mark.parametrize(("given", "workers"), [(0, 0), (1, 0), (25, 0), (25, 2), (42, 0), (60, 2)])
def test_a_pass_ends_as_it_was_and_the_next_has_all_samples(folder, given, workers):
    """One stream: the rest of the pass is the very one, in its order, that would have come."""
    config = WorkerConfig(0, 1, workers, num_streams=1)
    _, state = after(open_loader(folder / "a", config), given)
    left = -given % 42 if given else 0
    expected = after(open_loader(folder / "a", config), given + left)[0][given:]
    grow(folder, "a", 8)
    loader = open_loader(folder / "a", config)
    found = resumed(loader, state, left + 2 * 56)
    assert found[:left] == expected
    for begin in (left, left + 56):
        assert numbers(found[begin : begin + 56], "a") == list(range(56))
    (change,) = loader.restore_report.leaves
    assert (change.change, change.shards, change.samples) == ("grown", (6, 8), (42, 56))
    assert (change.consumed, change.left) == ((given - 1) % 42 + 1 if given else 0, left)
    assert str(left) in str(change)
    assert not loader.restore_report.weights


def source_of(dataset):
    return dataset if not dataset.inputs else source_of(dataset.inputs[0])


def shares(plan, streams, stream):
    """Samples of each source in one pass of a stream."""
    return [last - first for _, first, last in stream_shares(plan, streams, stream)]


EACH = 3  # samples of a batch


@examples(15)
@given(st.data())
def test_streams_end_their_passes_and_deal_all_samples_of_now(tmp_path_factory, data):
    """A nested mixture, saved anywhere: the passes under way have each earlier sample once, the next ones
    each present one.
    """
    folder = tmp_path_factory.mktemp("grown")
    streams = data.draw(st.integers(1, 4))
    config = WorkerConfig(0, 1, 0, num_streams=streams)
    before = {name: data.draw(st.integers(2, 5 if is_nightly() else 3)) for name in PER_SHARD}
    for name, shards in before.items():
        grow(folder, name, shards)
    mixture = mix(folder, a=2, b=1, c=3)
    count = data.draw(st.integers(streams, 50))
    given, state = after(open_loader(mixture, config, batch_size=EACH), count)
    now = {
        name: shards + data.draw(st.integers(0, 3 if is_nightly() else 2)) for name, shards in before.items()
    }
    for name, shards in now.items():
        grow(folder, name, shards)
    loader = open_loader(mixture, config, batch_size=EACH)
    found = resumed(loader, state, 400 if is_nightly() else 220)
    assert (loader.restore_report is None) == (now == before)
    source = source_of(loader.dataset)
    old_plan = source.plan_of(in_place([*before.values()]))
    for number, name in enumerate(PER_SHARD):
        under_way, following, left = Counter(), Counter(), 0
        for stream in range(streams):
            then, rest = (
                [
                    text
                    for at, text in enumerate(run)
                    if text[0] == name and (begin + at // EACH) % streams == stream
                ]
                for begin, run in ((0, given), (count, found))
            )
            old, new = (shares(plan, streams, stream)[number] for plan in (old_plan, source.plan))
            seen = (len(then) - 1) % old + 1 if then else 0
            under_way.update(then[len(then) - seen :] + rest[: old - seen])
            following.update(rest[old - seen : old - seen + new])
            left += old - seen
        assert under_way == Counter(f"{name}{i}" for i in range(before[name] * PER_SHARD[name]))
        assert following == Counter(f"{name}{i}" for i in range(now[name] * PER_SHARD[name]))
        for change in loader.restore_report.leaves if loader.restore_report else ():
            if change.leaf.startswith(str(folder / name)):
                assert change.left == left
                assert change.samples == (before[name] * PER_SHARD[name], now[name] * PER_SHARD[name])


def test_other_weights_hold_from_the_next_draw_on(folder):
    config = WorkerConfig(0, 1, 0)
    mixture = mix(folder, a=1, b=1, c=1)
    _, state = after(open_loader(mixture, config), 100)
    going_on = after(open_loader(mixture, config), 400)[0][100:]
    mix(folder, a=9, b=1, c=90)
    loader = open_loader(mixture, config)
    found = resumed(loader, state, 200)
    report = loader.restore_report
    assert report == ChangeReport((), True)
    assert "weights" in str(report)
    counts = Counter(text[0] for text in found)
    assert counts["c"] > 150 > 40 > counts["a"] > counts["b"]
    for name in PER_SHARD:  # each source goes on where it was
        there = [text for text in found if text[0] == name]
        expected = [text for text in going_on if text[0] == name]
        common = min(len(there), len(expected))
        assert common
        assert there[:common] == expected[:common]


def test_a_schedule_that_a_run_goes_on_with_is_foreseen(folder):
    """A state of constant weights once took the draws of an earlier version along."""

    def blend(**weights):
        return write(
            folder / "steps.yaml",
            v2({"blend": [{"path": name, "weight": weights[name]} for name in weights]}),
        )

    _, state = after(open_loader(blend(a=1, b=1, c=1), draws="even"), 30)
    loader = open_loader(blend(a={0: 1, 40: 0, 60: 2}, b=1, c={0: 2, 50: 0}), draws="even")
    loader.restore_state_rank(state, on_change="continue")
    with loader:
        assert [reader.plan.foresees for _, reader in find_readers(loader.dataset)] == [BY_SEGMENTS]


def test_weights_of_blends_of_batches_may_change_too(folder):
    def open_both(first, second):
        datasets = [open_dataset(folder / name) for name in ("a", "b")]
        return get_savable_loader(
            BlendDataset((datasets[0], first), (datasets[1], second)),
        )

    _, state = after(open_both(1, 1), 30)
    expected = after(open_both(1, 1), 80)[0][30:]
    grow(folder, "b", 7)
    with pytest.raises(StateMismatchError, match="weights of a blend"):
        open_both(0.05, 1).restore_state_rank(state)
    loader = open_both(0.05, 1)
    found = resumed(loader, state, 40)
    assert loader.restore_report.weights
    assert [change.change for change in loader.restore_report.leaves] == ["grown"]
    assert len(numbers(found, "b")) > 30
    there, then = ([text for text in texts if text[0] == "b"] for texts in (found, expected))
    left = loader.restore_report.leaves[0].left
    assert left > 3
    assert there[:left] == then[:left]


def test_a_source_may_be_added_at_the_end(folder):
    mixture = mix(folder, a=1, b=1)
    _, state = after(open_loader(mixture), 60)
    expected = after(open_loader(mixture), 160)[0][60:]
    write(mixture, v2({"blend": [{"path": name, "weight": 1} for name in PER_SHARD]}))
    loader = open_loader(mixture)
    found = resumed(loader, state, 150)
    (change,) = loader.restore_report.leaves
    assert (change.change, change.shards, change.samples) == ("added", (0, 6), (0, 24))
    assert numbers(found, "c")[:24]
    assert set(numbers(found, "c")) == set(range(24))
    for name in "ab":
        there, then = ([text for text in texts if text[0] == name] for texts in (found, expected))
        assert there[: len(then)] == then[: len(there)]


class Packs(Texts):
    def select_samples_to_pack(self, texts):
        return [texts[i : i + 2] for i in range(0, len(texts), 2)]

    @stateless
    def pack_selected_samples(self, texts):
        return "+".join(texts)


def test_all_at_once_then_saved_dealt_to_other_ranks_and_changed_again(folder):
    """Growth, other weights and a new source, with packs; the states after that are as good as any others."""
    options = {"packing_buffer_size": 6, "task_encoder": Packs(), "batch_size": 2}
    mixture = write(
        folder / "mix.yaml", v2({"blend": [{"path": "a", "weight": 2}, {"path": "b", "weight": 1}]})
    )

    def ranks(world):
        return [
            open_loader(mixture, WorkerConfig(rank, world, 0, num_streams=12), **options)
            for rank in range(world)
        ]

    def go_on(world, states, steps, by_streams=False):
        """The job's batches of so many steps, from one that rank 0 begins, and the states of all ranks after
        them.
        """
        loaders = ranks(world)
        for loader in loaders:
            if by_streams:
                loader.on_change = "continue"
                loader.load_state_dict(states)
            else:
                loader.restore_state_global(states, on_change="continue")
        iterators = [iter(loader) for loader in loaders]
        batches = [next(iterator) for _ in range(steps) for iterator in iterators]
        reports = [loader.restore_report for loader in loaders]
        saved = [loads(dumps(loader.save_state_rank())) for loader in loaders]
        entries = [loader.state_dict() for loader in loaders]
        for loader in loaders:
            loader.close()
        union = {**entries[0], "streams": {k: v for each in entries for k, v in each["streams"].items()}}
        return batches, saved, union, reports

    _, states, union, _ = go_on(2, None, 9)
    grow(folder, "a", 8)
    shares_of = [("a", 1), ("b", 1), ("c", 1)]
    write(mixture, v2({"blend": [{"path": name, "weight": weight} for name, weight in shares_of]}))
    reference, _, _, (report,) = go_on(1, states, 48)
    assert [change.change for change in report.leaves] == ["grown", "dealt", "added"]
    assert report.weights
    assert "c" in str(report)
    assert go_on(3, union, 8, by_streams=True)[0] == reference[:24]  # the same change, on three ranks
    first, states, union, reports = go_on(3, states, 4)
    assert sum(each.leaves[0].left for each in reports) == report.leaves[0].left
    second, states, union, reports = go_on(2, states, 9)
    assert reports == [None, None]  # nothing changed since
    third, states, _, _ = go_on(6, union, 3, by_streams=True)
    assert first + second + third == reference[: 12 + 18 + 18]
    grow(folder, "b", 9)
    fourth, states, _, reports = go_on(2, states, 100 if is_nightly() else 60)
    assert {change.change for each in reports for change in each.leaves} <= {"grown", "dealt"}
    texts = [text for batch in fourth for pack in batch for text in pack.split("+")]
    assert set(numbers(texts, "b")) == set(range(45))
    assert set(numbers(texts, "a")) == set(range(56))


def test_epochs_of_a_blend_go_on_too(folder):
    node = {"blend_epochized": [{"path": "a", "repetitions": 1}, {"path": "b", "repetitions": 2}]}
    mixture = write(folder / "mix.yaml", v2(node))
    given, state = after(open_loader(mixture), 40)
    grow(folder, "b", 7)
    loader = open_loader(mixture)
    found = resumed(loader, state, 42 + 65 - 40 + 42 + 70)
    assert loader.restore_report.weights  # they are numbers of samples
    epoch, following = given + found[: 42 + 65 - 40], found[42 + 65 - 40 :]
    assert numbers(epoch, "a") == numbers(following, "a") == list(range(42))
    assert numbers(epoch, "b") == sorted([*range(30), *range(35)])  # one earlier pass, one present one
    assert numbers(following, "b") == sorted([*range(35)] * 2)


def test_the_report_is_logged_and_kept(folder, caplog):
    _, state = after(open_loader(folder / "a"), 10)
    loader = open_loader(folder / "a")
    with caplog.at_level(logging.WARNING, "energon_stream"):
        loader.restore_state_rank(state, on_change="continue")
        assert loader.restore_report is None
        assert not told(caplog)
        grow(folder, "a", 7)
        loader = open_loader(folder / "a")
        loader.on_change = "continue"
        loader.restore_state_rank(state)
    (text,) = told(caplog)
    assert text == str(loader.restore_report)
    assert f"{folder / 'a'} [train] grew from 6 to 7 shards, from 42 to 49 samples" in str(
        loader.restore_report
    )
    assert "10 samples were consumed and 32 earlier ones follow" in str(loader.restore_report)
    loader.restore_state_rank(None)
    assert loader.restore_report is None
    with pytest.raises(ConfigError, match="on_change is 'ignore'"):
        loader.restore_state_rank(state, on_change="ignore")


def refusal(make, state):
    with pytest.raises(StateMismatchError) as strict:
        make().restore_state_rank(state)
    with pytest.raises(StateMismatchError, match='on_change="continue" cannot go on') as caught:
        make().restore_state_rank(state, on_change="continue")
    assert strict.value.what != caught.value.what
    return str(caught.value)


def test_what_cannot_go_on_says_why(folder):
    mixture = mix(folder, a=1, b=1)
    _, state = after(open_loader(mixture), 20)
    assert "the pipeline differs: batch_size of BatchDataset was 1, is 2" in refusal(
        lambda: open_loader(mixture, batch_size=2), state
    )
    said = refusal(lambda: open_loader(mixture, shuffle_buffer_size=5), state)
    assert "the order differs" in said
    assert "shuffle_buffer_size was 10, is 5" in said
    other = [WorkerConfig(0, 1, 0, num_streams=2), WorkerConfig(0, 1, 0, seed_offset=3)]
    for config in other:
        with pytest.raises(StateMismatchError, match="another topology"):
            open_loader(mixture, config).restore_state_rank(state, on_change="continue")
    for damage in ({"leaves": None}, {"leaves": [[2, b"", b""]]}, {"identities": [[b"", b"", b""]]}):
        with pytest.raises(StateError, match=r"the datasets with which it was saved|the identities of"):
            open_loader(mixture, batch_size=2).restore_state_rank(
                with_digest({**state, **damage}), on_change="continue"
            )


def test_a_second_source_makes_no_blend_of_a_single_one(folder):
    _, state = after(open_loader(folder / "a"), 20)
    mixture = mix(folder, a=1, b=1)
    assert "the order differs" in refusal(lambda: open_loader(mixture), state)


def test_subsets_in_percent_that_grow_begin_anew(folder):
    part = {"path": "a", "subset": {"range": ["0%", "50%"]}}
    mixture = write(folder / "mix.yaml", v2(part))
    _, state = after(open_loader(mixture), 20)
    grow(folder, "a", 8)
    loader = open_loader(mixture)
    assert numbers(resumed(loader, state, 28), "a") == list(range(28))
    assert [change.change for change in loader.restore_report.leaves] == ["replaced"]
    first = {"path": "a", "subset": {"range": [5, "end"]}}
    write(mixture, v2(first))
    _, state = after(open_loader(mixture), 20)
    grow(folder, "a", 9)
    loader = open_loader(mixture)
    found = resumed(loader, state, 51 - 20 + 58)
    assert loader.restore_report.leaves[0].samples == (51, 58)
    assert numbers(found[31:], "a") == list(range(5, 63))


def test_joins_of_datasets_that_grew_begin_anew(folder):
    joiner = {"__module__": "megatron.energon", "__class__": "TextSample"}
    joined = [{"path": "a"}, {"path": "b", "nonmatch": "none"}]
    mixture = write(folder / "mix.yaml", v2({"join": joined, "joiner": joiner}))
    prepare_metadataset(mixture)
    _, state = after(open_loader(mixture), 20)
    grow(folder, "b", 8)
    prepare_metadataset(mixture)
    loader = open_loader(mixture)
    loader.restore_state_rank(state, on_change="continue")
    assert [change.change for change in loader.restore_report.leaves] == ["replaced"]


class Records(Texts):
    cookers = (Cooker(lambda record: record),)

    @stateless
    def encode_sample(self, sample):
        return sample["json"]["i"]


def test_jsonl_files_that_grow_begin_anew(tmp_path):
    """Earlier records cannot be told from new ones: a file has no shards."""
    path = tmp_path / "records.jsonl"

    def records(count):
        path.write_text("".join(f'{{"i": {i}}}\n' for i in range(count)))
        prepare_jsonl(str(path))

    records(20)
    found, state = after(open_loader(path, task_encoder=Records()), 20)
    assert sorted(found) == list(range(20))
    records(30)
    loader = open_loader(path, task_encoder=Records())
    assert sorted(resumed(loader, state, 30)) == list(range(30))
    assert [change.change for change in loader.restore_report.leaves] == ["replaced"]


def test_passes_that_would_be_others_cannot_go_on(folder):
    """Validation one after the other, replayed passes, shares of passes, passes of even lengths."""
    config = WorkerConfig(0, 1, 0)
    both = {"blend": [{"path": name, "weight": 1, "split_part": "train"} for name in "ab"]}
    mixture = write(folder / "mix.yaml", v2(both, val=both))

    def validation():
        return get_savable_loader(
            get_val_dataset(
                mixture, worker_config=config, batch_size=1, task_encoder=Texts(), split_part="val"
            )
        )

    def over(wrap):
        return lambda: get_savable_loader(wrap(open_dataset(folder / "a", config, repeat=False)))

    made = {
        "datasets that are concatenated": validation,
        "inside a ConcatDataset": over(lambda dataset: ConcatDataset(dataset, dataset)),
        "IterMapDataset": over(lambda dataset: IterMapDataset(dataset, iter)),
        "ends within a pass": over(lambda dataset: RepeatDataset(dataset, 1.5)),
        "of EvenDataset": over(lambda dataset: EvenDataset(dataset, "drop")),
    }
    states = {said: after(make(), 5)[1] for said, make in made.items()}
    grow(folder, "a", 8)
    for said, make in made.items():
        assert said in refusal(make, states[said])
