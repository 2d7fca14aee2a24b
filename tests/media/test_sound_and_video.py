"""Sound and video of a hundred files that ffmpeg made, by every way to get at them, against other decoders.

The expected samples and frames are those of PyAV alone, which decodes a whole file from its begin to its end,
and of the command of ffmpeg, another version of it.
"""

import functools
import io
import json
from typing import NamedTuple

import av
import numpy as np
import pytest
import torch
from media_corpus import CUTS, MADE, ffmpeg, write_corpus
from repetitions import is_nightly

from energon_stream import (
    Cooker,
    DecodeFileStore,
    DefaultTaskEncoder,
    SampleDecoder,
    SystemFileStore,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
)
from energon_stream.auxiliary import WebdatasetFileStore
from energon_stream.errors import DecodeError
from energon_stream.media import RangedFile, openings
from energon_stream.media.av import AV_EXTENSIONS, AVDecoder, get_clips_uniform, get_single_frames_uniform
from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.storage import StoreSpec
from energon_stream.testing.datasets import CRUDE_YAML, write_shards
from energon_stream.testing.s3server import S3Server

# Frames of unequal length, of which the container has the times in milliseconds alone.
UNEQUAL = {"pcm.mkv", "vorbis.webm", "vp8_vorbis.webm"}
# The decoder adds noise, which depends on what it decoded before.
HE_AAC = [path.name for path in MADE.iterdir()] + [name for name in CUTS if "he_aac" in name]
NOISY = {"ac3.mkv": 0.05, "aac_noise.m4a": 0.05} | dict.fromkeys(HE_AAC, 0.05)

FRAME = 1024  # samples of a frame of AAC


class Heard(NamedTuple):
    """All sound of a file: samples of shape (channels, samples), begin and end in seconds, and the rate."""

    samples: np.ndarray
    begin: float
    end: float
    rate: int

    def cut(self, begin, end):
        """Samples from one time to another."""
        start = round(self.begin * self.rate)
        first, stop = (max(round(time * self.rate) - start, 0) for time in (begin, end))
        return self.samples[:, first:stop]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="session", autouse=True)
def names(folder):
    return write_corpus(folder, 1 if is_nightly() else 10)


def most(count):
    """Comparisons at least, of so many with all files."""
    return count if is_nightly() else count // 14


@functools.lru_cache(None)
def heard(path):
    """Decode all sound of a file with PyAV; None without sound."""
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return None
        frames = list(container.decode(audio=0))
    arrays = [
        frame.to_ndarray() if frame.format.is_planar else frame.to_ndarray().reshape(frame.samples, -1).T
        for frame in frames
    ]
    samples, rate = np.concatenate(arrays, axis=1), frames[0].rate
    begin = float(frames[0].pts * frames[0].time_base)
    return Heard(samples, begin, begin + samples.shape[1] / rate, rate)


def decoder(path):
    return AVDecoder(io.BytesIO(path.read_bytes()))


def difference(found, expected, tolerance=0.0):
    """What differs, in words; None for equal sound."""
    if found.shape != expected.shape:
        return f"{found.shape} samples, not {expected.shape}"
    if not expected.size:
        return None
    most = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
    return f"differ by {most:g}" if most > tolerance else None


def whole_ways(path):
    """The whole sound and video of a file, by each way to get it."""
    data = path.read_bytes()
    if decoder(path).has_audio_stream():
        yield "get_audio", decoder(path).get_audio()
    yield "get_frames", decoder(path).get_frames(video_decode_audio=True)
    yield "torch", SampleDecoder(av_decode="torch", video_decode_audio=True).decode(path.name, data)
    if decoder(path).has_video_stream() and decoder(path).has_audio_stream():
        yield "get_video_with_audio", decoder(path).get_video_with_audio()


def test_whole_sound_equals_that_of_pyav(folder, names):
    compared, differences = 0, []
    for name in names:
        expected = heard(folder / name)
        if expected is None:
            continue
        for way, found in whole_ways(folder / name):
            compared += 1
            ((samples,), ((begin, _),)) = found.audio_clips, found.audio_timestamps
            wrong = difference(samples.numpy(), expected.samples)
            if wrong or begin != pytest.approx(expected.begin, abs=1.5e-3):
                differences.append((name, way, wrong, begin, expected.begin))
    assert not differences, "\n".join(map(str, differences))
    assert compared > most(280)


