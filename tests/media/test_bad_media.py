"""Damaged video and decoders that hang, through a loader: these samples are left out, others are exact."""

import io
import json
import time

import av
import pytest
import torch

from energon_stream import (
    Cooker,
    DefaultTaskEncoder,
    FatalSampleError,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.errors import ConfigError, DecodeError, SampleTimeoutError
from energon_stream.media.av import AVDecoder
from energon_stream.media.file_layout import full_size
from energon_stream.pipeline.time_limit import TimeLimit
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.testing.media_files import VideoFile

VARIABLE = tuple(sum(20 if i % 3 else 100 for i in range(n)) for n in range(50))
END = (1.5, 1.8)


def written(tmp_path, name, **form):
    path = tmp_path / name
    VideoFile(**{"frames": 50, "noise": 30, **form}).write(path)
    return path.read_bytes()


def without_key_frames(video, container):
    found = io.BytesIO()
    with av.open(io.BytesIO(video)) as source, av.open(found, "w", format=container) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size and not packet.is_keyframe:
                copy = av.Packet(bytes(packet))
                copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
                copy.stream = stream
                target.mux(copy)
    return found.getvalue()


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Videos by name; names that begin with "bad" are of those that cannot be decoded."""
    folder = tmp_path_factory.mktemp("videos")
    good = written(folder, "a.mp4", audio_codec="aac")
    fast = written(folder, "fast.mp4", options=(("movflags", "faststart"),))
    mkv = written(folder, "a.mkv")
    sound = written(folder, "a.wav", frames=0, audio_codec="pcm_s16le", audio_seconds=2.0)
    return {
        "good": good,
        "matroska": mkv,  # the extension says mp4
        "variable": written(folder, "variable.mp4", milliseconds=VARIABLE),
        "past the end": written(folder, "short.mp4", frames=25),
        "bad: cut before its index": good[: len(good) // 2],
        "bad: cut after its index": fast[: len(fast) // 2],
        "bad: cut mkv": mkv[: len(mkv) // 2],
        "bad: text": b"no video at all" * 20,
        "bad: empty": b"",
        "bad: no streams": good[:40],
        "bad: no video stream": sound,
        "bad: no key frame": without_key_frames(good, "mp4"),
        "bad: no key frame in mkv": without_key_frames(good, "matroska"),
    }


def cook(crude):
    clips, times = crude["mp4"].get_video_clips([END])
    return {**basic_sample_keys(crude), "clip": clips[0] if clips else torch.zeros(()), "times": str(times)}


class Task(DefaultTaskEncoder):
    cookers = [Cooker(cook)]


def dataset_of(folder, videos, encoder, times=2, **options):
    names = [name for _ in range(times) for name in videos]

    def parts(number):
        return {"mp4": videos[names[number]], "json": json.dumps(names[number]).encode()}

    write_shards(folder / "tars", shards=1, samples_per_shard=len(names), parts=parts, key="{:04d}")
    prepare_dataset(str(folder / "tars"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return names, get_train_dataset(
        str(folder / "tars"),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, **options),
        task_encoder=encoder,
        repeat=False,
    )


class Failures:
    def __init__(self):
        self.found = {}

    def __call__(self, error, sample, sources):
        self.found[sources[0].index] = error


def test_damaged_videos_are_left_out_and_named(tmp_path, videos):
    failures = Failures()
    names, dataset = dataset_of(tmp_path, videos, Task(), num_workers=0, global_error_handler=failures)
    loader = get_savable_loader(dataset)
    found = {batch["__sources__"][0].index: batch for batch in loader}
    bad = {number for number, name in enumerate(names) if name.startswith("bad")}
    assert failures.found.keys() == bad
    assert {sample.index: sample.error for sample in loader.bad_samples()} == dict.fromkeys(
        bad, "DecodeError"
    )
    assert {type(error) for error in failures.found.values()} == {DecodeError}
    assert found.keys() == set(range(len(names))) - bad
    for number, batch in found.items():
        decoder = AVDecoder(io.BytesIO(videos[names[number]]))
        clips, times = decoder.get_video_clips([END])
        assert batch["times"] == [str(times)]
        assert torch.equal(batch["clip"][0], clips[0] if clips else torch.zeros(()))
        assert bool(clips) == (names[number] != "past the end")


def test_too_many_damaged_videos_end_the_run_in_a_worker(tmp_path, videos):
    encoder = Task()
    encoder.__default_failure_tolerance__ = 3
    bad = {name: video for name, video in videos.items() if name.startswith("bad")}
    _, dataset = dataset_of(tmp_path, bad, encoder, num_workers=1)
    with pytest.raises(
        FatalSampleError, match=r"3 samples in a row failed(.|\n)*shard_name='data-000000.tar'"
    ):
        list(get_savable_loader(dataset))


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.wav"])
def test_files_say_how_long_they_are(tmp_path, name):
    video = name != "a.wav"
    form = {"codec": "mpeg4", "b_frames": 0} if name == "a.avi" else {}
    sound = {} if video else {"frames": 0, "audio_codec": "pcm_s16le", "audio_seconds": 1.0}
    data = written(tmp_path, name, **form, **sound)
    for length in (len(data), len(data) - 1, len(data) // 2):
        cut = data[:length]
        found = full_size(lambda at, size, cut=cut: cut[at : at + size], length)
        assert (
            (length < found < len(data)) if name == "a.mp4" and length < len(data) - 1 else found == len(data)
        )
    assert full_size(lambda at, size: b""[at:size], 0) == 0


class HangingFile(io.BytesIO):
    def read(self, size=-1):
        while self.tell() > 40:
            time.sleep(0.01)
        return super().read(size)


def hang(crude):
    if crude["json"] == "bad: hangs":
        time.sleep(600)
    if crude["json"] == "bad: hangs within PyAV":
        AVDecoder(HangingFile(crude["mp4"].stream.read())).get_video()
    return {**basic_sample_keys(crude), "name": crude["json"]}


LIMIT = 3.0  # seconds; good ones take hundredths, but a machine may be busy


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_decoder_that_hangs_is_interrupted(tmp_path, num_workers, videos):
    class Hanging(DefaultTaskEncoder):
        cookers = [Cooker(hang)]

    names = ("good", "bad: hangs", "bad: hangs within PyAV", "past the end")
    chosen = dict.fromkeys(names, videos["good"])
    failures = Failures() if num_workers == 0 else None
    names, dataset = dataset_of(
        tmp_path,
        chosen,
        Hanging(),
        num_workers=num_workers,
        times=1,
        sample_timeout=LIMIT,
        global_error_handler=failures,
    )
    found = [batch["name"][0] for batch in get_savable_loader(dataset)]
    assert sorted(found) == sorted(name for name in names if not name.startswith("bad"))
    if failures is not None:
        assert {type(error) for error in failures.found.values()} == {SampleTimeoutError}
        assert len(failures.found) == 2
        message = str(failures.found[1])
        assert f"longer than {LIMIT:g} s" in message
        assert "data-000000.tar" in message


def test_a_time_limit_restores_the_timer():
    import signal
    import threading

    own = signal.setitimer(signal.ITIMER_REAL, 0)  # that of a test's time-out
    before = signal.getsignal(signal.SIGALRM)
    assert TimeLimit(60).run(int, "7") == 7
    with pytest.raises(SampleTimeoutError, match=r"longer than 0\.01 s"):
        TimeLimit(0.01).run(time.sleep, 60)
    with pytest.raises(ValueError, match="invalid literal"):
        TimeLimit(60).run(int, "x")
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    signal.setitimer(signal.ITIMER_REAL, *own)
    raised = []

    def elsewhere():
        try:
            TimeLimit(1).run(int)
        except ConfigError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
    with pytest.raises(ConfigError, match="sample_timeout is 0"):
        WorkerConfig(0, 1, 0, sample_timeout=0)
