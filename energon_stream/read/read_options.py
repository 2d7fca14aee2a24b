"""Limits of reading ahead. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import get_args

from energon_stream.errors import ConfigError
from energon_stream.index.verify import Verify
from energon_stream.storage import retry_deadline

CHUNK = 1024
"""References that a reader locates at a time. Bounds the work between two samples."""

LOADING = 4
"""Chunks whose index entries are requested at a time, so that a late answer delays only later chunks."""

_LEAST = 64  # references that are planned ahead if passes are short
CONNECTION_BYTES = 1 << 20  # memory of a request in flight beside its body, as measured with obstore
_CLIENT_BYTES = 24 << 20  # memory of 16 connections, the rest of the client, and a sample that is given out


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Limits of reading ahead in one process.

    Attributes:
        byte_budget: Upper bound, in bytes, on the memory of reading ahead: three quarters for fetches that
            are requested or not yet consumed, the rest for connections, which take about a megabyte each,
            and for the client. Below 96 MiB, the client's part is larger.
        max_request: Largest coalesced request, in bytes. Only a larger sample is read by a larger request.
        max_gap: Unwanted bytes between two samples that are read rather than split a request.
        max_waste: Unwanted bytes between samples of a view, or of planned packs, that are read rather than
            split a request, as a share of the bytes of the samples. ``math.inf`` leaves it to ``max_gap``,
            for fewer requests.
        max_in_flight: Largest number of requests at one time; fewer if the budget has no room for their
            connections.
        max_ahead: Largest number of samples that are requested and not yet consumed. Of a small dataset, no
            more than four passes are.
        first_samples: Samples that are fetched in small requests before anything else. None: the first
            batch, or the first packing buffer.
        retry_deadline: Seconds for which a failing request is tried again. None: the environment variable
            ``ENERGON_STREAM_RETRY_DEADLINE``, or 300.
        verify: Samples whose bytes are compared with the checksums that ``prepare --checksums`` has written:
            ``"never"``; ``"sampled"``, one of 100, in datasets that have checksums; or ``"always"``. Then
            ``parts`` saves no bytes, because samples are read whole. Samples of joins and JSONL files, and
            with ``"sampled"`` samples that are read in parts, are not compared.

    Raises:
        ConfigError: A limit is not positive, the deadline is negative, or ``verify`` is unknown.

    Example:
        >>> from energon_stream import ReadOptions, get_train_dataset
        >>> limits = ReadOptions(byte_budget=64 << 20)
        >>> dataset = get_train_dataset("captions", batch_size=4, read_options=limits)
    """

    byte_budget: int = 256 << 20
    max_request: int = 6 << 20
    max_gap: int = 32 << 10
    max_waste: float = 0.3
    max_in_flight: int = 64
    max_ahead: int = 32768
    first_samples: int | None = None
    retry_deadline: float | None = None
    verify: Verify = "never"
    _client_bytes: int = field(default=_CLIENT_BYTES, repr=False)  # a reader's share of them
    _chunk: int | None = field(default=None, repr=False)
    _windows: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        for name in ("byte_budget", "max_request", "max_in_flight", "max_ahead", "exact_samples"):
            if getattr(self, name) < 1:
                name = name.replace("exact", "first")
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="use a positive number")
        if self.verify not in get_args(Verify):
            raise ConfigError(f"verify is {self.verify!r}", hint=f"use one of {', '.join(get_args(Verify))}")
        if self.max_gap < 0:
            raise ConfigError(f"max_gap is {self.max_gap}", hint="use 0 or more bytes")
        if not self.max_waste >= 0:
            raise ConfigError(f"max_waste is {self.max_waste}", hint="use 0 or more, such as 0.3")
        retry_deadline(self.retry_deadline)

    def share(self, readers: int) -> ReadOptions:
        """Return the limits of one of several readers in a process."""
        if readers < 2:
            return self
        return replace(
            self,
            byte_budget=max(1, self.byte_budget // readers),
            max_ahead=max(min(self.max_ahead, 512), self.max_ahead // (1 if self.is_planned else readers)),
            _client_bytes=self._client_bytes // readers,
        )

    def within(self, samples: int) -> ReadOptions:
        """Return the limits of a reader whose passes have ``samples`` samples.

        Nothing is gained by planning more than a few passes ahead: either answers are kept for all passes, or
        the byte budget is reached before. The work before the first sample would be that of hundreds.
        """
        most = max(_LEAST, 4 * samples)
        return self if self.max_ahead <= most else replace(self, max_ahead=most)

    def planned(self, samples: int, chunk: int, windows: int = 0) -> ReadOptions:
        """Return the limits where an order must be planned: ``samples`` samples ahead, bit by bit.

        The streams of a process read ``windows`` together.
        """
        most = min(self.max_ahead, samples)
        chunk = max(1, min(self.chunk, chunk, most // LOADING))
        return replace(self, max_ahead=most, _chunk=chunk, _windows=windows)

    @property
    def is_planned(self) -> bool:
        """True for planned packs, whose samples lie among those of other streams."""
        return self._chunk is not None

    @property
    def chunk(self) -> int:
        return CHUNK if self._chunk is None else self._chunk

    def take_of(self, readers: int) -> int:
        """Return the references that one of several readers takes at a time; many look less far ahead."""
        return min(self.chunk, max(1, self.max_ahead // (LOADING if readers > 1 else 1)))

    @property
    def exact_samples(self) -> int:
        """``first_samples``, or a default if it was not derived from a batch size."""
        return 32 if self.first_samples is None else self.first_samples

    @property
    def fetch_bytes(self) -> int:
        """Bytes that all fetches may hold together."""
        budget = self.byte_budget
        return min(budget * 3 // 4, max(budget // 2, budget - self._client_bytes))

    @property
    def in_flight(self) -> int:
        """Number of requests in flight for which the budget has room."""
        return max(1, min(self.max_in_flight, self.byte_budget // 4 // CONNECTION_BYTES))

    @property
    def largest_shared(self) -> int:
        """Size in bytes of the largest sample that is fetched beside others; larger ones are read alone."""
        return self.fetch_bytes // 4

    @property
    def second_take(self) -> int:
        """References that are located while the first samples are in flight."""
        share = 2 if self.is_planned else 16
        return min(self.max_ahead, max(2 * self.chunk, self.max_ahead // share))
