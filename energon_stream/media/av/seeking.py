"""Packets of a stream from a given time on, and the bytes of the file that hold them."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from energon_stream.errors import ConfigError, DecodeError
from energon_stream.imports import LazyModule
from energon_stream.media.av.container import is_matroska
from energon_stream.storage import ByteRange

if TYPE_CHECKING:
    import av
else:
    av = LazyModule("av", "av")

_MAX_REORDER = 16  # most frames between the order of decoding and that of display, in any codec
_USUAL_REORDER = 3
_TRIES = 4
_SHARE_OF_NEXT = 0.15
LAST = 1 << 62  # a tick after all others
_MARGIN_SECONDS = 2.0
_MARGIN_BYTES = 128 << 10
_WITHOUT_INDEX = ("mp3", "aac")  # the packets before a clip must be read to find the clip


def ticks(seconds: float, time_base: Any) -> int:
    """Return the tick of a stream's clock that contains a time; -1 before, and the largest after all."""
    if math.isnan(seconds):
        raise DecodeError("a time of a clip is not a number")
    # The tolerance mends what the division loses: 0.6 s is frame 15 at 25 frames a second.
    exact = float(seconds) * time_base.denominator / time_base.numerator + 1e-4
    return int(min(max(exact, -(float(LAST))), float(LAST)))


class NeedsBegin(Exception):
    """Packets cannot be reached by seeking: open the container anew, and read from its begin."""


class PacketRun(NamedTuple):
    """Packets from a key frame on: its number in the order of display, its time in ticks, and all packets."""

    number: int
    pts: int | None
    packets: Iterator[Any]


