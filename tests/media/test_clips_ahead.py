"""Clips that a cooker names ahead: fetched together, with the same results and states as without."""

import gc
import io
import json

import pytest
import torch
from repetitions import is_nightly

from energon_stream import (
    Cooker,
    DecodeFileStore,
    DefaultTaskEncoder,
    DirectLazy,
    FatalSampleError,
    FileStoreCachePool,
    SampleDecoder,
    SystemFileStore,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_stream.media import openings, use_pool
from energon_stream.media.av import AVDecoder, Clips, fetch_clips
from energon_stream.media.file_ranges import shared_allowance
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.testing.media_files import VideoFile
from energon_stream.testing.operator_suite import assert_exact_resume, assert_restores_by_key
from energon_stream.testing.s3server import S3Server

VIDEO = VideoFile(frames=150, size=(128, 72), group=25, noise=60, audio_codec="aac")
PER_SHARD, BATCH = (12, 4) if is_nightly() else (4, 2)
MIX = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train: {path: tars, aux: {videos: filesystem://files}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("s3")
    folder = root / "bucket" / "files"
    folder.mkdir(parents=True)
    VIDEO.write(folder / "0.mp4")
    video = (folder / "0.mp4").read_bytes()
    for name in ("1.mp4", "2.mp4"):
        (folder / name).write_bytes(video)

    def parts(number):
        line = {"file": f"{number % 3}.mp4", "at": number % 5 + 0.1}
        return {"json": json.dumps(line).encode(), "mp4": video}

    write_shards(root / "bucket" / "tars", shards=2, samples_per_shard=PER_SHARD, parts=parts, key="{:04d}")
    prepare_dataset(str(root / "bucket" / "tars"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    (root / "bucket" / "mix.yaml").write_text(MIX)
    return root


@pytest.fixture
def server(root, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    openings.in_process.clear()
    with S3Server(root) as server:
        yield server
    openings.in_process.clear()


def clip_of(line):
    return [(line["at"], line["at"] + 0.2)]


def named(crude):
    line = crude["json"]
    return {"primary": {".mp4": Clips(clip_of(line))}, "videos": {line["file"]: Clips(clip_of(line))}}


def cook(crude, primary, videos):
    clips = [
        store.get(name, crude).get_video_clips(clip_of(crude["json"]))[0][0]
        for store, name in ((primary, ".mp4"), (videos, crude["json"]["file"]))
    ]
    return {**basic_sample_keys(crude), "clips": torch.stack(clips)}


def task(clips):
    @stateless
    @cooker(need_primary=True, parts=["json"], clips=clips)
    def marked(crude, primary, videos):
        return cook(crude, primary, videos)

    class Task(DefaultTaskEncoder):
        cookers = [Cooker(marked)]

    return Task()


def dataset_of(server, clips, path="s3://bucket/mix.yaml", num_workers=0, tolerance=None):
    encoder = task(clips)
    if tolerance is not None:
        encoder.__default_failure_tolerance__ = tolerance
    return get_train_dataset(
        path,
        batch_size=BATCH,
        shuffle_buffer_size=8,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        task_encoder=encoder,
        repeat=False,
        storage_options=server and server.storage_options,
    )


@pytest.fixture(scope="module")
def expected(root):
    """Batches of the local files, of which no clips are named."""
    return list(get_savable_loader(dataset_of(None, None, str(root / "bucket" / "mix.yaml"))))


def clip_gets(server):
    """GETs of the media since the last call, as (path, first byte, byte after the last)."""
    found = []
    for entry in server.log():
        if entry.method == "GET" and entry.range and entry.key.endswith((".mp4", ".tar")):
            first, _, last = entry.range.removeprefix("bytes=").partition("-")
            found.append((entry.key, int(first), int(last) + 1))
    server.reset_counters()
    return found


def test_clips_named_ahead_are_the_same_in_fewer_requests(server):
    once = list(get_savable_loader(dataset_of(server, None)))  # headers are known afterwards
    clip_gets(server)
    alone = list(get_savable_loader(dataset_of(server, None)))
    without = clip_gets(server)
    ahead = list(get_savable_loader(dataset_of(server, named)))
    assert len(clip_gets(server)) < len(without)
    for batches in (alone, ahead):
        assert [batch["__key__"] for batch in batches] == [batch["__key__"] for batch in once]
        for batch, other in zip(batches, once, strict=True):
            assert torch.equal(batch["clips"], other["clips"])
            assert batch["__sources__"] == other["__sources__"]


def test_the_bytes_are_freed(server):
    gc.collect()
    left = shared_allowance().left
    list(get_savable_loader(dataset_of(server, named)))
    gc.collect()
    assert shared_allowance().left == left


def test_clips_beyond_the_allowance_are_read_when_they_are_decoded(server, expected):
    taken = shared_allowance().left - 100_000
    assert shared_allowance().take(taken)
    try:
        found = list(get_savable_loader(dataset_of(server, named)))
    finally:
        shared_allowance().left += taken
    for batch, other in zip(found, expected, strict=True):
        assert torch.equal(batch["clips"], other["clips"])


def test_exact_resume_over_s3(server):
    assert_exact_resume(lambda: dataset_of(server, named), steps=7 if is_nightly() else 4, tail=2)
    assert_restores_by_key(lambda: dataset_of(server, named), steps=3)


@stateless
@cooker(need_cache=True, parts=["json"])
def lazily(crude, cache, videos):
    lazy = cache.get_lazy(videos, crude["json"]["file"])
    return {**basic_sample_keys(crude), "video": lazy, "line": crude["json"]}


class PackedTask(DefaultTaskEncoder):
    """Packs clips of videos that are fetched lazily, as whole files, and decoded with their pack."""

    cookers = [Cooker(lazily)]

    def select_samples_to_pack(self, samples):
        ordered = sorted(samples, key=lambda sample: sample["line"]["at"])
        return [ordered[start : start + 3] for start in range(0, len(ordered), 3)]

    @stateless
    def postencode_sample(self, sample):
        (clip,), _ = sample["video"].get(sample).get_video_clips(clip_of(sample["line"]))
        return {**{name: sample[name] for name in sample if name.startswith("__")}, "clip": clip}

    @stateless
    def pack_selected_samples(self, samples):
        keys = [sample["__key__"] for sample in samples]
        return {**samples[0], "__key__": keys, "clip": torch.stack([sample["clip"] for sample in samples])}


@stateless
@cooker(need_primary=True, parts=["json"], clips=named)
def by_range(crude, primary, videos):
    line = crude["json"]
    return {**basic_sample_keys(crude), "video": DirectLazy(videos, line["file"]), "line": line}


class PackedClipsTask(PackedTask):
    """The same with clips by range, named ahead."""

    cookers = [Cooker(by_range)]


@pytest.mark.every(2)
@pytest.mark.parametrize("encoder", [PackedTask, PackedClipsTask])
def test_lazy_media_and_packs_over_s3_resume_exactly(server, encoder):
    def made():
        return get_train_dataset(
            "s3://bucket/mix.yaml",
            batch_size=1,
            shuffle_buffer_size=8,
            max_samples_per_sequence=None,
            packing_buffer_size=6,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            task_encoder=encoder(),
            repeat=False,
            storage_options=server.storage_options,
        )

    with use_pool(FileStoreCachePool()):
        assert_exact_resume(made, steps=6 if is_nightly() else 4, tail=2)
        assert_restores_by_key(made, steps=2)


def test_states_pass_between_pipelines_with_and_without_names(server):
    loader = get_savable_loader(dataset_of(server, named))
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.save_state_rank()
    rest = [batch["__key__"] for batch in batches]
    again = get_savable_loader(dataset_of(server, None))
    again.restore_state_rank(state)
    assert [batch["__key__"] for batch in again] == rest != []


def test_workers(server, expected):
    found = [batch["__key__"] for batch in get_savable_loader(dataset_of(server, named, num_workers=1))]
    assert found == [batch["__key__"] for batch in expected]


def test_local_files_are_not_read_ahead(root, expected):
    found = list(get_savable_loader(dataset_of(None, named, str(root / "bucket" / "mix.yaml"))))
    for batch, other in zip(found, expected, strict=True):
        assert torch.equal(batch["clips"], other["clips"])


def test_errors_of_clips_are_the_samples_own(server, caplog):
    def failing(crude):
        if crude["__key__"].endswith("3"):
            raise ValueError("no clip here")
        return {"videos": {"absent.mp4": Clips([(0.0, 0.1)])}}  # does no harm: the cooker opens others

    found = [key for batch in get_savable_loader(dataset_of(server, failing)) for key in batch["__key__"]]
    assert len(found) == (21 if is_nightly() else 7)
    assert not any(key.endswith("3") for key in found)
    assert "no clip here" in caplog.text
    with pytest.raises(FatalSampleError, match="no clip here"):
        list(get_savable_loader(dataset_of(server, lambda _: failing({"__key__": "3"}), tolerance=3)))


def test_unknown_stores_are_refused(server):
    with pytest.raises(Exception, match="'other', which the dataset does not have"):
        list(get_savable_loader(dataset_of(server, lambda crude: {"other": {"a.mp4": Clips()}})))


def test_fetch_clips_of_several_files(root, server):
    store = DecodeFileStore(
        SystemFileStore("s3://bucket/files", storage_options=server.storage_options), SampleDecoder()
    )
    names = ["0.mp4", "1.mp4", "0.mp4", "absent.mp4"]
    fetch_clips([(store.get(name), Clips([(0.0, 0.1)])) for name in names])
    clip_gets(server)
    decoders = [store.get(names[number % 3]) for number in range(9)]
    wanted = [Clips([(0.4 * number, 0.4 * number + 0.2)]) for number in range(9)]
    fetch_clips(list(zip(decoders, wanted, strict=True)))
    gc.collect()
    for number, (decoder, clips) in enumerate(zip(decoders, wanted, strict=True)):
        local = AVDecoder(io.BytesIO((root / "bucket/files" / names[number % 3]).read_bytes()))
        found = decoder.get_video_clips(clips.video)
        expected = local.get_video_clips(clips.video)
        assert torch.equal(found[0][0], expected[0][0])
    assert len(set(clip_gets(server))) <= 4
    fetch_clips([(AVDecoder(io.BytesIO(b"")), Clips())])
    fetch_clips([])
