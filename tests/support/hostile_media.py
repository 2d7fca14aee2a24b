"""Parts that strangers may name like media, and a process that decodes them under watch.

``python hostile_media.py FOLDER STEP`` decodes each STEP-th part, and prints one line of JSON for each. After
it has decoded sound files, the kernel reports each try to open a file or a socket, or to start a program.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import platform
import random
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARTS = 2000
_TARGETS = (
    "private.mp4",
    "/etc/passwd",
    "file:private.mp4",
    "http://127.0.0.1:9/x",
    "tcp://127.0.0.1:9",
    "data:,x",
)
_EXTENSIONS = ("mp4", "mov", "mkv", "webm", "avi", "flv", "m4a", "wav", "mp3", "flac", "ogg", "aac")
_TEXTS: tuple[str, ...] = (
    "ffconcat version 1.0\nfile {0}\n",
    "ffconcat version 1.0\n{junk}\nfile '{0}'\nduration 3\nfile {0}\ninpoint 1\n",
    "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{0}\n#EXT-X-ENDLIST\n",
    "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{0}\n",
    '#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="{0}"\n#EXTINF:9,\n{0}\n',
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns={junk}\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    "v=0\ns=x\nc=IN IP4 239.0.0.1\nm=audio {port} RTP/AVP 0\nm=audio {port} RTP/AVP 8\nm=video {port} RTP/AVP 26\n",
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><BaseURL>{0}</BaseURL></Period></MPD>',
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY y SYSTEM "{0}">]><AssetMap>&y;</AssetMap>',
    '<SmoothStreamingMedia MajorVersion="2"><StreamIndex Url="{0}"/></SmoothStreamingMedia>',
    "[Reference]\nRef1={0}\n",
    "<ASX version='3'><ENTRY><REF HREF='{0}'/></ENTRY></ASX>",
    "# VobSub index file, v7 (do not modify this line!)\nid: en, index: 0\ntimestamp: 00:00:00:000, filepos: 000000000\n",
    "1\n00:00:00,000 --> 00:00:09,000\n{junk}\n",
    "[Script Info]\nScriptType: v4.00+\n[Events]\nDialogue: 0,0:00:00.00,0:00:09.00,,,,,,,{junk}\n",
    "testsrc2=s=64x48",
    "movie={0}",
    "frame%03d.png",
    "concat:{0}|{0}",
    "subfile,,start,0,end,9,,:{0}",
    "!<sbg>\n-SE\nbase: wave\n{0}\n",
    "RTSP/1.0 200 OK\nContent-Base: {0}\n",
    "{junk}",
)


def part(number: int, sound: dict[str, bytes]) -> tuple[str, bytes]:
    """Return the name and the bytes of a part; ``sound`` has whole files by extension."""
    chance = random.Random(number)
    extension = chance.choice(_EXTENSIONS)
    data = sound[extension]
    make = chance.choice(
        (
            _text,
            _text,
            _text_inside,
            _cut,
            _noise,
            _noise,
            _numbers,
            _numbers,
            _index,
            _crossed,
            _reference,
            _waves,
        )
    )
    return f"{make.__name__[1:]}{number}.{extension}", make(chance, data, sound)


def _text(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    junk = "".join(chance.choice("abc/%0 \t\n\x00é") for _ in range(chance.randrange(60)))
    values = {"junk": junk, "port": chance.randrange(20_000, 60_000)}
    text = chance.choice(_TEXTS).format(chance.choice(_TARGETS), **values).encode()
    return chance.choice(
        (b"", b"", b"", b"\xef\xbb\xbf", b"ID3\x04\0\0\0\0\0\0", b"\n \n")
    ) + text * chance.choice((1, 1, 40))


def _text_inside(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    """A playlist as the subtitles of an avi, or in the midst of another file."""
    text = _text(chance, data, sound)
    subtitles = b"GAB2\0\2\0" + struct.pack("<I", 2) + b"x\0" + struct.pack("<HI", 4, len(text)) + text
    place = chance.randrange(len(data))
    return (
        data[:place]
        + chance.choice((text, subtitles, b"01sb" + struct.pack("<I", len(subtitles)) + subtitles))
        + data[place:]
    )


def _cut(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    """The begin of a file, or one without its begin, or with a hole."""
    first, last = sorted(chance.randrange(len(data)) for _ in range(2))
    return chance.choice(
        (
            data[:first],
            data[first:],
            data[:first] + data[last:],
            data[:first] + bytes(last - first) + data[last:],
        )
    )


def _noise(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    """Some bytes of a header, or of everything, are others."""
    changed = bytearray(data)
    places = chance.choice(
        (range(min(2000, len(data))), range(len(data)), range(max(len(data) - 4000, 0), len(data)))
    )
    for _ in range(chance.choice((1, 3, 10, 100))):
        changed[chance.choice(places)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(changed)


def _numbers(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    """Some numbers of a header are huge: lengths, counts, sizes of frames, rates, times, not a number."""
    changed = bytearray(data)
    heads = [at for kind in _BOXES for at in _places(data, kind)] or [0]
    for _ in range(chance.choice((1, 2, 5))):
        at = (
            chance.choice(heads) + chance.randrange(48)
            if chance.random() < 0.8
            else chance.randrange(len(data))
        )
        number = chance.choice(_HUGE)
        changed[at : at + len(number)] = number
    return bytes(changed)


_BOXES = (
    b"tkhd", b"mdhd", b"mvhd", b"stsd", b"stts", b"ctts", b"stsz", b"stco", b"stsc", b"stss", b"elst", b"avcC", b"esds",
    b"avih", b"strh", b"strf", b"idx1", b"fmt ", b"data", b"fLaC", b"OggS", b"vorbis", b"OpusHead", b"onMetaData", b"FLV",
    b"\x2a\xd7\xb1", b"\x16\x54\xae\x6b", b"\x44\x89", b"\xb0\x81", b"\xba\x81", b"Xing", b"Info", b"ID3",
)  # fmt: skip
_HUGE = (
    b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff", b"\0" * 4, b"\x7f\xff", b"\0\0\0\1", b"\xff" * 8,
    b"\x7f\xf8" + bytes(6), b"\x7f\xf0" + bytes(6), b"\xff\xef" + b"\xff" * 6, b"\0\xff\xff\xff", b"\x3f\xff\xff\xff", b"\1\0\0\0",
)  # fmt: skip


def _places(data: bytes, kind: bytes) -> Iterator[int]:
    at = data.find(kind)
    while at >= 0:
        yield at + len(kind)
        at = data.find(kind, at + 1)


def _crossed(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    """The begin of one file and the end of another, or several after each other."""
    other = sound[chance.choice(_EXTENSIONS)]
    if chance.random() < 0.3:
        return data + other
    return data[: chance.randrange(len(data))] + other[chance.randrange(len(other)) :]


def _reference(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    """An mp4 whose samples are in another file."""
    movie = sound["mp4"]
    target = chance.choice(_TARGETS).encode() + b"\0"
    kind = chance.choice((b"url ", b"alis", b"rsrc", b"urn "))
    at = movie.find(b"url ")
    flags = chance.choice((0, 0, 1))
    old = int.from_bytes(movie[at - 4 : at], "big")
    entry = struct.pack(">I4sI", 12 + len(target), kind, flags) + target
    grown = len(entry) - old
    changed = bytearray(movie[: at - 4] + entry + movie[at - 4 + old :])
    for box in (b"dref", b"dinf", b"minf", b"mdia", b"trak", b"moov"):
        place = movie.rfind(box, 0, at) - 4
        length = int.from_bytes(changed[place : place + 4], "big")
        changed[place : place + 4] = (length + grown).to_bytes(4, "big")
    return bytes(changed)


def _waves(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    """A wav with any codec, rate, number of channels, and length."""
    tag = chance.choice(
        (1, 2, 3, 6, 7, 0x11, 0x31, 0x55, 0x161, 0xFF, 0x2000, 0xFFFE, 0x1234, chance.randrange(65_536))
    )
    rate = chance.choice((0, 1, 8000, 44_100, 2**31 - 1, 2**32 - 1))
    channels, block = chance.choice((0, 1, 2, 255, 65_535)), chance.choice((0, 1, 2, 4, 256, 65_535))
    bits = chance.choice((0, 1, 8, 12, 16, 24, 32, 64, 65_535))
    header = struct.pack("<HHIIHH", tag, channels, rate, chance.choice((0, 1, rate * 2 % 2**32)), block, bits)
    body = b"WAVEfmt " + struct.pack("<I", len(header)) + header + b"data"
    body += struct.pack("<I", chance.choice((0, 400, 2**31, 2**32 - 1))) + chance.randbytes(400)
    return b"RIFF" + struct.pack("<I", chance.choice((len(body), 2**32 - 1, 0))) + body


def _index(chance: random.Random, data: bytes, sound: dict[str, bytes]) -> bytes:
    """An mp4 of a kilobyte whose index claims any number of samples, edits, chunks, or runs."""
    count = chance.choice((0, 10, 3000, 10**6, 4 * 10**7, 178 * 10**6, 2**31 - 1, 2**32 - 1))
    edits = chance.choice((0, 0, 1, 2, 500, 5000))
    handler, entry = chance.choice(((b"vide", _VIDEO), (b"soun", _SOUND), (b"xxxx", _VIDEO)))
    tracks = b""
    for number in range(chance.choice((1, 1, 3))):
        header = (
            struct.pack(">5I", 0, 0, number + 1, 0, 0)
            + bytes(16)
            + struct.pack(">9I", 65_536, 0, 0, 0, 65_536, 0, 0, 0, 1 << 30)
        )
        table = _full(b"stsd", struct.pack(">I", 1), entry)
        table += _full(b"stts", struct.pack(">3I", 1, count, chance.choice((1, 512))))
        table += _full(b"stsc", struct.pack(">4I", 1, 1, chance.choice((1, count)), 1))
        table += _full(b"stsz", struct.pack(">2I", chance.choice((1, 2)), count))
        table += _full(b"stco", struct.pack(">2I", 1, 40), bytes(chance.choice((0, 400))))
        media = _full(b"mdhd", struct.pack(">4I", 0, 0, 12_800, 25_600), bytes(4))
        media += _full(b"hdlr", bytes(4), handler, bytes(13)) + _box(b"minf", _box(b"stbl", table))
        edit = struct.pack(">IiI", chance.choice((512, count * 512 % 2**32)), 0, 65_536)
        listed = _box(b"edts", _full(b"elst", struct.pack(">I", edits), edit * edits)) if edits else b""
        tracks += _box(
            b"trak",
            _full(b"tkhd", header, struct.pack(">2I", 64 << 16, 48 << 16)),
            listed,
            _box(b"mdia", media),
        )
    movie = _full(b"mvhd", struct.pack(">4I", 0, 0, 12_800, 25_600), bytes(80)) + tracks
    runs = b""
    if chance.random() < 0.3:
        movie += _box(b"mvex", _full(b"trex", struct.pack(">5I", 1, 1, 512, 1, 0)))
        run = _full(b"trun", struct.pack(">I", count))
        runs = _box(
            b"moof", _full(b"mfhd", bytes(4)), _box(b"traf", _full(b"tfhd", struct.pack(">I", 1)), run * 3)
        )
    return _box(b"ftyp", b"isom", bytes(4)) + _box(b"mdat", bytes(100)) + _box(b"moov", movie) + runs


def _box(kind: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I4s", 8 + len(data), kind) + data


def _full(kind: bytes, *parts: bytes) -> bytes:
    return _box(kind, bytes(4), *parts)


_VIDEO = _box(b"mp4v", bytes(7), b"\1", bytes(16), struct.pack(">2H", 64, 48), bytes(46))
_SOUND = _box(b"sowt", bytes(7), b"\1", bytes(8), struct.pack(">2H2HI", 2, 16, 0, 0, 8000 << 16))


def _decode(name: str, data: bytes) -> Iterator[Callable[[], Any]]:
    """Each way to decode a part."""
    from energon_stream import SampleDecoder
    from energon_stream.media.av import AVDecoder, Clips, get_clips_uniform

    media = AVDecoder(io.BytesIO(data))
    extension = name.rpartition(".")[2]
    yield media.get_metadata
    yield lambda: SampleDecoder(av_decode="torch", video_decode_audio=True).decode(extension, data)
    yield lambda: SampleDecoder(av_decode="pyav").decode(extension, data)
    yield lambda: media.get_video_clips([(0.1, 0.3), (0.5, 0.6)])
    yield lambda: media.get_video_clips([(3, 5)], "frames")
    yield lambda: media.get_audio_clips([(0.1, 0.3), (0.5, 0.6)])
    yield lambda: media.bytes_of([Clips(video=[(0.1, 0.3)]), Clips(audio=[(0.1, 0.3)])])
    yield lambda: get_clips_uniform(media, 0.1, 3, request_audio=True)
    yield lambda: get_clips_uniform(media, 0.1, 3, request_video=True)


def _try(name: str, data: bytes) -> tuple[list[str], list[str]]:
    """Decode a part in each way. Return the classes of named errors, and what was raised beside those."""
    from energon_stream.errors import EnergonStreamError

    named, raw = [], []
    for way in _decode(name, data):
        try:
            way()
        except EnergonStreamError as error:
            named.append(type(error).__name__)
        except Exception as error:
            raw.append(f"{type(error).__name__}: {error}"[:200])
    return named, raw


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("yes", ctypes.c_ubyte),
        ("no", ctypes.c_ubyte),
        ("value", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("first", ctypes.POINTER(_Instruction)))


_CALLS = {
    "x86_64": {
        2: "open",
        85: "creat",
        257: "openat",
        437: "openat2",
        41: "socket",
        42: "connect",
        59: "execve",
    },
    "aarch64": {56: "openat", 437: "openat2", 198: "socket", 203: "connect", 221: "execve"},
}


def watch(noticed: Callable[[], None]) -> None:
    """Let the kernel refuse to open files and sockets and to start programs, and call ``noticed`` instead."""
    calls = list(_CALLS[platform.machine()])
    allow, trap = 0x7FFF_0000, 0x0003_0000
    program = [_Instruction(0x20, 0, 0, 0)]
    program += [_Instruction(0x15, len(calls) - number, 0, call) for number, call in enumerate(calls)]
    program += [_Instruction(0x06, 0, 0, allow), _Instruction(0x06, 0, 0, trap)]
    code = (_Instruction * len(program))(*program)
    libc = ctypes.CDLL(None, use_errno=True)
    signal.signal(signal.SIGSYS, lambda *_: noticed())
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(_Program(len(program), code)), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel has no filter for system calls")


def main(folder: Path, step: int) -> None:
    import av.subtitles.codeccontext  # noqa: F401 - PyAV imports it when a file has subtitles

    sound = {extension: (folder / f"x.{extension}").read_bytes() for extension in _EXTENSIONS}
    for extension, data in sound.items():  # imports, and what libraries read when they are first used
        _try(f"x.{extension}", data)
    for number in range(40):
        _try(*part(PARTS + number, sound))
    found: list[str] = []
    watch(lambda: found.append("opened"))
    for forbidden in ((folder / "x.mp4").read_bytes, socket.socket):
        with contextlib.suppress(OSError, ValueError):
            forbidden()
    if len(found) != 2:
        raise SystemExit("the filter for system calls does not work")
    for number in range(0, PARTS, step):
        name, data = part(number, sound)
        before, began = len(found), time.process_time()
        sys.stderr.write(f"{name}\n")
        named, raw = _try(name, data)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        line = {
            "name": name,
            "named": named,
            "raw": raw,
            "seconds": round(time.process_time() - began, 2),
            "peak": peak,
        }
        sys.stdout.write(json.dumps({**line, "opened": len(found) - before}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
