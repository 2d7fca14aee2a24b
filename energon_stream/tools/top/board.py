"""The loaders of a folder as rows of a table. Any program may write its files, so nothing is trusted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.loader.observe.metrics import STATS_DIR, SUFFIX
from energon_stream.printable import printable_line

_LONGEST = 1 << 20
"""Bytes of a file that is read."""
_SILENT = 10.0
"""Seconds without news after which a loader is called silent."""
_GONE = 300.0
"""Seconds without news after which a loader is left out."""
COLUMNS = (
    "rank",
    "host",
    "pid",
    "workers",
    "samples/s",
    "waiting",
    "MB/s",
    "requests/s",
    "retries",
    "cache",
    "limit",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One loader. Rates and shares cover about the last second."""

    rank: int  # its rank
    host: str  # name of its machine
    pid: int  # its main process
    num_workers: int  # its worker processes
    samples_per_second: float  # samples that the training loop received
    waiting: float  # share of the time in which the loop waited, 0 to 1
    bytes_per_second: float  # bytes from stores
    requests_per_second: float  # requests to stores
    retries: int  # repeated requests since the beginning
    cache_share: float | None  # share of the bytes that the cache had, 0 to 1; None without a cache
    verdict: str  # what limits the loader
    age: float  # seconds since it was heard of

    @property
    def is_silent(self) -> bool:
        """True if nothing was heard of it for 10 s."""
        return self.age > _SILENT

    def cells(self) -> tuple[str, ...]:
        """Return the text of each of ``COLUMNS``."""
        return (
            str(self.rank),
            self.host,
            str(self.pid),
            str(self.num_workers),
            f"{self.samples_per_second:,.0f}",
            f"{self.waiting:.0%}",
            f"{self.bytes_per_second / 1e6:,.1f}",
            f"{self.requests_per_second:,.1f}",
            f"{self.retries:,}",
            "" if self.cache_share is None else f"{self.cache_share:.0%}",
            f"silent for {self.age:.0f} s" if self.is_silent else self.verdict,
        )


@dataclass(frozen=True, slots=True)
class Board:
    """All loaders of a folder."""

    rows: tuple[Row, ...]  # the loaders, by rank

    @property
    def slowest(self) -> Row | None:
        """The loader whose training loop waits longest; the others wait for it."""
        return max(self.rows, key=lambda row: (row.is_silent, row.waiting), default=None)

    @property
    def summary(self) -> str:
        """One line about all of them."""
        slowest = self.slowest
        if slowest is None:
            return "no loader"
        speed = sum(row.samples_per_second for row in self.rows)
        rate = sum(row.bytes_per_second for row in self.rows) / 1e6
        return (
            f"{len(self.rows)} loaders, {speed:,.0f} samples/s, {rate:,.1f} MB/s; slowest: rank {slowest.rank} "
            f"on {slowest.host}, {slowest.cells()[-1]}"
        )

    def text(self) -> str:
        """Return the summary and a table."""
        lines = [COLUMNS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[place]) for line in lines) for place in range(len(COLUMNS))]
        table = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )
        return "\n".join([self.summary, "", *(line.rstrip() for line in table)])

    def as_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return {"summary": self.summary, "loaders": [asdict(row) for row in self.rows]}


def find_folder(given: str | None) -> Path:
    """Return the folder of an argument, or that of the environment.

    Raises ConfigError if there is none.
    """
    folder = given or os.environ.get(STATS_DIR)
    if not folder:
        raise ConfigError("no folder of statistics", hint=f"give one, and train with {STATS_DIR} set to it")
    return Path(folder)


def read_board(folder: str | os.PathLike[str]) -> Board:
    """Return the loaders that write their statistics to a folder. Files that make no sense are left out.

    Raises:
        ConfigError: The folder cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     read_board(folder).summary
        'no loader'
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except OSError as error:
        raise ConfigError(
            f"{os.fspath(folder)} cannot be read: {error.strerror}", hint="give an existing folder"
        ) from error
    rows = (row for name in names for row in _read(Path(folder) / name, time.time()))
    return Board(tuple(sorted(rows, key=lambda row: (row.rank, row.host, row.pid))))


def _read(path: Path, now: float) -> Iterator[Row]:
    try:
        with open(path, "rb") as file:
            row = row_of(json.loads(file.read(_LONGEST)), now)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return
    if row.age < _GONE:
        yield row


def row_of(content: Mapping[str, Any], now: float) -> Row:
    """Make a row of a file's content. Raises ValueError, KeyError or TypeError if it is none."""
    recent, whole = content["recent"], content["whole"]
    seconds, cache = float(recent["seconds"]), recent["cache"]
    cached, missed = float(cache["hit_bytes"]), float(cache["missed_bytes"])
    requests = sum(int(count) for count in recent["requests"].values())
    return Row(
        rank=int(whole["rank"]),
        host=_text(content["host"]),
        pid=int(content["pid"]),
        num_workers=int(whole["num_workers"]),
        samples_per_second=float(recent["samples_per_second"]),
        waiting=float(recent["waiting"]),
        bytes_per_second=float(recent["bytes"]) / seconds if seconds else 0.0,
        requests_per_second=requests / seconds if seconds else 0.0,
        retries=int(whole["retries"]),
        cache_share=cached / (cached + missed) if cached + missed else None,
        verdict=_text(recent["verdict"]["text"]),
        age=max(0.0, now - float(content["time"])),
    )


def _text(value: Any) -> str:
    return printable_line(str(value))[:200]