class Packets:
    """Compressed packets of one stream of a container, from a key frame on; other streams are discarded."""

    def __init__(self, container: Any, stream: Any) -> None:
        self._container = container
        self.stream: Any = stream
        self._entries = stream.index_entries
        first = stream.start_time
        if len(self._entries):
            lowest = self._entries[0].timestamp
            self.start: Any = lowest if first is None else first
            self._lowest = min(lowest, self.start)
        else:
            self.start = self._lowest = first or 0
        # The index has times of decoding; those of display are later by about this many ticks.
        self._delay = self.start - self._lowest
        self.is_at_end: bool = False  # True once all packets after a time were read
        self._hidden: list[int] | None = None
        self.is_moved: bool = False  # True once packets were read

    @property
    def count(self) -> int:
        """Number of packets, as far as header and index tell; 0 if they do not."""
        entries, frames = self._entries, int(self.stream.frames)
        if not (self._container.format.name == "avi" and self.stream.type == "video" and len(entries)):
            return frames
        # The header of an avi counts frames that are left out; its index has the others if it has the last.
        return len(entries) if len(entries) < frames <= entries[-1].timestamp + 1 else frames

    @property
    def are_numbered(self) -> bool:
        """True if the index has an entry for each packet, as those of mp4, mov and avi do."""
        return 0 < self.count <= len(self._entries)

    @property
    def hidden(self) -> list[int]:
        """Numbers of the first entries of the index that are decoded and not displayed, as after a cut."""
        if self._hidden is None:
            self._hidden, number = [], 0
            while number < len(self._entries) and number - len(self._hidden) < _MAX_REORDER:
                self._hidden += [number] if self._entries[number].is_discard else []
                number += 1
        return self._hidden

    def from_time(self, first: int, last: int = LAST) -> Iterator[Any]:
        """Return the packets for ticks ``first`` to ``last``, from the last key frame at or before them.

        Before the first seek, those from the begin on are all, also the ones before the start of the file.
        """
        if first <= self.start and not self.is_moved:
            return self._until(self._demuxed(), last)
        target, tries, step = max(first, self.start), _TRIES, 1
        while True:
            packets = self._seek(target)
            if self.stream.type == "video" and target > self._lowest:  # some demuxers seek to any packet
                packets = itertools.dropwhile(lambda packet: not packet.is_keyframe, packets)
            key = next(packets, None)
            if key is None and tries and (earlier := self._entry_before(target)) is not None:
                target, tries = earlier, tries - 1  # some demuxers find nothing after the last key frame
                continue
            if key is None or key.pts is None or key.pts <= first or target <= self._lowest:
                break
            target = min(target, key.pts if key.dts is None else key.dts) - step
            step *= 2
        packets = packets if key is None else itertools.chain([key], packets)
        return self._until(packets, last)

    def _until(self, packets: Iterator[Any], last: int) -> Iterator[Any]:
        self.is_at_end = False
        stop = self._first_after(last) if self.are_numbered else 0
        final = self._entries[stop - 1].timestamp if 0 < stop < len(self._entries) else None
        for packet in packets:
            if packet.dts is not None and packet.dts > last:  # as are all that follow it
                return
            yield packet
            if final is not None and packet.dts is not None and packet.dts >= final:
                return  # without reading the next one, of which the bytes are not at hand
        self.is_at_end = True

    def from_number(self, first: int, last: int) -> PacketRun:
        """Return the packets for frames ``first`` to ``last``, from the last key frame at or before them."""
        key = self._key_before(self._entry(first))
        while True:
            leading, pts, packets = _leading(self._from_entry(key))
            number = key - bisect_left(self.hidden, key) + leading
            if number <= first or key == 0:
                break
            key = self._key_before(key - 1)
        return PacketRun(number, pts, itertools.islice(packets, self._stop(last) - key))

    def _entry(self, number: int) -> int:
        """Return the number, as decoded, of a frame by its number as displayed, but for reordering."""
        for hidden in self.hidden:
            number += hidden <= number
        return min(number, len(self._entries) - 1)

    def _from_entry(self, key: int) -> Iterator[Any]:
        """Yield packets from an entry of the index on."""
        begin = self._entries[key].timestamp
        for target in (begin + self._delay, begin, self._lowest):  # demuxers seek by one or the other time
            packets = self._seek(target)
            first = next(packets, None)
            if first is None or first.dts is None or first.dts <= begin:
                break
        packets = packets if first is None else itertools.chain([first], packets)
        return itertools.dropwhile(lambda packet: packet.dts is not None and packet.dts < begin, packets)

    def bytes_of_numbers(self, first: int, last: int) -> list[ByteRange]:
        """Return the bytes of the packets that frames ``first`` to ``last`` need."""
        key = self._key_before(self._entry(first))
        return self._bytes(key, self._stop(last))

    def bytes_of_times(self, first: int, last: int, size: int) -> list[ByteRange]:
        """Return the bytes of the packets for ticks ``first`` to ``last``; none if the file has no index.

        ``size`` is the length of the file.
        """
        if self.are_numbered:
            return self._bytes(self._key_at(first), self._first_after(last))
        if is_matroska(self._container):
            return self._bytes_between_cues(first, last, size)
        begin, end = _share_of_file(self._container, self.stream, first, last, size)
        if self._container.format.name in _WITHOUT_INDEX:
            begin = 0
        return [ByteRange(begin, end)]

    def _bytes_between_cues(self, first: int, last: int, size: int) -> list[ByteRange]:
        """Return the bytes of whole groups: the index of this container has key frames only."""
        if not len(self._entries):
            return []
        begin, end = self._entries[self._key_at(first)].pos, self._first_after(last)
        last_begin = self._entries[max(end - 1, 0)].pos
        while end < len(self._entries) and self._entries[end].pos <= last_begin:
            end += 1
        if end == len(self._entries):
            return [ByteRange(begin, size)]
        stop = self._entries[end].pos
        if self._entries[end].timestamp <= last + self._reordered():
            stop += int(_SHARE_OF_NEXT * (stop - begin))  # the decoder reaches into the next group
        return [ByteRange(begin, min(stop, size))]

    def _reordered(self) -> int:
        """Return by about how many ticks frames are decoded before they are displayed."""
        if self.stream.type != "video" or not self.stream.average_rate:
            return 0
        frames = _USUAL_REORDER if self.stream.codec_context.has_b_frames else 1
        return int(frames / self.stream.average_rate / self.stream.time_base)

    def _key_at(self, tick: int) -> int:
        found = self._entries.search_timestamp(max(tick, self.start) - self._delay, backward=True)
        return max(int(found), 0)

    def _stop(self, number: int) -> int:
        """Return the number, as decoded, of the first packet that frames up to ``number`` do not need."""
        number = self._entry(number)
        most = min(number + 1 + _MAX_REORDER, len(self._entries))
        keys = (n for n in range(number + 1, most) if self._entries[n].is_keyframe)
        return next(keys, most)

    def _bytes(self, first: int, stop: int) -> list[ByteRange]:
        found: list[tuple[int, int]] = []
        for number in range(first, stop):
            entry = self._entries[number]
            begin, end = entry.pos, entry.pos + entry.size
            if found and found[-1][1] == begin:  # mostly: one range costs less than many to look up and merge
                begin = found.pop()[0]
            found.append((begin, end))
        return [ByteRange(*place) for place in found]

    def _entry_before(self, tick: int) -> int | None:
        number = bisect_left(self._entries, tick, key=lambda entry: entry.timestamp)
        return self._entries[number - 1].timestamp if number else None

    def _first_after(self, tick: int) -> int:
        return bisect_right(self._entries, tick, key=lambda entry: entry.timestamp)

    def _key_before(self, number: int) -> int:
        timestamp = self._entries[max(number, 0)].timestamp
        return max(int(self._entries.search_timestamp(timestamp, backward=True)), 0)

    def _seek(self, tick: int) -> Iterator[Any]:
        target, stream = max(tick, self._lowest), self.stream
        if stream.type == "audio" and self._container.streams.video and is_matroska(self._container):
            # Without a stream, seeking goes by the key frames of the video.
            target, stream = int(min(target * stream.time_base, 2**40) * av.time_base), None
        try:
            self._container.seek(target, stream=stream, backward=True)
        except (av.error.PermissionError, av.error.ArgumentError):  # there are no key frames, or no index
            self._container.seek(0, backward=True)
        return self._demuxed()

    def _demuxed(self) -> Iterator[Any]:
        self.is_moved = True
        return (packet for packet in self._container.demux(self.stream) if packet.size)


