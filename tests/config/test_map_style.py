"""``open_dataset``: samples by index and key. ``tarfile``, ``json`` and pyarrow say which ones there are."""

import io
import json
import pickle
import random
import tarfile

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Subset, WeightedRandomSampler

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    FilterDataset,
    SkipSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_processing_dataset,
    open_dataset,
    prepare_metadataset,
    stateless,
)
from energon_stream.errors import (
    ConfigError,
    DuplicateKeyError,
    EnergonStreamError,
    NotPreparedError,
    SampleError,
    SampleIndexError,
    SampleKeyError,
    UnknownArgumentError,
)
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.index.yaml_io import dump_yaml
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import prepared_text_dataset

SHARDS, EACH = 3, 8
ALONE = WorkerConfig(0, 1, 0)


def in_tars(folder):
    """Texts by key, in the order of the tars."""
    found = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as members:
            for member in members:
                key = f"{path.name}/{member.name.partition('.')[0]}"
                found[key] = members.extractfile(member).read().decode()
    return found


def texts_of(samples):
    return [sample.text for sample in samples]


@pytest.fixture
def folder(tmp_path):
    return prepared_text_dataset(tmp_path / "texts", shards=SHARDS, samples_per_shard=EACH)


@pytest.fixture
def excluding(folder):
    """Two samples, and a shard, that ``split.yaml`` excludes; and the texts that are left."""
    meta = folder / ".nv-meta/split.yaml"
    shards = sorted(path.name for path in folder.glob("*.tar"))
    keys = [f"{shards[0]}/{3:08d}", f"{shards[2]}/{2 * EACH:08d}", shards[1]]
    meta.write_bytes(dump_yaml({"split_parts": {"train": shards}, "exclude": keys}))
    left = {key: text for key, text in in_tars(folder).items() if not {key, key.split("/")[0]} & {*keys}}
    return keys, left


def test_indices_and_keys_are_those_of_the_tars(folder):
    wanted = in_tars(folder)
    dataset, texts = open_dataset(folder), [*wanted.values()]
    assert len(dataset) == len(wanted) == SHARDS * EACH
    assert [sample.__key__ for sample in dataset] == [*wanted]
    assert texts_of(dataset[i] for i in range(len(dataset))) == texts
    assert texts_of(dataset[i] for i in (-1, -24, np.int64(5), torch.tensor(7))) == [
        texts[i] for i in (-1, 0, 5, 7)
    ]
    order = [5, 23, 5, 0, -2, 9, 8, 10]
    assert texts_of(dataset.__getitems__(order)) == [texts[i] for i in order]
    assert texts_of(dataset.by_key(key) for key in wanted) == texts
    assert texts_of(dataset.by_key(key.partition("/")[2]) for key in wanted) == texts
    assert dataset.__getitems__([]) == []


@pytest.mark.parametrize(
    "part", [slice(3, 9), slice(None, None, -1), slice(-5, None), slice(4, 2), slice(1, 20, 7), slice(2, 99)]
)
def test_a_slice_is_a_part_of_the_dataset(folder, part):
    texts = [*in_tars(folder).values()][part]
    dataset = open_dataset(folder)[part]
    assert texts_of(dataset) == texts
    assert texts_of(dataset[::2]) == texts[::2]
    assert len(dataset) == len(texts)
    if texts:
        assert dataset[-1].text == texts[-1]
    with pytest.raises(IndexError):
        dataset[len(texts)]


