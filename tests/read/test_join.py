"""Joined samples, from the preparation of the index to resumed training."""

import io
import json
import shutil
import struct
import sys
import tarfile
from itertools import islice

import pytest
from click.testing import CliRunner
from repetitions import is_nightly

from energon_stream import (
    ReadOptions,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_datasets,
    prepare_metadataset,
)
from energon_stream.cli.main import main
from energon_stream.errors import (
    ConfigError,
    DatasetError,
    IndexMismatchError,
    MetadataError,
    NotPreparedError,
    UntrustedCodeError,
)
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import write_shards
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key

TEXT = {"__module__": "megatron.energon", "__class__": "TextSample"}
PER_SHARD = 8
SHARDS = {"a": 5, "b": 3, "c": 7}  # keys 0 to 39, 0 to 23, 0 to 55

JOINERS = """
from energon_stream import CaptioningSample, SkipSample

def as_dict(first, second=None, third=None):
    samples = [sample for sample in (first, second, third) if sample is not None]
    return {"__key__": first.__key__, "texts": [sample.text for sample in samples], "missing": third is None}

def by_name(*, main, extra):
    return CaptioningSample.derive_from(main, image=extra and extra.text, caption=main.text)

def even(first, second):
    if int(first.text[1:]) % 2:
        raise SkipSample
    return first

NUMBER = 7
"""


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Three datasets of texts such as ``a7``, whose equal keys lie in shards of other numbers."""
    folder = tmp_path_factory.mktemp("originals")
    for name, shards in SHARDS.items():
        write_shards(
            folder / name,
            shards=shards,
            samples_per_shard=PER_SHARD,
            parts=lambda i, name=name: {"txt": f"{name}{i}".encode(), "bin": bytes(3000)},
        )
        yaml = {"sample_type": TEXT, "field_map": {"text": "txt"}, "subflavors": {"from": name, name: 1}}
        prepare_dataset(str(folder / name), split_ratio=(1, 0, 0), dataset_yaml=yaml)
    return folder


@pytest.fixture
def lake(originals, tmp_path, monkeypatch):
    """A test's own copy of them."""
    shutil.copytree(originals, tmp_path, dirs_exist_ok=True)
    (tmp_path / "joiners_for_tests.py").write_text(JOINERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("joiners_for_tests", None)


def function(name):
    return {"__module__": "joiners_for_tests", "__function__": name}


def write(lake, join, joiner=None, **splits_and_options):
    """A metadataset with one join; returns its path."""
    path = lake / "meta.yaml"
    document = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"join": join, "joiner": joiner or function("as_dict"), **splits_and_options}},
    }
    path.write_text(json.dumps(document))
    return path


def train(path, **changes):
    arguments = {
        "batch_size": None,
        "shuffle_buffer_size": 6,
        "max_samples_per_sequence": 4,
        "worker_config": WorkerConfig(0, 1, 0),
        "read_options": ReadOptions(max_ahead=64, first_samples=8),
        "trust_dataset_code": True,
    }
    return get_train_dataset(path, **{**arguments, **changes})


def in_order(path, **changes):
    options = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    return list(train(path, shuffle_over_epochs_multiplier=None, **options, **changes))


def texts(rows, *names):
    return [[f"{name}{row}" for name in names] for row in rows]


def test_skip_leaves_rows_out_and_none_passes_none(lake):
    members = [{"path": "a"}, {"path": "c"}, {"path": "b", "nonmatch": "skip"}]
    path = write(lake, members)
    (report,) = prepare_metadataset(path)
    assert (report.rows, report.skipped, report.missing) == (24, 16, (0, 0, 0))
    assert [sample["texts"] for sample in in_order(path)] == texts(range(24), "a", "c", "b")
    members[2]["nonmatch"] = "none"
    (report,) = prepare_metadataset(write(lake, members))
    assert (report.rows, report.skipped, report.missing) == (40, 0, (0, 0, 16))
    samples = in_order(path)
    assert [sample["texts"] for sample in samples] == [
        *texts(range(24), "a", "c", "b"),
        *texts(range(24, 40), "a", "c"),
    ]
    assert [sample["missing"] for sample in samples] == [False] * 24 + [True] * 16
    for sample in (samples[0], samples[-1]):
        names = [source.dataset_path.rpartition("/")[2] for source in sample["__sources__"]]
        assert names == (["a", "c", "b"] if sample is samples[0] else ["a", "c"])
    assert sorted(sample["texts"][0] for sample in train(path, repeat=False)) == sorted(
        sample["texts"][0] for sample in samples
    )


