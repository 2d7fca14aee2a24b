"""Names of Megatron-Energon that have another form in this library, used as programs use them."""

import dataclasses
import io
import json
import logging
import random
import struct
import tarfile
import threading
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from energon_stream.index.jsonl_index import prepare_jsonl
from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume

pytestmark = pytest.mark.usefixtures("alias")

ONE = {"rank": 0, "world_size": 1, "num_workers": 0}


@pytest.fixture
def coco(data):
    from megatron.energon.epathlib import EPath

    return EPath(data / "coco")


@pytest.fixture
def lines(tmp_path):
    from megatron.energon.epathlib import EPath

    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(5)))
    prepare_jsonl(str(path))
    return EPath(path)


@pytest.mark.energon("bracecollapse.collapse")
@pytest.mark.parametrize(
    ("names", "collapsed", "in_order"),
    [
        (["b2", "b1", "b3", "a"], ["b{1..3}", "a"], ["b2", "b1", "b3", "a"]),
        (["c1", "b", "c0", "a2", "a1"], ["a{1..2}", "c{0..1}", "b"], ["c1", "b", "c0", "a2", "a1"]),
        (["a1b1", "a1b2", "a2b1"], ["a1b{1..2}", "a2b1"], ["a1b{1..2}", "a2b1"]),
        (["s9", "s10"], ["s9", "s10"], ["s9", "s10"]),
        (["a", "a"], ["a", "a"], ["a", "a"]),
        ([], [], []),
    ],
)
def test_collapsing_names(names, collapsed, in_order):
    from megatron.energon.bracecollapse import collapse

    assert (collapse(names), collapse(names, keep_order=True)) == (collapsed, in_order)


@pytest.mark.energon("split_field_access", "field_access", "FieldAccessError")
def test_places_of_fields():
    from megatron.energon.flavors.webdataset.field_access import (
        FieldAccessError,
        field_access,
        split_field_access,
    )

    assert split_field_access("json[a][0],left.jpg") == [["json", "a", "0"], ["left.jpg"]]
    assert field_access({"a": [1, {"b": None}]}, split_field_access("x,a[1][b]")) is None
    for value in ({"a": "text"}, {"a": None}, {}, 3):
        with pytest.raises(FieldAccessError, match="there is no"):
            field_access(value, split_field_access("a[0]"))


@pytest.mark.energon("add_source_info", "get_source_info", "eyaml.load_yaml_json", "to_json_object")
def test_sources_and_documents(coco):
    from megatron.energon import SourceInfo
    from megatron.energon.eyaml import load_yaml_json
    from megatron.energon.source_info import add_source_info, get_source_info
    from megatron.energon.typed_converter import to_json_object

    source = SourceInfo(dataset_path="/d", index=1, shard_name="s.tar", file_names=("a",))
    sample = add_source_info({"text": "a"}, source, source)
    assert get_source_info(sample) == [source]
    assert get_source_info([sample, {"text": "b"}, sample]) == [source, source]
    assert get_source_info({}) is get_source_info(3) is None
    assert to_json_object([source])[0] == {**vars_of(source), "file_names": ["a"]}
    with pytest.raises(ValueError, match="no form in JSON"):
        to_json_object(object())
    assert load_yaml_json(coco / ".nv-meta/.info.json")["shard_counts"]["coco-000.tar"] == 5
    assert "split_parts" in load_yaml_json(coco / ".nv-meta/split.yaml")


def vars_of(value):
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@pytest.mark.energon("add_sample_restore_key", "set_sample_restore_key", "get_sample_restore_key")
def test_restore_keys():
    from megatron.energon import TextSample
    from megatron.energon.flavors.base_dataset import add_sample_restore_key, set_sample_restore_key
    from megatron.energon.wrappers.base import get_sample_restore_key

    sample = TextSample(__key__="k", __restore_key__=("a", 1), text="")
    assert add_sample_restore_key(sample, 3, src=sample).__restore_key__ == ("TextSample", 3, "a", 1)
    assert set_sample_restore_key(sample, 7, src=sample).__restore_key__ == ("TextSample", 7)
    assert get_sample_restore_key(sample) == ("TextSample", 7)
    assert add_sample_restore_key(3, 1, src=sample) == 3
    with pytest.raises(ValueError, match="has no restore key"):
        set_sample_restore_key({}, 1, src=sample, fail_otherwise=True)


