"""Clips that are read by range from S3: what they cost, counted at the server, and that they are the same."""

import io
import os
import pickle
import shutil
import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
import torch
from media_corpus import ffmpeg

from energon_stream import (
    Cooker,
    DecodeFileStore,
    DefaultTaskEncoder,
    MapDataset,
    PackingDataset,
    PrimaryFileStore,
    SampleDecoder,
    SystemFileStore,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_val_dataset,
)
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import DecodeError, MissingFileError
from energon_stream.media import RangedFile, openings
from energon_stream.media.av import AVDecoder, Clips, get_single_frames_uniform
from energon_stream.prepare.media_headers import MediaFilter
from energon_stream.prepare.media_tables import prepare_media
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.testing.media_files import VideoFile
from energon_stream.testing.operator_suite import NumbersDataset, assert_exact_resume
from energon_stream.testing.s3server import S3Server

BIG = {"frames": 300, "size": (96, 54), "group": 50, "noise": 60, "audio_codec": "aac"}
SOUND = {"frames": 0, "audio_seconds": 30.0}
FILES = {
    "a.mp4": VideoFile(**BIG),
    "fast.mp4": ["-movflags", "faststart"],  # the streams of the first one
    "a.mkv": [],
    "v.webm": VideoFile(**{**BIG, "codec": "libvpx", "audio_codec": None, "b_frames": 0}),
    "fragments.mp4": ["-movflags", "frag_keyframe+empty_moov"],
    "a.wav": VideoFile(**SOUND, audio_codec="pcm_s16le"),
    "a.flac": VideoFile(**SOUND, audio_codec="flac"),
    "a.mp3": VideoFile(**SOUND, audio_codec="libmp3lame"),
    "a.ogg": VideoFile(**SOUND, audio_codec="libopus"),
}
INDEXED = ["a.mp4", "fast.mp4", "a.mkv", "v.webm"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("s3")
    folder = root / "bucket" / "files"
    folder.mkdir(parents=True)
    for name, file in FILES.items():
        if isinstance(file, VideoFile):
            file.write(folder / name)
        else:
            ffmpeg("-i", "a.mp4", "-c", "copy", *file, name, cwd=folder)

    def parts(number):
        return {"mp4": (folder / "a.mp4").read_bytes(), "json": b"%d" % number}

    write_shards(root / "bucket" / "tars", shards=1, samples_per_shard=2, parts=parts, key="{:04d}")
    prepare_dataset(str(root / "bucket" / "tars"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return folder


@pytest.fixture
def server(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGON_STREAM_CACHE_DIR", str(tmp_path / "node"))
    openings.in_process.clear()
    with S3Server(folder.parent.parent) as server:
        yield server
    openings.in_process.clear()


@pytest.fixture
def store(server):
    return DecodeFileStore(
        SystemFileStore("s3://bucket/files", storage_options=server.storage_options), SampleDecoder()
    )


def gets(server):
    """Ranges of the GETs since the last call, as (first byte, byte after the last)."""
    entries = [
        entry
        for entry in server.log()
        if entry.method == "GET" and entry.range and "/.nv-meta/" not in entry.key
    ]
    server.reset_counters()
    found = []
    for entry in entries:
        first, _, last = entry.range.removeprefix("bytes=").partition("-")
        found.append((int(first), int(last) + 1))
    return found


def group_bytes(path, first, last):
    """Bytes of all packets of the groups of pictures that a time touches, and of what lies between them."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [p for p in container.demux(stream) if p.size]
        keys = [i for i, p in enumerate(packets) if p.is_keyframe]
        times = [float(packets[i].pts * stream.time_base) for i in keys]
        begin = max(i for i, time in zip(keys, times, strict=True) if time <= first)
        after = [i for i, time in zip(keys, times, strict=True) if time > last]
        end = packets[after[0]].pos if after else os.path.getsize(path)
        return end - packets[begin].pos


@pytest.mark.every(3)
@pytest.mark.parametrize("name", INDEXED)
def test_a_clip_costs_one_get_once_the_header_is_known(folder, server, store, name):
    local = AVDecoder(io.BytesIO((folder / name).read_bytes()))
    store.get(name).get_video_clips([(0.5, 1.0)])
    assert len(gets(server)) <= 7  # header, index, and the groups of pictures
    for unit, begin, end in [("seconds", 4.2, 6.2), ("seconds", 9.0, 9.9), ("frames", 110, 140)]:
        found, times = store.get(name).get_video_clips([(begin, end)], unit)
        expected, expected_times = local.get_video_clips([(begin, end)], unit)
        assert times == expected_times
        assert torch.equal(found[0], expected[0])
        ranges = gets(server)
        assert len(ranges) <= (2 if (name, begin) == ("a.mkv", 9.0) else 1)  # its end needs the next group
        seconds = (begin / 25, end / 25) if unit == "frames" else (begin, end)
        assert sum(stop - start for start, stop in ranges) <= 1.2 * group_bytes(folder / name, *seconds)


@pytest.mark.parametrize("name", INDEXED)
def test_clips_of_one_file_are_fetched_together(folder, server, store, name):
    local = AVDecoder(io.BytesIO((folder / name).read_bytes()))
    store.get(name).has_video_stream()
    store.get(name).get_video_clips([(0, 0.1)])
    gets(server)
    wanted = [(2.0, 2.3), (2.5, 3.0), (3.1, 3.5), (3.6, 3.9)]
    found, _ = store.get(name).get_video_clips(wanted)
    for ours, theirs in zip(found, local.get_video_clips(wanted)[0], strict=True):
        assert torch.equal(ours, theirs)
    ranges = gets(server)
    assert len(ranges) == len({start for start, _ in ranges}) <= 2
    assert sum(stop - start for start, stop in ranges) <= 1.2 * group_bytes(folder / name, 2.0, 3.9)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", list(FILES))
def test_everything_equals_the_local_file(folder, store, name):
    local, remote = AVDecoder(io.BytesIO((folder / name).read_bytes())), store.get(name)
    assert isinstance(remote.stream, RangedFile)
    assert remote.get_metadata() == local.get_metadata()
    if local.has_video_stream():
        assert torch.equal(get_single_frames_uniform(remote, 3), get_single_frames_uniform(local, 3))
        for clip_range in [(0.0, 0.2), (7.9, 8.3), (11.9, 20.0), (3.0, 3.0)]:
            ours, theirs = remote.get_video_clips([clip_range]), local.get_video_clips([clip_range])
            assert torch.equal(ours[0][0], theirs[0][0])
            assert ours[1] == theirs[1]
        assert remote.get_video_clips([(30, 31)]) == ([], [])
    if local.has_audio_stream():
        for clip_range in [(0.0, 0.2), (7.9, 8.3), (11.5, 20.0)]:
            ours, theirs = remote.get_audio_clips([clip_range]), local.get_audio_clips([clip_range])
            assert torch.equal(ours[0][0], theirs[0][0])


@pytest.mark.parametrize(("name", "most"), [("a.wav", 1), ("a.flac", 2), ("a.mp3", 1), ("a.ogg", 2)])
def test_audio_by_time_reads_a_part_of_the_file(folder, server, store, name, most):
    store.get(name).get_audio_clips([(1, 2)])
    gets(server)
    store.get(name).get_audio_clips([(20, 21)])
    assert len(gets(server)) <= most


def test_a_part_of_a_tar_is_read_by_range(folder, server):
    spec = StoreSpec("s3://bucket/tars", server.storage_options)
    primary = PrimaryFileStore(DecodeFileStore(WebdatasetFileStore(spec), SampleDecoder()), "0001")
    primary.get(".mp4").get_video_clips([(0, 0.1)])
    gets(server)
    found, _ = primary.get(".mp4").get_video_clips([(4.2, 6.2)])
    local = AVDecoder(io.BytesIO((folder / "a.mp4").read_bytes()))
    assert torch.equal(found[0], local.get_video_clips([(4.2, 6.2)])[0][0])
    ranges = gets(server)
    assert len(ranges) == 1
    assert ranges[0][1] - ranges[0][0] <= 1.2 * group_bytes(folder / "a.mp4", 4.2, 6.2)


@pytest.fixture
def indexed(folder, server, tmp_path):
    """Stores of a folder and of tars whose index has the layouts, and names in them, on a fresh node."""
    root = folder.parent.parent / f"indexed{tmp_path.name}"
    shutil.copytree(folder.parent / "tars", root / "tars")
    (root / "files").mkdir()
    for name in INDEXED:
        shutil.copyfile(folder / name, root / "files" / name)
    for part in ("files", "tars"):
        prepare_media(
            f"s3://{root.name}/{part}",
            MediaFilter("EXTENSION"),
            storage_options=server.storage_options,
        )
    specs = [StoreSpec(f"s3://{root.name}/{part}", server.storage_options) for part in ("files", "tars")]
    stores = [SystemFileStore(specs[0]), WebdatasetFileStore(specs[1])]
    return root, [DecodeFileStore(store, SampleDecoder()) for store in stores]


def test_an_indexed_file_costs_three_gets_on_a_fresh_node(folder, server, indexed):
    _, (files, tars) = indexed
    for store, name, source in [*((files, name, name) for name in INDEXED), (tars, "0001.mp4", "a.mp4")]:
        server.reset_counters()
        found, _ = store.get(name).get_video_clips([(4.2, 6.2)])
        assert len(set(gets(server))) <= 3
        local = AVDecoder(io.BytesIO((folder / source).read_bytes()))
        assert torch.equal(found[0], local.get_video_clips([(4.2, 6.2)])[0][0])


@pytest.mark.every(3)
@pytest.mark.parametrize("damage", ["replaced", "no text", "no table", "other places"])
def test_a_layout_that_does_not_fit_does_no_harm(folder, server, indexed, damage):
    root, (files, _) = indexed
    index = root / "files" / ".nv-meta" / "index.sqlite"
    with closing(sqlite3.connect(index)) as database, database:
        if damage == "no table":
            database.execute("DROP TABLE media_layouts")
        elif damage == "no text":
            database.execute("UPDATE media_layouts SET layout_json = '[1, [[3]]]'")
        elif damage == "other places":
            database.execute("UPDATE media_layouts SET layout_json = ?", ("[9000000000,[[7,90]]]",))
    name = "fast.mp4" if damage == "replaced" else "a.mp4"
    if damage == "replaced":
        shutil.copyfile(folder / name, root / "files" / "a.mp4")
    found, _ = files.get("a.mp4").get_video_clips([(4.2, 6.2)])
    local = AVDecoder(io.BytesIO((folder / name).read_bytes()))
    assert torch.equal(found[0], local.get_video_clips([(4.2, 6.2)])[0][0])


def test_headers_are_kept_on_the_node(server, store):
    store.get("a.mp4").get_video_clips([(0, 0.1)])
    openings.in_process.clear()  # as in another process
    gets(server)
    store.get("a.mp4").get_video_clips([(4.2, 6.2)])
    assert len(gets(server)) == 1
    (kept,) = [path for path in (Path(openings.node_directory()) / "v1").rglob("*") if path.is_file()]
    *sound, last = kept.read_bytes()
    kept.write_bytes(bytes([*sound, last ^ 0xFF]))  # damaged, so it does not count
    openings.in_process.clear()
    store.get("a.mp4").get_video_clips([(4.2, 6.2)])
    assert len(gets(server)) > 1


def test_a_file_that_was_replaced_is_opened_anew(folder, server, store):
    server.create_bucket("other")
    (folder.parent.parent / "other").mkdir(exist_ok=True)
    server.put("s3://other/x.mp4", (folder / "a.mp4").read_bytes())
    other = DecodeFileStore(
        SystemFileStore("s3://other", storage_options=server.storage_options), SampleDecoder()
    )
    other.get("x.mp4").get_video_clips([(4, 5)])
    VideoFile(**{**BIG, "frames": 130, "noise": 20}).write(folder.parent / "new.mp4")
    new = (folder.parent / "new.mp4").read_bytes()
    server.put("s3://other/x.mp4", new)
    found, _ = other.get("x.mp4").get_video_clips([(4, 5)])
    assert torch.equal(found[0], AVDecoder(io.BytesIO(new)).get_video_clips([(4, 5)])[0][0])


def test_small_and_damaged_files(server, store):
    server.put("s3://bucket/files/empty.mp4", b"")
    server.put("s3://bucket/files/text.mp4", b"hello")
    for name in ("empty.mp4", "text.mp4"):
        with pytest.raises(DecodeError, match="cannot be decoded"):
            store.get(name).get_video()
    with pytest.raises(MissingFileError):
        store.get("absent.mp4").get_video()


def test_decoders_of_ranged_files_travel(store):
    copy = pickle.loads(pickle.dumps(store.get("a.mp4")))
    assert torch.equal(
        copy.get_video_clips([(1, 1.2)])[0][0], store.get("a.mp4").get_video_clips([(1, 1.2)])[0][0]
    )


def test_clips_resume_exactly_also_in_packs(folder):
    videos = DecodeFileStore(SystemFileStore(str(folder)), SampleDecoder())

    def clip(number):
        return (
            videos.get(["a.mp4", "v.webm"][number % 2])
            .get_video_clips([(number % 8, number % 8 + 0.1)])[0][0]
            .sum()
        )

    assert_exact_resume(lambda: MapDataset(NumbersDataset(24), clip), steps=5, tail=2)

    def packed():
        return PackingDataset(
            NumbersDataset(24),
            buffer_size=6,
            pre_packer=lambda numbers: [numbers[start : start + 3] for start in range(0, len(numbers), 3)],
            final_packer=lambda numbers: torch.stack([clip(number) for number in numbers]),
        )

    assert_exact_resume(packed, steps=4, tail=2)


def cooked(server, cook, steps=2, **options):
    """Cook samples of the tars by a function, in order."""

    class Cooks(DefaultTaskEncoder):
        cookers = [Cooker(cook)]

        def batch(self, samples):
            return samples[0]

    dataset = get_val_dataset(
        "s3://bucket/tars",
        split_part="train",
        batch_size=1,
        worker_config=WorkerConfig(0, 1, 0),
        task_encoder=Cooks(),
        storage_options=server.storage_options,
        **options,
    )
    return list(islice(get_loader(dataset), steps))


def clip_of_crude(crude):
    assert "mp4" not in crude  # it is no part that was read
    clips, times = crude["mp4"].get_video_clips([(4.2, 4.6)])
    assert crude["mp4"] is crude["mp4"]
    return {**basic_sample_keys(crude), "clip": clips[0], "times": times, "line": crude["json"]}


@pytest.mark.parametrize("where", ["cooker", "loader"])
def test_a_video_that_parts_leave_out_is_read_by_range_where_looked_at(folder, server, where):
    cook = cooker(parts=["json"])(clip_of_crude) if where == "cooker" else clip_of_crude
    found = cooked(server, cook, **({"parts": ["json"]} if where == "loader" else {}))
    (expected,), times = AVDecoder(io.BytesIO((folder / "a.mp4").read_bytes())).get_video_clips([(4.2, 4.6)])
    assert [sample["line"] for sample in found] == [0, 1]
    for sample in found:
        assert sample["times"] == times
        assert torch.equal(sample["clip"], expected)
        assert any("0.mp4" in name or "1.mp4" in name for name in sample["__sources__"][1].file_names)
    ranges = gets(server)
    size = (folder / "a.mp4").stat().st_size
    assert len(ranges) <= 2 * 7 + 2  # for each: header, index and clip; and the two lines of JSON
    assert sum(stop - start for start, stop in ranges) < size  # of two files of this size
    gets(server)


def test_a_video_that_is_part_of_the_sample_is_read_with_it(folder, server):
    def whole(crude):
        crude["mp4"].get_video_clips([(4.2, 4.6)])
        return {**basic_sample_keys(crude)}

    cooked(server, whole)
    read = sum(stop - start for start, stop in gets(server))
    assert read >= 2 * (folder / "a.mp4").stat().st_size


def test_clips_that_a_cooker_names_are_fetched_ahead_for_its_own_part(folder, server):
    named = cooker(parts=["json"], clips=lambda crude: {"primary": {".mp4": Clips([(4.2, 4.6)])}})
    expected = [sample["clip"] for sample in cooked(server, cooker(parts=["json"])(clip_of_crude))]
    gets(server)
    found = cooked(server, named(clip_of_crude))
    assert all(torch.equal(sample["clip"], clip) for sample, clip in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["webm", "txt", "mp3"])
def test_a_part_that_the_sample_lacks_is_a_key_error(server, name):
    def look(crude):
        with pytest.raises(KeyError):
            crude[name]
        assert crude.get(name, 7) == 7
        return {**basic_sample_keys(crude)}

    assert len(cooked(server, cooker(parts=["json"])(look))) == 2