def keys_of(lake, name):
    """Keys of a dataset, and the text of each, as tarfile finds them."""
    found = {}
    for path in sorted((lake / name).glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith(".txt"):
                    found[member.name[:-4]] = tar.extractfile(member).read().decode()
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sizes", [True, False])
def test_missing_partners_in_any_order(lake, sizes, workers):
    """Rows have other numbers than the samples of a dataset, some of which have no such number."""
    (lake / "d").mkdir()
    for shard in range(4):  # samples of two forms, so that they are cut one by one
        with tarfile.open(lake / "d" / f"data-{shard}.tar", "w") as tar:
            for i in range(12 + 7 * shard, 17 + 7 * shard):
                for part, data in [("txt", f"d{i}".encode()), ("bin", bytes(700 * i))][: 1 + (i % 3 > 0)]:
                    member = tarfile.TarInfo(f"{i:08d}.{part}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    yaml = {"sample_type": TEXT, "field_map": {"text": "txt"}}
    prepare_dataset(str(lake / "d"), split_ratio=(1, 0, 0), dataset_yaml=yaml)
    if not sizes:
        for name in ("a", "d", "b"):
            with open(lake / name / INDEX_SQLITE, "r+b") as index:  # as other programs write it
                index.truncate(index.seek(0, 2) - 1)
    path = write(lake, [{"path": "a"}, {"path": "d", "nonmatch": "none"}, {"path": "b", "nonmatch": "skip"}])
    prepare_metadataset(path)
    first, second, third = (keys_of(lake, name) for name in ("a", "d", "b"))
    expected = [
        [member[key] for member in (first, second, third) if key in member] for key in first if key in third
    ]
    dataset = train(path, repeat=False, worker_config=WorkerConfig(0, 1, workers))
    read = [sample["texts"] for sample in get_loader(dataset)]
    assert read != expected
    assert sorted(read) == sorted(expected)


def test_error_names_the_samples_without_partner_and_writes_nothing(lake):
    path = write(lake, [{"path": "a"}, {"path": "b"}])
    result = CliRunner().invoke(main, ["prepare", str(path)])
    assert result.exit_code == 1
    assert all(word in result.output for word in ("'00000024'", "/b [train]", "nonmatch: skip"))
    with pytest.raises(DatasetError, match="no partner"):
        prepare_metadataset(path)
    with pytest.raises(NotPreparedError, match=r"energon-stream prepare .*meta\.yaml"):
        train(path)


def test_a_mapping_joins_by_keyword_and_a_class_by_from_joined(lake):
    join = {"main": {"path": "a"}, "extra": {"path": "b", "nonmatch": "none"}}
    path = write(lake, join, function("by_name"), subflavors={"from": "join"})
    prepare_metadataset(path)
    samples = in_order(path)
    assert [(sample.caption, sample.image) for sample in samples[23:25]] == [("a23", "b23"), ("a24", None)]
    assert [len(sample.__sources__) for sample in samples[23:25]] == [2, 1]
    path = write(lake, [{"path": "a"}, {"path": "c"}], TEXT)
    prepare_metadataset(path)
    sample = in_order(path, trust_dataset_code=False)[5]
    assert (sample.text, sample.__key__) == ("c5", "data-000000.tar/00000005")
    assert [source.dataset_path.rpartition("/")[2] for source in sample.__sources__] == ["a", "c"]


def test_references_of_joins_have_the_path_of_the_first_dataset(lake):
    path = write(lake, [{"path": "a"}, {"path": "c"}])
    prepare_metadataset(path)
    options = {"batch_size": 4, "worker_config": WorkerConfig(0, 1, 0), "trust_dataset_code": True}
    ((dataset, ref),) = get_val_datasets(path, split_part="train", **options)
    assert len(list(dataset)) == SHARDS["a"] * PER_SHARD // 4
    assert (ref.path, ref.split_part) == (str(lake / "a"), "train")
    assert [member.leaf.path for member in ref.members] == [str(lake / "a"), str(lake / "c")]


def test_a_joiner_may_skip_a_row(lake):
    path = write(lake, [{"path": "a"}, {"path": "c"}], function("even"))
    prepare_metadataset(path)
    assert [sample.text for sample in in_order(path)] == [f"a{i}" for i in range(0, 40, 2)]


@pytest.mark.parametrize("key", ["filter", "where", "share"])
def test_a_member_with_a_filter_names_the_joiner(lake, key):
    """``test_a_joiner_may_skip_a_row`` follows the hint."""
    path = write(lake, [{"path": "a", key: "even"}, {"path": "c"}])
    with pytest.raises(MetadataError, match=rf"'{key}' selects .*join\[0\].*SkipSample in the joiner"):
        prepare_metadataset(path)


@pytest.mark.every(2)
@pytest.mark.parametrize("streams", [1, 3])
def test_exact_resume_and_restore_by_key(lake, streams):
    path = write(lake, [{"path": "a"}, {"path": "b", "nonmatch": "none"}, {"path": "c"}])
    prepare_metadataset(path)
    config = WorkerConfig(0, 1, 0, num_streams=streams)
    options = {"worker_config": config, "batch_size": 3}
    steps, tail = (50, 12) if is_nightly() else (10, 6)
    assert_exact_resume(lambda: train(path, **options), steps=steps, tail=tail)
    assert_restores_by_key(lambda: train(path, **options))


def test_a_blend_of_joins_folders_and_jsonl(lake):
    path = write(lake, [{"path": "a"}, {"path": "c"}], TEXT)
    document = json.loads(path.read_text())
    join = document["splits"]["train"]
    document["splits"]["train"] = {"blend": [{**join, "weight": 2}, {"path": "b", "weight": 1}]}
    path.write_text(json.dumps(document))
    prepare_metadataset(path)
    seen = [sample.text[0] for sample in islice(train(path), 300)]
    assert set(seen) == {"b", "c"}
    assert 150 < seen.count("c") < 250
    assert_exact_resume(lambda: train(path), steps=40 if is_nightly() else 10, tail=8)


def test_a_joined_batch_costs_the_round_trips_of_a_plain_one(lake, s3_server, tmp_bucket):
    write(lake, [{"path": "a"}, {"path": "c"}])
    s3_server.upload_folder(lake, tmp_bucket)
    (report,) = prepare_metadataset(f"{tmp_bucket}/meta.yaml", storage_options=s3_server.storage_options)
    assert report.url.startswith(f"{tmp_bucket}/meta.yaml.cache/join_index_")
    s3_server.reset_counters()
    only_first = ReadOptions(max_ahead=1, first_samples=8)
    dataset = train(
        f"{tmp_bucket}/meta.yaml", storage_options=s3_server.storage_options, read_options=only_first
    )
    opening = s3_server.counters().total
    assert opening <= 1 + 2 * 4 + 2 + 1
    count = sum(1 for _ in islice(iter(dataset), 8))
    log = s3_server.log()[opening:]
    tars = [entry for entry in log if entry.key.endswith(".tar")]
    assert count == 8
    assert not [entry for entry in log if entry.key.endswith(".tar.idx")]
    assert len([entry for entry in log if entry.key.endswith(".bin")]) == 1
    assert len(tars) <= 2 * (8 + 1)  # the next sample may be on its way
    s3_server.reset_counters()
    samples = in_order(f"{tmp_bucket}/meta.yaml", storage_options=s3_server.storage_options)
    assert [sample["texts"] for sample in samples] == texts(range(40), "a", "c")
    assert set(s3_server.counters().requests) == {"GET"}


def test_large_indices_are_read_in_pages(lake, index_pages):
    path = write(lake, [{"path": "a"}, {"path": "c"}])
    prepare_metadataset(path)
    index_pages(row_bytes=100)  # two rows
    assert [sample["texts"] for sample in in_order(path)] == texts(range(40), "a", "c")


def test_excludes_and_split_parts(lake):
    """Excluded samples are no partners; another part, or excluded shards, make another index."""
    split = lake / "c" / ".nv-meta" / "split.yaml"
    names = [f"data-00000{i}.tar" for i in range(7)]
    path = write(lake, [{"path": "a"}, {"path": "c", "nonmatch": "skip"}], shuffle_over_epochs_multiplier=1)
    document = json.loads(path.read_text())
    document["splits"]["val"] = document["splits"]["train"]
    document["splits"]["val"]["join"][0]["split_part"] = "train"
    path.write_text(json.dumps(document))
    split.write_text(
        json.dumps(
            {
                "split_parts": {"train": names[:2], "val": names[2:]},
                "exclude": ["data-000000.tar/00000003", "data-000001.tar/00000009", "data-000002.tar"],
            }
        )
    )
    assert [report.rows for report in prepare_metadataset(path)] == [14, 16]
    assert len(list((lake / "meta.yaml.cache").iterdir())) == 2
    first = [sample["texts"] for sample in in_order(path)]
    assert first == texts([i for i in range(16) if i not in (3, 9)], "a", "c")
    assert [sample["texts"] for sample in in_order(path, split_part="val")] == texts(range(24, 40), "a", "c")


def test_datasets_without_sqlite_are_scanned(lake):
    path = write(lake, [{"path": "a"}, {"path": "c"}])
    for name in ("a", "c"):
        for file in ("index.sqlite", "index.uuid"):
            (lake / name / ".nv-meta" / file).unlink()
    assert prepare_metadataset(path)[0].rows == 40
    assert [sample["texts"] for sample in in_order(path)] == texts(range(40), "a", "c")


def test_a_stale_index_is_noticed_and_replaced(lake):
    path = write(lake, [{"path": "a"}, {"path": "c"}])
    prepare_metadataset(path)
    (index,) = (lake / "meta.yaml.cache").iterdir()
    (lake / "c" / ".nv-meta" / "index.uuid").write_text("another")
    with pytest.raises(NotPreparedError, match="prepared again"):
        train(path)
    prepare_metadataset(path)
    (other,) = (lake / "meta.yaml.cache").iterdir()
    assert other != index


def cut_short(index):
    return index[:-1]


def partner_of_another_row(index):
    return index[:40] + index[88:112] + index[64:]


def no_such_shard(index):
    return index[:40] + struct.pack("<q", 7) + index[48:]


def no_primary(index):
    return index[:16] + struct.pack("<3q", -1, -1, -1) + index[40:]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (cut_short, MetadataError, "not an index of a join of 2"),
        (partner_of_another_row, IndexMismatchError, "row 0 .*different keys: '00000000', '00000001'"),
        (no_such_shard, IndexMismatchError, "row 0 .*points outside"),
        (no_primary, IndexMismatchError, "row 0 .*points outside"),
    ],
)
def test_a_damaged_index_is_named(lake, damage, error, words):
    path = write(lake, [{"path": "a"}, {"path": "c"}])
    prepare_metadataset(path)
    (index,) = (lake / "meta.yaml.cache").iterdir()
    content = index.read_bytes()
    assert (content[:8], struct.unpack("<q", content[8:16])) == (b"JIDX0001", (2,))
    index.write_bytes(damage(content))
    with pytest.raises(error, match=words):
        list(train(path, repeat=False))


