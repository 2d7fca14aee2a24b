"""Uses the video and audio API of Megatron-Energon 7.4.1, and prints what it sees as JSON; see
``behaviours.py``.

Frames are told by the number that each shows, so nothing depends on the last bit of a decoder.

    python behaviours_av.py FOLDER
"""

import dataclasses
import io
from fractions import Fraction

import av
import numpy as np
import torch
from behaviours_common import CRUDE, case, run_cases, validate, write_tars
from megatron.energon import Cooker, DefaultTaskEncoder, SampleDecoder, get_loader, stateless
from megatron.energon.av import AVData, AVDecoder, get_clips_uniform, get_single_frames_uniform

FPS, FRAMES, RATE = 25, 75, 16_000
WIDTH, HEIGHT, MARK = 64, 48, 8


def numbered(number):
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[..., 1] = np.linspace(0, 255, WIDTH).astype(np.uint8)
    for bit in range(8):
        image[:MARK, bit * MARK : (bit + 1) * MARK] = 255 if number >> bit & 1 else 0
    return image


def numbers(clip):
    """The numbers that the frames of a clip show."""
    bits = clip[:, :, :MARK, : 8 * MARK].float().mean(1).reshape(-1, MARK, 8, MARK).mean((1, 3)) > 128
    return (bits * (1 << torch.arange(8))).sum(1).tolist()


def write(name, frames=FRAMES, audio=None):
    """A video with a key frame every 12 frames, with frames that are decoded before they are shown; or
    audio.
    """
    file = io.BytesIO()
    with av.open(file, "w", format={"mkv": "matroska"}.get(name, name)) as container:
        video = sound = None
        if frames:
            video = container.add_stream("libx264", rate=FPS)
            video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
            video.options = {"x264-params": "keyint=12:scenecut=0:bframes=2", "preset": "ultrafast"}
        if audio:
            sound = container.add_stream(audio, rate=RATE)
            sound.layout = "mono"
        packets = []
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(numbered(number), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            packets += video.encode(frame)
        packets += video.encode(None) if frames else []
        if audio:
            length = FRAMES * RATE // FPS
            wave = (np.sin(np.arange(length) / 20) * 20_000).astype(np.int16)
            whole = av.AudioFrame.from_ndarray(wave.reshape(1, -1), format="s16", layout="mono")
            whole.rate, whole.pts, whole.time_base = RATE, 0, Fraction(1, RATE)
            form = sound.codec_context.format.name
            size = sound.codec_context.frame_size or 1024
            resampler = av.AudioResampler(format=form, layout="mono", rate=RATE, frame_size=size)
            for part in (whole, None):
                for piece in resampler.resample(part):
                    packets += sound.encode(piece)
            packets += sound.encode(None)
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)
    return file.getvalue()


FILES = {
    "mp4": write("mp4"),
    "both": write("mp4", audio="aac"),
    "mkv": write("mkv"),
    "wav": write("wav", frames=0, audio="pcm_s16le"),
    "flac": write("flac", frames=0, audio="flac"),
}
MOVIES = ("mp4", "both", "mkv")


def decoder(name):
    return AVDecoder(io.BytesIO(FILES[name]))


def times(ranges):
    return [[round(float(begin), 3), round(float(end), 3)] for begin, end in ranges]


def shown(clips, ranges):
    return [numbers(clip) for clip in clips], times(ranges)


def heard(clips, ranges):
    """Shape, type and a few samples: 16-bit steps for integers, hundredths for floating-point numbers."""
    samples = [
        clip[0, 500:503] if clip.dtype is torch.int16 else (clip[0, 500:503] * 50).round() for clip in clips
    ]
    return [
        [list(clip.shape), str(clip.dtype), some.tolist()] for clip, some in zip(clips, samples, strict=True)
    ], times(ranges)


@case("av: AVDecoder.get_video", "av: AVData")
def whole_videos():
    data = {name: decoder(name).get_video() for name in MOVIES}
    assert all(isinstance(found, AVData) for found in data.values())
    clip = data["mp4"].video_clips[0]
    return (
        list(clip.shape),
        str(clip.dtype),
        {name: shown(found.video_clips, found.video_timestamps) for name, found in data.items()},
        [len(found.audio_clips or []) for found in data.values()],
    )


@case("av: AVDecoder.get_video_clips")
def clips_by_seconds():
    wanted = [(0.0, 0.2), (0.5, 0.7), (1.01, 1.02), (2.9, 9.0)]
    return {name: shown(*decoder(name).get_video_clips(wanted)) for name in MOVIES}


@case("av: AVDecoder.get_video_clips(video_unit)")
def clips_by_frames():
    wanted = [(0, 3), (11, 13), (70, 200), (80, 90)]
    return {name: shown(*decoder(name).get_video_clips(wanted, video_unit="frames")) for name in MOVIES}


@case("av: AVDecoder.get_video_clips(video_out_frame_size)")
def scaled_clips():
    clips, _ = decoder("mp4").get_video_clips([(0.0, 0.1)], video_out_frame_size=(32, 24))
    return [list(clip.shape) for clip in clips]


