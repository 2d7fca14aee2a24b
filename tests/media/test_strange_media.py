"""Parts that are named like media and are something else: no file or port is opened, and errors say what."""

import io
import json
import socket
import struct
import tempfile
import time
from pathlib import Path

import children
import hostile_media
import pytest

from energon_stream import Limits, SampleDecoder
from energon_stream.errors import DecodeError
from energon_stream.media.av import AVDecoder
from energon_stream.prepare.media_headers import MediaFile, read_av
from energon_stream.storage.local import LocalStore
from energon_stream.testing.media_files import VideoFile

PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nprivate.mp4\n#EXT-X-ENDLIST\n"
SESSION = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video %d RTP/AVP 96\n"


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A folder to be in, with a video that no part may show."""
    VideoFile(frames=5).write(tmp_path / "private.mp4")
    monkeypatch.chdir(tmp_path)


def ways_in(data):
    """Each way to open a part."""
    yield lambda: SampleDecoder(av_decode="torch", video_decode_audio=True).decode("x.mp4", data)
    yield lambda: SampleDecoder(av_decode="pyav").decode("x.mp4", data)
    yield AVDecoder(io.BytesIO(data)).get_metadata
    yield AVDecoder(io.BytesIO(data)).get_video
    yield AVDecoder(io.BytesIO(data)).get_audio
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.mp4").write_bytes(data)
        yield lambda: read_av(LocalStore(folder), MediaFile("x.mp4", "x.mp4", 0, len(data), None))


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (b"ffconcat version 1.0\nfile private.mp4\n", "a list of files for ffmpeg"),
        (PLAYLIST, "a playlist"),
        (b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"></MPD>', "HTML or XML"),
        (b"<html>Not Found</html>", "HTML or XML"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (b"no such video", "begins with b'no such video'"),
        (b"", "begins with b''"),
    ],
)
def test_files_that_name_others_are_refused(private, data, looks):
    for way in ways_in(data):
        with pytest.raises(DecodeError, match=looks):
            way()


def test_a_session_opens_no_port(private):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.process_time()
    for way in ways_in(SESSION % port):
        with pytest.raises(DecodeError, match="a session of network streams"):
            way()
    assert time.process_time() - began < 5


def wav(tag, *, channels=1, rate=8000, block=2, bits=16):
    header = struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits)
    body = (
        b"WAVEfmt " + struct.pack("<I", len(header)) + header + b"data" + struct.pack("<I", 256) + bytes(256)
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_an_unknown_codec_is_an_error_of_its_sample():
    decoder = AVDecoder(io.BytesIO(wav(0x1234)))
    assert decoder.has_audio_stream()
    for way in (
        decoder.get_audio,
        decoder.get_frames,
        decoder.get_metadata,
        decoder.get_audio_duration,
        decoder.get_audio_samples_per_second,
        lambda: decoder.get_metadata(get_audio_num_samples=True),
    ):
        with pytest.raises(DecodeError, match="a codec that libav does not know"):
            way()


TONE = {"frames": 0, "audio_seconds": 0.8}
CLIP = {"frames": 20, "audio_codec": "aac"}
SOUND_FILES = {
    "mp4": VideoFile(**CLIP),
    "mov": VideoFile(**CLIP),
    "mkv": VideoFile(**CLIP),
    "flv": VideoFile(**CLIP, audio_rate=44_100),
    "webm": VideoFile(frames=20, codec="libvpx", b_frames=0, audio_codec="libopus", audio_rate=48_000),
    "avi": VideoFile(frames=20, codec="mpeg4", b_frames=0, audio_codec="libmp3lame"),
    "m4a": VideoFile(**TONE, audio_codec="aac"),
    "aac": VideoFile(**TONE, audio_codec="aac", container="adts"),
    "wav": VideoFile(**TONE, audio_codec="pcm_s16le"),
    "mp3": VideoFile(**TONE, audio_codec="libmp3lame"),
    "flac": VideoFile(**TONE, audio_codec="flac"),
    "ogg": VideoFile(**TONE, audio_codec="libopus", audio_rate=48_000),
}


@pytest.mark.parametrize("step", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_hostile_parts_open_nothing_and_end_soon(private, tmp_path, step):
    for extension, file in SOUND_FILES.items():
        file.write(tmp_path / f"x.{extension}")
    done = children.run(hostile_media.__file__, str(tmp_path), str(step), timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == hostile_media.PARTS // step
    wrong = [part for part in found if part["raw"] or part["opened"]]
    assert not wrong, "\n".join(map(str, wrong))
    assert max(part["seconds"] for part in found) < 10
    assert max(part["peak"] for part in found) < 1024  # MiB, those of PyTorch included
    assert sum(map(len, (part["named"] for part in found))) > len(found)


@pytest.mark.parametrize(("count", "edits"), [(178_000_000, 0), (3_000_000, 4), (2**32 - 1, 0)])
def test_an_index_that_claims_too_much_is_refused_before_libav_reads_it(tmp_path, count, edits):
    VideoFile(frames=5).write(tmp_path / "x.mp4")
    data = bytearray((tmp_path / "x.mp4").read_bytes())
    sizes, listed = data.index(b"stsz"), data.index(b"elst")
    data[sizes + 8 : sizes + 16] = struct.pack(">2I", 1, count)  # samples of one byte each
    if edits:
        data[listed + 8 : listed + 12] = struct.pack(">I", edits)
    claimed = f"claims {count * max(edits, 1):,} samples, more than 10,000,000"
    for way in ways_in(bytes(data)):
        with pytest.raises(DecodeError, match=claimed):
            way()


def test_a_compressed_header_is_refused(tmp_path):
    VideoFile(frames=5).write(tmp_path / "x.mp4")
    data = (tmp_path / "x.mp4").read_bytes().replace(b"mvhd", b"cmov")
    with pytest.raises(DecodeError, match="the header of the file is compressed"):
        AVDecoder(io.BytesIO(data)).get_video()


def test_frames_that_are_larger_than_a_limit_are_not_decoded(tmp_path):
    VideoFile(frames=5, codec="libx264").write(tmp_path / "x.mp4")
    data = bytearray((tmp_path / "x.mp4").read_bytes())
    header = data.index(b"avc1", data.index(b"stsd"))
    data[header + 28 : header + 32] = struct.pack(">2H", 16, 16)  # the header says less than the frames
    decoder = AVDecoder(io.BytesIO(bytes(data)), limits=Limits(image_pixels=64 * 48 - 1))
    with pytest.raises(DecodeError):
        decoder.get_video()
    with pytest.raises(DecodeError):
        decoder.get_video_clips([(0, 3)], "frames")
    trusting = AVDecoder(io.BytesIO(bytes(data)), limits=Limits(image_pixels=64 * 48))
    assert trusting.get_video().video_clips[0].shape == (5, 3, 48, 64)