@pytest.mark.parametrize(
    ("joiner", "changes", "error", "words"),
    [
        (None, {"trust_dataset_code": False}, UntrustedCodeError, "joiners_for_tests.as_dict"),
        (function("NUMBER"), {}, MetadataError, "not a function"),
        (function("absent"), {}, MetadataError, "absent"),
        ({"__module__": "megatron.energon", "__class__": "TextSampel"}, {}, MetadataError, "'TextSample'"),
    ],
)
def test_joiners_that_cannot_be_used(lake, joiner, changes, error, words):
    path = write(lake, [{"path": "a"}, {"path": "c"}], joiner)
    prepare_metadataset(path)
    with pytest.raises(error, match=words):
        train(path, **changes)


def test_joins_that_cannot_be(lake):
    (lake / "x.jsonl").write_text('{"a": 1}\n')
    CliRunner().invoke(main, ["prepare", str(lake / "x.jsonl")])
    path = write(lake, [{"path": "a"}, {"path": "x.jsonl"}])
    with pytest.raises(ConfigError, match=r"only folders of tars.*x\.jsonl"):
        prepare_metadataset(path)
    document = json.loads(write(lake, [{"path": str(lake / "a")}, {"path": str(lake / "c")}]).read_text())
    with pytest.raises(ConfigError, match="needs a metadataset file"):
        train(document)
    dataset = lake / "c" / ".nv-meta" / "dataset.yaml"
    dataset.write_text(json.dumps({"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}))
    path = write(lake, [{"path": "a"}, {"path": "c"}], TEXT)
    prepare_metadataset(path)
    with pytest.raises(ConfigError, match="crude samples"):
        train(path)