@pytest.mark.parametrize(
    ("access", "error", "text"),
    [
        (lambda dataset: dataset[24], SampleIndexError, r"no sample 24 among 24 .*texts \[train\]\]. Use"),
        (lambda dataset: dataset[-25], IndexError, "no sample -25"),
        (lambda dataset: dataset[3:3][0], IndexError, "Widen the slice"),
        (lambda dataset: dataset["00000001"], ConfigError, "by_key takes keys"),
        (lambda dataset: dataset[1.5], ConfigError, "1.5 is no index"),
        (lambda dataset: dataset[::0], ConfigError, r"slice\(None, None, 0\) is no slice.*other than 0"),
        (lambda dataset: dataset["a":], ConfigError, "is no slice.*whole numbers"),
        (
            lambda dataset: dataset.by_key("nope"),
            SampleKeyError,
            r"no sample has the key 'nope' .*texts \[train\]",
        ),
        (lambda dataset: dataset.by_key("data-000001.tar/00000001"), KeyError, "no sample has the key"),
        (lambda dataset: dataset[:5].by_key("00000007"), KeyError, "no sample has the key"),
        (lambda dataset: dataset.by_key("x'; drop table samples; --"), KeyError, "no sample"),
        (lambda dataset: dataset.by_key("\udcff"), KeyError, "no sample"),
        (lambda dataset: dataset.by_key(7), KeyError, "no sample"),
    ],
)
def test_what_there_is_not(folder, access, error, text):
    with pytest.raises(error, match=text) as caught:
        access(open_dataset(folder))
    assert isinstance(caught.value, EnergonStreamError)


def test_excluded_samples_have_no_index(excluding, folder):
    keys, left = excluding
    dataset = open_dataset(folder)
    assert texts_of(dataset) == texts_of(dataset[i] for i in range(len(dataset))) == [*left.values()]
    assert texts_of(dataset.by_key(key) for key in left) == [*left.values()]
    for key in keys[:2]:
        with pytest.raises(SampleKeyError):
            dataset.by_key(key)


def test_a_shard_that_is_named_twice_is_excluded_twice(folder, tmp_path):
    shards, wanted = sorted(path.name for path in folder.glob("*.tar")), [*in_tars(folder).values()]
    meta, parts = folder / ".nv-meta/split.yaml", {"train": [*shards, shards[0]]}
    meta.write_bytes(dump_yaml({"split_parts": parts, "exclude": [f"{shards[0]}/{3:08d}"]}))
    dataset = open_dataset(folder)
    del wanted[3]
    assert texts_of(dataset) == [*wanted, *wanted[: EACH - 1]]
    assert dataset.by_key(f"{1:08d}").text == dataset[1 - EACH :].by_key(f"{1:08d}").text == wanted[1]
    meta.write_bytes(dump_yaml({"split_parts": parts, "exclude": []}))
    (tmp_path / "left.txt").write_text(f"{3:08d}\n")
    (tmp_path / "left.jsonl").write_text(json.dumps({"shard": shards[0], "key": f"{3:08d}"}) + "\n")
    for name in ("left.txt", "left.jsonl"):
        assert texts_of(open_dataset(folder, exclude=str(tmp_path / name))) == [*wanted, *wanted[: EACH - 1]]


def test_a_key_that_is_excluded_and_looks_like_that_of_another_shard(tmp_path):
    shards = ["a.tar", "b.tar"]
    (tmp_path / "texts").mkdir()
    for name, key in zip(shards, ("b.tar/1", "1"), strict=True):
        with tarfile.open(tmp_path / "texts" / name, "w") as tar:
            member = tarfile.TarInfo(f"{key}.txt")
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    document = {"__module__": "megatron.energon", "__class__": "TextWebdataset", "field_map": {"text": "txt"}}
    prepare_dataset(tmp_path / "texts", split_ratio=(1, 0, 0), dataset_yaml=document)
    split = {"split_parts": {"train": shards}, "exclude": ["a.tar/b.tar/1"]}
    (tmp_path / "texts/.nv-meta/split.yaml").write_bytes(dump_yaml(split))
    assert texts_of(open_dataset(tmp_path / "texts")) == ["b.tar"]


def test_exclusions_without_an_index_of_keys_say_what_to_do(excluding, folder):
    (folder / ".nv-meta/index.sqlite").unlink()
    with pytest.raises(NotPreparedError, match=r"prepare`, or take the keys of samples out of `exclude`"):
        open_dataset(folder)


