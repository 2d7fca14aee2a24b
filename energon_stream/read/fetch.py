"""Requests under way: their answers, the bytes that they hold, and the samples cut out of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any

from energon_stream.errors import DatasetError
from energon_stream.read.objects import as_errors_of_shards
from energon_stream.read.verify import read_again
from energon_stream.storage import Body, ByteRange, Fetcher, abandon

if TYPE_CHECKING:
    from energon_stream.errors import ChecksumError
    from energon_stream.read.locator import Cutter, Locator, RawSample
    from energon_stream.read.read_plan import Request

_log = logging.getLogger(__name__)


def wait_for_first(answers: list[Future[Any]]) -> None:
    """Wait until one of some answers is there."""
    wait(answers, return_when=FIRST_COMPLETED)


class _Apart:
    """Copied samples of an answer that was taken apart; an error if one cannot be cut."""

    __slots__ = ("_samples",)

    def __init__(self, samples: list[RawSample | None | DatasetError]) -> None:
        self._samples = samples

    def cut(self, sample: int, place: int) -> RawSample | None:
        """Return a sample once; see :meth:`Cutter.cut`."""
        found, self._samples[place] = self._samples[place], None
        if isinstance(found, DatasetError):
            raise found
        return found


class _Refused:
    """Cuts an answer some of whose samples have wrong checksums."""

    __slots__ = ("_cutter", "_wrong")

    def __init__(self, cutter: Cutter, wrong: dict[int, ChecksumError]) -> None:
        self._cutter, self._wrong = cutter, wrong

    def cut(self, sample: int, place: int) -> RawSample | None:
        """Return a sample whose bytes are right; see :meth:`Cutter.cut`. Raises ChecksumError for others."""
        if place in self._wrong:
            raise self._wrong[place]
        return self._cutter.cut(sample, place)


class RangeFetch:
    """A planned request on its way, until its last sample is consumed.

    It holds its whole answer, or, after :meth:`take_apart`, a copy of each sample that is still wanted.

    Attributes:
        request: The planned request.
        is_requested: Whether the request was made.
        keeps: Whether the answer is kept when no planned sample needs it any more.

    ``is_shared`` tells that other readers share the budget, so that the answer may be taken apart.
    """

    __slots__ = (
        "_answer",
        "_cutter",
        "_left",
        "_locator",
        "_sizes",
        "_uses",
        "is_requested",
        "keeps",
        "request",
    )

    def __init__(self, request: Request, locator: Locator, *, keeps: bool, is_shared: bool = False) -> None:
        self.request = request
        self.keeps = keeps
        self.is_requested = False
        self._locator = locator
        self._uses = len(request.starts)  # planned ranges that are not consumed yet
        self._answer: Future[Body] | None = None
        self._cutter: Cutter | None = None
        # Uses of each range, if the answer may be taken apart.
        self._left = [1] * self._uses if is_shared and not self.is_local else None
        self._sizes: list[int] | None = None  # bytes of each copied sample, if it was taken apart

    @property
    def size(self) -> int:
        """Bytes of the request."""
        return self.request.size

    @property
    def deadline(self) -> int:
        """Number of ranges that the reader consumes before this is needed."""
        return self.request.deadline

    @property
    def has_arrived(self) -> bool:
        """True if the answer has arrived."""
        return self._answer is not None and self._answer.done()

    @property
    def is_local(self) -> bool:
        """True if the bytes are views of a local file."""
        return self._locator.index_is_local

    @property
    def answer(self) -> Future[Body]:
        """The future answer. Raises RuntimeError if the request was not made; a bug of this library."""
        if self._answer is None:
            raise RuntimeError("a fetch was used before it was requested; please report this bug")
        return self._answer

    def send(self, fetcher: Fetcher) -> None:
        """Make the request."""
        request = self.request
        shard = self._locator.object(request.object)
        self._answer = fetcher.submit(
            shard.store,
            shard.path,
            ByteRange(request.start, request.start + request.size),
            etag=shard.etag,
            deadline=request.deadline,
        )
        self.is_requested = True

    def reuse(self, places: Sequence[int]) -> None:
        """Note that ranges are planned once more, and served by the kept answer."""
        self._uses += len(places)
        if self._left is not None:
            for place in places:
                self._left[place] += 1

    def leave(self, place: int) -> int:
        """Mark a range as consumed; return how many bytes this releases."""
        self._uses -= 1
        if self._left is not None:
            self._left[place] -= 1
            if self._sizes is not None:
                return self._sizes[place]
        return 0 if self._uses or self.keeps else self.request.size

    def cut(self, sample: int, place: int) -> RawSample | None:
        """Wait for the bytes and cut a sample.

        Raises StorageError if the bytes could not be read, IndexMismatchError if they are not the sample or
        the index points beyond the object, and ChecksumError if they are wrong after a second request, too.
        """
        cutter = self._cutter
        if cutter is None:
            cutter = self._cutter = self._split()
        return cutter.cut(sample, place)

    @property
    def is_done(self) -> bool:
        """True if no sample needs the answer any more."""
        return not (self._uses or self.keeps)

    @property
    def held(self) -> int:
        """Bytes that the fetch holds, or will hold when its answer arrives."""
        if self._answer is None or self.is_done:
            return 0
        if self._sizes is None:
            return self.request.size
        return sum(size for size, uses in zip(self._sizes, self._left or (), strict=True) if uses)

    def stop_keeping(self) -> int:
        """Keep the answer until its planned samples are consumed; return how many bytes this releases."""
        before, self.keeps = self.held, False
        return before - self.held

    def take_apart(self) -> int:
        """Copy each wanted sample out of the answer; return how many bytes this releases.

        If the request failed, nothing happens; the error is raised for the first sample.
        """
        left = self._left
        if left is None or self._sizes is not None or self.keeps or not self._uses or len(left) < 2:
            return 0
        if max(left) > 1:  # planned for several passes
            return 0
        try:
            cutter = self._cutter or self._split()
        except Exception:
            return 0
        before = self.held
        samples = self.request.samples.tolist()
        self._cutter = _Apart(
            [_own(cutter, sample, place) if left[place] else None for place, sample in enumerate(samples)]
        )
        self._sizes = (self.request.stops - self.request.starts).tolist()
        self._answer = Future()  # the bytes are no longer needed
        self._answer.set_result(Body(memoryview(b""), None, None))
        return before - self.held

    def drop(self) -> int:
        """Cancel the request, or let it end; return the bytes that the fetch held."""
        held, self._uses, self.keeps = self.held, 0, False
        if self._answer is not None:
            self._answer.cancel()
            abandon(self._answer)
        return held

    def _split(self) -> Cutter:
        request = self.request
        with as_errors_of_shards():
            body = self.answer.result()
        shard = self._locator.object(request.object)
        shard.observe(body.etag)
        wrong = self._wrong(body)
        if wrong and not self.is_local:
            _log.warning("bytes with a wrong checksum are requested again: %s", next(iter(wrong.values())))
            with as_errors_of_shards():
                body = read_again(shard, ByteRange(request.start, request.start + request.size))
            wrong = self._wrong(body)
        cutter = self._locator.split(request.object, body.data, request.start, request.starts, request.stops)
        return _Refused(cutter, wrong) if wrong else cutter

    def _wrong(self, body: Body) -> dict[int, ChecksumError]:
        request = self.request
        return self._locator.wrong_ranges(
            request.samples, body.data, request.start, request.starts, request.stops
        )


def _own(cutter: Cutter, sample: int, place: int) -> RawSample | None | DatasetError:
    try:
        raw = cutter.cut(sample, place)
    except DatasetError as error:
        return error
    if raw is not None:
        raw.parts = {name: memoryview(bytes(part)) for name, part in raw.parts.items()}
    return raw
