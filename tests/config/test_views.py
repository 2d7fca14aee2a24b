"""Views: the samples that they select, their order, and what is refused."""

import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repetitions import examples, is_nightly

from energon_stream import (
    WorkerConfig,
    build_filter_index,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_stream.errors import (
    ConfigError,
    EmptyDatasetError,
    IndexMismatchError,
    MetadataError,
    StateMismatchError,
)
from energon_stream.prepare.add_tables import add_table
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.selection import Selection
from energon_stream.state import redistribute
from energon_stream.tables.expressions import parse_filter
from energon_stream.testing.datasets import TEXT_YAML, prepared_text_dataset, write_shards

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SHARDS, EACH = 8, 40
SAMPLES = SHARDS * EACH
ALONE = WorkerConfig(0, 1, 0, num_streams=4)
WHERE = "0.1 < clip <= 0.8 and not duplicate"


def columns(samples=SAMPLES):
    clip = np.random.default_rng(1).random(samples)
    return {"clip": clip, "duplicate": np.arange(samples) % 3 == 0, "weight": np.arange(samples) % 4 + 0.5}


def passing():
    found = columns()
    return np.flatnonzero((found["clip"] > 0.1) & (found["clip"] <= 0.8) & ~found["duplicate"])


def write_table(path, values):
    pq.write_table(pa.table(values), path)
    return path


@pytest.fixture
def texts(tmp_path):
    folder = prepared_text_dataset(tmp_path / "texts", shards=SHARDS, samples_per_shard=EACH)
    add_table(folder, write_table(tmp_path / "values.parquet", columns()))
    return folder


def numbers_in(tar):
    with tarfile.open(tar) as members:
        return sorted({int(name.partition(".")[0]) for name in members.getnames()})


def train(path, config=ALONE, **options):
    order = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10}
    return get_savable_loader(get_train_dataset(path, worker_config=config, **order, **options))


def take(loader, batches):
    each = iter(loader)
    return [next(each).text for _ in range(batches)]


def in_order(path, **options):
    dataset = get_val_dataset(
        path, batch_size=20, split_part="train", worker_config=WorkerConfig(0, 1, 0), **options
    )
    return [int(text.split()[1]) for batch in get_savable_loader(dataset) for text in batch.text]


@examples(120)
@given(st.lists(st.booleans(), min_size=1, max_size=1500), st.integers(0, 1500))
def test_ranks_and_samples_are_inverse(bools, cut):
    mask, cut = np.array(bools), min(cut, len(bools))
    found, chosen = Selection.of([mask[:cut], mask[cut:]]), np.flatnonzero(mask)
    assert found.num_samples == len(chosen)
    assert found.samples(np.arange(len(chosen))).tolist() == chosen.tolist()
    assert found.rank(np.arange(len(mask) + 1)).tolist() == [0, *np.cumsum(mask).tolist()]
    assert found.mask(cut, len(mask)).tolist() == bools[cut:]
    assert found.digest(cut) == Selection.of([mask[:cut]]).digest(cut)


@examples(80)
@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=60), st.integers(0, 1000))
def test_weights_are_met_in_each_pass_and_exactly_over_many(weights, epoch):
    given_weights = np.array(weights)
    found = Selection.of([np.ones(len(weights), dtype=bool)], given_weights)
    places = np.arange(len(weights))
    expected = given_weights / given_weights.mean()
    once = np.bincount(found.samples(places, epoch), minlength=len(weights))
    assert (np.abs(once - expected) < 1 + 1e-9).all()
    many = sum(np.bincount(found.samples(places, epoch + n), minlength=len(weights)) for n in range(200))
    assert (np.abs(many / 200 - expected) < 0.05).all()