@pytest.mark.parametrize("options", [{"subset": {"range": [2, 11]}}, {"share": 0.6}, {"exclude": "left.txt"}])
def test_an_index_is_that_of_the_view(excluding, folder, tmp_path, monkeypatch, options):
    """The stream, whose excluded samples take places in subsets, says what is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "left.txt").write_text("00000004\n00000019\n")
    wanted = texts_of(get_processing_dataset(folder, worker_config=ALONE, **options))
    dataset = open_dataset(folder, **options)
    assert texts_of(dataset) == wanted
    assert 0 < len(dataset) == len(wanted) < len(excluding[1])
    for key, text in excluding[1].items():
        if text in wanted:
            assert dataset.by_key(key).text == text
        else:
            with pytest.raises(SampleKeyError):
                dataset.by_key(key)


def test_weights_of_samples_are_refused(folder):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from energon_stream.prepare.add_tables import add_table

    pq.write_table(pa.table({"clip": np.arange(24) + 1.0}), folder / "t.parquet")
    add_table(folder, folder / "t.parquet")
    with pytest.raises(ConfigError, match=r"weight_by repeats.*WeightedRandomSampler"):
        open_dataset(folder, weight_by="clip")
    weights, dataset = [0.0] * 23 + [1.0], open_dataset(folder, where="clip > 0")
    found = DataLoader(dataset, sampler=WeightedRandomSampler(weights, 4), batch_size=None)
    assert texts_of(found) == [dataset[23].text] * 4


def test_mixtures_follow_each_other_and_joins_have_the_index_of_the_primary(tmp_path):
    for name, shards in (("a", 3), ("b", 2)):
        prepared_text_dataset(tmp_path / name, shards=shards, samples_per_shard=5, text=f"{name} {{}}")
    a, b = in_tars(tmp_path / "a"), in_tars(tmp_path / "b")
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    blend = [{"path": str(tmp_path / name), "weight": weight} for name, weight in (("b", 1), ("a", 9))]
    mixed = open_dataset({**head, "splits": {"train": {"blend": blend}}})
    assert texts_of(mixed) == [*b.values(), *a.values()]
    assert texts_of(mixed.__getitems__([24, 0, 10, 9])) == ["a 14", "b 0", "a 0", "b 9"]
    assert mixed.by_key("00000012").text == "a 12"
    with pytest.raises(DuplicateKeyError, match=r"samples 3, 13 have the key.*of a mixture, open one"):
        mixed.by_key("00000003")
    joiner = {"__module__": "megatron.energon", "__class__": "TextSample"}
    node = {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}], "joiner": joiner}
    path = tmp_path / "join.yaml"
    path.write_bytes(dump_yaml({**head, "splits": {"train": node}}))
    prepare_metadataset(path)
    joined = open_dataset(path)
    assert [sample.__key__ for sample in joined] == [*a][:10]
    assert texts_of(joined) == [*b.values()]  # the last of the samples with a text
    assert texts_of(joined.by_key(key) for key in [*a][:10]) == [*b.values()]
    with pytest.raises(SampleKeyError):
        joined.by_key([*a][10])
    assert len(joined[8].__sources__) == 2


def test_other_formats_and_plain_tars(folder, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"n": n, "text": "word " * (n % 5)} for n in range(50)]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare_jsonl(lines)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=7)
    read = {
        "lines.jsonl": lambda sample: sample["json"],
        "rows.parquet": lambda sample: {k: sample[k] for k in rows[0]},
    }
    for name, row in read.items():
        dataset = open_dataset(tmp_path / name)
        order = [49, 0, 6, 7, 8, 30, 7]
        assert [row(sample) for sample in dataset] == [row(dataset[i]) for i in range(50)] == rows
        assert [row(sample) for sample in dataset.__getitems__(order)] == [rows[i] for i in order]
        assert row(dataset.by_key("17")) == rows[17]
        for key in ("50", "017", "-1", "٣", "9" * 5000):
            with pytest.raises(SampleKeyError):
                dataset.by_key(key)
    plain = open_dataset(
        f"{folder}/data-{{000000..000002}}.tar", sample_type=TextSample, field_map={"text": "txt"}
    )
    assert texts_of(plain[5:20:3]) == [*in_tars(folder).values()][5:20:3]
    with pytest.raises(NotPreparedError, match=r"the keys have no index.*prepare"):
        plain.by_key("00000001")


class Encoder(DefaultTaskEncoder):
    """A cooker, and an encoder with random draws."""

    def __init__(self, skip=None, several=False):
        super().__init__()
        self.cookers = [Cooker(self.cook)]
        self.skip, self.several = skip, several

    def cook(self, crude):
        return TextSample(**basic_sample_keys(crude), text=crude["txt"])

    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        if sample.text == self.skip:
            raise SkipSample
        if self.several:
            return (each for each in [sample])
        sample.text = f"{sample.text} {random.random()}"
        return sample


def crude(folder):
    (folder / ".nv-meta/dataset.yaml").write_bytes(
        dump_yaml({"__module__": "megatron.energon", "__class__": "CrudeWebdataset"})
    )
    return folder


def test_samples_are_cooked_and_encoded_and_draw_by_their_index(folder):
    texts = [*in_tars(folder).values()]
    dataset = open_dataset(crude(folder), task_encoder=Encoder())
    found = texts_of(dataset)
    assert [text.rpartition(" ")[0] for text in found] == texts
    assert len({text.rpartition(" ")[2] for text in found}) == len(texts)
    assert texts_of(dataset[::-1]) == found[::-1]
    assert dataset[7].text == dataset[5:][2].text == dataset.by_key("00000007").text == found[7]
    with pytest.raises(SampleError, match=r"hook skips sample 4 .*collate_fn"):
        open_dataset(folder, task_encoder=Encoder(skip=texts[4])).__getitems__([3, 4])
    with pytest.raises(ConfigError, match="makes several samples of sample 0"):
        open_dataset(folder, task_encoder=Encoder(several=True))[0]


@pytest.mark.parametrize("error", [StopIteration, IndexError, KeyError("text")])
def test_no_error_of_a_hook_ends_a_loop_or_says_that_a_sample_is_missing(folder, error):
    class Failing(Encoder):
        def encode_sample(self, sample):
            if sample.text == "text 5":
                raise error
            return sample

    dataset, read = open_dataset(crude(folder), task_encoder=Failing()), []
    with pytest.raises(
        SampleError, match=r"data-000000.tar/00000005 failed: .*encode_sample raised"
    ) as caught:
        read.extend(sample.text for sample in Subset(dataset, range(24)))  # an IndexError would end it
    assert read == [f"text {number}" for number in range(5)]
    assert isinstance(caught.value.__cause__, error if isinstance(error, type) else KeyError)
    assert not isinstance(caught.value, LookupError)
    for access in (lambda: list(DataLoader(dataset, batch_size=None)), lambda: dataset.by_key("00000005")):
        with pytest.raises(SampleError):
            access()


class OneByOne(DefaultTaskEncoder):
    """Takes each dataset of a mixture on its own, and may add an operator."""

    def __init__(self, operator=None):
        super().__init__()
        self.operator = operator

    def build_cook_crude_sample(self, dataset, *, worker_config, **others):
        return self.operator(dataset) if self.operator else dataset


def test_pipelines_of_the_users_own(folder):
    dataset = open_dataset(folder, task_encoder=OneByOne())
    assert texts_of(dataset) == [*in_tars(folder).values()]
    with pytest.raises(ConfigError, match=r"OneByOne builds a pipeline with a FilterDataset"):
        open_dataset(folder, task_encoder=OneByOne(lambda dataset: FilterDataset(dataset, bool)))
    node = {"blend": [{"path": str(folder), "weight": 1}] * 2}
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": node}}
    with pytest.raises(ConfigError, match=r"OneByOne takes each dataset.*one by one"):
        open_dataset(document, task_encoder=OneByOne())


def test_options_that_mean_nothing_here_are_refused(folder):
    for option in (
        {"worker_config": ALONE},
        {"handler": print},
        {"batch_size": 3},
        {"shuffle_buffer_size": 3},
    ):
        with pytest.raises(UnknownArgumentError):
            open_dataset(folder, **option)


def gets(server):
    return [(entry.key.rpartition("/")[2], entry.range) for entry in server.log() if entry.method == "GET"]


@pytest.fixture
def bucket(folder, s3_server):
    s3_server.upload_folder(folder, "s3://bucket/texts")
    return {"path": "s3://bucket/texts", "storage_options": s3_server.storage_options}


def test_a_sample_is_one_request(bucket, s3_server, tmp_path):
    dataset = open_dataset(**bucket)
    opened = len(gets(s3_server))
    for index in (17, 3, 3, 23):
        s3_server.reset_counters()
        assert dataset[index].text == f"text {index}"
        assert [name for name, _ in gets(s3_server)] == [f"data-{index // EACH:06d}.tar"]
    s3_server.reset_counters()
    assert texts_of(dataset.__getitems__([12, 10, 11, 9, 20])) == [f"text {n}" for n in (12, 10, 11, 9, 20)]
    assert sorted(name for name, _ in gets(s3_server)) == ["data-000001.tar", "data-000002.tar"]
    s3_server.reset_counters()
    assert dataset.by_key("00000013").text == "text 13"
    keys = [name for name, _ in gets(s3_server) if name == "index.sqlite"]
    assert len(gets(s3_server)) == len(keys) + 1
    assert len(keys) <= 4
    s3_server.reset_counters()
    assert dataset.by_key("00000014").text == "text 14"
    assert len(gets(s3_server)) == 1
    assert opened <= 6
    cached = open_dataset(**bucket, cache=str(tmp_path / "cache"))
    assert texts_of(cached) == texts_of(cached)
    s3_server.reset_counters()
    assert texts_of(cached[i] for i in range(len(cached))) == [f"text {n}" for n in range(24)]
    assert gets(s3_server) == []


def test_without_sizes_the_index_of_a_shard_is_read_once(bucket, s3_server):
    """Of more than 16 datasets, opening reads no sizes of samples."""
    node = {"blend": [{"path": "s3://bucket/texts", "weight": 1}] * 17}
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    options = {"storage_options": bucket["storage_options"]}
    dataset = open_dataset({**head, "splits": {"train": node}}, **options)
    for index, names in ((30, ["data-000000.tar", "data-000000.tar.idx"]), (29, ["data-000000.tar"])):
        s3_server.reset_counters()
        assert dataset[index].text == f"text {index - 24}"
        assert sorted(name for name, _ in gets(s3_server)) == names


@pytest.mark.usefixtures("forked_spawn")
@pytest.mark.parametrize(
    ("method", "read_before"),
    [pytest.param("fork", False, marks=pytest.mark.slow), ("fork", True), ("spawn", True)],
)
def test_workers_of_torch_read_what_this_process_reads(bucket, method, read_before):
    dataset = open_dataset(**bucket)
    if read_before:
        assert dataset[1].text == "text 1"
    options = {"num_workers": 2, "multiprocessing_context": method, "collate_fn": dataset.collate}
    sampler = BatchSampler(RandomSampler(dataset, generator=torch.Generator().manual_seed(1)), 5, False)
    batches = [batch.text for batch in DataLoader(dataset, batch_sampler=sampler, **options)]
    wanted = [
        [f"text {n}" for n in batch]
        for batch in BatchSampler(
            RandomSampler(range(24), generator=torch.Generator().manual_seed(1)), 5, False
        )
    ]
    assert batches == wanted
    part = Subset(dataset, [3, 9, 20])
    assert [b.text for b in DataLoader(part, 2, collate_fn=dataset.collate)] == [
        ["text 3", "text 9"],
        ["text 20"],
    ]
    assert dataset[2].text == "text 2"


def test_it_is_picklable(bucket):
    part = open_dataset(**bucket)[4:9]
    again = pickle.loads(pickle.dumps(part))
    assert texts_of(again) == texts_of(part) == [f"text {n}" for n in range(4, 9)]
    assert repr(again) == "MapStyleDataset(s3://bucket/texts [train], 5 samples)"
