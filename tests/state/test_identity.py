"""States restored after the datasets of a mixture changed places, names, or content.

The oracle is a run that nothing disturbed: each dataset that is still there goes on with the very samples, in
the very order, that it would have given. Everything else is refused, or begins anew and is reported.
"""

import logging
import os
import random
import shutil
import tarfile
from collections import Counter
from itertools import islice

import pytest
import topologies
from repetitions import is_nightly
from told import told

from energon_stream import (
    DefaultTaskEncoder,
    ReadOptions,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.config.join_indices import prepare_metadataset
from energon_stream.errors import StateMismatchError
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.state import dumps, loads, with_digest
from energon_stream.testing.datasets import write_shards

V2 = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
TEXT = {"__module__": "megatron.energon", "__class__": "TextSample"}
YAML = {"sample_type": TEXT, "field_map": {"text": "txt"}}
NAMES = "abcdefghijklmnopqr"
SHARDS, PER_SHARD = 2, 10
# Batches before and after the state: several passes of each dataset; by day the second pass at least.
GIVEN, FOLLOWING = (130, 260) if is_nightly() else (66, 132)


def put(folder, name, letter=None, shards=SHARDS, **options):
    """Write a dataset. Names and counts of shards, keys, and sizes of samples are those of all others."""
    shutil.rmtree(folder / name, ignore_errors=True)
    text = letter or name
    parts = lambda number: {"txt": f"{text}{number:03d}".encode()}  # noqa: E731
    write_shards(folder / name, shards=shards, samples_per_shard=PER_SHARD, parts=parts)
    prepare_dataset(str(folder / name), split_ratio=(1, 0, 0), dataset_yaml=YAML, **options)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    for name in (*NAMES, "partner"):
        put(folder, name, name[0])
    return folder


@pytest.fixture
def folder(originals):
    """Datasets of this test, which may change them. Their place is the same in all tests."""
    place = originals.parent / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(originals, place / "data", ignore=shutil.ignore_patterns(*NAMES[4:]))
    for name in NAMES[4:]:
        (place / "data" / name).symlink_to(originals / name)  # no test changes these
    return place / "data"


class Texts(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return sample.text

    def batch(self, texts):
        return texts


class Packs(Texts):
    def select_samples_to_pack(self, texts):
        return [texts[at : at + 2] for at in range(0, len(texts), 2)]

    @stateless
    def pack_selected_samples(self, texts):
        return "+".join(texts)


def weighted(names, **more):
    """Each dataset has a weight of its own, wherever it stands."""
    return [{"path": name, "weight": 1 + (ord(name[0]) - 97) % 3, **more} for name in names]


def joined(folder, names):
    return [
        {"join": [{"path": "partner"}, {"path": name}], "joiner": {**TEXT}, "weight": 1 + number % 3}
        for number, name in enumerate(names)
    ]


def nested(folder, names):
    inner = {**V2, "splits": {"train": {"blend": weighted(names[1:])}}}
    (folder / "inner.yaml").write_bytes(dump_yaml(inner))
    return [*weighted(names[:1]), {"path": "inner.yaml", "weight": 3}]


KINDS = {
    "blend": lambda folder, names: {"blend": weighted(names)},
    "nested": lambda folder, names: {"blend": nested(folder, names)},
    "even": lambda folder, names: {"blend": weighted(names), "draws": "even"},
    "many": lambda folder, names: {"blend": weighted([*names, *NAMES[4:]])},
    "repetitions": lambda folder, names: {
        "blend_epochized": [{"path": name, "repetitions": 1 + (name > "b")} for name in names]
    },
    "join": lambda folder, names: {"blend": joined(folder, names)},
    "view": lambda folder, names: {"blend": weighted(names, share=0.5)},
    "packs": lambda folder, names: {"blend": weighted(names)},
}


def open_loader(kind, folder, names, config=None):
    target = folder / names[0]
    if kind != "single":
        target = folder / "mix.yaml"
        document = {**V2, "splits": {"train": KINDS[kind](folder, names)}}
        target.write_bytes(dump_yaml(document))
        if kind == "join":
            prepare_metadataset(target)
    options = {"task_encoder": Texts()}
    if kind == "packs":
        options = {"task_encoder": Packs(), "packing_buffer_size": 6}
    dataset = get_train_dataset(
        target,
        worker_config=config or WorkerConfig(0, 1, 0, num_streams=1),
        batch_size=1,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        read_options=ReadOptions(max_ahead=32),
        **options,
    )
    return get_savable_loader(dataset)


def texts_of(batches, count):
    return [text for batch in islice(batches, count) for each in batch for text in each.split("+")]


def take(loader, count):
    with loader:
        found = texts_of(loader, count)
        return found, loads(dumps(loader.save_state_rank()))


RUNS = {}


def run_undisturbed(kind, folder, names, count, following):
    """The first batches, the state after them, and these batches and the following ones of the same run."""
    key = (kind, folder, *names, count, following)
    if key not in RUNS:  # once, because ``folder`` is the same for each test, before it changes anything
        with open_loader(kind, folder, names) as loader:
            batches = iter(loader)
            given = texts_of(batches, count)
            state = dumps(loader.save_state_rank())
            RUNS[key] = given, state, given + texts_of(batches, following)
    given, state, undisturbed = RUNS[key]
    return given, loads(state), undisturbed


def of(texts, letter):
    return [text for text in texts if text.startswith(letter)]


def held(value):
    """Keys of samples in a state, which operators hold."""
    if isinstance(value, dict):
        return [key for inner in value.values() for key in held(inner)]
    if isinstance(value, list) and len(value) == 3 and value[0] == "Source":
        return [value]
    return [key for inner in value for key in held(inner)] if isinstance(value, list) else []


def refused(make, state, on_change="error"):
    with pytest.raises(StateMismatchError) as caught:
        make().restore_state_rank(state, on_change=on_change)
    assert caught.value.hint
    return str(caught.value)


# Each change: of the folder, the names of the datasets then and now, and what the report says by dataset.
# A dataset with other samples is written with a letter of its own.


def reorder(folder):
    return ["c", "a", "b"], {"a": "moved", "b": "moved", "c": "moved"}


def insert(folder):
    return ["d", "a", "b", "c"], {"a": "moved", "b": "moved", "c": "moved", "d": "added"}


def append(folder):
    return ["a", "b", "c", "d"], {"d": "added"}


def remove(folder):
    return ["a", "c"], {"c": "moved", "": "removed"}


def replace_first(folder):
    put(folder, "a", "z")
    return ["a", "b", "c"], {"a": "replaced"}


def exchange(folder):
    """Another dataset, with a name of its own, in the place of one."""
    return ["a", "d", "c"], {"d": "replaced"}


def insert_and_replace(folder):
    put(folder, "b", "z")
    return ["b", "d", "c", "a"], {"a": "moved", "b": "replaced", "d": "added"}


def grow_and_move(folder):
    put(folder, "b", shards=SHARDS + 1)
    return ["b", "c", "a"], {"a": "moved", "b": "grown", "c": "moved"}


def rename_shards(folder):
    for tar in sorted((folder / "a").glob("*.tar")):
        tar.rename(folder / "a" / f"other-{tar.name}")
    prepare_dataset(str(folder / "a"), split_ratio=(1, 0, 0), dataset_yaml=YAML, force=True)
    return ["a", "b", "c"], {"a": "replaced"}


CHANGES = [
    reorder,
    insert,
    append,
    remove,
    replace_first,
    exchange,
    insert_and_replace,
    grow_and_move,
    rename_shards,
]


@pytest.mark.every(8)  # which has each kind and each change
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_still_there_goes_on_and_the_rest_is_reported(folder, kind, change):
    before = ["a", "b", "c"]
    steps, following = ((300, 500) if is_nightly() else (150, 500)) if kind == "many" else (GIVEN, FOLLOWING)
    given, state, undisturbed = run_undisturbed(kind, folder, before, steps, following)
    names, expected = change(folder)
    make = lambda: open_loader(kind, folder, names)  # noqa: E731
    said = refused(make, state)
    assert "another dataset" in said
    assert 'on_change="continue"' in said
    if kind == "join" and "grown" in expected.values():  # its rows may be any others
        expected = {name: "replaced" if what == "grown" else what for name, what in expected.items()}
    gone = {
        number for number, name in enumerate("abc") if expected.get(name) == "replaced" or name not in names
    }
    if kind == "packs" and gone & {leaf for _, leaf, _ in held(state)}:
        assert "holds samples of a dataset that is gone" in refused(make, state, "continue")
        return
    loader = make()
    loader.restore_state_rank(state, on_change="continue")
    report = loader.restore_report
    changes = [each for each in report.leaves if each.change != "dealt"]
    if kind != "join":  # whose name is that of its index
        found = {
            each.leaf.partition(" [")[0].rpartition("/")[2]: each.change
            for each in changes
            if each.change != "removed"
        }
        if kind == "many":  # the others moved along
            found = {name: what for name, what in found.items() if name in "abcd"}
        assert found == {name: what for name, what in expected.items() if what != "removed"}
    for what in {*expected.values()} - ({"moved"} if kind == "many" else set()):
        assert sum(each.change == what for each in changes) == [*expected.values()].count(what)
    assert report.unchecked == ()
    samples = {each.change: each.samples[1] for each in changes}
    left = next((each.left for each in changes if each.change == "grown"), 0)
    found = take(loader, following)[0]
    anew = {name for name, what in expected.items() if what in ("added", "replaced")}
    for letter in {text[0] for text in undisturbed}:
        now, then = of(found, letter), of(undisturbed[len(given) :], letter)
        if letter not in names and (kind != "many" or letter in "abc"):
            assert not now
        elif expected.get(letter) == "grown":
            assert now[:left] == then[:left]
            if kind != "packs":  # some samples of the pass are in the buffer
                assert_pass(now[left:], samples["grown"])
        elif letter in anew and now:
            assert change is rename_shards or (kind, letter) == ("join", "b")
            assert_pass(now, samples["replaced"])
        elif letter not in anew:
            common = min(len(now), len(then))
            assert common > 5
            assert now[:common] == then[:common]
    for letter in {text[0] for text in found} - {text[0] for text in undisturbed}:
        assert_pass(of(found, letter), samples[expected.get(letter, "replaced")])


def assert_pass(texts, size):
    """A pass has each sample once."""
    assert len(set(texts[:size])) == min(size, len(texts))


def rename(folder):
    (folder / "a").rename(folder / "a-renamed")
    return folder, ["a-renamed", "b", "c"]


def prepare_again(folder):
    prepare_dataset(str(folder / "a"), split_ratio=(1, 0, 0), dataset_yaml=YAML, force=True, checksums=True)
    return folder, ["a", "b", "c"]


def copy(folder):
    shutil.copytree(folder, folder.parent / "elsewhere")
    shutil.rmtree(folder)
    return folder.parent / "elsewhere", ["a", "b", "c"]


@pytest.mark.every(4)
@pytest.mark.parametrize("same", [rename, prepare_again, copy], ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", ["single", *KINDS])
def test_the_same_data_goes_on_without_a_word(folder, kind, same, caplog):
    given, state, undisturbed = run_undisturbed(kind, folder, ["a", "b", "c"], 50, 100)
    folder, names = same(folder)
    loader = open_loader(kind, folder, names)
    caplog.clear()
    loader.restore_state_rank(state)
    assert not told(caplog)
    assert take(loader, 100)[0] == undisturbed[len(given) :]


@pytest.mark.parametrize("kind", ["single", "view"])
def test_another_dataset_of_equal_names_and_counts_is_refused_by_name(folder, kind):
    _, state = take(open_loader(kind, folder, ["a"]), 7)
    said = refused(lambda: open_loader(kind, folder, ["b"]), state)
    assert f"{folder / 'b'} [train] has shards of the same names and counts, and other samples" in said
    loader = open_loader(kind, folder, ["b"])
    loader.restore_state_rank(state, on_change="continue")
    (change,) = loader.restore_report.leaves
    assert (change.change, change.samples[0]) == ("replaced", change.samples[1])
    assert "begins anew" in str(loader.restore_report)
    size = change.samples[1]
    assert len(set(take(loader, size)[0])) == size


def test_a_replaced_shard_of_equal_name_count_and_sizes_is_noticed(folder):
    _, state = take(open_loader("single", folder, ["a"]), 7)
    put(folder, "other", "z")
    shutil.copy(folder / "other" / "data-000001.tar", folder / "a")
    prepare_dataset(str(folder / "a"), split_ratio=(1, 0, 0), dataset_yaml=YAML, force=True)
    assert "other samples in them" in refused(lambda: open_loader("single", folder, ["a"]), state)


def test_appended_shards_behind_replaced_ones_are_no_growth(folder):
    _, state = take(open_loader("single", folder, ["a"]), 7)
    put(folder, "a", "z", shards=3)
    loader = open_loader("single", folder, ["a"])
    loader.restore_state_rank(state, on_change="continue")
    assert [change.change for change in loader.restore_report.leaves] == ["replaced"]


def test_prepare_append_keeps_the_identity_of_the_first_shards(folder):
    _, state, undisturbed = run_undisturbed("single", folder, ["a"], 7, 13)
    put(folder, "more", "a", shards=3)
    shutil.copy(folder / "more" / "data-000002.tar", folder / "a")
    prepare_dataset(str(folder / "a"), append=True, split_ratio=(1, 0, 0))
    loader = open_loader("single", folder, ["a"])
    loader.restore_state_rank(state, on_change="continue")
    (change,) = loader.restore_report.leaves
    assert (change.change, change.shards, loader.restore_report.unchecked) == ("grown", (2, 3), ())
    found = take(loader, 13 + 30)[0]
    assert found[:13] == undisturbed[7:]
    assert len(set(found[13:])) == 30


def without_identities(state):
    """A state as the version before saved it."""
    state = {name: value for name, value in state.items() if name != "identities"}
    prints = {name: value for name, value in state["fingerprint"].items() if name != "content"}
    return with_digest({**state, "fingerprint": prints})


def test_states_without_identities_go_on_with_one_warning(folder, caplog):
    _, state, undisturbed = run_undisturbed("blend", folder, ["a", "b", "c"], 50, 40)
    loader = open_loader("blend", folder, ["a", "b", "c"])
    with caplog.at_level(logging.WARNING, "energon_stream"):
        loader.restore_state_rank(without_identities(state))
    (text,) = told(caplog)
    assert "could not be checked" in text
    assert "an earlier version" in text
    found, again = take(loader, 40)
    assert found == undisturbed[50:]
    assert "identities" in again
    caplog.clear()
    open_loader("blend", folder, ["a", "b", "c"]).restore_state_rank(again)
    assert not told(caplog)


def test_a_dataset_whose_content_is_known_in_another_way_is_reported(folder, caplog):
    """Other programs write no marks of shards into the index; the first bytes stand for them."""
    index = folder / "a" / ".nv-meta" / "index.sqlite"
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 4096 * 4096])
    _, state = take(open_loader("single", folder, ["a"]), 7)
    undisturbed = take(open_loader("single", folder, ["a"]), 20)[0]
    other = folder / "b" / ".nv-meta" / "index.sqlite"
    other.write_bytes(other.read_bytes()[: len(whole) // 4096 * 4096])
    assert "other samples in them" in refused(lambda: open_loader("single", folder, ["b"]), state)
    index.write_bytes(whole)
    loader = open_loader("single", folder, ["a"])
    with caplog.at_level(logging.WARNING, "energon_stream"):
        loader.restore_state_rank(state)
    (text,) = told(caplog)
    assert f"{folder / 'a'} [train] was moved, or is indexed in another way" in text
    assert take(loader, 13)[0] == undisturbed[7:]


def test_plain_tars_have_the_identity_of_the_same_tars_prepared(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "cache"))

    def plain(name):
        for file in (folder / name).rglob("*"):
            if file.is_file() and file.suffix != ".tar":
                file.unlink()
        shutil.rmtree(folder / name / ".nv-meta", ignore_errors=True)
        config = WorkerConfig(0, 1, 0, num_streams=1)
        dataset = get_train_dataset(
            folder / name,
            sample_type="TextSample",
            field_map={"text": "txt"},
            worker_config=config,
            batch_size=1,
            shuffle_buffer_size=10,
            max_samples_per_sequence=4,
            task_encoder=Texts(),
        )
        return get_savable_loader(dataset)

    _, state, undisturbed = run_undisturbed("single", folder, ["a"], 7, 13)
    loader = plain("a")
    loader.restore_state_rank(state)
    assert take(loader, 13)[0] == undisturbed[7:]
    assert "other samples in them" in refused(lambda: plain("b"), state)


STREAMS = 6


def by_stream(texts, letter, first=0):
    """The samples of a dataset in each stream; ``first`` is the number of the first batch."""
    return [of(texts[(stream - first) % STREAMS :: STREAMS], letter) for stream in range(STREAMS)]


def run_ranks(kind, folder, names, world, steps, states=None, workers=0):
    """Batches of all ranks, in the order of the job, and the states of all ranks after them."""
    configs = [WorkerConfig(rank, world, workers, num_streams=STREAMS) for rank in range(world)]
    loaders = [open_loader(kind, folder, names, config) for config in configs]
    for loader in loaders:
        loader.restore_state_global(states, on_change="continue")
    iterators = [iter(loader) for loader in loaders]
    found = [text for _ in range(steps) for each in iterators for text in next(each)]
    saved = [loads(dumps(loader.save_state_rank())) for loader in loaders]
    for loader in loaders:
        loader.close()
    return found, saved, loaders[0].restore_report


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("kind", "names", "before", "after", "workers"),
    [
        ("blend", "cab", 2, 3, 0),
        ("blend", "cdab", 3, 2, 1),
        ("blend", "ca", 1, 6, 0),
        ("nested", "dbca", 2, 1, 0),
        ("nested", "cb", 6, 3, 0),
        ("even", "bdac", 1, 2, 0),
    ],
)
def test_each_sample_comes_once_in_all_streams(folder, kind, names, before, after, workers):
    """The pass under way in each stream ends as it would have, and has each sample once over all streams;
    so has the next one. What a stream has of a dataset is what it gives in a run without any change.
    """
    put(folder, "b", shards=3)
    put(folder, "c", shards=3)
    (folder / "c" / "data-000002.tar").unlink()
    write_shards(
        folder / "c",
        shards=1,
        samples_per_shard=7,
        name="data-{:06d}.tar",
        key="last-{:04d}",
        parts=lambda number: {"txt": f"c{900 + number}".encode()},
    )
    prepare_dataset(str(folder / "c"), split_ratio=(1, 0, 0), dataset_yaml=YAML, force=True)
    count = 60
    given, states, _ = run_ranks(kind, folder, "abc", before, count // before)
    enough = 600 if is_nightly() else 420  # for two passes of each dataset in each stream
    undisturbed = run_ranks(kind, folder, "abc", 1, enough)[0]
    assert undisturbed[:count] == given
    changed = run_ranks(kind, folder, names, 1, enough)[0]
    found, _, report = run_ranks(kind, folder, names, after, enough // after, states, workers)
    assert report.unchecked == ()
    for letter in names:
        then = by_stream(undisturbed[:count], letter)
        later = by_stream(undisturbed[count:], letter, count)
        was = [set(first + second) for first, second in zip(then, later, strict=True)]
        now = [set(texts) for texts in by_stream(changed, letter)]
        under_way, following = Counter(), Counter()
        for stream, texts in enumerate(by_stream(found, letter, count)):
            consumed = len(then[stream])
            left = -consumed % len(was[stream]) if consumed else 0
            assert texts[:left] == later[stream][:left]
            under_way.update(
                [*then[stream][consumed + left - len(was[stream]) :], *texts[:left]] if consumed else []
            )
            assert {*texts[left : left + len(now[stream])]} == now[stream]
            following.update(texts[left : left + len(now[stream])])
        everything = {*of(changed, letter)}
        assert following == Counter(everything)
        if all(then):
            assert under_way == Counter(everything)
        else:
            assert letter == "d" or under_way.keys() < everything


def test_the_same_change_is_made_on_other_ranks(folder):
    def go_on(world, names, states, steps):
        configs = [WorkerConfig(rank, world, 0, num_streams=6) for rank in range(world)]
        return topologies.go_on(
            lambda rank: open_loader("packs", folder, names, configs[rank]),
            world,
            states,
            0,
            steps * world,
            on_change="continue",
        )

    _, states = go_on(2, ["a", "b", "c"], None, 9)
    reference, _ = go_on(1, ["d", "c", "b", "a"], states, 36)
    assert go_on(3, ["d", "c", "b", "a"], states, 12)[0] == reference
    first, states = go_on(2, ["d", "c", "b", "a"], states, 6)
    second, _ = go_on(6, ["d", "c", "b", "a"], states, 4)
    assert first + second == reference


def open_in_store(path, s3_server, workers=0):
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, workers, num_streams=1),
        batch_size=1,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
        task_encoder=Texts(),
        storage_options=s3_server.storage_options,
    )
    return get_savable_loader(dataset)


def test_a_copy_in_another_bucket_is_the_same_and_another_dataset_is_not(folder, s3_server):
    def open_remote(bucket, names):
        blend = [{"path": f"s3://{bucket}/{name}", "weight": 1} for name in names]
        return open_in_store({**V2, "splits": {"train": {"blend": blend}}}, s3_server)

    for bucket in ("first", "second"):
        for name in "abc":
            s3_server.upload_folder(folder / name, f"s3://{bucket}/{name}")
    _, state = take(open_remote("first", "abc"), 40)
    undisturbed = take(open_remote("first", "abc"), 100)[0]
    loader = open_remote("second", "abc")
    loader.restore_state_rank(state)
    assert take(loader, 60)[0] == undisturbed[40:]
    assert "was dataset 1 of the mixture, and is dataset 0" in refused(
        lambda: open_remote("second", "bac"), state
    )
    loader = open_remote("second", "ba")
    loader.restore_state_rank(state, on_change="continue")
    found = take(loader, 60)[0]
    for letter in "ab":
        now, then = of(found, letter), of(undisturbed[40:], letter)
        assert now[: len(then)] == then
    s3_server.reset_counters()
    open_remote("second", "abc").close()
    assert s3_server.counters().requests["GET"] == 3 * 4  # those that the samples need anyway


def tars_alone(folder, name, source):
    """Overwrite the tars of a prepared dataset by those of another, and leave the index as it is."""
    for tar in (folder / source).glob("*.tar"):
        shutil.copyfile(tar, folder / name / tar.name)


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["single", "blend", "join", "view"])
@pytest.mark.parametrize("text", ["z", "a longer text"], ids=["same sizes", "other sizes"])
def test_tars_that_were_overwritten_and_not_prepared_again_are_noticed(folder, kind, text, caplog):
    names = ["a"] if kind == "single" else ["a", "b", "c"]
    _, state = take(open_loader(kind, folder, names), 50)
    put(folder, "other", text)
    tars_alone(folder, "a", "other")
    assert "another dataset" in refused(lambda: open_loader(kind, folder, names), state)
    assert "tars such as data-000000.tar were overwritten since the dataset was prepared" in caplog.text
    loader = open_loader(kind, folder, names)
    loader.restore_state_rank(state, on_change="continue")
    (change,) = [each for each in loader.restore_report.leaves if each.change != "dealt"]
    assert change.change == "replaced"
    if text == "z":  # the index fits the tars, so they can be read
        found, state = take(loader, 150)
        assert {text[0] for text in found} == {*"zbc"[: len(names)]}
        open_loader(kind, folder, names).restore_state_rank(state)  # the same tars as when it was saved


