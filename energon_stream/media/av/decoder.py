"""``AVDecoder``, which decodes what a program asks for of a video or audio file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from energon_stream.errors import DecodeError, PartLimitError
from energon_stream.limits import Limits
from energon_stream.media.av.audio import AudioClip, AudioStream, AudioUnit
from energon_stream.media.av.container import first_stream, only_stream, open_container, read_at, read_index
from energon_stream.media.av.seeking import NeedsBegin
from energon_stream.media.av.video import FrameSize, Range, VideoClip, VideoStream, VideoUnit
from energon_stream.media.file_layout import full_size
from energon_stream.media.metadata import AVMetadata
from energon_stream.media.ranged_file import RangedFile

if TYPE_CHECKING:
    import torch

    from energon_stream.storage import ByteRange

_ALL: Range = (float("-inf"), float("inf"))


@dataclass(frozen=True, slots=True)
class Clips:
    """Clips of one file, as :meth:`AVDecoder.get_clips` takes them.

    Attributes:
        video: Begin and end of each video clip; None for no video.
        audio: Begin and end of each audio clip; None for no audio.
        video_unit: Unit of the video ranges: ``"seconds"`` or ``"frames"``.
        audio_unit: Unit of the audio ranges: ``"seconds"`` or ``"samples"``.

    Example:
        >>> Clips(video=[(1.0, 3.0)])
        Clips(video=[(1.0, 3.0)], audio=None, video_unit='seconds', audio_unit='seconds')
    """

    video: Sequence[Range] | None = None
    audio: Sequence[Range] | None = None
    video_unit: VideoUnit = "seconds"
    audio_unit: AudioUnit = "seconds"


@dataclass(kw_only=True)
class AVData:
    """Clips of a file.

    Attributes:
        video_clips: A ``uint8`` tensor for each clip, of shape ``(frames, 3, height, width)``, RGB, 0 to 255.
        video_timestamps: Begin of the first and end of the last frame of each clip, in seconds.
        audio_clips: A tensor for each clip, of shape ``(channels, samples)``. The type is that of the codec:
            ``float32`` in -1 to 1 for most, ``int16`` or ``int32`` for WAV and FLAC.
        audio_timestamps: Begin and end of each clip, in seconds.

    Example:
        >>> AVData(video_timestamps=[(0.0, 1.5)]).video_timestamps
        [(0.0, 1.5)]
    """

    video_clips: list[torch.Tensor] | None = None
    video_timestamps: list[tuple[float, float]] | None = None
    audio_clips: list[torch.Tensor] | None = None
    audio_timestamps: list[tuple[float, float]] | None = None


class VideoData(AVData):
    """An older name of ``AVData``.

    Example:
        >>> isinstance(VideoData(), AVData)
        True
    """


class AVDecoder:
    """A video or audio file with methods that decode parts of it. Needs the extra ``av``.

    Nothing is read before a method is called. Each call opens the file anew, and keeps nothing.

    * **Video** comes as ``uint8`` tensors of shape ``(frames, 3, height, width)``: RGB, 0 to 255.
    * **Audio** comes as tensors of shape ``(channels, samples)``, of the type of the codec: ``float32`` in -1
      to 1 for most codecs, ``int16`` or ``int32`` for WAV and FLAC. Nothing is resampled.
    * **A video range** includes its end: ``(1.0, 2.0)`` has all frames that are displayed at some time from
      1.0 to 2.0 seconds, ``(3, 7)`` in frames has five frames.
    * **An audio range** does not: ``(1.0, 2.0)`` has one second of samples.
    * A clip after the end of the file is left out of the result, and an audio clip before its begin. One that
      reaches over an end is shorter, and a video clip before the first frame has the first frame.
    * Times are as in the file. In files without an index of all frames, such as mkv and webm, frame ``n`` is
      the one that is displayed ``n / fps`` after the begin.

    Args:
        stream: The file: an open binary file that can be moved in. A file of
            :meth:`FileStore.open <energon_stream.FileStore.open>` is read by range, as far as clips need it.
        suppress_warnings: Accepted for Megatron-Energon's programs; nothing warns here.
        limits: Bound on the pixels of a frame (``image_pixels``). None: that of ``ENERGON_STREAM_LIMITS``.

    Raises:
        DecodeError: (All methods.) The file is damaged, has no such stream, or a range ends before it begins.
        PartLimitError: (All methods that decode video.) A frame has more pixels than ``limits`` allows.
        MissingPackageError: (All methods.) PyAV is not installed.
        StorageError: (All methods.) A store did not deliver the bytes.

    Example:
        >>> from energon_stream.media.av import AVDecoder
        >>> with open("clip.mp4", "rb") as file:
        ...     decoder = AVDecoder(file)
        ...     clips, timestamps = decoder.get_video_clips([(0.5, 1.0)])
        >>> clips[0].shape, timestamps
        (torch.Size([14, 3, 48, 64]), [(0.48, 1.04)])
    """

    # No dataclass: the default batch joins those field by field, and lists all other objects.
    def __init__(
        self, stream: BinaryIO, suppress_warnings: bool = False, *, limits: Limits | None = None
    ) -> None:
        self.stream = stream
        self.suppress_warnings = suppress_warnings
        self.limits = limits

    def __repr__(self) -> str:
        return f"AVDecoder(stream={self.stream!r})"

    def get_video(self) -> AVData:
        """Decode all frames of the video."""
        return self.get_clips(video_clip_ranges=[_ALL])

    def get_audio(self) -> AVData:
        """Decode all audio."""
        return self.get_clips(audio_clip_ranges=[_ALL])

    def get_video_with_audio(self) -> AVData:
        """Decode all frames of the video, and all audio."""
        return self.get_clips(video_clip_ranges=[_ALL], audio_clip_ranges=[_ALL])

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Decode the video, or the audio of a file without video.

        Args:
            video_decode_audio: Whether to decode the audio of a video too, if it has any.
        """
        with self._open() as container:
            has_video = first_stream(container, "video") is not None
            has_audio = first_stream(container, "audio") is not None
        return self.get_clips(
            video_clip_ranges=[_ALL] if has_video or not has_audio else None,
            audio_clip_ranges=[_ALL] if has_audio and (video_decode_audio or not has_video) else None,
        )

    def get_video_clips(
        self,
        video_clip_ranges: Sequence[Range],
        video_unit: VideoUnit = "seconds",
        video_out_frame_size: FrameSize | None = None,
    ) -> tuple[list[Any], list[Range]]:
        """Decode clips of the video.

        Args:
            video_clip_ranges: Begin and end of each clip. The end belongs to the clip.
            video_unit: Unit of the ranges: ``"seconds"`` or ``"frames"``.
            video_out_frame_size: Width and height to which frames are scaled, bilinearly; None keeps
                their size.

        Returns:
            The clips, and the begin and end of each in seconds.
        """
        found = self.get_clips(
            video_clip_ranges, video_unit=video_unit, video_out_frame_size=video_out_frame_size
        )
        return found.video_clips or [], found.video_timestamps or []

    def get_audio_clips(
        self, audio_clip_ranges: Sequence[Range], audio_unit: AudioUnit = "seconds"
    ) -> tuple[list[Any], list[Range]]:
        """Decode clips of the audio.

        Args:
            audio_clip_ranges: Begin and end of each clip. The end does not belong to the clip.
            audio_unit: Unit of the ranges: ``"seconds"`` or ``"samples"``.

        Returns:
            The clips, and the begin and end of each in seconds.
        """
        found = self.get_clips(audio_clip_ranges=audio_clip_ranges, audio_unit=audio_unit)
        return found.audio_clips or [], found.audio_timestamps or []

    def get_clips(
        self,
        video_clip_ranges: Sequence[Range] | None = None,
        audio_clip_ranges: Sequence[Range] | None = None,
        video_unit: VideoUnit = "seconds",
        audio_unit: AudioUnit = "seconds",
        video_out_frame_size: FrameSize | None = None,
    ) -> AVData:
        """Decode clips of the video and of the audio.

        Args:
            video_clip_ranges: As for :meth:`get_video_clips`; None for no video.
            audio_clip_ranges: As for :meth:`get_audio_clips`; None for no audio.
            video_unit: Unit of the video ranges.
            audio_unit: Unit of the audio ranges.
            video_out_frame_size: As for :meth:`get_video_clips`.

        Returns:
            The clips, in the order of the ranges; empty lists for what was not asked for.
        """
        wanted = Clips(video_clip_ranges, audio_clip_ranges, video_unit, audio_unit)
        if isinstance(self.stream, RangedFile):
            for _ in range(2):  # a second time if the file was replaced since its header was kept
                if self.stream.prefetch(self.bytes_of([wanted])[0]):
                    break
        clips: list[VideoClip] = []
        sounds: list[AudioClip] = []
        is_short = False
        if video_clip_ranges is not None:
            with self._open() as container:
                video = self._video(container)
                found = (video.clip(wanted, video_unit, video_out_frame_size) for wanted in video_clip_ranges)
                clips = [clip for clip in found if clip is not None]
                is_short |= video.is_short
        if audio_clip_ranges is not None:  # opened anew: some demuxers lose packets when streams change
            for sound, is_last in self._sounds(audio_clip_ranges, audio_unit):
                sounds += [] if sound is None else [sound]
                is_short |= is_last
        if is_short:
            self._check_size()
        return AVData(
            video_clips=[clip.frames for clip in clips],
            video_timestamps=[clip.timestamps for clip in clips],
            audio_clips=[sound.samples for sound in sounds],
            audio_timestamps=[sound.timestamps for sound in sounds],
        )

    def has_video_stream(self) -> bool:
        """Return True if the file has video."""
        with self._open() as container:
            return first_stream(container, "video") is not None

    def has_audio_stream(self) -> bool:
        """Return True if the file has audio."""
        with self._open() as container:
            return first_stream(container, "audio") is not None

    def get_video_fps(self) -> float:
        """Return the average number of frames per second."""
        with self._open() as container:
            return _fps(only_stream(container, "video"))

    def get_audio_samples_per_second(self) -> int:
        """Return the number of samples of a channel per second."""
        with self._open() as container:
            return AudioStream(container, only_stream(container, "audio")).rate

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Return the length of the video in seconds, and the number of frames.

        Args:
            get_frame_count: Whether to count the frames. If the header has no count, the whole file is read.

        Returns:
            Length and number; None for what is unknown, both None if the file has no video.
        """
        with self._open() as container:
            if first_stream(container, "video") is None:
                return None, None
            return _video_length(container, get_frame_count)

    def get_audio_duration(self) -> float | None:
        """Return the length of the audio in seconds; None if the file has no audio."""
        with self._open() as container:
            return None if first_stream(container, "audio") is None else _audio_length(container)

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """Return the length and format of the file.

        Args:
            get_video: Whether to look at the video.
            get_video_duration: Whether to find its length.
            get_video_frame_count: Whether to count its frames; see :meth:`get_video_duration`.
            get_video_frame_size: Whether to find width and height.
            get_audio: Whether to look at the audio.
            get_audio_duration: Whether to find its length.
            get_audio_num_samples: Whether to count its samples, by decoding all of it.
        """
        known: dict[str, Any] = {}
        with self._open() as container:
            if get_video and first_stream(container, "video") is not None:
                video = only_stream(container, "video")
                known["video_fps"] = _fps(video)
                if get_video_duration or get_video_frame_count:
                    length, frames = _video_length(container, get_video_frame_count)
                    known["video_duration"] = length if get_video_duration else None
                    known["video_num_frames"] = frames
                if get_video_frame_size:
                    known["video_width"], known["video_height"] = video.width, video.height
            if get_audio and first_stream(container, "audio") is not None:
                audio = only_stream(container, "audio")
                known["audio_channels"] = audio.codec_context.layout.nb_channels
                known["audio_sample_rate"] = audio.codec_context.sample_rate
                if get_audio_duration:
                    known["audio_duration"] = _audio_length(container)
        if get_audio_num_samples and "audio_channels" in known:
            with self._open() as container:
                known["audio_num_samples"] = AudioStream(container, only_stream(container, "audio")).count()
        return AVMetadata(**known)

    def bytes_of(self, wanted: Sequence[Clips]) -> list[list[ByteRange]]:
        """Return the places in the file of the bytes that clips need, for each of ``wanted``."""
        size = self.stream.seek(0, io.SEEK_END)
        with self._open() as container:
            read_index(container)
            return [self._bytes_of(container, clips, size) for clips in wanted]

    def _bytes_of(self, container: Any, clips: Clips, size: int) -> list[ByteRange]:
        found: list[ByteRange] = []
        if clips.video is not None:
            video = self._video(container)
            for clip_range in clips.video:
                found += video.bytes_of(clip_range, clips.video_unit, size)
        if clips.audio is not None:
            audio = AudioStream(container, only_stream(container, "audio"))
            for clip_range in clips.audio:
                found += audio.bytes_of(clip_range, clips.audio_unit, size)
        return found

    def _sounds(self, ranges: Sequence[Range], unit: AudioUnit) -> Iterator[tuple[AudioClip | None, bool]]:
        """Yield the clip of each range, and whether it ends with the file."""
        with ExitStack() as opened:
            audio = self._audio(opened)
            for wanted in ranges:
                try:
                    yield audio.clip(wanted, unit), audio.is_short
                except NeedsBegin:
                    opened.close()
                    audio = self._audio(opened)
                    yield audio.clip(wanted, unit, from_begin=True), audio.is_short

    def _audio(self, opened: ExitStack) -> AudioStream:
        container = opened.enter_context(self._open())
        return AudioStream(container, only_stream(container, "audio"))

    def _open(self) -> AbstractContextManager[Any]:
        return open_container(self.stream, limits=self.limits)

    def _check_size(self) -> None:
        """Raise DecodeError if the file has fewer bytes than its header says."""
        size = self.stream.seek(0, io.SEEK_END)
        full = full_size(partial(read_at, self.stream), size)
        if full > size:
            raise DecodeError(
                f"the clip reaches over the end of the file, which has {size:,} bytes of {full:,}",
                where=getattr(self.stream, "name", None),
                hint="the file was cut off; copy it again",
            )

    def _video(self, container: Any) -> VideoStream:
        stream = only_stream(container, "video")
        limits = self.limits or Limits.from_environment()
        if not 0 < stream.width * stream.height <= limits.image_pixels:
            size = (
                f"{stream.width:,} x {stream.height:,} pixels"
                if stream.width
                else "unknown size, perhaps too many"
            )
            raise PartLimitError(**limits.exceeded("image_pixels", f"the video has frames of {size}"))
        stream.codec_context.options = {"max_pixels": str(limits.image_pixels)}
        return VideoStream(container, stream)


def _fps(stream: Any) -> float:
    rate = stream.average_rate or stream.guessed_rate
    if not rate:
        raise DecodeError("the frame rate of the video is unknown")
    return float(rate)


def _video_length(container: Any, count_frames: bool) -> tuple[float, int | None]:
    stream = only_stream(container, "video")
    video = VideoStream(container, stream)
    frames = video.frames or None
    if stream.duration and (frames or not count_frames):
        return float(stream.duration * stream.time_base), frames if count_frames else None
    length = 0.0 if count_frames else video.end_of_last_group()
    return (length, None) if length else video.extent()


def _audio_length(container: Any) -> float:
    stream = only_stream(container, "audio")
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return AudioStream(container, stream).end()