@pytest.mark.energon("default_get_batch_keys", "format_sample_compact", "format_sample_detailed")
def test_samples_as_text():
    from megatron.energon.sample_utils import (
        default_get_batch_keys,
        format_sample_compact,
        format_sample_detailed,
    )

    sample = {"a": [1] * 20, "b": b"12", "c": {"d": {"e": {"f": 1}}}, "t": torch.zeros(2)}
    assert default_get_batch_keys({"__key__": ["x", "y"]}) == ["x", "y"]
    assert format_sample_compact(sample, max_items=3) == (
        "{a: ['1', '1', '1'], b: \"b'12'\", c: {d: {e: {...}}}}"
    )
    detailed = format_sample_detailed(sample, indent="  ")
    assert detailed.startswith("  a:\n  - 1\n")
    assert "  - '... and 10 more items'\n" in detailed
    assert "values=[0.0, 0.0])" in detailed


@pytest.mark.energon("ErrorContext", "SampleException", "SYSTEM_EXCEPTIONS")
def test_error_contexts():
    from megatron.energon.errors import SYSTEM_EXCEPTIONS, ErrorContext, FatalSampleError, SkipSample

    seen = []
    context = ErrorContext("step", lambda error, sample, sources: seen.append((str(error), sample)), 3)

    def fail(error):
        with context.handle_errors({"__key__": "k"}):
            raise error

    fail(ValueError("one"))
    fail(AssertionError("two"))
    context.reset()
    fail(ValueError("three"))
    fail(SkipSample())
    fail(ValueError("four"))
    with pytest.raises(FatalSampleError, match="3 times in a row"):
        fail(ValueError("five"))
    assert [text for text, _ in seen] == ["one", "two", "three", "four", "five"]
    for kind in SYSTEM_EXCEPTIONS:
        with pytest.raises(FatalSampleError):
            fail(kind("what"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert len(seen) == 5


@pytest.mark.energon("handle_restore_errors", "legacy_handler")
def test_errors_of_restoring():
    from megatron.energon.errors import FatalSampleError, SkipSample, handle_restore_errors
    from megatron.energon.flavors.base_dataset import legacy_handler

    seen = []
    old = legacy_handler(lambda error, key: seen.append((type(error).__name__, key)))
    for error in (ValueError(), SkipSample()):
        with handle_restore_errors(old, "s"):
            raise error
    with pytest.raises(FatalSampleError), handle_restore_errors(old, "s"):
        raise NameError("x")
    assert seen == [("ValueError", "s"), ("ValueError", "s")]

    def new(error, key, sources):
        """Take three arguments."""

    assert legacy_handler(new) is new


@pytest.mark.energon(
    "check_dataset_info_present", "get_dataset_info", "get_dataset_type", "get_info_shard_files"
)
def test_facts_about_datasets(coco, lines, data, tmp_path):
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.metadata import (
        WebdatasetMeta,
        check_dataset_info_present,
        get_dataset_info,
        get_dataset_type,
        get_info_shard_files,
    )

    assert check_dataset_info_present(coco)
    assert not check_dataset_info_present(coco / "nothing")
    assert get_info_shard_files(coco) == list(get_dataset_info(coco)["shard_counts"])
    (tmp_path / "mix.yaml").write_text("{}")
    kinds = {path: get_dataset_type(EPath(path)).value for path in (coco, lines, tmp_path, "/no.jsonl")}
    assert list(kinds.values()) == ["webdataset", "jsonl", "invalid", "invalid"]
    assert get_dataset_type(EPath(tmp_path / "mix.yaml")).name == "METADATASET"
    meta = WebdatasetMeta.from_config(coco, split_part="val")
    assert [(shard.name, shard.count) for shard in meta.shards] == [("coco-008.tar", 5)]
    assert meta.shards[0].path == coco / "coco-008.tar"
    with pytest.raises(ValueError, match="no split part 'nothing'"):
        WebdatasetMeta.from_config(coco, split_part="nothing")


@pytest.mark.energon("DatasetSubset")
def test_subsets():
    from megatron.energon.flavors.webdataset.structs import DatasetSubset

    assert DatasetSubset(range=(0.123, 0.777)).compute_subset(37) == (4, 28)
    assert DatasetSubset(range=(0.1, 0.5), absolute_range=(3, 5)).compute_subset(10) == (3, 4)
    assert DatasetSubset(absolute_range=(3, None)).compute_subset(10) == (3, 10)
    with pytest.raises(ValueError, match="not within 10 samples"):
        DatasetSubset(absolute_range=(3, 50)).compute_subset(10)


@pytest.mark.energon("TarIndexReader", "open_itar", "get_itar_byte_offset")
def test_indices_of_tars(coco):
    from megatron.energon.flavors.webdataset.itar import TarIndexReader, get_itar_byte_offset, open_itar

    tar = coco / "coco-000.tar"
    with TarIndexReader(tar) as index:
        offsets = list(index)
        assert len(index) == 6
    assert get_itar_byte_offset(tar, 2) == offsets[2]
    assert get_itar_byte_offset(str(tar), 4) == offsets[4] < offsets[5] == get_itar_byte_offset(tar, 5)
    with open_itar(tar, byte_offset=offsets[1], byte_size=offsets[2] - offsets[1]) as part:
        assert len(part.getnames()) == 2
    with open_itar(tar, byte_offset=offsets[1]) as rest, tarfile.open(tar) as whole:
        assert rest.getnames() == whole.getnames()[2:]
        member = rest.getmembers()[-1]
        assert rest.extractfile(member).read() == whole.extractfile(member.name).read()


@pytest.mark.energon("SqliteIndexReader", "SqliteITarEntryReader")
def test_reading_samples(coco):
    from megatron.energon.flavors.webdataset.indexing import SqliteIndexReader
    from megatron.energon.flavors.webdataset.itar_reader import SqliteITarEntryReader

    by_key = SqliteITarEntryReader(coco)
    key = [name for name, _, tar in by_key.list_all_samples() if tar == 1][2]
    with tarfile.open(coco / "coco-001.tar") as tar:
        wanted = {part: tar.extractfile(f"{key}.{part}").read() for part in ("jpg", "txt")}
    sample = by_key[key]
    assert {name: value for name, value in sample.items() if not name.startswith("__")} == wanted
    assert (sample["__key__"], sample["__shard__"]) == (key, "coco-001.tar")
    assert sample["__restore_key__"] == ("Webdataset", key)
    only_text = SqliteITarEntryReader(coco, part_filter=lambda part: part == "txt")[key]
    assert sorted(set(only_text))[-1] == "txt"
    assert only_text["__sources__"][0].file_names == (f"{key}.txt",)
    seen = []
    filtered = SqliteITarEntryReader(coco, sample_filter=lambda name: bool(seen.append(name)))
    assert filtered[key] is None
    assert seen == [f"coco-001.tar/{key}"]
    part, source = SqliteITarEntryReader(coco, key_is_full_entryname=True)[f"{key}.txt"]
    assert (part, source.index) == (sample["txt"], f"{key}.txt")
    assert [(name, tar) for name, _, tar in by_key.list_sample_parts(key)] == [("jpg", 1), ("txt", 1)]
    with pytest.raises(KeyError, match="there is no 'nothing'"):
        by_key["nothing"]
    with SqliteIndexReader(coco / ".nv-meta/index.sqlite") as index:
        samples = list(index.list_all_samples())
        assert len(samples) == index.get_sample_count() == 50
        assert sum(size for _, size, _ in samples) == index.get_total_size() == by_key.get_total_size()
        place = index.get_sample_part(key, "txt")
        tar = (coco / "coco-001.tar").read_bytes()
        assert tar[place.raw_byte_offset :][: place.raw_byte_size] == sample["txt"]
        assert index.db_has_sample_parts()
        assert not index.db_has_media_metadata()


@pytest.mark.energon("JoinIndexReader")
def test_indices_of_joins(tmp_path):
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.indexing import JoinIndexReader

    path = EPath(tmp_path / "join.bin")
    path.write_bytes(b"JIDX0001" + struct.pack("<13q", 2, 0, 0, 512, 0, 512, 1024, 0, 0, 512, -1, -1, -1))
    index = JoinIndexReader(path)
    assert (len(index), index.tell_row(), index[1][1]) == (2, 0, (-1, -1, -1))
    assert [len(row) for row in index] == [2, 2]
    assert JoinIndexReader(path).get_as_tensor().shape == (2, 2, 3)
    assert list(JoinIndexReader(path, column=1)) == [[(0, 512, 1024)], [(-1, -1, -1)]]
    path.write_bytes(b"JIDX0002")
    with pytest.raises(ValueError, match="not the index of a join"):
        JoinIndexReader(path)


@pytest.mark.energon("SqliteIndexWriter", "IndexSample", "IndexSamplePart", "DuplicateSampleKeyError")
def test_writing_an_index(coco, tmp_path):
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.indexing import (
        DuplicateSampleKeyError,
        SqliteIndexReader,
        SqliteIndexWriter,
    )
    from megatron.energon.flavors.webdataset.prepare import IndexMediaMetadata, IndexSample, IndexSamplePart

    path = EPath(tmp_path / "index.sqlite")
    place = {"tar_file_id": 0, "sample_index": 0}
    sample = IndexSample(**place, sample_key="a", byte_offset=0, byte_size=1024)
    with SqliteIndexWriter(path, enable_media_metadata=True) as writer:
        writer.append_samples([sample])
        writer.append_parts(
            [IndexSamplePart(**place, part_name="txt", content_byte_offset=512, content_byte_size=3)]
        )
        writer.append_media_filter(strategy="EXTENSION", patterns="")
        row = {"entry_key": "a.jpg", "metadata_type": "image", "metadata_json": "{}"}
        writer.append_media_metadata_batch([IndexMediaMetadata(**row)])
        with pytest.raises(DuplicateSampleKeyError):
            writer.append_samples([sample])
    with SqliteIndexReader(path) as index:
        assert list(index.list_all_sample_parts()) == [("a.txt", 3, 0)]
        assert index.get_sample_pointer_by_key("a").byte_size == 1024
        assert index.get_media_metadata("a.jpg") == ("image", "{}")
        assert index.get_media_metadata("b.jpg") is None
    with SqliteIndexWriter(path, reset_tables=False) as writer:
        writer.append_samples([IndexSample(**place, sample_key="b", byte_offset=0, byte_size=1)])
    assert SqliteIndexReader(path).get_sample_count() == 2


def test_json_lines(lines):
    from megatron.energon.flavors.jsonl.jsonl_prepare import JsonlPreparator

    content = list(JsonlPreparator.iter_dataset_content(lines))
    assert json.loads(content[4]["json"]) == {"number": 4}


@pytest.mark.energon("WebdatasetFileStore", "SystemFileStore")
def test_file_stores(coco):
    from megatron.energon import FileStore, SystemFileStore
    from megatron.energon.cache.file_store import WebdatasetFileStore

    store = WebdatasetFileStore(coco)
    data, source = store["00000007.txt"]
    assert (data[:7], source.file_names) == (b"caption", ("00000007.txt",))
    assert isinstance(store, FileStore)
    with pytest.raises(KeyError):
        store["nothing.txt"]
    with pytest.raises(FileNotFoundError, match=r"^there is no 'nothing.txt' \["):
        SystemFileStore(coco)["nothing.txt"]
    everywhere = SystemFileStore()
    assert everywhere.get(f"{coco}/.nv-meta/split.yaml") == SystemFileStore(coco).get(".nv-meta/split.yaml")


def png():
    file = io.BytesIO()
    Image.new("RGB", (3, 4)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.energon("megatron.energon.media", "MediaFilterConfig", "prepare_filesystem_dataset")
def test_media_metadata(tmp_path):
    from megatron.energon import SystemFileStore
    from megatron.energon.epathlib import EPath
    from megatron.energon.media import (
        AVMetadata,
        ImageMetadata,
        MediaMetadataBase,
        MediaMetadataType,
        deserialize_media_metadata,
        serialize_media_metadata,
    )
    from megatron.energon.media.extractor import MediaFilterConfig, MediaFilterStrategy
    from megatron.energon.media.filesystem_prepare import prepare_filesystem_dataset

    image = ImageMetadata(width=3, height=4, format="PNG", mode="RGB")
    for metadata in (image, AVMetadata(video_fps=25.0, audio_channels=2)):
        kind, text = serialize_media_metadata(metadata)
        assert isinstance(metadata, MediaMetadataBase)
        assert deserialize_media_metadata(kind.value, text) == metadata
        assert type(metadata).from_dict(metadata.to_dict()) == metadata
    assert serialize_media_metadata(AVMetadata(video_fps=2.0)) == (MediaMetadataType.AV, '{"video_fps":2.0}')
    for wrong in (("other", "{}"), ("image", "{}"), ("image", "[]"), ("av", '{"x":1}'), ("av", "{")):
        with pytest.raises(ValueError, match=r"kind of media|not the fields|media metadata"):
            deserialize_media_metadata(*wrong)

    by_name = MediaFilterConfig.parse("*.png,*.jpg", header=False, extension=False)
    assert (by_name.strategy == MediaFilterStrategy.GLOB, by_name.should_consider_all()) == (True, False)
    assert [by_name.should_consider_media(name) for name in ("a/b.jpg", "a/b.txt")] == [True, False]
    for source in (png(), io.BytesIO(png())):
        assert by_name.extract_metadata(source, "a.png") == image
    assert by_name.extract_metadata(b"nothing", "a.png") is None
    assert by_name.extract_metadata(png(), "a.txt") is None
    assert MediaFilterConfig(MediaFilterStrategy.HEADER).extract_metadata(png(), "a") == image
    with pytest.raises(ValueError, match="Use one of glob, header and extension"):
        MediaFilterConfig.parse("*.jpg", header=True, extension=False)

    (tmp_path / "in").mkdir()
    for name in ("a.png", "in/b.png"):
        (tmp_path / name).write_bytes(png())
    (tmp_path / "c.txt").write_text("text")
    by_extension = MediaFilterConfig(MediaFilterStrategy.EXTENSION)
    assert prepare_filesystem_dataset(EPath(tmp_path), by_extension, progress=False) == 2
    store = SystemFileStore(EPath(tmp_path))
    assert store.get_media_metadata("in/b.png") == image
    with pytest.raises(KeyError):
        store.get_media_metadata("c.txt")


@pytest.mark.energon("WorkerRng", "SystemRng", "Savable")
def test_draws():
    """The draws are those of Megatron-Energon 7.4.1."""
    from megatron.energon import SavableDataset, WorkerConfig
    from megatron.energon.rng import SystemRng, WorkerRng
    from megatron.energon.savable import Savable

    rng = WorkerRng(WorkerConfig(rank=0, world_size=2, num_workers=0))
    assert [rng.randbelow(10) for _ in range(5)] == [0, 0, 3, 2, 9]
    assert (rng.choice([1, 2, 3]), rng.shuffle([1, 2, 3, 4, 5])) == (1, [4, 3, 1, 2, 5])
    assert rng.choice_idx(torch.tensor([0.1, 0.2, 0.7])) == 2
    assert rng.choice("abc", torch.tensor([0.5, 0.5, 1.0])) == "c"
    rest = [1, 2, 3, 4]
    assert (rng.rand_pop(rest), rest) == (3, [1, 2, 4])
    state = rng.save_state()
    drawn = rng.randbelow(10**9)
    rng.restore_state(state)
    assert rng.randbelow(10**9) == drawn
    assert isinstance(rng, Savable)
    assert issubclass(SavableDataset, Savable)

    saved = SystemRng.save_state()
    SystemRng.seed(5)
    assert (random.random(), round(np.random.rand(), 6)) == (0.6229016948897019, 0.221993)
    assert round(float(torch.rand(1)), 4) == 0.8303
    assert SystemRng.get_seed_from_args(1, "a") == SystemRng.get_seed_from_args(1, "a") < 2**32
    SystemRng.restore_state(saved)


@pytest.mark.energon("Watchdog")
def test_watchdogs(capfd):
    from megatron.energon.watchdog import Watchdog, repr_short

    barked = threading.Event()
    with Watchdog(0.01, callback=barked.set) as watchdog:
        assert barked.wait(300)
        barked.clear()
        watchdog.enable()
        assert barked.wait(300)
    assert "Current thread" in capfd.readouterr().err
    barked.clear()
    with Watchdog(0.01, initial_timeout=3600, callback=barked.set, dump_stacks=False) as watchdog:
        assert list(watchdog.watch_iter(range(1000))) == list(range(1000))
        assert not barked.is_set()
        watchdog.enable()
        assert barked.wait(300)
    with pytest.raises(ValueError, match="positive"):
        Watchdog(0)
    assert repr_short([1]) == "[1]"
    assert len(repr_short("a" * 1000)) == 253


@pytest.mark.energon("WatchdogDataset", differs="it writes stacks without local variables")
def test_the_dataset_with_a_watchdog(capfd):
    from megatron.energon import MapDataset
    from megatron.energon.wrappers.watchdog_dataset import WatchdogDataset

    assert_exact_resume(lambda: WatchdogDataset(NumbersDataset(5), timeout_seconds=3600))
    assert list(WatchdogDataset(NumbersDataset(5), timeout_seconds=None)) == [0, 1, 2, 3, 4]
    told = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: told.set() if "no element of stream" in record.msg else None
    slow = MapDataset(NumbersDataset(1), lambda number: told.wait(300) and number)
    logging.getLogger().addHandler(handler)
    try:
        assert list(WatchdogDataset(slow, timeout_seconds=0.01)) == [0]
    finally:
        logging.getLogger().removeHandler(handler)
    assert told.is_set()
    assert "Current thread" in capfd.readouterr().err


@pytest.mark.energon("SampleDecoder.config", "SampleDecoder.__call__")
def test_the_decoder_tells_its_options():
    from megatron.energon import SampleDecoder

    decoder = SampleDecoder(image_decode="pil", guess_content=False)
    assert decoder.config() == {
        "image_decode": "pil",
        "av_decode": "AVDecoder",
        "video_decode_audio": False,
        "guess_content": False,
    }
    assert decoder({"__key__": "a", "txt": b"x", "json": b"[1]"}) == {"__key__": "a", "txt": "x", "json": [1]}


@pytest.mark.energon("SavableDataLoader", "BasicDataLoader", "load_dataset")
def test_loaders_by_their_classes(data):
    from megatron.energon import SavableDataLoader, WorkerConfig, get_val_dataset, load_dataset
    from megatron.energon.savable_loader import BasicDataLoader

    def dataset():
        return get_val_dataset(
            data / "coco", split_part="train", batch_size=2, worker_config=WorkerConfig(**ONE)
        )

    options = {"gc_freeze_at_start": False, "gc_collect_every_n_steps": 5, "prefetch_factor": 1}
    options |= {"cache_pool": None, "watchdog_timeout_seconds": None, "watchdog_initial_timeout_seconds": 9}
    basic = BasicDataLoader(dataset(), **options, fail_on_timeout=True)
    checkpoints = {"checkpoint_every_sec": 0, "checkpoint_every_min_n_samples": 1, "n_checkpoints": 3}
    savable = SavableDataLoader(dataset(), **checkpoints, **options)
    batches = iter(savable)
    keys = [batch.__key__ for batch in basic]
    assert [next(batches).__key__ for _ in range(3)] == keys[:3]
    with pytest.warns(FutureWarning, match="save_state_global"):
        states = savable.save_state(0)
    resumed = SavableDataLoader(dataset())
    with pytest.warns(FutureWarning, match="restore_state_global"):
        resumed.restore_state(states)
    assert [batch.__key__ for batch in resumed] == keys[3:]

    loader = load_dataset(data / "coco", split_part="test", subflavors={"a": 1})
    (loaded,) = loader.get_datasets(training=False, worker_config=WorkerConfig(**ONE)).datasets
    assert loader.split_part == "test"
    assert len(loaded.dataset) == 5


@pytest.mark.energon("warn_deprecated", "deprecated", "ensure_local_copy", "local_copy", "rclone_config")
def test_small_helpers(coco, s3_server, tmp_bucket, tmp_path, monkeypatch):
    from megatron.energon import local_copy
    from megatron.energon.deprecation import deprecated
    from megatron.energon.epathlib import EPath
    from megatron.energon.epathlib.rclone_config import (
        find_executable_path,
        read_rclone_config,
        read_rclone_config_at_path,
    )

    @deprecated("call new()")
    def old():
        return 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert old() == 1
    assert (caught[0].category, "call new()" in str(caught[0].message)) == (FutureWarning, True)
    assert caught[0].filename == __file__

    (tmp_path / "rclone.conf").write_text(
        "[lake]\ntype = s3\nendpoint = http://x\nsecret_access_key = hidden\n"
    )
    monkeypatch.setenv("RCLONE_CONFIG", str(tmp_path / "rclone.conf"))
    entry = read_rclone_config()["lake"]
    assert (entry.type, entry.endpoint, entry.provider) == ("s3", "http://x", None)
    assert "hidden" not in repr(entry)
    assert read_rclone_config_at_path(tmp_path / "nothing.conf") == {}
    assert find_executable_path("no-such-program") is None

    assert local_copy.ensure_local_copy(coco) == coco
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server.endpoint_url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    from energon_stream.compat import epath

    monkeypatch.setattr(epath, "LOCAL_COPY_TMP_DIR", tmp_path / "copies")
    remote = EPath(tmp_bucket) / "a.txt"
    remote.write_text("one")
    copy = local_copy.ensure_local_copy(remote)
    assert (copy.read_text(), copy.is_local()) == ("one", True)
    assert local_copy.ensure_local_copy(remote) == copy
    remote.write_text("other")
    assert local_copy.ensure_local_copy(remote).read_text() == "other"


def test_classes_without_behaviour_of_their_own():
    from megatron.energon.flavors.base_dataset import PinMemoryMixin, State
    from megatron.energon.flavors.webdataset.structs import ShardInfo, WebdatasetInfo, WebdatasetSplits
    from megatron.energon.state import FlexState

    from energon_stream import Batch, Sample

    assert issubclass(Sample, PinMemoryMixin)
    assert issubclass(Batch, PinMemoryMixin)

    @dataclasses.dataclass
    class Position(State):
        number: int

    assert Position.extend(Position(3), number=4) == Position(4)
    assert FlexState(position=3) == {"position": 3}
    assert ShardInfo(name="0.tar", path="/data/0.tar", count=8).count == 8
    assert WebdatasetInfo(shard_counts={"0.tar": 8}).energon_version is None
    assert WebdatasetSplits(split_parts={"train": ["0.tar"]}).exclude == []
