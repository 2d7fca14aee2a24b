"""Small files that ask for a lot: refused by a named error at once, before the memory is taken."""

import json
import tracemalloc

import pytest

from energon_stream import Limits, WorkerConfig, get_val_dataset, load_dataset, traverse_metadataset
from energon_stream.errors import ConfigError, DatasetError, LimitError, MetadataError
from energon_stream.index.braces import expand
from energon_stream.index.info_files import load_document, parse_info, parse_split
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import TEXT_YAML, write_shards

ALONE = WorkerConfig(0, 1, 0)
ROOM = 32 << 20
"""Bytes that Python may allocate while it refuses a file."""


@pytest.fixture
def bounded():
    """Fails a test that takes more memory than the refusal of a file needs."""
    tracemalloc.start()
    yield
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken < ROOM


def named(error, limit, where):
    """Return whether an error names limit, place and remedy."""
    return (
        f"the limit {limit} is " in error.what
        and error.where.startswith(where)
        and f"limits=Limits({limit}=…)" in error.hint
        and f"ENERGON_STREAM_LIMITS={limit}=…" in error.hint
    )


BRACES = [
    "{0..999999999}.tar",
    "{999999999..0}.tar",
    "{0..9}" * 12 + ".tar",
    "{" * 12 + "0..9" + "}" * 12 + "{0..9}" * 7,
    "{{0..9999},a}{{0..9999},b}",
    "{0..999999999..2}.tar",
    "{0..10000000000000000000000}.tar",
    "a" * 100_000 + "{0..9999}.tar",
    "{,}" * 100,
]


@pytest.mark.parametrize("pattern", BRACES, ids=lambda pattern: pattern[:30])
def test_braces_are_counted_before_they_are_expanded(pattern, bounded):
    split = json.dumps({"split_parts": {"train": [pattern]}}).encode()
    with pytest.raises(LimitError) as caught:
        parse_split(split, "s3://b/split.json")
    assert named(caught.value, "names", "s3://b/split.json")


def test_commas_are_counted_no_further_than_the_limit(bounded):
    split = json.dumps({"split_parts": {"train": ["{" + "," * 3_000_000 + "}"]}}).encode()
    with pytest.raises(LimitError, match="make more names than that; the limit names is 20,000"):
        parse_split(split, "split.json", Limits(names=20_000))


def test_all_braces_of_a_file_share_the_limit():
    parts = {f"part{i}": ["{0..9}.tar"] for i in range(11)}
    split = json.dumps({"split_parts": parts}).encode()
    assert len(parse_split(split, "split.json", Limits(names=110)).split_parts) == 11
    with pytest.raises(LimitError, match="make 110 names or more; the limit names is 109"):
        parse_split(split, "split.json", Limits(names=109))


def test_nested_braces_are_bounded(bounded):
    with pytest.raises(LimitError) as caught:
        expand(["{" * 100_000 + "a,b" + "}" * 100_000], "split.yaml")
    assert named(caught.value, "document_depth", "split.yaml")


def test_the_path_of_tars_has_the_limit_too(tmp_path):
    with pytest.raises(LimitError) as caught:
        get_val_dataset(str(tmp_path / "{0..999999999}.tar"), batch_size=1, worker_config=ALONE)
    assert named(caught.value, "names", str(tmp_path))


DEEP = {
    "flow.yaml": b"a: " + b"[" * 10_000,
    "block.yaml": b"- " * 10_000,
    "mapping.yaml": b"{a: " * 10_000,
    "lists.json": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "mappings.json": b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
    "a little deep.json": b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}",
}


@pytest.mark.parametrize("name", DEEP)
def test_nesting_is_bounded(name, bounded):
    with pytest.raises(LimitError) as caught:
        load_document(DEEP[name], name)
    assert named(caught.value, "document_depth", name)


def test_the_limit_of_nesting_is_exact():
    for name, text in (("x.json", '{"a": %s%s}'), ("x.yaml", "{a: %s%s}")):
        document = (text % ("[" * 3, "]" * 3)).encode()
        assert load_document(document, name, Limits(document_depth=4)) == {"a": [[[]]]}
        with pytest.raises(LimitError):
            load_document(document, name, Limits(document_depth=3))


