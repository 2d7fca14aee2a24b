"""Bad samples: their list, of which each run's is known beforehand, and runs that leave it out."""

import io
import json
import logging
import os
import shutil
import signal
import sys
import tarfile
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from energon_stream import (
    BadSample,
    BatchDataset,
    ConcatDataset,
    Cooker,
    DefaultTaskEncoder,
    FatalSampleError,
    PlannedPacking,
    ReadOptions,
    SkipSample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    open_run,
    read_bad_samples,
    reraise_exception,
    stateless,
    write_bad_samples,
)
from energon_stream.cli.main import main
from energon_stream.config.join_indices import prepare_metadataset
from energon_stream.errors import (
    ConfigError,
    LimitError,
    MetadataError,
    ObjectNotFoundError,
    StorageError,
    TooManyBadSamplesError,
)
from energon_stream.index.bad_samples import BadList
from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, TEXT_YAML, write_shards
from energon_stream.tools.lint.check_dataset import lint_dataset

SHARDS, EACH = 4, 15
SAMPLES = SHARDS * EACH
YAML = {
    "sample_type": {"__module__": "energon_stream", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "json[caption]"},
}
CUT, NO_JSON, BROKEN, REFUSED = {5, 40}, {23}, {14}, {31, 52}
DAMAGED = dict.fromkeys(CUT, ("DecodeError", "jpg"))
DAMAGED |= dict.fromkeys(NO_JSON, ("FieldError", "json"))
DAMAGED |= dict.fromkeys(BROKEN, ("DecodeError", "json"))
BAD = DAMAGED | dict.fromkeys(REFUSED, ("ValueError", None))


def picture(number):
    data = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, "JPEG", quality=95)
    return data.getvalue()


def parts(number):
    jpg = picture(number)[: 200 if number in CUT else None]
    text = b'{"caption": ' if number in BROKEN else json.dumps({"caption": f"text {number}"}).encode()
    return {"jpg": jpg} if number in NO_JSON else {"jpg": jpg, "json": text}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad") / "pictures"
    write_shards(folder, shards=SHARDS, samples_per_shard=EACH, parts=parts)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=YAML)
    return folder


def number_of(key):
    return int(key.rpartition("/")[2])


class Encoder(DefaultTaskEncoder):
    """Refuses some samples; batches are lists of their numbers."""

    def encode_sample(self, sample):
        if number_of(sample.__key__) in REFUSED:
            raise ValueError(f"no use for {sample.__key__}")
        return {"number": number_of(sample.__key__)}

    def batch(self, samples):
        return [sample["number"] for sample in samples]


def val(path, workers=0, rank=0, world=1, encoder=None, batch_size=4, split="train", **options):
    config = WorkerConfig(rank, world, workers, **{"num_streams": 4, **options.pop("config", {})})
    return get_val_dataset(
        path,
        split_part=split,
        batch_size=batch_size,
        worker_config=config,
        task_encoder=encoder or Encoder(),
        **options,
    )


def train(path, workers=0, rank=0, world=1, encoder=None, batch_size=4, **options):
    return get_train_dataset(
        path,
        batch_size=batch_size,
        worker_config=WorkerConfig(rank, world, workers, num_streams=4),
        task_encoder=encoder or Encoder(),
        **{"shuffle_buffer_size": 16, "max_samples_per_sequence": 5, **options},
    )


def expected(folder, numbers=BAD):
    """What a list must tell of samples: dataset, shard, number in the shard, key, error and part."""
    return {(str(folder), f"data-{n // EACH:06d}.tar", n % EACH, f"{n:08d}", *BAD[n]) for n in numbers}


def told(samples):
    found = [(s.dataset, s.shard, s.index, s.key, s.error, s.part) for s in samples]
    assert len(found) == len(set(found))
    return set(found)


def by_day_in_process(*values):
    """Parameters: each value without workers, the first one with one, and at night all of them."""
    in_worker = [
        pytest.param(value, 1, marks=[pytest.mark.slow] * (at > 0)) for at, value in enumerate(values)
    ]
    return [*[(value, 0) for value in values], *in_worker]


def flat(batches):
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_bad_sample_is_listed_once(pictures, workers):
    with get_loader(val(pictures, workers)) as loader:
        for passes in range(1, 4):
            assert set(flat(loader)) == set(range(SAMPLES)) - BAD.keys()
            found = loader.bad_samples()
            assert told(found) == expected(pictures)
            assert {sample.count for sample in found} == {passes}
    functions = {number_of(sample.key): sample.function for sample in found}
    assert {functions[number] for number in DAMAGED} == {"reading samples"}
    assert {functions[number] for number in REFUSED} == {"Encoder.encode_sample"}
    assert all(sample.line.partition(":")[2].isdecimal() for sample in found)
    assert all("no use for" in sample.message for sample in found if number_of(sample.key) in REFUSED)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_folder_of_a_run_has_the_list_of_all_ranks(pictures, tmp_path, world):
    run = tmp_path / "run"
    seen = Counter()
    for rank in range(world):
        with get_savable_loader(val(pictures, rank=rank, world=world), run=run) as loader:
            seen.update(flat(loader))
    assert seen == Counter(set(range(SAMPLES)) - BAD.keys())
    assert told(read_bad_samples(run)) == expected(pictures)
    assert {sample.count for sample in read_bad_samples(run)} == {1}
    one = tmp_path / "bad.jsonl"
    write_bad_samples(one, read_bad_samples(run))
    assert read_bad_samples(one) == read_bad_samples(run)


