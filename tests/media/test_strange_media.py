"""Parts that are named like media and are something else: no file or port is opened, and errors say what."""

import io
import socket
import struct
import time

import pytest

from energon_stream import SampleDecoder
from energon_stream.errors import DecodeError
from energon_stream.media.av import AVDecoder
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
