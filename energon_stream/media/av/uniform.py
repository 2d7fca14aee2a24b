"""Clips and single frames at equal distances."""

from __future__ import annotations

import math
from typing import Any

from energon_stream.errors import ConfigError, DecodeError
from energon_stream.imports import LazyModule
from energon_stream.media.av.audio import AudioStream
from energon_stream.media.av.container import only_stream, open_container
from energon_stream.media.av.decoder import AVData, AVDecoder
from energon_stream.media.av.video import FrameSize, Range, VideoStream

torch: Any = LazyModule("torch")


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: FrameSize | None = None,
) -> AVData:
    """Decode clips of equal length at equal distances, the first at the begin and the last at the end.

    Args:
        av_decoder: The file.
        clip_duration_seconds: Length of each clip; 0 for single frames.
        num_clips: Number of clips. They overlap if the file is short.
        request_video: Whether to decode video.
        request_audio: Whether to decode audio.
        video_out_frame_size: Width and height to which frames are scaled; None keeps their size.

    Returns:
        The clips; see :meth:`AVDecoder.get_clips`.

    Raises:
        ConfigError: Neither video nor audio is requested, or a number is negative.
        DecodeError: The file is damaged, or lacks what is requested.

    Example:
        >>> from energon_stream.media.av import AVDecoder, get_clips_uniform
        >>> with open("clip.mp4", "rb") as file:
        ...     clips = get_clips_uniform(AVDecoder(file), 0.4, 3, request_video=True)
        >>> clips.video_timestamps
        [(0.0, 0.44), (0.8, 1.24), (1.6, 2.0)]
    """
    if not (request_video or request_audio):
        raise ConfigError("neither video nor audio is requested", hint="set request_video or request_audio")
    if clip_duration_seconds < 0 or num_clips < 0:
        what = f"{num_clips} clips of {clip_duration_seconds} seconds"
        raise ConfigError(what, hint="neither may be negative")
    begin, end, frame, rate = float("-inf"), float("inf"), 0.0, 0
    if request_video:
        frame = 1 / av_decoder.get_video_fps()
        with open_container(av_decoder.stream) as container:
            begin, end = VideoStream(container, only_stream(container, "video")).span()
    if request_audio:
        with open_container(av_decoder.stream) as container:
            audio = AudioStream(container, only_stream(container, "audio"))
            begin, rate = max(begin, audio.begin()), audio.rate
        end = min(end, _end_of_audio(av_decoder, rate) - audio.error)
    if clip_duration_seconds:
        # The last clip begins before the end of the file, not at it.
        ranges = uniform_ranges(end - begin, clip_duration_seconds, num_clips, frame / 2)
    else:
        ranges = nearest_frames(end - begin, frame, num_clips)
    ranges = [(begin + first, begin + last) for first, last in ranges]
    sounds: list[Range] | None = None
    if request_audio:  # in samples, because rounding begin and end of a clip may add one
        samples = round(clip_duration_seconds * rate)
        last = max(math.floor(end * rate + 1e-3) - samples, round(begin * rate))
        firsts = [min(round(first * rate), last) for first, _ in ranges]
        sounds = [(first, first + samples) for first in firsts]
    return av_decoder.get_clips(
        video_clip_ranges=ranges if request_video else None,
        audio_clip_ranges=sounds,
        audio_unit="samples",
        video_out_frame_size=video_out_frame_size,
    )


def _end_of_audio(av_decoder: AVDecoder, rate: int) -> float:
    """Return when the audio ends, by decoding the last second: headers may not know it."""
    for first in ((av_decoder.get_audio_duration() or 0.0) - 1.0, float("-inf")):
        clips, times = av_decoder.get_audio_clips([(first, float("inf"))])
        if clips and clips[0].shape[1]:
            begin, end = times[0]
            return min(end, begin + int(clips[0].shape[1]) / rate)
    raise DecodeError("the audio has no samples")


def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: FrameSize | None = None,
    return_timestamps: bool = False,
) -> Any:
    """Decode frames at equal distances, the first and the last frame among them.

    Args:
        av_decoder: The video.
        num_frames: Number of frames; frames repeat if the video has fewer.
        video_out_frame_size: Width and height to which frames are scaled; None keeps their size.
        return_timestamps: Whether to return the times of the frames as well.

    Returns:
        A tensor of shape ``(frames, 3, height, width)``, as for :meth:`AVDecoder.get_video`; or this tensor
        and a list with the time of each frame in seconds.

    Raises:
        ConfigError: ``num_frames`` is not positive.
        DecodeError: The file is damaged, or has no video.

    Example:
        >>> from energon_stream.media.av import AVDecoder, get_single_frames_uniform
        >>> with open("clip.mp4", "rb") as file:
        ...     frames, times = get_single_frames_uniform(AVDecoder(file), 3, return_timestamps=True)
        >>> frames.shape, times
        (torch.Size([3, 3, 48, 64]), [0.0, 1.0, 1.96])
    """
    if num_frames < 1:
        raise ConfigError(f"num_frames is {num_frames}", hint="use 1 or more")
    found = get_clips_uniform(
        av_decoder, 0.0, num_frames, request_video=True, video_out_frame_size=video_out_frame_size
    )
    if not found.video_clips:
        raise DecodeError("the video has no frames")
    frames = torch.cat([clip[:1] for clip in found.video_clips])
    return (frames, [begin for begin, _ in found.video_timestamps or []]) if return_timestamps else frames


def uniform_ranges(length: float, clip_length: float, count: int, margin: float = 0.0) -> list[Range]:
    """Return ranges of equal length at equal distances.

    The last one begins at least ``margin`` before the end of the file. All lengths are in seconds.

    Example:
        >>> uniform_ranges(2.0, 0.5, 3)
        [(0.0, 0.5), (0.75, 1.25), (1.5, 2.0)]
    """
    last = max(length - clip_length, 0.0)
    step = last / (count - 1) if count > 1 else 0.0
    latest = max(length - margin, 0.0)
    begins = [min(number * step, latest) for number in range(count)]
    return [(begin, begin + clip_length) for begin in begins]


def nearest_frames(length: float, frame: float, count: int) -> list[Range]:
    """Return ranges without length, for frames at equal distances, the first and the last among them.

    Each range lies within the frame that begins nearest to its place. Of two frames that are as near, it is
    the one nearer to the middle of the file, and in the middle the later one.

    Example:
        >>> [round(begin, 3) for begin, _ in nearest_frames(3.0, 0.04, 5)]  # frames 0, 19, 37, 55 and 74
        [0.02, 0.76, 1.5, 2.24, 2.98]
    """
    last = max(length - frame, 0.0)
    step = last / (count - 1) if count > 1 else 0.0
    # Half a frame later, the nearest frame is the one that is displayed.
    begins = [number * step + frame / 2 for number in range(count)]
    middle, little = length / 2, frame / 1000
    begins = [begin + little if begin < middle + little else begin - little for begin in begins]
    return [(begin, begin) for begin in begins]