def clips_of(sound):
    """Begin and end of clips: at the begin, in the middle, short, at the end, and over it."""
    end = sound.end
    yield from [(0.0, 0.3), (sound.begin, sound.begin + 0.3), (0.05, 0.2)]
    yield from [(1.0, 1.2), (1.3, 1.31), (1.35, 1.35), (end - 0.3, end - 0.1), (end - 0.2, end + 1)]


def test_clips_of_sound_equal_the_whole_of_pyav(folder, names):
    compared, differences = 0, []
    for name in names:
        sound = heard(folder / name)
        if sound is None:
            continue
        # In the reverse order too: decoding must not depend on what was decoded before.
        inside = [clip for clip in clips_of(sound) if clip[1] > sound.begin and clip[0] < sound.end]
        clips = [*inside, *reversed(inside)]
        found, times = decoder(folder / name).get_audio_clips(clips)
        assert len(found) == len(clips) == len(times), name
        for (begin, end), clip in zip(clips, found, strict=True):
            compared += 1
            expected = sound.cut(begin, end)
            wrong = difference(clip.numpy(), expected, NOISY.get(name, 0.0))
            if wrong and name in UNEQUAL and begin > 0.2:
                wrong = shifted_difference(clip.numpy(), sound, begin, end)
            if wrong:
                differences.append((name, begin, end, wrong))
    assert not differences, "\n".join(map(str, differences))
    assert compared > most(1400)


def shifted_difference(found, sound, begin, end):
    """As :func:`difference`, for a clip that may begin a millisecond too early or too late."""
    by_shift = (sound.cut(begin + shift / sound.rate, end + shift / sound.rate) for shift in range(-48, 49))
    shifted = [difference(found[:, :-96], expected[:, : found.shape[1] - 96]) for expected in by_shift]
    return None if None in shifted else "no shift of a millisecond makes them equal"


@pytest.mark.every(2)
@pytest.mark.parametrize(("seconds", "count"), [(0.3, 7), (0.2345678, 3)])
def test_uniform_clips_of_sound_are_of_equal_length(folder, names, seconds, count):
    compared, differences = 0, []
    for name in names:
        sound = heard(folder / name)
        if sound is None:
            continue
        found = get_clips_uniform(decoder(folder / name), seconds, count, request_audio=True)
        length = min(round(seconds * sound.rate), sound.samples.shape[1])
        assert {clip.shape[1] for clip in found.audio_clips} == {length}, name
        assert found.audio_timestamps[0][0] == pytest.approx(sound.begin, abs=1e-3), name
        assert found.audio_timestamps[-1][1] == pytest.approx(sound.end, abs=0.13), name  # encoders fill
        for clip, (begin, _) in zip(found.audio_clips, found.audio_timestamps, strict=True):
            compared += 1
            expected = sound.cut(begin, begin + length / sound.rate)
            wrong = difference(clip.numpy(), expected, NOISY.get(name, 0.0))
            if wrong and not (name in UNEQUAL and begin > 0.2):
                differences.append((name, begin, wrong))
    assert not differences, "\n".join(map(str, differences))
    assert compared > most(90 * count)


def test_whole_sound_equals_that_of_ffmpeg(folder, names):
    sounding = [name for name in names if heard(folder / name) is not None]
    inputs = [word for name in sounding for word in ("-i", name)]
    outputs = [
        word
        for number in range(len(sounding))
        for word in ("-map", f"{number}:a:0", "-c:a", "pcm_f32le", "-f", "f32le", f"{number}.f32")
    ]
    ffmpeg(*inputs, *outputs, cwd=folder)
    differences = []
    for number, name in enumerate(sounding):
        (samples,) = decoder(folder / name).get_audio().audio_clips
        found = as_floats(samples.numpy())
        expected = np.fromfile(folder / f"{number}.f32", "<f4").reshape(-1, len(found)).T
        extra = found.shape[1] - expected.shape[1]
        if name.endswith(("m4a", "mov", "mp4")) and 0 < extra < 2 * FRAME:
            found = found[
                :, :-extra
            ]  # ffmpeg 9 cuts off what an encoder adds to fill its last frame, PyAV 18 not
        wrong = difference(found, expected, 1e-4)
        if wrong:
            differences.append((name, wrong))
        (folder / f"{number}.f32").unlink()
    assert not differences, "\n".join(map(str, differences))
    assert len(sounding) >= most(90)


