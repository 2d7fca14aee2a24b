"""``AVDecoder`` on whole files: clips by time and number, uniform clips, audio, metadata, and damaged files.

The expected numbers are those of Megatron-Energon 7.4.1 on files with a constant frame rate, measured beside
it. With a variable rate, the expected frames come from decoding the whole file.
"""

import io
import pickle
import re
import textwrap

import av
import children
import pytest
import torch
from repetitions import is_nightly

from energon_stream import AVMetadata, Limits, SampleDecoder
from energon_stream.errors import ConfigError, DecodeError, PartLimitError
from energon_stream.media.av import (
    AVData,
    AVDecoder,
    AVWebdatasetDecoder,
    get_clips_uniform,
    get_single_frames_uniform,
)
from energon_stream.testing.media_files import VideoFile, number_of_frame

VARIABLE = tuple(sum(20 if i % 3 else 100 for i in range(n)) for n in range(50))
FILES = {
    "a.mp4": VideoFile(audio_codec="aac", audio_channels=2),
    "a.mkv": VideoFile(audio_codec="aac", audio_channels=2),
    "v.webm": VideoFile(codec="libvpx", b_frames=0),
    "v.mov": VideoFile(codec="mpeg4", b_frames=0),
    "a.avi": VideoFile(codec="mpeg4", b_frames=0, audio_codec="libmp3lame", audio_rate=44_100),
    "v.avi": VideoFile(codec="mpeg4"),
    "one_key.mp4": VideoFile(group=1000),
    "open.mkv": VideoFile(codec="libx265", frames=50),
    "open.mp4": VideoFile(codec="libx265", frames=50),
    "variable.mp4": VideoFile(milliseconds=VARIABLE),
    "variable.mkv": VideoFile(milliseconds=VARIABLE),
    "a.wav": VideoFile(frames=0, audio_codec="pcm_s16le", audio_seconds=2.0),
    "stereo.wav": VideoFile(
        frames=0, audio_codec="pcm_s16le", audio_seconds=2.0, audio_channels=2, audio_rate=44_100
    ),
    "a.mp3": VideoFile(frames=0, audio_codec="libmp3lame", audio_seconds=2.0, audio_rate=44_100),
    "a.flac": VideoFile(frames=0, audio_codec="flac", audio_seconds=2.0, audio_rate=44_100),
    "a.ogg": VideoFile(frames=0, audio_codec="libopus", audio_seconds=2.0, audio_rate=48_000),
    "a.m4a": VideoFile(frames=0, audio_codec="aac", audio_seconds=2.0, audio_rate=44_100),
}
VIDEOS = [name for name, file in FILES.items() if file.frames]
SOUNDS = [name for name, file in FILES.items() if file.audio_codec]
CONSTANT = ["a.mp4", "a.mkv", "v.webm", "v.mov", "one_key.mp4", "open.mp4", "open.mkv"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("av")
    for name, file in FILES.items():
        file.write(folder / name)
    return folder


@pytest.fixture
def decoder(folder):
    return lambda name: AVDecoder(io.BytesIO((folder / name).read_bytes()))


def numbers(clip):
    return [number_of_frame(frame) for frame in clip]


def clip(decoder, begin, end, unit="seconds"):
    """Numbers of the frames of one clip, and its times; None if the clip is left out."""
    clips, times = decoder.get_video_clips([(begin, end)], unit)
    return (numbers(clips[0]), tuple(round(t, 3) for t in times[0])) if clips else None


@pytest.mark.every(2)
@pytest.mark.energon("AVDecoder.get_video_clips")
@pytest.mark.parametrize("name", CONSTANT)
def test_a_clip_by_seconds_has_the_frames_displayed_then(decoder, name):
    video = decoder(name)
    assert clip(video, 0.1, 0.5) == ([*range(2, 13)], (0.08, 0.52))
    assert clip(video, 0, 1) == ([*range(26)], (0.0, 1.04))
    assert clip(video, 0.51, 0.53) == ([12, 13], (0.48, 0.56))
    assert clip(video, 0.6, 0.6) == ([15], (0.6, 0.64))
    assert clip(video, 1.99, 1.99) == ([49], (1.96, 2.0))
    assert clip(video, 1.9, 5) == ([47, 48, 49], (1.88, 2.0))
    assert clip(video, -1, 0.2) == ([*range(6)], (0.0, 0.24))
    assert clip(video, 3, 4) is None
    assert clip(video, 0, float("inf"))[0] == [*range(50)]


@pytest.mark.energon("AVDecoder.get_video_clips(video_unit)")
@pytest.mark.parametrize("name", [*CONSTANT, "v.avi", "variable.mp4"])
def test_a_clip_by_frames_has_the_frames_of_these_numbers(decoder, name):
    video = decoder(name)
    for first, last in [(3, 7), (11, 13), (12, 24), (30, 33), (5, 5), (49, 49), (48, 60), (-2, 3)]:
        assert clip(video, first, last, "frames")[0] == [*range(max(first, 0), min(last, 49) + 1)]
    assert clip(video, 3.5, 7.5, "frames")[0] == [3, 4, 5, 6, 7]
    assert clip(video, 50, 60, "frames") is None


@pytest.mark.every(3)
@pytest.mark.parametrize("name", VIDEOS)
def test_clips_equal_the_whole_file_decoded(folder, decoder, name):
    with av.open(str(folder / name)) as container:
        stream = container.streams.video[0]
        frames = [
            (float(f.pts * stream.time_base), torch.from_numpy(f.to_ndarray(format="rgb24")))
            for f in container.decode(stream)
        ]
    whole = decoder(name).get_video()
    begins = [time for time, _ in frames]
    ends = [*begins[1:], whole.video_timestamps[0][1]]
    for a in [0.13 * step for step in range(0, 17, 1 if is_nightly() else 3)]:
        for length in (0.0, 0.11, 0.7):
            b = a + length
            wanted = [i for i in range(50) if begins[i] <= b + 1e-9 and ends[i] > a + 1e-9]
            found = decoder(name).get_video_clips([(a, b)])[0]
            if not wanted or b < begins[0]:
                continue
            assert len(found[0]) == len(wanted)
            for ours, i in zip(found[0], wanted, strict=True):
                assert torch.equal(ours.permute(1, 2, 0), frames[i][1])


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_several_clips_come_in_the_order_asked_for(decoder, name):
    clips, times = decoder(name).get_video_clips([(1, 1.2), (5, 6), (0, 0.2), (0.1, 0.3)])
    assert [numbers(clip) for clip in clips] == [[*range(25, 31)], [*range(6)], [*range(2, 8)]]
    assert times == [(1.0, 1.24), (0.0, 0.24), (0.08, 0.32)]
    assert decoder(name).get_video_clips([]) == ([], [])


def test_frames_have_documented_form_and_size(decoder):
    whole = decoder("a.mp4").get_video()
    assert whole.video_clips[0].shape == (50, 3, 48, 64)
    assert whole.video_clips[0].dtype == torch.uint8
    assert (whole.video_timestamps, whole.audio_clips, whole.audio_timestamps) == ([(0.0, 2.0)], [], [])
    scaled, _ = decoder("a.mp4").get_video_clips([(0, 0.1)], "seconds", (20, 30))
    assert scaled[0].shape == (3, 3, 30, 20)


@pytest.mark.energon("get_clips_uniform get_single_frames_uniform")
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_uniform_clips_and_frames(decoder, name):
    found = get_clips_uniform(decoder(name), 0.4, 3, request_video=True, request_audio=True)
    assert [numbers(clip) for clip in found.video_clips] == [[*range(11)], [*range(20, 31)], [*range(40, 50)]]
    assert found.video_timestamps == [(0.0, 0.44), (0.8, 1.24), (1.6, 2.0)]
    assert [tuple(clip.shape) for clip in found.audio_clips] == [(2, 6400)] * 3
    assert [round(begin, 6) for begin, _ in found.audio_timestamps] == [0.0, 0.8, 1.6]
    frames, times = get_single_frames_uniform(decoder(name), 7, return_timestamps=True)
    assert numbers(frames) == [0, 8, 16, 25, 33, 41, 49]
    assert times == pytest.approx([0.0, 0.32, 0.64, 1.0, 1.32, 1.64, 1.96])
    assert numbers(get_single_frames_uniform(decoder(name), 1)) == [0]
    assert get_single_frames_uniform(decoder(name), 60, video_out_frame_size=(10, 12)).shape == (
        60,
        3,
        12,
        10,
    )
    long = get_clips_uniform(decoder(name), 4.0, 2, request_video=True)
    assert [len(clip) for clip in long.video_clips] == [50, 50]
    with pytest.raises(ConfigError, match="neither video nor audio"):
        get_clips_uniform(decoder(name), 0.4, 3)
    with pytest.raises(ConfigError, match="num_frames is 0"):
        get_single_frames_uniform(decoder(name), 0)


@pytest.mark.energon("AVDecoder.get_audio_clips")
@pytest.mark.parametrize("name", SOUNDS)
def test_clips_of_audio_equal_the_whole_decoded(decoder, name):
    sound = decoder(name)
    whole = sound.get_audio()
    rate, start = sound.get_audio_samples_per_second(), whole.audio_timestamps[0][0]
    # Opus, and noise that AAC codes as such, depend a little on what was decoded before.
    tolerance = {"a.ogg": 1e-3, "a.m4a": 1e-2}.get(name, 0)
    for begin, end in [(0.1, 0.5), (0.3, 0.3), (0.5, 1.5), (1.9, 1.95)]:
        (found,), (times,) = sound.get_audio_clips([(begin, end)])
        first, last = round((begin - start) * rate), round((end - start) * rate)
        assert found.shape[1] == pytest.approx(last - first, abs=1)
        expected = whole.audio_clips[0][:, first : first + found.shape[1]]
        assert times == pytest.approx((begin, end))
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    assert sound.get_audio_clips([(3, 4)]) == ([], [])
    by_number = sound.get_audio_clips([(8000, 12_000)], "samples")[0][0]
    by_time = sound.get_audio_clips([(8000 / rate, 12_000 / rate)])[0][0]
    torch.testing.assert_close(by_number, by_time, rtol=0, atol=0)


def test_audio_has_the_type_of_its_codec(decoder):
    forms = {"a.wav": (1, 32_000), "stereo.wav": (2, 88_200), "a.flac": (1, 88_200)}
    for name, shape in forms.items():
        found = decoder(name).get_audio()
        assert (found.audio_clips[0].shape, found.audio_clips[0].dtype) == (shape, torch.int16)
        assert found.audio_timestamps == [(0.0, 2.0)]
    assert decoder("a.mp3").get_audio().audio_clips[0].dtype == torch.float32


@pytest.mark.energon("AVDecoder.get_frames get_video get_audio get_video_with_audio get_clips")
def test_whole_files(decoder):
    both = decoder("a.mp4").get_video_with_audio()
    assert len(both.video_clips[0]) == 50
    assert both.audio_clips[0].shape[0] == 2
    assert decoder("a.mp4").get_frames().audio_clips == []
    assert len(decoder("a.mp4").get_frames(video_decode_audio=True).audio_clips) == 1
    assert decoder("v.mov").get_frames(video_decode_audio=True).audio_clips == []
    assert decoder("a.flac").get_frames().audio_clips[0].shape == (1, 88_200)
    mixed = decoder("a.mkv").get_clips(video_clip_ranges=[(0.1, 0.3)], audio_clip_ranges=[(1, 1.1), (0, 0.2)])
    assert numbers(mixed.video_clips[0]) == [*range(2, 8)]
    assert [clip.shape[1] for clip in mixed.audio_clips] == [1600, 3200]
    assert decoder("a.mp4").get_clips() == AVData(
        video_clips=[], video_timestamps=[], audio_clips=[], audio_timestamps=[]
    )


@pytest.mark.energon(
    "AVDecoder.get_metadata has_video_stream has_audio_stream get_video_fps get_video_duration"
)
def test_metadata(decoder):
    expected = AVMetadata(
        video_duration=2.0, video_num_frames=50, video_fps=25.0, video_width=64, video_height=48,
        audio_duration=2.0, audio_channels=2, audio_sample_rate=16_000,
    )  # fmt: skip
    assert decoder("a.mp4").get_metadata() == expected
    counted = decoder("a.mkv").get_metadata(get_audio_num_samples=True)
    assert (counted.video_num_frames, counted.audio_num_samples) == (50, 32_768)
    assert counted.video_duration == pytest.approx(2.0)
    assert decoder("a.wav").get_metadata(get_audio_num_samples=True) == AVMetadata(
        audio_duration=2.0, audio_channels=1, audio_sample_rate=16_000, audio_num_samples=32_000
    )
    assert decoder("a.mp4").get_metadata(get_video=False, get_audio=False) == AVMetadata()
    assert decoder("a.mp4").get_video_duration() == (2.0, None)
    assert decoder("a.mkv").get_video_duration()[0] == pytest.approx(2.0)
    assert decoder("v.webm").get_video_duration(get_frame_count=True) == (2.0, 50)
    assert decoder("a.wav").get_video_duration() == (None, None)
    assert decoder("v.mov").get_audio_duration() is None
    assert decoder("variable.mkv").get_video_duration(True)[1] == 50
    assert (decoder("v.mov").has_audio_stream(), decoder("v.mov").has_video_stream()) == (False, True)


@pytest.mark.energon("SampleDecoder(av_decode, video_decode_audio) AVWebdatasetDecoder")
def test_parts_are_decoded_in_three_forms(folder):
    for name in FILES:
        raw = (folder / name).read_bytes()
        assert isinstance(SampleDecoder().decode(name, raw), AVDecoder)
        assert SampleDecoder(av_decode=None).decode(name, raw) == raw
    raw = (folder / "a.mp4").read_bytes()
    assert SampleDecoder(av_decode="torch").decode("MP4", memoryview(raw)).audio_clips == []
    both = SampleDecoder(av_decode="torch", video_decode_audio=True).decode("mp4", raw)
    assert len(both.audio_clips) == 1
    with SampleDecoder(av_decode="pyav").decode("mp4", raw) as container:
        assert container.streams.video[0].frames == 50
    assert isinstance(AVWebdatasetDecoder(video_decode_audio=False)("left.mp4", raw), AVDecoder)
    assert AVWebdatasetDecoder(video_decode_audio=False)("jpg", raw) is None
    with pytest.raises(ConfigError, match="Use one of AVDecoder"):
        AVWebdatasetDecoder(False, av_decode="ffmpeg")


def test_decoders_travel_to_other_processes(decoder):
    copy = pickle.loads(pickle.dumps(decoder("a.mp4")))
    assert clip(copy, 0.1, 0.2) == clip(decoder("a.mp4"), 0.1, 0.2)


def test_without_pyav_the_error_names_the_extra():
    code = """
    import sys

    sys.modules["av"] = None
    from energon_stream import SampleDecoder

    SampleDecoder().decode("mp4", b"unread").get_video()
    """
    done = children.run("-c", textwrap.dedent(code))
    assert re.search(r"MissingPackageError: .*pip install 'energon-stream\[av\]'", done.stderr), done.stderr


def test_damaged_files_are_errors_of_their_sample(folder, decoder):
    def opened(data):
        return AVDecoder(io.BytesIO(data))

    whole = (folder / "a.mp4").read_bytes()
    for data in (b"", b"hello", whole[:2000]):
        with pytest.raises(DecodeError, match="cannot be decoded"):
            opened(data).get_video_clips([(0, 1)])
        with pytest.raises(DecodeError, match="cannot be decoded"):
            SampleDecoder(av_decode="torch").decode("mp4", data)
    cut = (folder / "v.webm").read_bytes()[:3000]
    with pytest.raises(DecodeError, match="3,000 bytes of"):  # 7.4.1 returns what is left
        opened(cut).get_video()
    assert len(opened(cut).get_video_clips([(0, 0.1)])[0]) == 1
    wrong = SampleDecoder(av_decode="torch").decode("mp4", (folder / "v.webm").read_bytes())
    assert len(wrong.video_clips[0]) == 50
    with pytest.raises(DecodeError, match="no video stream; it has audio"):
        decoder("a.wav").get_video()
    with pytest.raises(DecodeError, match="no audio stream; it has video"):
        decoder("v.mov").get_audio_clips([(0, 1)])
    with pytest.raises(DecodeError, match="ends before it begins"):
        decoder("a.mp4").get_video_clips([(0.8, 0.3)])
    with pytest.raises(DecodeError, match="ends before it begins"):
        decoder("a.mp4").get_audio_clips([(0.8, float("nan"))])
    with pytest.raises(ConfigError, match="video_unit is 'samples'"):
        decoder("a.mp4").get_video_clips([(0, 1)], "samples")
    with pytest.raises(ConfigError, match="audio_unit is 'frames'"):
        decoder("a.mp4").get_audio_clips([(0, 1)], "frames")


def test_frames_have_a_limit_on_pixels(decoder):
    small = AVDecoder(decoder("a.mp4").stream, limits=Limits(image_pixels=1000))
    with pytest.raises(PartLimitError, match="64 x 48 pixels; the limit image_pixels is 1,000"):
        small.get_video()
    with pytest.raises(PartLimitError, match="the limit image_pixels"):
        SampleDecoder(av_decode="torch", limits=Limits(image_pixels=1000)).decode(
            "mp4", small.stream.getvalue()
        )