def counts(samples):
    return {number_of(sample.key): sample.count for sample in samples}


def test_a_resumed_run_goes_on_with_its_list(pictures, tmp_path):
    """Killed and resumed twice, on other numbers of ranks, as an undisturbed run."""
    steps, at = 20, [0, 5, 6, 11]
    with get_savable_loader(train(pictures), run=tmp_path / "straight") as straight:
        batches = list(islice(straight, steps * 4))
        state = straight.save_state_rank()
    whole = counts(read_bad_samples(tmp_path / "straight"))
    assert whole.keys() == BAD.keys()
    assert min(whole.values()) > 1

    run, states, again = tmp_path / "run", None, []
    for world, first, last in zip([4, 2, 2, 4], at, [*at[1:], steps], strict=True):
        loaders = []
        for rank in range(world):
            loader = get_savable_loader(train(pictures, rank=rank, world=world), run=run)
            loader.restore_state_global(states)
            loaders.append(loader)
        each = [iter(loader) for loader in loaders]
        for _ in range((last - first) * 4 // world):
            again += [next(batches) for batches in each]
        states = [loader.save_state_rank() for loader in loaders]
        for batches_of in each:  # past the state, and lost
            next(batches_of)
        del loaders, each
    assert sorted(map(str, again)) == sorted(map(str, batches))
    assert counts(read_bad_samples(run)) == whole
    saved = {s: each["counts"] for state in states for s, each in state["streams"].items()}
    assert saved == {s: each["counts"] for s, each in state["streams"].items()}
    assert sum(bad for _, bad, _ in saved.values()) == sum(whole.values())


def test_the_order_of_the_others_is_that_of_a_view(pictures, tmp_path):
    """A list leaves out what a file of keys does, by either form of the keys."""
    bad, keys, whole = (tmp_path / name for name in ("bad.jsonl", "keys.txt", "names.txt"))
    with get_loader(val(pictures)) as loader:
        list(loader)
    write_bad_samples(bad, loader.bad_samples())
    keys.write_text("".join(f"{number:08d}\n" for number in BAD))
    whole.write_text("".join(f"data-{n // EACH:06d}.tar/{n:08d}\n" for n in BAD))
    orders = []
    for exclude in (bad, str(keys), str(whole), [str(keys), bad]):
        with get_loader(train(pictures, exclude=exclude)) as loader:
            orders.append(flat(islice(loader, 40)))
    assert orders == orders[:1] * 4
    assert set(orders[0]) == set(range(SAMPLES)) - BAD.keys()


def test_a_run_leaves_out_what_another_run_found(pictures, tmp_path):
    """A blend in a blend; the folder of a run is the list, and the next run can be asked what it had."""
    other = tmp_path / "other"
    write_shards(other, shards=2, samples_per_shard=10, parts=lambda i: parts(i + 5))  # 5, 14 and 23 are bad
    prepare_dataset(str(other), split_ratio=(1, 0, 0), dataset_yaml=YAML)
    inner, mix = tmp_path / "inner.yaml", tmp_path / "mix.yaml"
    inner.write_text(
        f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {{train: {{path: {other}}}}}"
    )
    mix.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {blend: ["
        f"{{path: {pictures}, weight: 1}}, {{path: {inner}, weight: 1}}]}}}}"
    )

    class Places(DefaultTaskEncoder):
        def encode_sample(self, sample):
            (source,) = sample.__sources__
            return {"place": (source.dataset_path, source.index)}

        def batch(self, samples):
            return [sample["place"] for sample in samples]

    bad = {(str(pictures), number) for number in DAMAGED} | {(str(other), number) for number in (0, 9, 18)}
    run, again = tmp_path / "runs/a", tmp_path / "runs/b"
    with get_savable_loader(train(mix, encoder=Places()), run=run) as loader:
        seen = set(flat(islice(loader, 60)))
    every = {(str(pictures), number) for number in range(SAMPLES)} | {(str(other), n) for n in range(20)}
    assert seen == every - bad
    found = read_bad_samples(run)
    start = {f"data-{shard:06d}.tar": shard * 10 for shard in range(2)}
    assert {
        (s.dataset, start[s.shard] + s.index if s.dataset == str(other) else number_of(s.key)) for s in found
    } == bad
    with get_savable_loader(train(mix, encoder=Places(), exclude=run), run=again) as loader:
        batches = list(islice(loader, 60))
    assert set(flat(batches)) == every - bad
    assert loader.bad_samples() == read_bad_samples(again) == []
    answers = [rank.samples for step in range(60) for rank in open_run(again).which(step)]
    assert [[(each.dataset, each.number) for each in samples] for samples in answers] == batches


def test_lists_of_ones_own(pictures, tmp_path, caplog, monkeypatch):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        '\n{"key": "data-000000.tar/00000005", "note": "mine"}\n{"shard": "data-000000.tar", "index": 14}\n'
    )
    with get_loader(val(pictures, exclude=bad)) as loader:
        assert {5, 14}.isdisjoint(flat(loader))
        assert counts(loader.bad_samples()).keys() == BAD.keys() - {5, 14}
    bad.write_text('{"dataset": "/elsewhere", "key": "00000005"}\n')
    with caplog.at_level(logging.WARNING), get_loader(val(pictures, exclude=bad)) as loader:
        list(loader)
    assert counts(loader.bad_samples()).keys() == BAD.keys()
    assert "all of its samples are of other datasets: /elsewhere" in caplog.text
    (tmp_path / "runs").mkdir()
    for text in (
        "no JSON",
        "[1]",
        '{"key": 5}',
        '{"shard": "data-000000.tar"}',
        '{"key": "a", "index": -1.5}',
        '{"key": "a", "index": -1}',
        "[" * 100_000,
    ):
        bad.write_text(f'{{"key": "00000001"}}\n{text}\n')
        with pytest.raises(MetadataError, match=r"line 2(.|\n)*JSON object a line"):
            val(pictures, exclude=bad)
    bad.write_text("[1]")
    with pytest.raises(MetadataError, match="it is no JSON object"):
        val(pictures, exclude=bad)
    bad.write_text('{"key": "00000001"}\n' * 20)
    monkeypatch.setenv("ENERGON_STREAM_LIMITS", "document_values=200")
    with pytest.raises(LimitError, match="20 lines or more; the limit document_values is 200"):
        val(pictures, exclude=bad)
    monkeypatch.setenv("ENERGON_STREAM_LIMITS", "document_values=220")
    assert 1 not in flat(val(pictures, exclude=bad))
    with pytest.raises(ObjectNotFoundError):
        val(pictures, exclude=tmp_path / "runs")
    with pytest.raises(ObjectNotFoundError):
        val(pictures, exclude=tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="several columns"):
        val(pictures, exclude=["a", "b"])


def warned(caplog, open_it):
    """Warnings of exclude while a dataset is opened."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        open_it()
    return [text for text in caplog.messages if "samples of exclude" in text]


def test_samples_that_are_not_in_their_dataset_are_counted(pictures, tmp_path, caplog):
    bad, own = tmp_path / "bad.jsonl", str(pictures)
    there = BadSample(own, "data-000001.tar", 8, "00000023")
    moved = [BadSample(own, "data-000003.tar", number, f"{number:08d}") for number in range(5)]
    for samples, text in (
        ([there], None),
        ([*moved], "5 of the 5 samples"),
        ([there, *moved], "5 of the 6 samples"),
        ([there, BadSample("/elsewhere", key="a"), *moved], "5 of the 6 samples"),
        ([BadSample(index=3)], "1 of the 1 samples"),
        ([BadSample(own, "data-000001.tar", EACH)], "1 of the 1 samples"),
        ([BadSample(own, key="data-000001.tar/00000023"), BadSample(key="00000023")], None),
    ):
        write_bad_samples(bad, samples)
        told_of = warned(caplog, lambda: val(pictures, exclude=bad))
        assert len(told_of) == (text is not None)
        assert all(each.startswith(f"{text} of exclude: {bad} are not in it") for each in told_of)
    plain = shutil.copytree(pictures, tmp_path / "plain", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    write_bad_samples(
        bad, [BadSample(shard="data-000001.tar", index=EACH), BadSample(shard="a.tar", index=0)]
    )
    (text,) = warned(caplog, lambda: val(plain, exclude=bad, sample_type="CrudeSample"))
    assert text.startswith("2 of the 2 samples")


def test_samples_of_other_datasets_and_split_parts_are_not_missing(pictures, tmp_path, caplog):
    """One list for a blend, and for each split part."""
    parted = shutil.copytree(pictures, tmp_path / "parted")
    prepare_dataset(str(parted), split_ratio=(2, 2, 0), dataset_yaml=YAML, force=True)
    bad, mix = tmp_path / "bad.jsonl", tmp_path / "mix.yaml"
    write_bad_samples(bad, [BadSample(str(parted), f"data-{n // EACH:06d}.tar", key=f"{n:08d}") for n in BAD])
    for part in ("train", "val"):
        assert not warned(caplog, lambda part=part: val(parted, split=part, exclude=bad))
    only = tmp_path / "only"
    write_shards(only, shards=1, samples_per_shard=10, parts=lambda i: parts(i + 100))
    prepare_dataset(str(only), split_ratio=(1, 0, 0), dataset_yaml=YAML)
    kind = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    inputs = ", ".join(f"{{path: {path}, weight: 1}}" for path in (pictures, only, pictures))
    mix.write_text(f"{kind}splits: {{train: {{blend: [{inputs}]}}}}")
    write_bad_samples(bad, [BadSample(key="00000040"), BadSample(str(only), key="00000003")])
    assert not warned(caplog, lambda: train(mix, exclude=bad))
    mix.write_text(mix.read_text().replace("weight: 1", f"weight: 1, exclude: {bad}"))
    assert not warned(caplog, lambda: train(mix))


@pytest.mark.parametrize("place", ["local", "s3"])
def test_numbers_of_plain_tars_that_changed(tmp_path, caplog, place, s3_server, monkeypatch):
    """A sample before the others shifts their numbers: none is left out in place of the listed one."""
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "cache"))
    plain, bad = tmp_path / "plain", tmp_path / "bad.jsonl"
    url = str(plain) if place == "local" else "s3://bucket/plain"
    write_shards(plain, shards=1, samples_per_shard=10, parts=parts)
    declared = {
        "sample_type": "CaptioningSample",
        "field_map": YAML["field_map"],
        "exclude": bad,
        "batch_size": 1,
    }

    def opened():
        if place == "s3":
            s3_server.upload_folder(plain, url)
        return val(url, **declared, storage_options=s3_server.storage_options if place == "s3" else None)

    for key in ("00000005", "data-000000.tar/00000005"):
        write_bad_samples(bad, [BadSample(url, "data-000000.tar", 5, key)])
        assert not warned(caplog, opened)
    assert len(get_loader(opened())) == 9
    (tar,) = plain.glob("*.tar")
    tar.rename(old := tmp_path / "old.tar")
    with tarfile.open(old) as source, tarfile.open(tar, "w") as target:
        target.addfile(tarfile.TarInfo("0.jpg"))
        for member in source:
            target.addfile(member, source.extractfile(member))
    (text,) = warned(caplog, opened)
    assert "1 samples of exclude have other keys in it" in text
    assert "sample 5 is '00000004'" in text
    assert len(get_loader(opened())) == 11


@pytest.mark.parametrize("place", ["local", "s3"])
def test_numbers_of_json_lines_that_changed(tmp_path, caplog, place, s3_server):
    """Lines behind those of the list leave their numbers; any other change makes them unknown."""
    path, bad = tmp_path / "lines" / "lines.jsonl", tmp_path / "bad.jsonl"
    path.parent.mkdir()
    url = str(path) if place == "local" else "s3://bucket/lines/lines.jsonl"
    options = None if place == "local" else s3_server.storage_options
    good = [{"number": number, "text": "word " * 200} for number in range(20)]

    def put(lines):
        path.write_text("".join(line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines))
        if place == "s3":
            s3_server.upload_folder(path.parent, "s3://bucket/lines")
        prepare_jsonl(url, storage_options=options)

    def loader(**more):
        return get_loader(
            val(url, encoder=DefaultTaskEncoder(), batch_size=1, storage_options=options, **more)
        )

    def numbers():
        with loader(exclude=bad) as opened:
            return sorted(number for batch in opened for number in batch["json"]["number"])

    put([*good[:7], '{"number": }\n', *good[8:]])
    with loader() as opened:
        list(opened)
    write_bad_samples(bad, opened.bad_samples())
    both = [*range(7), *range(8, 21)]
    put([*good[:7], '{"number": }\n', *good[8:], {"number": 20}])
    assert not warned(caplog, lambda: loader(exclude=bad))
    assert numbers() == both
    put(good[1:])
    (text,) = warned(caplog, lambda: loader(exclude=bad))
    assert "1 of the 1 samples of exclude" in text
    assert numbers() == [*range(1, 20)]
    put(good)
    (text,) = warned(caplog, lambda: loader(exclude=bad))
    assert numbers() == [*range(20)]


@pytest.mark.parametrize("exclude", ["bad.jsonl", "lists/bad.jsonl", "[bad.jsonl, keys.txt]", "lists/"])
def test_metadatasets_name_lists(pictures, tmp_path, exclude):
    """Paths are relative to the file; a list is one of samples of this dataset alone."""
    (tmp_path / "lists/bad").mkdir(parents=True)
    for name in ("bad.jsonl", "lists/bad.jsonl", "lists/bad/rank-00003.jsonl"):
        write_bad_samples(tmp_path / name, [BadSample(str(pictures), key=f"{number:08d}") for number in BAD])
    (tmp_path / "keys.txt").write_text("data-000000.tar/00000000\n")
    mix = tmp_path / "mix.yaml"
    kind = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    mix.write_text(f"{kind}splits: {{train: {{path: {pictures}, exclude: {exclude}}}}}")
    with get_loader(val(mix)) as loader:
        assert set(flat(loader)) == set(range(SAMPLES)) - BAD.keys() - ({0} if "keys" in exclude else set())
    assert loader.bad_samples() == []


def test_plain_tars_and_json_lines(pictures, tmp_path):
    """Without an index of keys, samples are left out by their numbers."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"number": {n}}}\n' if n != 7 else '{"number": }\n' for n in range(20)))
    prepare_jsonl(str(lines))
    with get_loader(val(lines, encoder=DefaultTaskEncoder(), batch_size=1)) as loader:
        assert len(list(loader)) == 19
    (bad,) = loader.bad_samples()
    assert (bad.dataset, bad.shard, bad.index, bad.key, bad.error) == (
        str(lines),
        None,
        7,
        "7",
        "DecodeError",
    )
    write_bad_samples(tmp_path / "bad.jsonl", [bad])
    with get_loader(
        val(lines, encoder=DefaultTaskEncoder(), batch_size=1, exclude=tmp_path / "bad.jsonl")
    ) as loader:
        assert len(loader) == len(list(loader)) == 19
    assert loader.bad_samples() == []

    plain = shutil.copytree(pictures, tmp_path / "plain", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    declared = {"sample_type": "CaptioningSample", "field_map": YAML["field_map"]}
    with get_loader(val(plain, **declared)) as loader:
        list(loader)
    assert told(loader.bad_samples()) == expected(plain)
    write_bad_samples(tmp_path / "bad.jsonl", loader.bad_samples())
    with get_loader(val(plain, exclude=tmp_path / "bad.jsonl", **declared)) as loader:
        assert sorted(flat(loader)) == sorted(set(range(SAMPLES)) - BAD.keys())
    assert loader.bad_samples() == []


def join_of_first_and_second(first, second):
    if first.text == "first 6":
        raise ValueError("no joint use")
    return {"__key__": first.__key__, "texts": (first.text, second.text)}


def test_the_list_says_which_member_of_a_join_is_bad(tmp_path):
    for name, each, bad in (("first", 5, 3), ("second", 10, 8)):
        write_shards(
            tmp_path / name,
            shards=20 // each,
            samples_per_shard=each,
            parts=lambda i, name=name, bad=bad: {"txt": b"\xff" if i == bad else f"{name} {i}".encode()},
        )
        prepare_dataset(str(tmp_path / name), split_ratio=(1, 0, 0), dataset_yaml=TEXT_YAML)
    joiner = {"__module__": "test_bad_samples", "__function__": "join_of_first_and_second"}
    mix = tmp_path / "mix.yaml"
    joined = {"join": [{"path": "first"}, {"path": "second"}], "joiner": joiner}
    kind = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    mix.write_text(json.dumps({**kind, "splits": {"train": joined}}))
    prepare_metadataset(str(mix))

    class Refuses(DefaultTaskEncoder):
        def encode_sample(self, sample):
            if sample["texts"][0] == "first 17":
                raise ValueError("late")
            return sample

    shared = {"encoder": Refuses(), "batch_size": None, "trust_dataset_code": True}
    with get_loader(val(mix, **shared)) as loader:
        assert {number_of(sample["__key__"]) for sample in loader} == set(range(20)) - {3, 6, 8, 17}
    found = {(s.dataset, s.shard, s.key, s.error) for s in loader.bad_samples()}
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert found == {
        (first, "data-000000.tar", "00000003", "DecodeError"),
        (first, "data-000001.tar", "00000006", "ValueError"),
        (second, "data-000000.tar", "00000008", "DecodeError"),
        (first, "data-000003.tar", "00000017", "ValueError"),
    }
    bad = tmp_path / "bad.jsonl"
    write_bad_samples(bad, loader.bad_samples())
    with get_loader(val(mix, exclude=bad, **shared)) as loader:
        assert len(loader) == 16
        assert {number_of(sample["__key__"]) for sample in loader} == set(range(20)) - {3, 6, 8, 17}
    assert loader.bad_samples() == []


class Fails(Encoder):
    """Fails on batches or packs that have sample 33."""

    def __init__(self, where):
        self.where = where

    def check(self, where, samples):
        if where == self.where and 33 in [sample["number"] for sample in samples]:
            raise ValueError("33")

    def batch(self, samples):
        self.check("batch", samples)
        return super().batch(samples)

    def encode_batch(self, batch):
        self.check("encode_batch", [{"number": number} for number in batch])
        return batch


class Packs(Fails):
    def select_samples_to_pack(self, samples):
        self.check("select", samples)
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples):
        self.check("pack", samples)
        return {"number": [sample["number"] for sample in samples]}

    def batch(self, samples):
        return [number for sample in samples for number in sample["number"]]


@pytest.mark.parametrize(
    ("encoder", "together", "options"),
    [
        (Fails("batch"), 4, {}),
        (Fails("encode_batch"), 4, {}),
        (Packs("select"), 6, {"packing_buffer_size": 6}),
        (Packs("pack"), 3, {"packing_buffer_size": 6}),
        (Packs("encode_batch"), 6, {"packing_buffer_size": 6, "batch_size": 2}),
    ],
    ids=["batch", "encode_batch", "select", "pack", "encode_batch of packs"],
)
def test_a_batch_that_fails_names_all_of_its_samples(pictures, encoder, together, options):
    """The user's samples have no keys: they are found all the same."""
    with get_loader(val(pictures, encoder=encoder, **options)) as loader:
        good = set(flat(loader))
    found = {sample for sample in loader.bad_samples() if "33" in sample.message}
    assert {sample.together for sample in found} == {len(found)} == {together}
    lost = {number_of(sample.key) for sample in found}
    assert 33 in lost
    assert good | lost == set(range(SAMPLES)) - BAD.keys()
    assert not good & lost
    assert {(s.shard, s.index) for s in found} == {(f"data-{n // EACH:06d}.tar", n % EACH) for n in lost}


def fail_on_33(samples):
    numbers = [number_of(sample["key"] if isinstance(sample, dict) else sample.__key__) for sample in samples]
    if 33 in numbers:
        raise ValueError("33")
    return numbers


class OnlyKeys(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return {"key": sample.__key__}


def test_samples_of_pipelines_with_several_readers(pictures, tmp_path):
    """Both have a sample 33; the inputs of a mixture are told apart, and so are those of a mixture in it."""
    other = shutil.copytree(pictures, tmp_path / "other")
    folders = [other, pictures, other]
    inputs = [val(folder, batch_size=None, encoder=OnlyKeys()) for folder in folders]
    mixed = ConcatDataset(inputs[0], ConcatDataset(*inputs[1:]))
    with get_loader(BatchDataset(mixed, 2, fail_on_33)) as loader:
        list(loader)
    found = [sample for sample in loader.bad_samples() if "33" in sample.message]
    assert {sample.together for sample in found} == {2}
    assert {sample.dataset: sample.count for sample in found if sample.key == "00000033"} == {
        str(other): 2,
        str(pictures): 1,
    }
    assert counts(loader.bad_samples()).keys() >= DAMAGED.keys()


def test_samples_of_planned_packs(pictures):
    class Planned(DefaultTaskEncoder):
        def pack_selected_samples(self, samples):
            return {"number": fail_on_33(samples)}

        def batch(self, samples):
            return [number for sample in samples for number in sample["number"]]

    packing = PlannedPacking(cost=[1] * SAMPLES, capacity=5)
    with get_loader(train(pictures, encoder=Planned(), packing=packing, batch_size=1)) as loader:
        good = {number for batch in islice(loader, 60) for number in batch}
    found = [sample for sample in loader.bad_samples() if "33" in sample.message]
    assert 33 not in good
    assert "00000033" in {sample.key for sample in found}
    assert {sample.together for sample in found} <= {4, 5}
    assert counts(loader.bad_samples()).keys() >= DAMAGED.keys()


def test_a_generator_that_fails_after_some_elements(pictures):
    class Several(Encoder):
        def encode_sample(self, sample):
            yield {"number": number_of(sample.__key__)}
            yield super().encode_sample(sample)

    with get_loader(val(pictures, encoder=Several())) as loader:
        assert Counter(flat(loader)) == Counter(
            {n: 2 - (n in REFUSED) for n in set(range(SAMPLES)) - DAMAGED.keys()}
        )
    assert told(loader.bad_samples()) == expected(pictures)


def test_under_the_conventions_of_energon(pictures):
    with get_loader(val(pictures, config={"conventions": "energon"})) as loader:
        list(loader)
    assert told(loader.bad_samples()) == expected(pictures)


def test_a_worker_that_is_killed_changes_nothing(pictures):
    found = []
    for kills in (False, True):
        loader = get_loader(train(pictures, 2), on_worker_death="restart", start_method="fork")
        with loader:
            for step, _ in enumerate(islice(loader, 36)):
                if kills and step % 20 == 10:
                    os.kill(loader.worker_pids[step % 2], signal.SIGKILL)
        found.append(loader.bad_samples())
    assert counts(found[0]).keys() == BAD.keys()
    assert found[0] == found[1]


def cook(crude):
    if crude["json"]["caption"] == "text 44":
        raise ValueError("not this one")
    return {**basic_sample_keys(crude), "number": number_of(crude["__key__"]), "image": crude["jpg"]}


class Cooked(Encoder):
    cookers = [Cooker(cook)]

    def encode_sample(self, sample):
        return sample


@pytest.mark.parametrize("workers", [0, 1])
def test_parts_that_cookers_look_at(pictures, tmp_path, workers):
    crude = shutil.copytree(pictures, tmp_path / "crude", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    prepare_dataset(str(crude), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    with get_loader(val(crude, workers, encoder=Cooked())) as loader:
        assert set(flat(loader)) == set(range(SAMPLES)) - DAMAGED.keys() - {44}
    found = {number_of(s.key): (s.error, s.part) for s in loader.bad_samples()}
    missing = found.pop(23)
    assert missing[0] in ("KeyError", "FieldError")
    assert found == {n: DAMAGED[n] for n in DAMAGED.keys() - {23}} | {44: ("ValueError", None)}


class Broken(Encoder):
    """Fails on all samples from a number of calls on."""

    calls = 0

    def encode_sample(self, sample):
        self.calls += 1
        if self.calls > 30:
            raise self.error
        return super().encode_sample(sample)

    def __init__(self, error):
        self.error = error


@pytest.mark.parametrize(
    ("error", "workers"), by_day_in_process(ValueError("a typo"), KeyError("name"), NameError("name"))
)
def test_an_error_in_every_sample_blames_none(pictures, error, workers):
    loader = get_loader(train(pictures, workers, encoder=Broken(error)))
    with pytest.raises(NameError if isinstance(error, NameError) else FatalSampleError):
        list(loader)
    assert set(counts(loader.bad_samples())) <= BAD.keys()


@pytest.mark.parametrize("error", [StorageError("down"), PermissionError("no"), ConnectionResetError("gone")])
def test_what_a_store_does_is_no_fault_of_a_sample(pictures, error):
    class Sometimes(Encoder):
        def encode_sample(self, sample):
            if number_of(sample.__key__) == 33:
                raise error
            return super().encode_sample(sample)

    config = {"global_error_handler": lambda *_: None}
    with get_loader(val(pictures, encoder=Sometimes(), config=config)) as loader:
        assert set(flat(loader)) == set(range(SAMPLES)) - BAD.keys() - {33}
    assert counts(loader.bad_samples()).keys() == BAD.keys()


def test_the_sample_that_ends_a_run_is_listed(pictures):
    config = {"global_error_handler": reraise_exception}
    loader = get_loader(val(pictures, 1, config=config))
    with pytest.raises((ValueError, KeyError)):
        list(loader)
    assert counts(loader.bad_samples()).keys() < BAD.keys()
    assert len(loader.bad_samples()) >= 1


def test_what_the_program_drops_is_not_bad(pictures):
    class Drops(Encoder):
        def encode_sample(self, sample):
            raise SkipSample

    with get_loader(val(pictures, encoder=Drops())) as loader:
        assert list(loader) == []
    assert counts(loader.bad_samples()).keys() == DAMAGED.keys()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_share_of_bad_samples_ends_the_run(pictures, workers, tmp_path):
    """6 of 60 fail in a pass. 10 failures are needed, so that the second pass tells."""
    run = tmp_path / "run"
    loader = get_savable_loader(val(pictures, workers), max_bad=0.08, run=run)
    flat(loader)
    with pytest.raises(TooManyBadSamplesError) as caught:
        flat(loader)
    read = loader.save_state_rank()
    assert "on rank 0, which is more than max_bad=0.08" in caught.value.what
    assert "DecodeError (reading samples, " in caught.value.what
    failed, _, of = caught.value.what.split()[:3]
    failed, of = int(failed), int(of)
    assert failed == 10
    assert failed / of > 0.08
    assert SAMPLES < of < 120
    # A restored run counts on, and ends with the same sample.
    resumed = get_savable_loader(val(pictures, workers), max_bad=0.08)
    resumed.restore_state_rank(read)
    with pytest.raises(TooManyBadSamplesError) as again:
        flat(resumed)
    assert again.value.what.split(":")[0] == caught.value.what.split(":")[0]
    # The remedies, without workers: more may fail, or the list is left out.
    bad = tmp_path / "bad.jsonl"
    write_bad_samples(bad, loader.bad_samples())
    assert read_bad_samples(run) == loader.bad_samples()
    for limit, exclude in ((0.12, None), (0.08, bad)):
        with get_savable_loader(val(pictures, exclude=exclude), max_bad=limit) as remedied:
            assert [len(flat(remedied)) for _ in range(4)] == [SAMPLES - len(BAD)] * 4


def test_a_restored_list_without_a_run_begins_at_the_restore(pictures):
    with get_savable_loader(val(pictures)) as loader:
        list(loader)
        state = loader.save_state_rank()
    resumed = get_savable_loader(val(pictures), max_bad=0.08)
    resumed.restore_state_rank(state)
    assert resumed.bad_samples() == []
    with pytest.raises(TooManyBadSamplesError, match="and 6 before the restore, where the list begins"):
        list(resumed)
    assert len(resumed.bad_samples()) == 4


def test_a_restored_list_of_a_run_is_whole_at_once(pictures, tmp_path):
    with get_savable_loader(val(pictures), run=tmp_path, max_bad=0.08) as loader:
        list(loader)
        state, before = loader.save_state_rank(), loader.bad_samples()
    resumed = get_savable_loader(val(pictures), run=tmp_path, max_bad=0.08)
    resumed.restore_state_rank(state)
    assert told(resumed.bad_samples()) == told(before) == expected(pictures)
    with pytest.raises(TooManyBadSamplesError) as caught:
        list(resumed)
    assert "before the restore" not in caught.value.what
    resumed.restore_state_rank(None)
    assert resumed.bad_samples() == []


class Once(DefaultTaskEncoder):
    """Raises an error for one sample."""

    def __init__(self, error):
        self.error = error

    def encode_sample(self, sample):
        if number_of(sample.__key__) == 33:
            raise self.error
        return {"number": number_of(sample.__key__)}

    def batch(self, samples):
        return [sample["number"] for sample in samples]


def deep(levels):
    return deep(levels + 1)


class Deep(Once):
    def encode_sample(self, sample):
        if number_of(sample.__key__) == 33:
            deep(0)
        return super().encode_sample(sample)


@pytest.mark.parametrize(
    ("encoder", "workers"),
    by_day_in_process(Once(StopIteration()), Once(StopAsyncIteration()), Deep(None)),
)
def test_errors_that_one_sample_can_cause(pictures, encoder, workers):
    with get_loader(val(pictures, workers, encoder=encoder)) as loader:
        assert set(flat(loader)) == set(range(SAMPLES)) - DAMAGED.keys() - {33}
    error = type(encoder.error).__name__ if encoder.error else "RecursionError"
    assert {number_of(s.key): s.error for s in loader.bad_samples() if s.part is None} == {33: error}


def test_a_handler_that_raises_such_an_error_names_the_sample(pictures):
    def handler(error, sample, sources=None):
        if isinstance(error, StopIteration):
            raise error

    options = {"encoder": Once(StopIteration()), "config": {"global_error_handler": handler}}
    with pytest.raises(FatalSampleError, match=r"encode_sample raised StopIteration(.|\n)*00000033"):
        list(get_loader(val(pictures, **options)))


def test_wrong_shares(pictures):
    for share in (0, 1, -0.1, 7, "0.1", True):
        with pytest.raises(ConfigError, match=f"max_bad is {share!r}"):
            get_loader(val(pictures), max_bad=share)


@pytest.mark.every(2)
@pytest.mark.parametrize("workers", [0, 1])
def test_the_log_has_a_traceback_a_kind_and_then_counts(pictures, workers, capfd):
    """Six bad samples of four kinds, in each of ten passes."""
    logging.getLogger("energon_stream").addHandler(handler := logging.StreamHandler(sys.stderr))
    try:
        with get_loader(val(pictures, workers), start_method="fork") as loader:
            for _ in range(10):
                list(loader)
    finally:
        logging.getLogger("energon_stream").removeHandler(handler)
    lines = capfd.readouterr().err.splitlines()
    kinds = {sample.kind for sample in loader.bad_samples()}
    assert 3 <= len(kinds) <= 4
    assert sum(line.startswith("skipping sample ") for line in lines) == len(kinds)
    summaries = [line for line in lines if "samples failed:" in line]
    assert 2 <= len(summaries) <= 11
    assert summaries[-1].startswith("rank 0: 60 of 600 samples failed: 20 ")


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_have_equal_steps(pictures, world):
    """All bad samples are of one shard; each rank has full batches, and as many as the others."""
    options = {"virtual_epoch_length": 12, "parallel_shard_iters": 1}
    lengths = []
    for rank in range(world):
        with get_loader(train(pictures, rank=rank, world=world, **options)) as loader:
            batches = list(loader)
        assert {len(batch) for batch in batches} == {4}
        lengths.append(len(batches))
    assert set(lengths) == {12}


def test_validation_that_skips_may_be_filled_up(pictures):
    ends = [
        len(list(get_loader(val(pictures, rank=rank, world=4, ends="uneven", batch_size=1))))
        for rank in range(4)
    ]
    assert len(set(ends)) > 1
    for how in ("pad", "drop"):
        ends = []
        for rank in range(4):
            with get_loader(
                val(pictures, rank=rank, world=4, ends=how, batch_size=1, encoder=Stateless())
            ) as loader:
                ends.append(len(list(loader)))
        assert len(set(ends)) == 1


class Stateless(Encoder):
    encode_sample = stateless(Encoder.encode_sample)
    batch = stateless(Encoder.batch)


def test_the_list_has_a_bound(caplog):
    found = BadList([BadSample("a", "a.tar", number) for number in range(103)], most=100)
    found.add([BadSample("a", "a.tar", 5), BadSample("a", "a.tar", 101)])
    assert len(found.samples) == 100
    assert found.samples[5].count == 2
    assert caplog.text.count("the list has 100 bad samples; others are only counted") == 1


def test_lint_writes_the_list_of_a_run(pictures, tmp_path):
    with get_loader(val(pictures)) as loader:
        list(loader)
    of_run = {identity(sample) for sample in loader.bad_samples() if number_of(sample.key) not in REFUSED}
    assert {identity(sample) for sample in lint_dataset(str(pictures)).bad_samples()} == of_run
    mix = tmp_path / "mix.yaml"
    kind = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    mix.write_text(f"{kind}splits: {{train: {{path: {pictures}}}}}")
    for path, options in ((pictures, []), (mix, []), (mix, ["--parallel", "2"])):
        bad = tmp_path / "bad.jsonl"
        result = CliRunner().invoke(main, ["lint", str(path), "--bad", str(bad), *options])
        assert result.exit_code == 1
        assert {identity(sample) for sample in read_bad_samples(bad)} == of_run
        with get_loader(val(pictures, exclude=bad)) as loader:
            assert set(flat(loader)) == set(range(SAMPLES)) - BAD.keys()
        assert counts(loader.bad_samples()).keys() == REFUSED


def identity(sample):
    return sample.dataset, sample.shard, sample.index, sample.key, sample.error, sample.part


def bounds(folder, numbers):
    """First byte and end of samples in their tars, by tar, from tarfile."""
    found = {}
    for number in numbers:
        name = f"data-{number // EACH:06d}.tar"
        with tarfile.open(folder / name) as tar:
            own = [each for each in tar if each.name.startswith(f"{number:08d}.")]
        stop = own[-1].offset_data + -(-own[-1].size // 512) * 512
        found.setdefault(name, []).append((own[0].offset, stop))
    return found


def fetched(log, name):
    """Ranges of a tar that a server was asked for."""
    ranges = [entry.range.removeprefix("bytes=") for entry in log if entry.key.endswith(name)]
    return [(int(first), int(last) + 1) for first, _, last in (each.partition("-") for each in ranges)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_excluded_samples_cost_no_byte(pictures, s3_server, ranks):
    """The list is that of a run, and lies in the store too."""
    url, run = "s3://bucket/pictures", "s3://bucket/runs/a"
    s3_server.upload_folder(pictures, url)
    shared = {"storage_options": s3_server.storage_options, "read_options": ReadOptions(max_gap=0)}
    shared["config"] = {"num_streams": 2}
    recorded = {"run": run, "run_storage_options": s3_server.storage_options}
    for rank in range(ranks):
        with get_savable_loader(val(url, rank=rank, world=ranks, **shared), **recorded) as loader:
            list(loader)
    found = read_bad_samples(run, storage_options=s3_server.storage_options)
    assert told(found) == {(url, *rest) for _, *rest in expected(pictures)}
    assert all(overlap(s3_server.log(), pictures))

    s3_server.reset_counters()
    numbers = []
    for rank in range(ranks):
        with get_loader(val(url, rank=rank, world=ranks, exclude=run, **shared)) as loader:
            assert len(loader) == -(-(SAMPLES - len(BAD)) // ranks // 4)
            numbers += flat(loader)
            assert loader.bad_samples() == []
    assert sorted(numbers) == sorted(set(range(SAMPLES)) - BAD.keys())
    assert not any(overlap(s3_server.log(), pictures))


def overlap(log, folder):
    """Yield for each bad sample whether any of its bytes were fetched."""
    for name, places in bounds(folder, BAD).items():
        for first, stop in places:
            yield any(begin < stop and first < end for begin, end in fetched(log, name))