def as_floats(samples):
    """Samples in -1 to 1."""
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    scale = {np.dtype(np.int16): 1 << 15, np.dtype(np.int32): 1 << 31}.get(samples.dtype, 1)
    return samples.astype(np.float32) / scale


class Seen(NamedTuple):
    """All frames of a file, as (height, width, 3), and when each one begins, in seconds."""

    frames: list
    begins: list

    def shown(self, begin, end):
        """Numbers of the frames that are displayed at some time from begin to end."""
        ends = [*self.begins[1:], float("inf")]
        times = zip(self.begins, ends, strict=True)
        return [
            n for n, (a, b) in enumerate(times) if a <= max(end, self.begins[0]) + 1e-6 and b > begin + 1e-6
        ]


@functools.lru_cache(None)
def seen(path):
    """Decode all frames of a file with PyAV; None without video."""
    with av.open(str(path)) as container:
        videos = [s for s in container.streams.video if not s.disposition & s.disposition.attached_pic]
        if not videos:
            return None
        found = list(container.decode(videos[0]))
    return Seen([f.to_ndarray(format="rgb24") for f in found], [float(f.pts * f.time_base) for f in found])


def numbers(clip, video):
    """Numbers of decoded frames; None for a frame that the video does not have."""
    known = {frame.tobytes(): number for number, frame in reversed([*enumerate(video.frames)])}
    assert all(frame.dtype == torch.uint8 for frame in clip)
    return [known.get(frame.permute(1, 2, 0).numpy().tobytes()) for frame in clip]


# Frames are found by their time: number n is the one at n / fps, which is not the n-th of a variable rate.
BY_RATE = {"variable.mkv", "x264_fragments.mp4"}


def test_video_equals_that_of_pyav(folder, names):
    compared, differences = 0, []

    def check(name, way, found, expected):
        nonlocal compared
        compared += 1
        if found != expected:
            differences.append((name, way, found, expected))

    for name in names:
        video = seen(folder / name)
        if video is None:
            continue
        count, last = len(video.frames), video.begins[-1]
        everything = [*range(count)]
        for way, found in whole_ways(folder / name):
            if way != "get_audio":
                check(name, way, numbers(found.video_clips[0], video), everything)
        times = [(0, 0.3), (last, 99), (0.05, 0.2), (0.9, 1.2), (1.3, 1.31), (0.5, 0.5), (-9, 0), (0, 99)]
        for wanted in (wanted for wanted in times if wanted[0] <= last):
            (found,), _ = decoder(folder / name).get_video_clips([wanted])
            check(name, wanted, numbers(found, video), video.shown(*wanted))
        assert decoder(folder / name).get_video_clips([(last + 9, last + 10)]) == ([], []), name
        if name not in BY_RATE:
            frames = [(0, 3), (5, 9), (11, 13), (14, 20), (count - 2, count + 3), (count - 1, count - 1)]
            together, _ = decoder(folder / name).get_video_clips(frames, "frames")
            for wanted, clip in zip(frames, together, strict=True):
                check(name, wanted, numbers(clip, video), everything[wanted[0] : wanted[1] + 1])
        few, begins = get_single_frames_uniform(decoder(folder / name), 5, return_timestamps=True)
        found = numbers(few, video)
        check(name, "uniform", (found[0], found[-1], len(found)), (0, count - 1, 5))
        check(name, "times", begins, [pytest.approx(video.begins[number]) for number in found])
    assert not differences, "\n".join(map(str, differences))
    assert compared > most(370)


