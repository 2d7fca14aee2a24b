"""Sound and video of a hundred files that ffmpeg made, by every way to get at them, against other decoders.

The expected samples and frames are those of PyAV alone, which decodes a whole file from its begin to its end,
and of the command of ffmpeg, another version of it.
"""

import functools
import io
from typing import NamedTuple

import av
import numpy as np
import pytest
from media_corpus import ffmpeg, write_corpus

from energon_stream import SampleDecoder
from energon_stream.media.av import AVDecoder

# Frames of unequal length, of which the container has the times in milliseconds alone.
UNEQUAL = {"pcm.mkv", "vorbis.webm", "vp8_vorbis.webm"}
# The decoder adds noise, which depends on what it decoded before.
NOISY = {"ac3.mkv": 0.05}

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
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name not in ("source.wav", "cover.png"))


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
    """The whole sound of a file, by each way to get it."""
    data = path.read_bytes()
    yield "get_audio", decoder(path).get_audio()
    yield "get_frames", decoder(path).get_frames(video_decode_audio=True)
    yield "torch", SampleDecoder(av_decode="torch", video_decode_audio=True).decode(path.name, data)
    if decoder(path).has_video_stream():
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
    assert compared > 280


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
            if wrong and name in UNEQUAL and begin > 1:
                wrong = shifted_difference(clip.numpy(), sound, begin, end)
            if wrong:
                differences.append((name, begin, end, wrong))
    assert not differences, "\n".join(map(str, differences))
    assert compared > 1400


def shifted_difference(found, sound, begin, end):
    """As :func:`difference`, for a clip that may begin a millisecond too early or too late."""
    by_shift = (sound.cut(begin + shift / sound.rate, end + shift / sound.rate) for shift in range(-48, 49))
    shifted = [difference(found[:, :-96], expected[:, : found.shape[1] - 96]) for expected in by_shift]
    return None if None in shifted else "no shift of a millisecond makes them equal"


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
    assert len(sounding) >= 90


def as_floats(samples):
    """Samples in -1 to 1."""
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    scale = {np.dtype(np.int16): 1 << 15, np.dtype(np.int32): 1 << 31}.get(samples.dtype, 1)
    return samples.astype(np.float32) / scale