def test_a_view_is_what_a_rewritten_dataset_would_be(texts, tmp_path):
    assert in_order(texts, where=WHERE) == passing().tolist()
    for shard in range(SHARDS):
        numbers = [number for number in passing().tolist() if number // EACH == shard]
        write_shards(
            tmp_path / "new",
            shards=1,
            samples_per_shard=len(numbers),
            parts=lambda i, numbers=numbers: {"txt": f"text {numbers[i]}".encode()},
            name=f"data-{shard:06d}.tar",
            key=f"{shard}-{{}}",
        )
    prepare_dataset(str(tmp_path / "new"), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    assert take(train(texts, where=WHERE), 60) == take(train(tmp_path / "new"), 60)


def test_a_list_of_bad_samples_narrows_a_view(texts, tmp_path):
    """It leaves out what a column does, of conditions, columns, files of keys, shares and weights."""
    bad, keys = tmp_path / "bad.jsonl", tmp_path / "keys.txt"
    bad.write_text("".join(f'{{"key": "{number:08d}"}}\n' for number in range(0, SAMPLES, 7)))
    keys.write_text("".join(f"{number:08d}\n" for number in range(0, SAMPLES, 5)))
    for view in ({"where": WHERE}, {"exclude": "duplicate"}, {"exclude": str(keys)}, {"share": 0.5}):
        whole, excluded = in_order(texts, **view), view.pop("exclude", None)
        found = in_order(texts, **view, exclude=[bad] if excluded is None else [excluded, bad])
        assert found == [number for number in whole if number % 7]
    column = {"left": np.arange(SAMPLES) % 7 == 0}
    add_table(texts, write_table(tmp_path / "left.parquet", column), name="left")
    by_column, by_list = (
        take(train(texts, weight_by="weight", where=WHERE, exclude=each), 60) for each in ("left", bad)
    )
    assert by_list == by_column


@pytest.mark.every(2)
@pytest.mark.parametrize("view", [{"where": WHERE}, {"share": 0.5, "weight_by": "weight"}])
def test_resume_is_exact_on_other_ranks_and_workers(texts, view):
    whole = take(train(texts, **view), 40)
    for consumed in (0, 3, 8, 20, 33) if is_nightly() else (3, 20):
        loader = train(texts, **view)
        each = iter(loader)
        for _ in range(consumed):
            next(each)
        after = train(texts, **view)
        after.restore_state_rank(loader.save_state_rank())
        assert take(after, 40 - consumed) == whole[consumed:]
    ranks = [take(train(texts, WorkerConfig(rank, 2, 0, num_streams=4), **view), 20) for rank in range(2)]
    assert [batch for pair in zip(*ranks, strict=True) for batch in pair] == whole


@pytest.mark.every(2)
@pytest.mark.parametrize("view", [{"where": WHERE}, {"share": 0.5, "weight_by": "weight"}])
@pytest.mark.parametrize(("before", "after", "workers"), [(1, 4, 0), (4, 2, 0), (2, 1, 2)])
def test_a_state_is_dealt_to_other_ranks_and_workers(texts, view, before, after, workers):
    whole, done = take(train(texts, **view), 36), 16

    def ranks(world, workers=0):
        return [
            train(texts, WorkerConfig(rank, world, workers, num_streams=4), **view) for rank in range(world)
        ]

    first = ranks(before)
    began = [take(loader, done // before) for loader in first]
    assert [batch for step in zip(*began, strict=True) for batch in step] == whole[:done]
    states = redistribute([loader.save_state_rank() for loader in first], after)
    rest = ranks(after, workers)
    for loader, state in zip(rest, states, strict=True):
        loader.restore_state_rank(state)
    went_on = [take(loader, (36 - done) // after) for loader in rest]
    assert [batch for step in zip(*went_on, strict=True) for batch in step] == whole[done:]


def append_shard(folder, name="data-9.tar", key="n{}"):
    write_shards(
        folder,
        shards=1,
        samples_per_shard=EACH,
        parts=lambda i: {"txt": f"text {SAMPLES + i}".encode()},
        name=name,
        key=key,
    )
    prepare_dataset(str(folder), append=True, split_ratio=(1, 0, 0))


def state_after(path, batches, **view):
    loader = train(path, **view)
    seen = take(loader, batches)
    return loader.save_state_rank(), seen


@pytest.mark.every(2)
@pytest.mark.parametrize("on_change", ["error", "continue"])
def test_a_view_with_other_samples_is_refused_or_begins_anew(texts, tmp_path, on_change):
    state, _ = state_after(texts, 5, where=WHERE)
    for view in (
        {"where": "clip > 0.5"},
        {"where": WHERE, "share": 0.5},
        {},
        {"where": WHERE, "weight_by": "weight"},
    ):
        assert_refused_or_anew(train(texts, **view), state, on_change)
    whole = take(train(texts, where=WHERE), 12)[5:]
    same = train(texts, where=f"not duplicate and ({WHERE})")  # other words, the same samples
    same.restore_state_rank(state, on_change=on_change)
    assert take(same, 7) == whole
    add_table(texts, write_table(tmp_path / "more.parquet", columns() | {"another": np.arange(SAMPLES)}))
    later = train(texts, where=WHERE)  # another version of the table, the same samples
    later.restore_state_rank(state, on_change=on_change)
    assert take(later, 7) == whole
    changed = columns()
    changed["duplicate"][:] = False
    add_table(texts, write_table(tmp_path / "changed.parquet", changed))
    assert_refused_or_anew(train(texts, where=WHERE), state, on_change)


def assert_refused_or_anew(loader, state, on_change):
    if on_change == "error":
        with pytest.raises(StateMismatchError, match="has other shards, samples or options, or another view"):
            loader.restore_state_rank(state)
        return
    loader.restore_state_rank(state, on_change=on_change)
    assert [change.change for change in loader.restore_report.leaves] == ["replaced"]


@pytest.mark.every(3)
@pytest.mark.parametrize("view", [{"where": WHERE}, {"share": 0.5}, {"exclude": "duplicate", "share": 0.5}])
def test_a_view_goes_on_when_shards_are_appended(texts, tmp_path, view):
    old = {text for batch in take(train(texts, **view), 100) for text in batch}
    state, seen = state_after(texts, 8, **view)
    append_shard(texts)
    with_more = {name: np.append(column, column[:EACH]) for name, column in columns().items()}
    add_table(texts, write_table(tmp_path / "more.parquet", with_more))
    with pytest.raises(StateMismatchError):
        train(texts, **view).restore_state_rank(state)
    loader = train(texts, **view)
    loader.restore_state_rank(state, on_change="continue")
    assert loader.restore_report is not None
    after = [text for batch in take(loader, 100) for text in batch]
    counted = [text for batch in seen for text in batch] + after
    new = {text for text in after if int(text.split()[1]) >= SAMPLES}
    assert new  # the next pass has the new ones
    assert old <= {*counted}
    assert {text for text in counted if text not in new} == old  # and the same old ones


def test_weights_begin_anew_when_shards_are_appended(texts, tmp_path):
    state, _ = state_after(texts, 5, weight_by="weight")
    append_shard(texts)
    with_more = {name: np.append(column, column[:EACH]) for name, column in columns().items()}
    add_table(texts, write_table(tmp_path / "more.parquet", with_more))
    assert_refused_or_anew(train(texts, weight_by="weight"), state, "error")
    assert_refused_or_anew(train(texts, weight_by="weight"), state, "continue")


def test_share_and_lists_of_keys(texts, tmp_path):
    tenth, half = in_order(texts, share=0.1), in_order(texts, share=0.5)
    assert set(tenth) < set(half)
    assert 10 < len(tenth) < 60
    (tmp_path / "keys.txt").write_text("00000003\n00000050\nunknown\n")
    left = in_order(texts, exclude=str(tmp_path / "keys.txt"))
    assert left == [number for number in range(SAMPLES) if number not in (3, 50)]
    assert in_order(texts, exclude="duplicate") == [n for n in range(SAMPLES) if n % 3]


def test_lines_of_a_file_may_be_the_keys_that_the_loader_gives(texts, tmp_path, caplog):
    """Both forms, in one file or alone; what no sample has is counted and named."""
    val = get_val_dataset(texts, batch_size=1, split_part="train", worker_config=ALONE)
    given = [batch.__key__[0] for batch in val]
    by_tar = [f"{tar.name}/{n:08d}" for tar in sorted(texts.glob("*.tar")) for n in numbers_in(tar)]
    assert sorted(given) == sorted(by_tar)  # the form of __key__, by tarfile
    odd = [
        *by_tar[:3],
        "00000050",
        "data-000000.tar/00000050",
        "data-000009.tar/00000007",
        "00000060 ",
        "",
        by_tar[0],
    ]
    for lines, left_out, missing in [
        (by_tar[:3], {0, 1, 2}, 0),
        (odd, {0, 1, 2, 50}, 3),
        (by_tar[5:6], {5}, 0),
    ]:
        caplog.clear()
        (tmp_path / "keys.txt").write_bytes("\r\n".join(lines).encode())
        assert in_order(texts, exclude=str(tmp_path / "keys.txt")) == sorted({*range(SAMPLES)} - left_out)
        told = [record.getMessage() for record in caplog.records if "are not in it" in record.getMessage()]
        assert [message.count(f"{missing} of the 8 keys") for message in told] == [1] * bool(missing)
        assert all("'data-000009.tar/00000007', '00000060 '" in message for message in told)


def test_a_share_stays_when_shards_are_appended_and_an_old_table_is_refused(texts):
    before = in_order(texts, share=0.2)
    append_shard(texts)
    assert in_order(texts, share=0.2)[: len(before)] == before
    with pytest.raises(IndexMismatchError, match="older than the index"):
        in_order(texts, where=WHERE)


def test_a_view_in_a_metadataset(texts):
    def mix(**view):
        return {
            "__module__": "megatron.energon",
            "__class__": "MetadatasetV2",
            "splits": {"train": {"path": str(texts), **view}},
        }

    assert in_order(mix(where=WHERE, subset=[0, 5])) == passing()[:5].tolist()
    with pytest.raises(ConfigError, match="single datasets"):
        in_order(mix(), where=WHERE)
    with pytest.raises(ConfigError, match="a Call is not allowed"):
        in_order(mix(where="open('/etc/passwd')"))


def test_rows_are_ordered_by_key(texts, tmp_path):
    order = np.random.default_rng(2).permutation(SAMPLES)
    values = {"__key__": [f"{n:08d}" for n in order], "number": order}
    add_table(texts, write_table(tmp_path / "keyed.parquet", values), name="keyed")
    assert in_order(texts, where="number in [7, 9] or number == 200") == [7, 9, 200]
    values["__key__"][0] = "nobody"
    with pytest.raises(IndexMismatchError, match="no row for 1 samples"):
        add_table(texts, write_table(tmp_path / "wrong.parquet", values), name="keyed")


def test_kept_selections_are_the_same(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("energon_stream.config.view.LEAST_KEPT", 1)
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "cache"))
    views = [{"where": WHERE}, {"where": WHERE, "weight_by": "weight"}]
    first = [in_order(texts, **view) for view in views]
    kept = sorted((tmp_path / "cache/v1/views").iterdir())
    assert len(kept) == 2
    assert [in_order(texts, **view) for view in views] == first
    for path in kept:
        path.write_bytes(path.read_bytes()[:-1])
    assert [in_order(texts, **view) for view in views] == first
    for numbers in ([1, 5], [2, 5]):  # the files have new versions
        build_filter_index(texts, "some", numbers, overwrite=True)
        assert in_order(texts, filter_name="some") == in_order(texts, filter_name="some") == numbers


@pytest.mark.parametrize(
    ("view", "error", "said"),
    [
        ({"where": "nope > 1"}, ConfigError, "no table of the dataset has a column 'nope'"),
        ({"where": "clip"}, ConfigError, "no truth value"),
        ({"where": "clip > 'text'"}, ConfigError, "clip is double"),
        ({"where": "clip > 2"}, EmptyDatasetError, "selects none of 320"),
        ({"share": 0}, ConfigError, "'share' is 0"),
        ({"share": True}, ConfigError, "'share' is True"),
        ({"weight_by": "duplicate"}, ConfigError, "Name a column of numbers"),
        ({"exclude": "clip"}, ConfigError, "Name a column of true and false"),
    ],
)
def test_views_that_are_refused(texts, view, error, said):
    with pytest.raises(error, match=said):
        in_order(texts, **view)


@pytest.mark.parametrize(
    "text",
    [
        "open('/etc/passwd')", "clip.real > 1", "1 < 2", "a; b", "a if b else c", "(lambda: 1)()", "a[0] > 1",
        "a + 1 > 2", "[x for x in a]", "a == f'{b}'", "SELECT * FROM t", "a > 1; DROP TABLE t", "a in b",
        "a in (SELECT 1)", "a > 1 -- x\nOR 1", "a is b", "not 1", "'x'", "a := 1", "", "(" * 5000 + "a" + ")" * 5000,
        "not " * 100 + "a", "read_parquet('x') == a", "a > __import__('os')", "a in [b]", "a " * 9000,
    ],
)  # fmt: skip
def test_only_filters_are_understood(text):
    with pytest.raises(ConfigError):
        parse_filter(text)


def test_tables_that_are_refused(texts, tmp_path):
    with pytest.raises(IndexMismatchError, match="has 319 rows, and the index has 320"):
        add_table(texts, write_table(tmp_path / "short.parquet", columns(SAMPLES - 1)))
    with pytest.raises(ConfigError, match="has a column 'clip', too"):
        add_table(texts, write_table(tmp_path / "again.parquet", columns()), name="again")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(MetadataError, match="cannot be read"):
        add_table(texts, tmp_path / "text.parquet")
    wrong = columns()
    wrong["weight"][5] = np.nan
    add_table(texts, write_table(tmp_path / "nan.parquet", wrong))
    with pytest.raises(ConfigError, match="the weight of sample 5 is nan"):
        in_order(texts, weight_by="weight")
    (texts / ".nv-meta/tables/foreign.parquet").write_bytes((tmp_path / "short.parquet").read_bytes())
    with pytest.raises(IndexMismatchError, match="was not added with add_table"):
        in_order(texts, where=WHERE)
