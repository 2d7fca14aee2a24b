"""Small video and audio files as real programs write them, made with the command of ffmpeg."""

from __future__ import annotations

import shutil
import struct
import subprocess
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import imageio_ffmpeg
import numpy as np

SECONDS = 2.0
_RATE = 48_000
_QUIET = ("-hide_banner", "-loglevel", "error", "-nostdin", "-y")

# Options of ffmpeg for each file. The noise of AAC is made up by the decoder, from what it decoded before.
_AAC = "-c:a aac -aac_pns 0"
_X264 = "-c:v libx264 -preset ultrafast -pix_fmt yuv420p -g 12"
_MPEG4 = "-c:v mpeg4 -g 12"
_SILENT, _SOUND = "-an", "-vn"
_VARIABLE = "-vf setpts='PTS+0.3*floor(N/7)/TB/10' -fps_mode vfr"

SOUNDS: dict[str, str] = {
    **{f"aac{rate}.m4a": f"{_AAC} -ar {rate}" for rate in (8000, 16_000, 22_050, 44_100, 48_000)},
    "aac_no_edit_list.m4a": f"{_AAC} -ar 44100 -use_editlist 0",
    "aac_fragments.mp4": f"{_AAC} -movflags frag_keyframe+empty_moov+delay_moov -frag_duration 300000",
    "aac.mov": f"{_AAC} -ar 44100",
    "aac.mkv": f"{_AAC} -ar 44100",
    "aac.flv": f"{_AAC} -ar 44100",
    "aac_noise.m4a": "-c:a aac -ar 44100",
    "aac.aac": f"{_AAC} -ar 44100",
    "aac.avi": f"{_AAC} -ar 48000",
    "aac_late.m4a": f"{_AAC} -ar 44100 -output_ts_offset 0.5",
    **{
        f"mp3_{rate}.mp3": f"-c:a libmp3lame -ar {rate} -ac 1"
        for rate in (8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
    },
    "mp3_vbr.mp3": "-c:a libmp3lame -ar 44100 -q:a 5",
    "mp3_abr.mp3": "-c:a libmp3lame -ar 44100 -abr 1 -b:a 64k",
    "mp3_no_xing.mp3": "-c:a libmp3lame -ar 44100 -write_xing 0",
    "mp3_no_xing_16000.mp3": "-c:a libmp3lame -ar 16000 -write_xing 0",
    "mp3_no_tags.mp3": "-c:a libmp3lame -ar 22050 -id3v2_version 0",
    "mp3_8kbit.mp3": "-c:a libmp3lame -ar 8000 -ac 1 -b:a 8k",
    **{f"mp3_{rate}.mp4": f"-c:a libmp3lame -ar {rate}" for rate in (16_000, 22_050, 24_000, 44_100)},
    "mp3.mkv": "-c:a libmp3lame -ar 44100",
    "mp3_16000.mkv": "-c:a libmp3lame -ar 16000",
    "mp3.mov": "-c:a libmp3lame -ar 44100",
    "mp3.avi": "-c:a libmp3lame -ar 44100",
    "opus.ogg": "-c:a libopus",
    "opus_60ms.opus": "-c:a libopus -frame_duration 60 -b:a 24k",
    "opus_2_5ms.opus": "-c:a libopus -frame_duration 2.5",
    "opus.webm": "-c:a libopus",
    "opus.mkv": "-c:a libopus",
    "opus.mp4": "-c:a libopus",
    "vorbis.ogg": "-c:a libvorbis -ar 44100",
    "vorbis.webm": "-c:a libvorbis -ar 44100",
    "flac.flac": "-c:a flac -ar 44100",
    "flac24.flac": "-c:a flac -sample_fmt s32",
    "flac_short.flac": "-c:a flac -ar 44100 -af atrim=end_sample=1000",
    "flac_4607.flac": "-c:a flac -ar 44100 -af atrim=end_sample=4607",
    "flac.ogg": "-c:a flac -ar 44100",
    "flac.mkv": "-c:a flac -ar 44100",
    "flac.mp4": "-c:a flac -ar 44100",
    "alac.m4a": "-c:a alac -ar 44100",
    "alac.mov": "-c:a alac -ar 44100",
    "s16.wav": "-c:a pcm_s16le -ar 44100",
    "s24.wav": "-c:a pcm_s24le",
    "f32.wav": "-c:a pcm_f32le",
    "u8.wav": "-c:a pcm_u8 -ar 8000",
    "mulaw.wav": "-c:a pcm_mulaw -ar 8000",
    "adpcm.wav": "-c:a adpcm_ima_wav -ar 22050",
    "pcm.mov": "-c:a pcm_s16le -ar 44100",
    "pcm.mp4": "-c:a pcm_s16le -ar 44100",
    "pcm.mkv": "-c:a pcm_s16le -ar 44100",
    "pcm.avi": "-c:a pcm_s16le -ar 44100",
    "mp3.wav": "-c:a libmp3lame -ar 22050",
    "live.webm": "-c:a libopus -live 1",
    "ac3.mkv": "-c:a ac3 -ar 48000",
}
"""Options of the files without video."""
VIDEOS: dict[str, str] = {
    "x264_aac.mp4": f"{_X264} -bf 2 {_AAC} -ar 44100",
    "x264_one_key.mp4": f"{_X264} -g 1000 {_SILENT}",
    "x264_fragments.mp4": f"{_X264} {_AAC} -ar 48000 -movflags frag_keyframe+empty_moov",
    "x264.mov": f"{_X264} -bf 2 -c:a pcm_s16le",
    "x264.mkv": f"{_X264} -bf 2 {_AAC}",
    "x264.flv": f"{_X264} -bf 2 {_AAC}",
    "x265.mp4": f"-c:v libx265 -preset ultrafast -x265-params log-level=none:keyint=12:open-gop=1 {_SILENT}",
    "variable.mp4": f"{_X264} -bf 2 {_VARIABLE} {_AAC}",
    "variable.mkv": f"{_X264} -bf 2 {_VARIABLE} -c:a libopus",
    "late.mp4": f"{_X264} -bf 2 {_AAC} -output_ts_offset 1.5",
    "mpeg4_mp3.avi": f"{_MPEG4} -c:a libmp3lame -ar 44100",
    "mpeg4_b.avi": f"{_MPEG4} -bf 2 {_SILENT}",
    "vp8_vorbis.webm": "-c:v libvpx -deadline realtime -cpu-used 8 -g 12 -c:a libvorbis",
    "vp9_opus.webm": "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 12 -c:a libopus",
}
"""Options of the files with video."""
MADE = Path(__file__).parent / "he_aac"
"""HE-AAC with replicated bands, and with a parametric second channel: ``source.wav`` by the encoder of
Fraunhofer, as ``-c:a libfdk_aac -profile:a aac_he -b:a 32k``, and ``aac_he_v2``. No free ffmpeg has it."""

CUTS: dict[str, tuple[str, str, str]] = {
    "cut_aac.m4a": ("aac44100.m4a", "-ss 0.53", "-c copy"),
    "cut_aac.mp4": ("x264_aac.mp4", "-ss 0.53", "-c copy"),
    "cut_short.mp4": ("x264_aac.mp4", "-ss 0.31 -t 0.9", "-c copy"),
    "cut.mkv": ("x264.mkv", "-ss 0.53", "-c copy"),
    "cut_negative.mp4": ("x264_aac.mp4", "-ss 0.53", "-c copy -avoid_negative_ts disabled -use_editlist 0"),
    "cut.mp3": ("mp3_44100.mp3", "-ss 0.4", "-c copy"),
    "cut_16000.mp3": ("mp3_16000.mp3", "-ss 0.4", "-c copy"),
    "cut.ogg": ("opus.ogg", "-ss 0.4", "-c copy"),
    "cut.webm": ("vp9_opus.webm", "-ss 0.53", "-c copy"),
    "cut.aac": ("aac.aac", "-ss 0.4", "-c copy"),
    "cut.wav": ("s16.wav", "-ss 0.4", "-c copy"),
    "cut.flac": ("flac.flac", "-ss 0.4", "-c copy"),
    "cut.avi": ("mpeg4_mp3.avi", "-ss 0.53", "-c copy"),
    "rotated.mp4": ("x264_aac.mp4", "-display_rotation 90", "-c copy"),
    "cut_he_aac_v1.m4a": ("he_aac_v1.m4a", "-ss 0.53", "-c copy"),
    "he_aac_v1.mkv": ("he_aac_v1.m4a", "", "-c copy"),
    "he_aac_v1.aac": ("he_aac_v1.m4a", "", "-c copy"),
    "he_aac_v2.aac": ("he_aac_v2.m4a", "", "-c copy"),
    "he_aac_v2.mp4": ("he_aac_v2.m4a", "", "-c copy -movflags frag_keyframe+empty_moov+delay_moov"),
    "cover.m4a": ("aac44100.m4a", "-i cover.png", "-map 0 -map 1 -c copy -disposition:v attached_pic"),
    "cover.mp3": ("mp3_16000.mp3", "-i cover.png", "-map 0 -map 1 -c copy -id3v2_version 3"),
    "cover.flac": ("flac.flac", "-i cover.png", "-map 0 -map 1 -c copy -disposition:v attached_pic"),
}
"""Files that have the packets of others: the other file, options before it or a second input, and options."""


def ffmpeg(*arguments: str, cwd: Path) -> bytes:
    """Run ffmpeg, and return what it writes to its standard output."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), *_QUIET, *arguments]
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, timeout=300).stdout


def write_corpus(folder: Path, step: int = 1) -> list[str]:
    """Write one of ``step`` files, and what these are made of; return the names of these."""
    names = sorted([*SOUNDS, *VIDEOS, *CUTS, *SPLICED, *(path.name for path in MADE.iterdir())])[::step]
    needed = {*names, *(CUTS[name][0] for name in names if name in CUTS)}
    needed |= {SPLICED[name][0] for name in names if name in SPLICED}
    sounds, videos, cuts, spliced = (
        {name: each[name] for name in each if name in needed} for each in (SOUNDS, VIDEOS, CUTS, SPLICED)
    )
    _write_sound(folder / "source.wav")
    inputs = [
        "-i",
        "source.wav",
        "-f",
        "lavfi",
        "-i",
        f"testsrc2=s=64x48:r=25:d={SECONDS},noise=alls=40:allf=t",
    ]
    outputs: list[str] = ["-map", "1", "-frames:v", "1", "cover.png"]
    for name, options in sounds.items():
        outputs += ["-map", "0", *_split(options), name]
    for name, options in videos.items():
        sound = [] if _SILENT in options else ["-map", "0"]
        outputs += ["-map", "1", *sound, *_split(options), name]
    ffmpeg(*inputs, *outputs, cwd=folder)
    for path in MADE.iterdir():
        shutil.copy(path, folder)
    for name, (source, before, options) in cuts.items():
        second = before.startswith("-i ")
        first = ["-i", source] if second else [*before.split(), "-i", source]
        ffmpeg(*first, *(before.split() if second else []), *options.split(), name, cwd=folder)
    for name, (source, splice) in spliced.items():
        (folder / name).write_bytes(splice((folder / source).read_bytes()))
    return names


def _split(options: str) -> Iterator[str]:
    return (word.replace("'", "") for word in options.split())


def _write_sound(path: Path) -> None:
    """Write rising tones and noise, in which no two places are equal."""
    time = np.arange(int(SECONDS * _RATE)) / _RATE
    noise = np.random.default_rng(7).normal(0, 400, (2, len(time)))
    tones = [8000 * np.sin(2 * np.pi * (220 + 110 * channel + 400 * time) * time) for channel in range(2)]
    with wave.open(str(path), "wb") as file:
        file.setparams((2, 2, _RATE, 0, "NONE", ""))
        file.writeframes((np.stack(tones) + noise).T.astype("<i2").tobytes())


def _vbri(data: bytes) -> bytes:
    """Put a frame with a VBRI tag, as Fraunhofer's encoder writes it, before the frames of an mp3 file."""
    frame_bytes = 144 * 64_000 // 44_100
    tag = b"VBRI" + struct.pack(">HHHIIHHHH", 1, 1105, 75, len(data), len(data) // 209, 1, 1, 2, 1)
    head = b"\xff\xfb\x50\xc4" + bytes(32) + tag + struct.pack(">H", len(data))
    return head.ljust(frame_bytes, b"\0") + data


SPLICED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "mp3_vbri.mp3": ("mp3_no_xing.mp3", _vbri),
}
"""Files made of the bytes of others."""