def test_one_overwritten_tar_of_many_is_noticed_after_a_copy(folder, caplog):
    put(folder, "a", shards=40)
    _, state = take(open_loader("single", folder, ["a"]), 7)
    shutil.copytree(folder / "a", folder / "copy")
    open_loader("single", folder, ["copy"]).restore_state_rank(state)
    assert not told(caplog)
    put(folder, "other", "z", shards=40)
    old = folder / "other" / "data-000017.tar"
    os.utime(old, (0, 0))
    shutil.copy2(old, folder / "copy")  # which sets its time back
    refused(lambda: open_loader("single", folder, ["copy"]), state)
    assert "tars such as data-000017.tar were overwritten since the dataset was prepared" in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
def test_overwritten_tars_in_a_store_are_noticed_by_one_listing(folder, s3_server, workers, caplog):
    def open_remote():
        return open_in_store("s3://bucket/a", s3_server, workers)

    s3_server.upload_folder(folder / "a", "s3://bucket/a")
    _, state = take(open_remote(), 7)
    undisturbed = take(open_remote(), 27)[0]
    for on_change, most in (("error", {}), ("continue", {"LIST": 1, "GET": 2 + SHARDS})):
        loader = open_remote()
        s3_server.reset_counters()
        loader.restore_state_rank(state, on_change=on_change)
        requests = s3_server.counters().requests  # tars may be as new as the index, by the second
        assert requests.keys() <= most.keys()
        assert all(requests[kind] <= most[kind] for kind in requests)
        assert take(loader, 20)[0] == undisturbed[7:]
    assert requests["LIST"] == 1
    tars_alone(folder, "a", "b")
    s3_server.upload_folder(folder / "a", "s3://bucket/a")
    loader = open_remote()
    loader.restore_state_rank(state, on_change="continue")
    assert "were overwritten since" in caplog.text
    assert [leaf.change for leaf in loader.restore_report.leaves] == ["replaced"]
    assert set(take(loader, 20)[0]) <= set(truth(folder, "a"))


