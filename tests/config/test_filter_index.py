"""Filter indexes: files of numbers, written by ``struct`` and ``json`` as other tools do, and by the library.

The samples that are kept are known from numpy, those of the tars from ``tarfile``.
"""

import json
import struct
import tarfile

import numpy as np
import pytest

from energon_stream import (
    CrudeSample,
    DefaultTaskEncoder,
    FilterIndex,
    FilterIndexWriter,
    WorkerConfig,
    build_filter_index,
    build_filter_index_from_global_indexes,
    build_filter_index_from_shard_indexes,
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
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.prepare.add_tables import add_table
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.state import redistribute
from energon_stream.testing.datasets import prepared_text_dataset, write_shards

SHARDS, EACH = 8, 40
SAMPLES = SHARDS * EACH
KEPT = np.flatnonzero(np.random.default_rng(7).random(SAMPLES) < 0.4)
OF_KEPT = {f"data-{n:06d}.tar": int((n == KEPT // EACH).sum()) for n in range(SHARDS)}
ALONE = WorkerConfig(0, 1, 0, num_streams=4)


@pytest.fixture
def texts(tmp_path):
    return prepared_text_dataset(
        tmp_path / "texts", shards=SHARDS, samples_per_shard=EACH, split_ratio=(6, 2, 0)
    )


def by_hand(folder, name, numbers, counts=None, **more):
    """Write the two files without the library; return them."""
    info = json.loads((folder / ".nv-meta/.info.json").read_text())["shard_counts"]
    ends = np.cumsum([0, *info.values()])
    found = {
        shard: int(((numbers >= first) & (numbers < last)).sum())
        for shard, first, last in zip(info, ends, ends[1:], strict=False)
    }
    record, idx = (folder / f".nv-meta/filter_{name}.{end}" for end in ("json", "idx"))
    record.write_text(
        json.dumps({"version": 1, "filtered_shard_counts": found if counts is None else counts, **more})
    )
    idx.write_bytes(struct.pack(f"={len(numbers)}Q", *map(int, numbers)))
    return record, idx


def in_order(path, part="train", **options):
    """Numbers of the samples of a pass, in the order of the dataset."""
    dataset = get_val_dataset(
        path, batch_size=1, split_part=part, worker_config=WorkerConfig(0, 1, 0), **options
    )
    return [int(batch.text[0].split()[1]) for batch in dataset]


def train(path, config=ALONE, **options):
    order = {"batch_size": 4, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10}
    return get_savable_loader(get_train_dataset(path, worker_config=config, **order, **options))


def take(loader, batches):
    each = iter(loader)
    return [next(each).text for _ in range(batches)]


def names_in(tar):
    with tarfile.open(tar) as members:
        return members.getnames()


def recipe(*entries, key="blend"):
    node = entries[0] if len(entries) == 1 else {key: [*entries]}
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    return {**head, "splits": {"train": node, "val": node}}


def test_files_of_other_tools_select_their_numbers_in_every_split_part(texts):
    by_hand(texts, "good", KEPT)
    parts = {
        part: sorted(
            int(name.partition(".")[0])
            for tar in sorted(texts.glob("*.tar"))[first:last]
            for name in names_in(tar)
        )
        for part, first, last in (("train", 0, 6), ("val", 6, 8))
    }
    for part, numbers in parts.items():
        assert in_order(texts, part, filter_name="good") == np.intersect1d(numbers, KEPT).tolist()
    assert in_order(recipe({"path": str(texts), "filter": "good"})) == KEPT[KEPT < 240].tolist()


def test_the_library_writes_the_same_files_in_every_way(texts):
    record, idx = by_hand(texts, "good", KEPT)
    shards = json.loads((texts / ".nv-meta/.info.json").read_text())["shard_counts"]
    by_shard = {shard: KEPT[place == KEPT // EACH] - place * EACH for place, shard in enumerate(shards)}
    found = [
        build_filter_index(texts, "a", KEPT),
        build_filter_index_from_global_indexes(texts, "b", (int(n) for n in KEPT), shards=shards),
        build_filter_index_from_shard_indexes(texts, "c", dict(reversed(by_shard.items()))),
    ]
    with FilterIndexWriter(str(texts), "d") as writer:
        for shard, numbers in by_shard.items():
            for number in numbers[:3]:
                writer.append_shard_index(shard, number)
            writer.append_shard(shard, numbers[3:].tolist())
    with FilterIndexWriter(texts, "e") as writer:
        for number in KEPT:
            (writer.append if number % 2 else writer.append_global)(number)
    for index in (*found, FilterIndex(texts, "d"), FilterIndex(texts, "e")):
        ours = texts / f".nv-meta/filter_{index.name}.json"
        assert json.loads(ours.read_text()) == json.loads(record.read_text())
        assert ours.with_suffix(".idx").read_bytes() == idx.read_bytes()
        assert (len(index), [*index]) == (len(KEPT), KEPT.tolist())
        assert sum(index.filtered_shard_counts.values()) == len(KEPT)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        build_filter_index(texts, "a", [1])
    assert [*build_filter_index(texts, "a", [1], overwrite=True)] == [1]
    with pytest.raises(ZeroDivisionError), FilterIndexWriter(texts, "f") as writer:
        writer.append(1 // 0)
    assert not [*texts.glob(".nv-meta/filter_f*")]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([3, 2], "do not ascend"), ([3, 3], "do not ascend"), ([-1], "-1 is none of 320"),
        ([5, SAMPLES], "320 is none of 320"), (np.arange(4) > 1, "bool are no numbers"),
        ([1.5], "float64 are no numbers"), (np.zeros((2, 2), int), "are no numbers"), (["a"], "are no numbers"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be(texts, numbers, said):
    with pytest.raises(ValueError, match=said):
        build_filter_index(texts, "wrong", numbers)
    assert not [*texts.glob(".nv-meta/filter_*")]


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "a\0", None, 3, ".."[:0]])
def test_names_that_are_none(texts, name):
    with pytest.raises(ConfigError, match="no name of a filter"):
        build_filter_index(texts, name, [1])
    if name is not None:
        with pytest.raises((ConfigError, MetadataError), match="Name a filter"):
            in_order(texts, filter_name=name)


def test_shards_are_named_and_in_order(texts):
    with pytest.raises(ValueError, match=r"has no shard 'nope\.tar'"):
        build_filter_index_from_shard_indexes(texts, "a", {"nope.tar": [1]})
    writer = FilterIndexWriter(texts, "a")
    writer.append_shard("data-000001.tar", [0])
    with pytest.raises(ValueError, match="do not ascend"):
        writer.append_shard("data-000000.tar", [5])
    with pytest.raises(ValueError, match=r"40 is none of 40 of shard data-000002\.tar"):
        writer.append_shard("data-000002.tar", [EACH])


def test_a_filter_narrows_what_the_other_keys_select(texts, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    clip = np.random.default_rng(3).random(SAMPLES)
    pq.write_table(
        pa.table({"clip": clip, "weight": np.arange(SAMPLES) % 2 * 1.0}), tmp_path / "values.parquet"
    )
    add_table(texts, tmp_path / "values.parquet")
    build_filter_index(texts, "good", KEPT)
    (tmp_path / "bad.jsonl").write_text(f'{{"key": "{KEPT[2]:08d}"}}\n')
    here = KEPT[KEPT < 240]
    share = in_order(texts, share=0.5)
    for options, numbers in (
        ({"where": "clip > 0.5"}, here[clip[here] > 0.5]),
        ({"share": 0.5}, np.intersect1d(here, share)),
        ({"exclude": str(tmp_path / "bad.jsonl")}, np.delete(here, 2)),
        ({"subset": {"range": [3, 9]}}, here[3:9]),
        ({"subset": {"range": ["50%", "100%"]}}, here[len(here) // 2 :]),
        ({"weight_by": "weight", "where": "weight > 0"}, here[here % 2 == 1]),
    ):
        assert in_order(texts, filter_name="good", **options) == numbers.tolist(), options
    build_filter_index(texts, "none", [])
    with pytest.raises(EmptyDatasetError, match="selects none"):
        in_order(texts, filter_name="none")


def test_the_order_is_that_of_a_rewritten_dataset_also_in_packs_and_mixtures(texts, tmp_path):
    build_filter_index(texts, "good", KEPT)
    for place in range(6):
        numbers = KEPT[place == KEPT // EACH].tolist()
        write_shards(
            tmp_path / "new", shards=1, samples_per_shard=len(numbers), name=f"data-{place:06d}.tar",
            parts=lambda i, numbers=numbers: {"txt": f"text {numbers[i]}".encode()}, key=f"{place}-{{}}",
        )  # fmt: skip
    yaml = {
        "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
        "field_map": {"text": "txt"},
    }
    prepare_dataset(str(tmp_path / "new"), split_ratio=(1, 0, 0), dataset_yaml=yaml)

    class Packs(DefaultTaskEncoder):
        def select_samples_to_pack(self, samples):
            return [samples[:2], samples[2:]]

        def pack_selected_samples(self, samples):
            samples[0].text = " ".join(each.text for each in samples)
            return samples[0]

    whole = {"path": str(texts), "weight": 1}
    for options in ({}, {"packing_buffer_size": 5, "task_encoder": Packs()}):
        assert take(train(texts, filter_name="good", **options), 30) == take(
            train(tmp_path / "new", **options), 30
        )
        mixed = [
            take(train(recipe({**entry, "weight": 3}, whole), **options), 30)
            for entry in ({"path": str(texts), "filter": "good"}, {"path": str(tmp_path / "new")})
        ]
        assert mixed[0] == mixed[1]
    with pytest.raises(ConfigError, match="overlap"):
        train(recipe(*[{"path": str(texts), "filter": "good", "subset": [0, 9]}] * 2))
    build_filter_index(texts, "other", np.setdiff1d(np.arange(SAMPLES), KEPT))
    ranges = [{"path": str(texts), "filter": name, "subset": [0, 9]} for name in ("good", "other")]
    assert len({text for batch in take(train(recipe(*ranges)), 40) for text in batch}) == 18


def test_resume_is_exact_elastic_and_notices_other_numbers(texts):
    build_filter_index(texts, "good", KEPT)
    path = recipe({"path": str(texts), "filter": "good"})
    whole = take(train(path), 36)
    loader = train(path)
    assert take(loader, 16) == whole[:16]
    state = loader.save_state_rank()
    for world in (1, 2, 4):
        rest = []
        for rank, part in enumerate(redistribute([state], world)):
            loader = train(path, WorkerConfig(rank, world, 0, num_streams=4))
            loader.restore_state_rank(part)
            rest.append(take(loader, 20 // world))
        assert [batch for step in zip(*rest, strict=True) for batch in step] == whole[16:]
    build_filter_index(texts, "other", KEPT)  # another name for the same numbers
    same = train(texts, filter_name="other")
    same.restore_state_rank(state)
    assert take(same, 20) == whole[16:]
    build_filter_index(texts, "good", KEPT[1:], overwrite=True)
    with pytest.raises(StateMismatchError, match="another view"):
        train(path).restore_state_rank(state)


def test_a_filter_goes_on_when_shards_are_appended_and_it_is_built_again(texts):
    build_filter_index(texts, "good", KEPT)
    loader = train(texts, filter_name="good")
    take(loader, 8)
    state = loader.save_state_rank()
    write_shards(texts, shards=1, samples_per_shard=EACH, name="data-9.tar", key="n{}",
                 parts=lambda i: {"txt": f"text {SAMPLES + i}".encode()})  # fmt: skip
    prepare_dataset(str(texts), append=True, split_ratio=(1, 0, 0))
    with pytest.raises(IndexMismatchError, match="prepared again, or grew"):
        train(texts, filter_name="good")
    build_filter_index(texts, "good", np.append(KEPT, [SAMPLES, SAMPLES + 7]), overwrite=True)
    grown = train(texts, filter_name="good")
    grown.restore_state_rank(state, on_change="continue")
    assert [change.change for change in grown.restore_report.leaves] == ["grown"]
    build_filter_index(texts, "good", np.append(KEPT[1:], [SAMPLES]), overwrite=True)
    changed = train(texts, filter_name="good")
    changed.restore_state_rank(state, on_change="continue")
    assert [change.change for change in changed.restore_report.leaves] == ["replaced"]


def test_filters_that_change_places_keep_their_progress(texts):
    """Each pass of a filter has each of its samples once, though the mixture is reordered within it."""
    named = {"good": KEPT[KEPT < 240], "other": np.setdiff1d(np.arange(240), KEPT)}
    for name, numbers in named.items():
        build_filter_index(texts, name, numbers)
    config = WorkerConfig(0, 1, 0)
    entries = [{"path": str(texts), "filter": name, "weight": 1 + (name == "good")} for name in named]
    loader = train(recipe(*entries), config)
    seen = take(loader, 15)
    state = loader.save_state_rank()
    other = train(recipe(*reversed(entries)), config)
    with pytest.raises(StateMismatchError):
        train(recipe(*reversed(entries)), config).restore_state_rank(state)
    other.restore_state_rank(state, on_change="continue")
    assert {change.change for change in other.restore_report.leaves} <= {"moved"}
    numbers = [int(text.split()[1]) for batch in seen + take(other, 150) for text in batch]
    for of in named.values():
        own = [number for number in numbers if number in {*of.tolist()}]
        assert sorted(own[: len(of)]) == of.tolist()


def test_a_file_of_lines_has_its_filter_beside_it(tmp_path, s3_server, tmp_bucket):
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"n": {n}}}\n' for n in range(50)))
    prepare_jsonl(str(lines))
    kept = [1, 4, 5, 30, 49]
    assert [*build_filter_index(lines, "some", kept)] == kept
    record = json.loads((tmp_path / "lines.jsonl.some.json").read_text())
    assert record == {"version": 1, "filtered_shard_counts": {"lines.jsonl": 5}}
    assert (tmp_path / "lines.jsonl.some.idx").read_bytes() == struct.pack("=5Q", *kept)

    def numbers(path, **options):
        dataset = get_val_dataset(path, batch_size=None, worker_config=WorkerConfig(0, 1, 0), **options)
        return [sample["json"]["n"] for sample in dataset]

    assert numbers(lines, filter_name="some") == kept
    s3_server.upload_folder(tmp_path, f"{tmp_bucket}/lines")
    url, options = f"{tmp_bucket}/lines/lines.jsonl", {"storage_options": s3_server.storage_options}
    build_filter_index(url, "other", [0, 7], **options)
    assert numbers(url, filter_name="some", **options) == kept
    assert numbers(url, filter_name="other", **options) == [0, 7]
    with pytest.raises(ConfigError, match="needs a prepared folder"):
        numbers(lines, filter_name="some", share=0.5)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_folders_of_other_formats(tmp_path, kind):
    """Several files, some with several groups of rows, in two split parts."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "rows"
    folder.mkdir()
    for place, (first, last) in enumerate([(0, 30), (30, 37), (37, 100), (100, 120)]):
        path = folder / f"{place}.{kind}"
        if kind == "jsonl":
            path.write_text("".join(f'{{"n": {n}}}\n' for n in range(first, last)))
        else:
            pq.write_table(pa.table({"n": [*range(first, last)]}), path, row_group_size=9)
    prepare_dataset(str(folder), split_ratio=(2, 2, 0))
    kept = np.flatnonzero(np.random.default_rng(1).random(120) < 0.4)
    by_hand(folder, "good", kept)
    build_filter_index(folder, "ours", kept)
    for end in ("json", "idx"):
        both = [(folder / f".nv-meta/filter_{name}.{end}").read_bytes() for name in ("good", "ours")]
        assert both[0] == both[1] or json.loads(both[0]) == json.loads(both[1])

    def rows(path, part="train", **options):
        config = WorkerConfig(0, 1, 0)
        dataset = get_val_dataset(path, split_part=part, batch_size=None, worker_config=config, **options)
        return [sample["n"] if kind == "parquet" else sample["json"]["n"] for sample in dataset]

    for part in ("train", "val"):
        whole = rows(folder, part)
        assert rows(folder, part, filter_name="good") == np.intersect1d(whole, kept).tolist() != []
    single = folder / f"2.{kind}"
    build_filter_index(single, "some", [0, 5, 40])
    assert rows(single, filter_name="some") == [37, 42, 77]


def test_tokens_of_bin_and_idx_have_filters(tmp_path):
    lengths = np.array([3, 1, 4, 2, 5], dtype="<i4")
    tokens = np.arange(lengths.sum(), dtype="<u2")
    offsets = (np.cumsum([0, *lengths[:-1]]) * 2).astype("<i8")
    documents = np.arange(len(lengths) + 1, dtype="<i8")
    (tmp_path / "x.bin").write_bytes(tokens.tobytes())
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(documents))
    (tmp_path / "x.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + documents.tobytes())
    build_filter_index(tmp_path / "x.bin", "some", [1, 3])
    config = WorkerConfig(0, 1, 0)
    dataset = get_val_dataset(tmp_path / "x.bin", batch_size=None, worker_config=config, filter_name="some")
    assert [sample["tokens"].tolist() for sample in dataset] == [[3], [8, 9]]


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda record, idx: record.unlink(), ConfigError, "has no filter 'good'"),
        (lambda record, idx: idx.unlink(), IndexMismatchError, "it is missing"),
        (lambda record, idx: idx.write_bytes(idx.read_bytes()[:-3]), IndexMismatchError, "counts sum to"),
        (lambda record, idx: idx.write_bytes(idx.read_bytes()[:-8]), IndexMismatchError, "counts sum to"),
        (lambda record, idx: idx.write_bytes(b""), IndexMismatchError, "it has 0 bytes"),
        (lambda record, idx: idx.write_bytes(idx.read_bytes()[::-1]), IndexMismatchError, "does not follow"),
        (lambda record, idx: record.write_text("{"), MetadataError, "not valid JSON"),
        (lambda record, idx: record.write_text("[]"), MetadataError, "must hold a mapping"),
    ],
)
def test_damaged_files_are_refused(texts, spoil, error, said):
    spoil(*by_hand(texts, "good", KEPT))
    with pytest.raises(error, match=said):
        in_order(texts, filter_name="good")


def swapped(numbers):
    found = numbers.copy()
    found[[3, 4]] = found[[4, 3]]
    return found


@pytest.mark.parametrize(
    ("numbers", "counts", "more", "said"),
    [
        (swapped(KEPT), None, {}, "does not follow a smaller number"),
        (np.append(KEPT[:-1], KEPT[-2]), None, {}, "does not follow a smaller number"),
        (np.append(KEPT[:-1], SAMPLES), OF_KEPT, {}, "is none of 320"),
        (KEPT, None, {"version": 2}, "has version 2"),
        (KEPT, None, {"version": True}, "has version True"),
        (KEPT, None, {"note": 1}, "unknown key 'note'"),
        (KEPT, {}, {}, "only one has 'data-000000.tar'"),
        (KEPT, {f"data-{n:06d}.tar": EACH for n in range(9)}, {}, "only one has 'data-000008.tar'"),
        (KEPT, {f"data-{n:06d}.tar": EACH + 1 for n in range(8)}, {}, "keeps more of 'data-000000.tar'"),
        (KEPT, {f"data-{n:06d}.tar": -1 for n in range(8)}, {}, "numbers ≥ 0"),
        (KEPT, {f"data-{n:06d}.tar": 1.0 for n in range(8)}, {}, "numbers ≥ 0"),
        (KEPT, [1, 2], {}, "numbers ≥ 0"),
        (np.arange(80), {f"data-{n:06d}.tar": 10 for n in range(8)}, {}, "other samples of 'data-000000.tar'"),
    ],
)  # fmt: skip
def test_files_that_lie_are_refused(texts, numbers, counts, more, said):
    by_hand(texts, "good", numbers, counts, **more)
    with pytest.raises((IndexMismatchError, MetadataError), match=said):
        in_order(texts, filter_name="good")


def test_a_dataset_with_other_counts_is_another_one(texts, tmp_path):
    """Prepared again with shards of other sizes, of the same names."""
    build_filter_index(texts, "good", KEPT)
    other = prepared_text_dataset(tmp_path / "other", shards=SHARDS, samples_per_shard=EACH - 7)
    for end in ("json", "idx"):
        name = f".nv-meta/filter_good.{end}"
        (other / name).write_bytes((texts / name).read_bytes())
    with pytest.raises(IndexMismatchError, match="prepared again"):
        in_order(other, filter_name="good")


def test_where_a_filter_has_no_meaning(texts, tmp_path):
    build_filter_index(texts, "good", KEPT)
    with pytest.raises(ConfigError, match="single datasets"):
        in_order(recipe({"path": str(texts)}), filter_name="good")
    inner = tmp_path / "inner.yaml"
    inner.write_text(json.dumps(recipe({"path": str(texts)})))
    with pytest.raises(MetadataError, match="'filter' cannot be set for a metadataset"):
        in_order(recipe({"path": str(inner), "filter": "good"}))
    with pytest.raises(ConfigError, match="needs a prepared folder"):
        in_order(str(texts / "data-{000000..000007}.tar"), filter_name="good", sample_type=CrudeSample)


def test_slices_of_a_filter_and_numbers_that_are_none(texts):
    found = build_filter_index(str(texts), "kept", KEPT)
    assert found[1:9:3] == KEPT.tolist()[1:9:3]
    assert found[-2:] == KEPT.tolist()[-2:]
    for wrong in (None, 5):
        with pytest.raises(ConfigError, match="is no sequence of numbers"):
            build_filter_index(str(texts), "other", wrong)


def test_views_of_files_say_what_selects(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n' * 9)
    prepare_jsonl(str(tmp_path / "x.jsonl"))
    with pytest.raises(ConfigError, match="only a filter index selects"):
        get_val_dataset(tmp_path / "x.jsonl", batch_size=None, share=0.5, worker_config=ALONE)