def test_a_depth_that_python_cannot_follow_is_named_too():
    for name in ("flow.yaml", "lists.json"):
        with pytest.raises(LimitError) as caught:
            load_document(DEEP[name][:20_000], name, Limits(document_depth=1_000_000))
        assert named(caught.value, "document_depth", name)


def test_size_and_number_of_values_are_bounded(bounded):
    limits = Limits(document_bytes=1000, document_values=20)
    for name, text in (("x.json", b'{"a": [%s]}'), ("x.yaml", b"{a: [%s]}")):
        with pytest.raises(LimitError) as caught:
            load_document(text % b",".join([b"1"] * 40), name, limits)
        assert named(caught.value, "document_values", name)
        with pytest.raises(LimitError) as caught:
            load_document(text % (b'"' + b"a" * 1000 + b'"'), name, limits)
        assert named(caught.value, "document_bytes", name)
        assert load_document(text % b",".join([b"1"] * 17), name, limits) == {"a": [1] * 17}


LONG = "9" * 10_000


@pytest.mark.parametrize("count", [10**7 + 1, 10**15, 2**63, 2**64, int("9" * 40), LONG])
@pytest.mark.parametrize("name", [".info.json", ".info.yaml"])
def test_counts_that_no_shard_has_are_refused(name, count):
    text = f'{{"energon_version": "7.4.1", "shard_counts": {{"a.tar": {count}}}}}'
    with pytest.raises((LimitError, MetadataError), match=r"samples|more than 64 bits") as caught:
        parse_info(text.encode(), name)
    assert caught.value.where == name
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        f"{{split_parts: {{train: [{LONG}]}}}}",
        f"{{split_parts: {LONG}}}",
        f"{{{LONG}: 1}}",
        f"{{split_parts: {{{LONG}: 7}}}}",
        f"{{split_parts: {{a: [b]}}, {LONG}: 7, {LONG}: 8}}",
    ],
    ids=["item", "value", "key", "name", "twice"],
)
def test_messages_stay_short(text):
    with pytest.raises(DatasetError) as caught:
        parse_split(text.encode(), "split.yaml")
    assert len(str(caught.value)) < 400


LEAVES = [
    "../../x/a.tar",
    "a/../../b.tar",
    "/etc/a.tar",
    "~/a.tar",
    "s3://other/a.tar",
    "file:///etc/a.tar",
    "..",
    "a\0.tar",
    "simplecache::file:///a.tar",
]