def truth(folder, name):
    """The texts of a dataset, in order, as tarfile reads them."""
    texts = []
    for path in sorted((folder / name).glob("*.tar")):
        with tarfile.open(path) as tar:
            texts += [tar.extractfile(member).read().decode() for member in tar]
    return texts


def change_at_random(folder, names, rng):
    """Change the datasets or their places; a dataset's weight is that of the first letter of its name."""
    name, letter = rng.choice(names), rng.choice("stuvwxyz")
    at, free = names.index(name), [each for each in NAMES[3:] if each not in names]
    tar, text = folder / name / f"data-{rng.randrange(SHARDS):06d}.tar", f"{letter}{rng.randrange(100)}-"
    what = rng.choice(
        ["reorder", "insert", "remove", "rename", "copy", "replace", "shard", "overwrite", "again", "append"]
    )
    if what == "reorder":
        return rng.sample(names, len(names))
    if what == "insert":
        new = rng.choice(free)
        if (folder / new).is_symlink():  # later changes are of a copy
            original = (folder / new).readlink()
            (folder / new).unlink()
            shutil.copytree(original, folder / new)
        return [*names[:at], new, *names[at:]]
    if what == "remove" and len(names) > 2:
        return [each for each in names if each != name]
    if what in ("rename", "copy"):
        new = f"{name}-{rng.randrange(1000)}"
        shutil.copytree(folder / name, folder / new)
        if what == "rename":
            shutil.rmtree(folder / name)
        return [*names[:at], new, *names[at + 1 :]]
    if what == "replace":
        put(folder, name, text)
    elif what == "append":
        put(folder, "other", text, shards=9)
        number = len(list((folder / name).glob("*.tar")))
        shutil.copy(folder / "other" / f"data-{number:06d}.tar", folder / name)
    elif what in ("shard", "overwrite"):
        put(folder, "other", text)
        shutil.copy2(folder / "other" / tar.name, tar)
    if what in ("append", "shard", "again"):
        prepare_dataset(str(folder / name), split_ratio=(1, 0, 0), dataset_yaml=YAML, force=True)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_changes_are_exact_refused_or_reported(folder, seed):
    rng = random.Random(seed)
    kind, names = rng.choice([kind for kind in KINDS if kind not in ("many", "join")]), [*"abc"]
    state = take(open_loader(kind, folder, names), rng.choice([30, 130]))[1]
    for _ in range(4):
        loader = open_loader(kind, folder, names)
        loader.restore_state_rank(state)
        undisturbed = take(loader, 120)[0]
        before = [truth(folder, name) for name in names]
        for _ in range(rng.choice([1, 2])):
            names = change_at_random(folder, names, rng)
        loader = open_loader(kind, folder, names)
        try:
            loader.restore_state_rank(state)
        except StateMismatchError:
            loader = open_loader(kind, folder, names)
            try:
                loader.restore_state_rank(state, on_change="continue")
            except StateMismatchError:
                return
            found, state = take(loader, 120)
            changes = {each.leaf.partition(" [")[0]: each.change for each in loader.restore_report.leaves}
            for name in names:
                texts, what = truth(folder, name), changes.get(str(folder / name), "dealt")
                now, then = ([text for text in run if text in texts] for run in (found, undisturbed))
                if what in ("dealt", "moved"):
                    assert texts in before
                    assert now[: len(then)] == then[: len(now)]
        else:
            found, state = take(loader, 120)
            assert found == undisturbed
        assert {*found} <= {text for name in names for text in truth(folder, name)}