@case("av: AVDecoder.get_video_clips(video_clip_ranges)")
def clips_in_any_order():
    wanted = [(2.0, 2.1), (0.4, 0.5), (2.0, 2.1), (0.0, 0.0)]
    return shown(*decoder("mp4").get_video_clips(wanted))


@case("av: AVDecoder.get_audio")
def whole_audio():
    found = {name: decoder(name).get_audio() for name in ("wav", "flac", "both")}
    return {
        name: heard(data.audio_clips, data.audio_timestamps) for name, data in found.items() if name != "both"
    }


@case("av: AVDecoder.get_audio_clips")
def audio_by_seconds():
    wanted = [(0.0, 0.5), (1.0, 1.25)]
    return {name: heard(*decoder(name).get_audio_clips(wanted)) for name in ("wav", "flac")}


@case("av: AVDecoder.get_audio_clips(audio_unit)")
def audio_by_samples():
    wanted = [(0, 8000), (16000, 18000)]
    return {
        name: heard(*decoder(name).get_audio_clips(wanted, audio_unit="samples")) for name in ("wav", "flac")
    }


@case("av: AVDecoder.get_video_with_audio", "av: AVDecoder.get_clips")
def video_with_audio():
    whole = decoder("both").get_video_with_audio()
    some = decoder("both").get_clips(video_clip_ranges=[(1.0, 1.1)], audio_clip_ranges=[(1.0, 1.5)])
    return (
        [numbers(clip) for clip in whole.video_clips],
        [clip.shape[0] for clip in whole.audio_clips],
        shown(some.video_clips, some.video_timestamps),
        [list(clip.shape) for clip in some.audio_clips],
        times(some.audio_timestamps),
    )


@case("av: AVDecoder.get_frames")
def frames_of_files():
    found = [decoder("both").get_frames(), decoder("both").get_frames(video_decode_audio=True)]
    found.append(decoder("wav").get_frames())
    return [[len(data.video_clips or []), len(data.audio_clips or [])] for data in found]


@case(
    "av: AVDecoder.get_video_fps",
    "av: AVDecoder.get_audio_samples_per_second",
    "av: AVDecoder.has_audio_stream",
    "av: AVDecoder.has_video_stream",
)
def rates_and_streams():
    rates = [decoder(name).get_video_fps() for name in MOVIES]
    sounds = [decoder(name).get_audio_samples_per_second() for name in ("both", "wav", "flac")]
    streams = {name: [decoder(name).has_video_stream(), decoder(name).has_audio_stream()] for name in FILES}
    return rates, sounds, streams


@case("av: AVDecoder.get_video_duration", "av: AVDecoder.get_audio_duration")
def lengths():
    videos = {
        name: [decoder(name).get_video_duration(), decoder(name).get_video_duration(get_frame_count=True)]
        for name in ("mp4", "both", "wav")
    }
    sounds = {name: decoder(name).get_audio_duration() for name in ("mp4", "wav", "flac")}
    return videos, sounds


@case("av: AVDecoder.get_metadata")
def metadata():
    found = {name: decoder(name).get_metadata(get_audio_num_samples=True) for name in ("mp4", "wav", "flac")}
    return {name: dataclasses.asdict(data) for name, data in found.items()}


@case("av: get_clips_uniform", "av: get_single_frames_uniform")
def uniform_clips():
    clips = get_clips_uniform(
        av_decoder=decoder("mp4"), clip_duration_seconds=0.3, num_clips=3, request_video=True
    )
    frames = get_single_frames_uniform(av_decoder=decoder("mp4"), num_frames=5)
    timed, begins = get_single_frames_uniform(
        av_decoder=decoder("mp4"), num_frames=3, return_timestamps=True, video_out_frame_size=(64, 48)
    )
    return (
        shown(clips.video_clips, clips.video_timestamps),
        numbers(frames),
        list(frames.shape),
        numbers(timed),
        [round(float(begin), 3) for begin in begins],
    )


films = write_tars(
    "films", CRUDE, samples=2, parts={"mp4": lambda n: FILES["both"], "wav": lambda n: FILES["wav"]}
)


@case("SampleDecoder(av_decode)", "SampleDecoder(video_decode_audio)")
def modes_of_decoding():
    results = []
    for options in (
        {},
        {"av_decode": "torch"},
        {"av_decode": "torch", "video_decode_audio": True},
        {"av_decode": "pyav"},
    ):

        @stateless
        def cook(sample):
            return [sample["mp4"], sample["wav"]]

        class Encoder(DefaultTaskEncoder):
            decoder = SampleDecoder(**options)
            cookers = [Cooker(cook)]

        for film, sound in [next(iter(get_loader(validate(films, Encoder()))))]:
            if isinstance(film, AVData):
                results.append(
                    [len(film.video_clips or []), len(film.audio_clips or []), len(sound.audio_clips)]
                )
            elif isinstance(film, AVDecoder):
                results.append([type(film).__name__, film.get_video_fps(), type(sound).__name__])
            else:
                results.append([len(film.streams.video), len(sound.streams.audio)])
    return results


run_cases()