@pytest.mark.parametrize("path", LEAVES)
def test_a_shard_outside_its_dataset_is_refused(path, tmp_path):
    data = tmp_path / "inner" / "data"
    write_shards(data, shards=1, samples_per_shard=3, parts=lambda i: {"txt": b"x"}, name="a{}.tar")
    prepare_dataset(str(data), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    info = data / ".nv-meta/.info.json"
    info.write_text(info.read_text().replace('"a0.tar"', json.dumps(path)))
    split = data / ".nv-meta/split.yaml"
    split.write_text(json.dumps({"split_parts": {"train": [path]}}))
    with pytest.raises(MetadataError, match="leaves the dataset") as caught:
        get_val_dataset(str(data), split_part="train", batch_size=1, worker_config=ALONE)
    assert caught.value.where.endswith(".info.json")


@pytest.mark.parametrize("path", ["a/b.tar", "a..b/c...tar", "./a.tar", "..a/b.tar", "a b{}.tar"])
def test_odd_names_inside_are_no_way_out(path):
    assert parse_info(json.dumps({"shard_counts": {path: 1}}).encode(), ".info.json") == {path: 1}


@pytest.mark.parametrize("option", ["split_config", "dataset_config"])
def test_a_file_of_the_metadata_folder_stays_there(option, tmp_path):
    with pytest.raises(MetadataError, match=r"no name of a file in \.nv-meta"):
        get_val_dataset(
            str(tmp_path), batch_size=1, worker_config=ALONE, **{option: "../../elsewhere/split.yaml"}
        )


def metadataset(entries):
    return json.dumps(
        {
            "__module__": "energon_stream",
            "__class__": "MetadatasetV2",
            "splits": {"train": {"blend": entries}},
        }
    )


def doubling(folder, files, last="data"):
    """Metadatasets that each name the next one twice; returns the first."""
    for number in range(files):
        following = {"path": f"m{number + 1}.yaml" if number + 1 < files else last}
        (folder / f"m{number}.yaml").write_text(metadataset([following] * 2))
    return str(folder / "m0.yaml")


def test_metadatasets_that_name_each_other_twice_are_counted_first(tmp_path, bounded):
    first = doubling(tmp_path, 26)
    with pytest.raises(LimitError) as caught:
        get_val_dataset(first, split_part="train", batch_size=1, worker_config=ALONE)
    assert named(caught.value, "references", str(tmp_path))
    with pytest.raises(LimitError):
        traverse_metadataset(first, split_part="train")


def test_the_limit_of_references_counts_each_mention(tmp_path):
    first = doubling(tmp_path, 4)  # 1 + 2 + 4 + 8 metadatasets and 16 datasets
    assert len(traverse_metadataset(first, split_part="train", limits=Limits(references=31))) == 16
    with pytest.raises(LimitError, match="the limit references is 30"):
        traverse_metadataset(first, split_part="train", limits=Limits(references=30))


def test_the_limit_of_a_chain_is_that_of_the_longest_one(tmp_path):
    names = [f"m{number}.yaml" for number in range(6)]
    for number, name in enumerate(names):
        entries = [{"path": "data"}, *({"path": other} for other in names[number + 1 :])]
        (tmp_path / name).write_text(metadataset(entries))
    first = str(tmp_path / names[0])
    assert len(traverse_metadataset(first, split_part="train", limits=Limits(reference_depth=6))) == 32
    with pytest.raises(LimitError, match="reference_depth"):
        traverse_metadataset(first, split_part="train", limits=Limits(reference_depth=5))


def test_a_metadataset_that_contains_itself_is_named(tmp_path):
    first = doubling(tmp_path, 3, last="m1.yaml")
    with pytest.raises(MetadataError, match="contains itself"):
        traverse_metadataset(first, split_part="train")


@pytest.mark.parametrize("weights", [[1e308, 1e308], [1e-300, 1e300]])
def test_shares_that_vanish_are_refused(weights, tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(metadataset([{"path": "data", "weight": weight} for weight in weights]))
    with pytest.raises(MetadataError, match="share"):
        traverse_metadataset(str(path), split_part="train")


def test_limits_are_set_by_argument_and_environment(tmp_path, monkeypatch):
    path = tmp_path / "m.yaml"
    path.write_text(metadataset([{"path": "a"}, {"path": "b"}]))
    loaded = load_dataset(str(path), limits=Limits(references=1))
    with pytest.raises(LimitError, match="the limit references is 1"):
        loaded.get_datasets(training=True, worker_config=ALONE)
    with pytest.raises(LimitError, match="the limit references is 1"):
        loaded.traverse(split_part="train")
    monkeypatch.setenv("ENERGON_STREAM_LIMITS", " references=1, names=2_000 ")
    assert Limits.from_environment() == Limits(references=1, names=2000)
    with pytest.raises(LimitError, match="the limit references is 1"):
        traverse_metadataset(str(path), split_part="train")
    assert len(traverse_metadataset(str(path), split_part="train", limits=Limits())) == 2
    for wrong in ("references", "references=-1", "references=0", "nothing=1", "names=1e6"):
        monkeypatch.setenv("ENERGON_STREAM_LIMITS", wrong)
        with pytest.raises(ConfigError, match=r"ENERGON_STREAM_LIMITS|positive"):
            Limits.from_environment()


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", None])
def test_a_limit_is_a_positive_integer(value):
    with pytest.raises(ConfigError, match="the limit names is"):
        Limits(names=value)
    with pytest.raises(ConfigError, match="limits is"):
        get_val_dataset("x", batch_size=1, limits={"names": 5}, worker_config=ALONE)