def _leading(packets: Iterator[Any]) -> tuple[int, int | None, Iterator[Any]]:
    """Return how many packets after a key frame are displayed before it, its time, and all packets."""
    taken: list[Any] = []
    leading = 0
    for packet in packets:
        taken.append(packet)
        key = taken[0].pts
        if key is None or packet.pts is None or packet.dts is None or packet.dts >= key:
            break
        leading += packet.pts < key and not packet.is_discard
    return leading, taken[0].pts if taken else None, itertools.chain(taken, packets)


def _share_of_file(container: Any, stream: Any, first: int, last: int, size: int) -> tuple[int, int]:
    """Return about the bytes of a time in a file without an index, whose rate of bytes is about constant."""
    if not container.duration:
        return 0, size
    whole = float(container.duration / av.time_base / stream.time_base)
    margin = _MARGIN_SECONDS / float(stream.time_base)
    begin = int(min(max(first - margin, 0) / whole, 1.0) * size) - _MARGIN_BYTES
    end = int(min((last + margin) / whole, 1.0) * size) + _MARGIN_BYTES
    return max(begin, 0), min(end, size)


def decoded(stream: Any, packets: Iterator[Any]) -> Iterator[Any]:
    """Decode packets, and then what the decoder still keeps."""
    for packet in packets:
        yield from stream.decode(packet)
    yield from stream.decode(None)


class MediaStream:
    """A stream of an open container, of which clips are decoded."""

    unit: ClassVar[str]  # of ranges, beside seconds

    def __init__(self, container: Any, stream: Any) -> None:
        self._stream, self._packets = stream, Packets(container, stream)
        self.is_short = False  # True once a clip ended with the file

    def _checked(self, clip_range: tuple[float, float], unit: str) -> tuple[float, float]:
        """Return a range. Raises ConfigError for an unknown unit, DecodeError if it ends before it begins."""
        if unit not in (self.unit, "seconds"):
            raise ConfigError(f"{self._stream.type}_unit is {unit!r}", hint=f"use 'seconds' or {self.unit!r}")
        begin, end = clip_range
        if not begin <= end:
            raise DecodeError(f"a clip from {begin} to {end} {unit} ends before it begins")
        return begin, end