def test_frames_are_counted_as_far_as_headers_tell(folder, names):
    wrong = {}
    for name in names:
        video = seen(folder / name)
        found = decoder(folder / name).get_video_duration(get_frame_count=True)[1]
        if found != (video and len(video.frames)):
            wrong[name] = found - len(video.frames)
    expected = {"cut_aac.mp4": 2, "cut_short.mp4": 8}  # frames that are decoded for others, and not shown
    assert wrong == {name: count for name, count in expected.items() if name in names}


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    """The files in S3, alone and as parts of tars."""
    root = tmp_path_factory.mktemp("s3")
    (root / "bucket").mkdir()
    (root / "bucket" / "files").symlink_to(folder)
    paths = sorted(path for path in folder.iterdir() if path.suffix != ".png")

    def parts(number):
        return {
            paths[number].suffix[1:]: paths[number].read_bytes(),
            "json": json.dumps(paths[number].name).encode(),
        }

    write_shards(root / "bucket" / "tars", shards=1, samples_per_shard=len(paths), parts=parts, key="{:04d}")
    prepare_dataset(str(root / "bucket" / "tars"), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    with pytest.MonkeyPatch.context() as patch, S3Server(root) as server:
        patch.setenv("ENERGON_STREAM_CACHE_DIR", str(root / "node"))
        openings.in_process.clear()
        yield server
        openings.in_process.clear()


def clips_by_range(get, names, folder):
    """Differences of clips that ``get`` decodes by range, and how many were compared."""
    compared, differences = 0, []
    for name in names:
        sound, video = heard(folder / name), seen(folder / name)
        media = get(name)
        assert isinstance(media.stream, RangedFile)
        clips = [(0.1, 0.3), (1.3, 1.32), (-9.0, 99.0)]
        found = media.get_clips(clips if video else None, clips if sound else None)
        shown = [wanted for wanted in clips if video and wanted[0] <= video.begins[-1]]
        for clip, wanted in zip(found.video_clips, shown, strict=True):
            compared += 1
            if numbers(clip, video) != video.shown(*wanted):
                differences.append((name, wanted, "video"))
        inside = [wanted for wanted in clips if sound and sound.begin < wanted[1] and wanted[0] < sound.end]
        for clip, wanted in zip(found.audio_clips, inside, strict=True):
            compared += 1
            wrong = difference(clip.numpy(), sound.cut(*wanted), NOISY.get(name, 0.0))
            if wrong and not (name in UNEQUAL and wanted[0] > 0.2):
                differences.append((name, wanted, wrong))
    return compared, differences


def test_by_range_from_a_store(folder, names, server):
    store = DecodeFileStore(
        SystemFileStore("s3://bucket/files", storage_options=server.storage_options), SampleDecoder()
    )
    compared, differences = clips_by_range(store.get, names, folder)
    assert not differences, "\n".join(map(str, differences))
    assert compared > most(300)


def test_by_range_from_a_tar(folder, names, server):
    paths = sorted(path for path in folder.iterdir() if path.suffix != ".png")
    keys = {path.name: f"{number:04d}{path.suffix}" for number, path in enumerate(paths)}
    spec = StoreSpec("s3://bucket/tars", server.storage_options)
    store = DecodeFileStore(WebdatasetFileStore(spec), SampleDecoder())
    compared, differences = clips_by_range(lambda name: store.get(keys[name]), names, folder)
    assert not differences, "\n".join(map(str, differences))
    assert compared > most(300)


def test_in_samples_of_a_dataset(folder, server):
    dataset = get_train_dataset(
        "s3://bucket/tars",
        storage_options=server.storage_options,
        batch_size=1,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        task_encoder=TakeAll(),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
    )
    compared, differences = 0, []
    for batch in get_savable_loader(dataset):
        (name,), sound = batch["name"], heard(folder / batch["name"][0])
        if sound is not None:
            compared += 1
            wrong = difference(batch["sound"][0].numpy(), sound.samples)
            differences += [(name, wrong)] if wrong else []
    assert not differences, "\n".join(map(str, differences))
    assert compared > most(90)


def cook(crude):
    media = next(crude[part] for part in crude if part in AV_EXTENSIONS)
    sounds = media.get_audio().audio_clips if media.has_audio_stream() else [torch.zeros(0)]
    return {**basic_sample_keys(crude), "name": crude["json"], "sound": sounds[0]}


class TakeAll(DefaultTaskEncoder):
    cookers = [Cooker(cook)]


@pytest.mark.parametrize(
    ("options", "changes"),
    [("-ar 44100 -ac 1", "from 2 to 1 channels"), ("-ar 22050", "to 22,050 samples/s")],
)
def test_sound_that_changes_is_an_error(folder, options, changes):
    aac = ["-c:a", "aac", "-f", "adts"]
    ffmpeg("-i", "source.wav", "-ar", "44100", *aac, "first", *options.split(), *aac, "second", cwd=folder)
    first, second = ((folder / name).read_bytes() for name in ("first", "second"))
    joined = AVDecoder(io.BytesIO(first + second))
    with pytest.raises(DecodeError, match=changes):
        joined.get_audio()
    assert joined.get_audio_clips([(0.5, 0.6)])[0][0].shape == (2, 4410)
