"""Fetches the bytes of clips of several files together, before they are decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from energon_stream.errors import EnergonStreamError
from energon_stream.fork import PerProcess
from energon_stream.media.file_ranges import FileRanges, request_ranges, shared_allowance
from energon_stream.media.ranged_file import FilePlace, RangedFile
from energon_stream.storage import Fetcher

if TYPE_CHECKING:
    from energon_stream.media.av.decoder import AVDecoder, Clips

_OPENED_AT_A_TIME = 16
_openers: PerProcess[Fetcher] = PerProcess(lambda: Fetcher(_OPENED_AT_A_TIME))


class _ClipsOfFile(NamedTuple):
    decoder: AVDecoder
    file: RangedFile
    clips: Clips


def fetch_clips(wanted: Iterable[tuple[AVDecoder, Clips]]) -> None:
    """Fetch the bytes of clips of several files, before the decoders decode them.

    The headers of unknown files are read side by side. Then all clips are requested at once: ranges of one
    file or tar that lie close together share a request. It returns when the requests are made; decoding waits
    for the bytes that it needs, and frees them. Up to 256 MiB are held for all clips of the process; clips
    beyond are fetched when they are decoded.

    Files that are not read by range are left out. A file that cannot be read or opened raises its error when
    it is decoded.

    Args:
        wanted: The decoders, and the clips that each of them will decode with one call.

    Example:
        >>> from energon_stream import DecodeFileStore, SampleDecoder, SystemFileStore
        >>> from energon_stream.media.av import Clips, fetch_clips
        >>> videos = DecodeFileStore(SystemFileStore("s3://data"), SampleDecoder())
        >>> decoders = [videos.get("clip.mp4") for _ in range(3)]
        >>> fetch_clips([(decoder, Clips(video=[(at, at + 0.2)])) for at, decoder in enumerate(decoders)])
        >>> [decoder.get_video_clips([(at, at + 0.2)])[1] for at, decoder in enumerate(decoders)]
        [[(0.0, 0.24)], [(1.0, 1.24)], []]
    """
    begin_clips([partial(lambda found: found, pair) for pair in wanted]).result()


def begin_clips(wanted: Sequence[Callable[[], tuple[AVDecoder, Clips]]]) -> Future[None]:
    """Begin to fetch clips in the background; see :func:`fetch_clips`. The future ends with the last request.

    ``wanted`` has for each file a function that opens it, the most urgent first. They run on threads, side by
    side.
    """
    done: Future[None] = Future()
    opened: dict[int, _ClipsOfFile] = {}
    planned: dict[int, FileRanges] = {}

    def open_file(number: int) -> None:
        decoder, clips = wanted[number]()
        file = decoder.stream
        if isinstance(file, RangedFile) and not file.is_local:
            opened[number] = _ClipsOfFile(decoder, file, clips)

    def plan_all() -> None:
        places: dict[FilePlace, list[int]] = {}
        for number in sorted(opened):
            places.setdefault(opened[number].file.place, []).append(number)
        _run_all([partial(plan_place, numbers) for numbers in places.values()], request_all)

    def plan_place(numbers: list[int]) -> None:
        """Open a file once for all clips of it."""
        first = opened[numbers[0]]
        ranges = first.decoder.bytes_of([opened[number].clips for number in numbers])
        for number, found in zip(numbers, ranges, strict=True):
            opened[number].file.open_as_kept()
            planned[number] = opened[number].file.unfetched(found)

    def request_all() -> None:
        numbers = sorted(planned)
        try:
            found = request_ranges([planned[number] for number in numbers], shared_allowance())
            for number, pieces in zip(numbers, found, strict=True):
                opened[number].file.expect(pieces)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    _run_all([partial(open_file, number) for number in range(len(wanted))], plan_all)
    return done


def _run_all(jobs: Sequence[Callable[[], None]], then: Callable[[], None]) -> None:
    """Run jobs on threads, and then ``then``. Decoding the file raises its error again."""
    if not jobs:
        then()
        return
    left, counting, openers = len(jobs), threading.Lock(), _openers.get()

    def run(job: Callable[[], None]) -> None:
        nonlocal left
        try:
            with suppress(EnergonStreamError):
                job()
        finally:
            with counting:
                left -= 1
                is_last = not left
            if is_last:
                then()

    for job in jobs:
        openers.call(partial(run, job))
