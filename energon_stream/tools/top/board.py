"""The loaders of a folder as rows of a table. Any program may write its files, so nothing is trusted."""

from __future__ import annotations

import json
import os
import socket
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from energon_stream.errors import ConfigError, ObjectNotFoundError, StorageError
from energon_stream.loader.observe.metrics import HISTORY, STATS_DIR, SUFFIX
from energon_stream.loader.observe.pack_balance import Balance, PackStep, balance_of
from energon_stream.printable import counted, printable_line

_LONGEST = 1 << 20
"""Bytes of a file that is read."""
_SILENT = 10.0
"""Seconds without news after which a loader is called silent."""
_GONE = 300.0
"""Seconds without news after which a loader is forgotten."""
_LATE = 3.0
"""Seconds without news after which it is looked whether the process of a loader of this machine runs."""
_WORDS = {"consumer": "training", "store latency": "latency", "store rate": "rate", "cold cache": "cache"}
"""The word for a limit, where its name has two or says little."""
_BARS = "▁▂▃▄▅▆▇█"
COLUMNS = (
    *("rank", "limit", "waiting", "samples/s", f"last {HISTORY} s", "MB/s"),
    *("requests/s", "cache", "retries", "workers", "host", "pid"),
)
"""Columns; the last ones are left out on a narrow screen."""
LEFT = (COLUMNS[1], COLUMNS[4], COLUMNS[10])
"""Columns of texts; the others have numbers."""


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
    cause: str  # what limits the loader, in a word
    verdict: str  # the same in a sentence
    age: float  # seconds since it was heard of
    history: tuple[float, ...] = ()  # its last samples a second, one a second
    pack_costs: tuple[str, ...] = ()  # names of the costs of planned packs
    pack_steps: Mapping[int, PackStep] = field(default_factory=dict)  # loads in the last global steps

    @property
    def is_silent(self) -> bool:
        """True if nothing was heard of it for 10 s."""
        return self.age > _SILENT

    def cells(self) -> tuple[str, ...]:
        """Return the text of each of ``COLUMNS``."""
        most = max(self.history, default=0.0) or 1.0
        return (
            str(self.rank),
            "silent" if self.is_silent else self.cause,
            f"{self.waiting:.0%}",
            f"{self.samples_per_second:,.0f}",
            "".join(_BARS[min(7, int(8 * rate / most))] for rate in self.history).rjust(HISTORY),
            f"{self.bytes_per_second / 1e6:,.1f}",
            f"{self.requests_per_second:,.1f}",
            "" if self.cache_share is None else f"{self.cache_share:.0%}",
            f"{self.retries:,}",
            str(self.num_workers),
            self.host,
            str(self.pid),
        )


@dataclass(frozen=True, slots=True)
class Board:
    """All loaders of a folder."""

    rows: tuple[Row, ...]  # the loaders, by rank
    ended: tuple[Row, ...] = ()  # those whose processes ended in the last 5 minutes, and did not close them

    @property
    def slowest(self) -> Row | None:
        """The loader whose training loop waits longest; the others wait for it."""
        return max(self.rows, key=lambda row: (row.is_silent, row.waiting), default=None)

    @property
    def balance(self) -> dict[str, Balance]:
        """The balance of planned packs over the ranks that have some, by the names of costs."""
        packed = [row for row in self.rows if row.pack_costs]
        return balance_of([row.pack_steps for row in packed], packed[0].pack_costs) if packed else {}

    @property
    def summary(self) -> str:
        """One line about all of them, with what limits the slowest."""
        found = "no loader"
        if (slowest := self.slowest) is not None:
            speed = sum(row.samples_per_second for row in self.rows)
            rate = sum(row.bytes_per_second for row in self.rows) / 1e6
            why = f"silent for {slowest.age:.0f} s" if slowest.is_silent else slowest.verdict
            found = (
                f"{counted(len(self.rows), 'loader')}, {speed:,.0f} samples/s, {rate:,.1f} MB/s; "
                f"slowest: rank {slowest.rank} on {slowest.host}, {why}"
            )
        for name, each in self.balance.items():
            found += f"; {name} of packs, slowest rank ÷ mean: planned {each.planned:.3f}, measured {each.measured:.3f}"
        killed = ", ".join(f"rank {row.rank} (process {row.pid})" for row in self.ended)
        return found + (f"; ended without closing: {killed}" if killed else "")

    def table(self, width: int) -> list[tuple[str, ...]]:
        """Return the names and cells of the columns that a width has room for, two spaces between them."""
        lines = [COLUMNS, *(row.cells() for row in self.rows)]
        ends = accumulate(2 + max(map(len, column)) for column in zip(*lines, strict=True))
        count = sum(end <= width + 2 for end in ends) or 1
        return [line[:count] for line in lines]

    def text(self, width: int = 200) -> str:
        """Return the summary and a table, in lines of at most ``width`` characters."""
        lines = self.table(width)
        sizes = [
            (max(map(len, column)), "<" if column[0] in LEFT else ">") for column in zip(*lines, strict=True)
        ]
        table = (
            "  ".join(f"{cell:{side}{size}}" for cell, (size, side) in zip(line, sizes, strict=True))
            for line in lines
        )
        return "\n".join([*textwrap.wrap(self.summary, width), "", *(line.rstrip() for line in table)])

    def as_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        loaders, ended = (list(map(asdict, rows)) for rows in (self.rows, self.ended))
        balance = {name: asdict(each) for name, each in self.balance.items()}
        return {"summary": self.summary, "balance": balance, "loaders": loaders, "ended": ended}


def find_folder(given: str | None) -> Path:
    """Return the folder of an argument, or that of the environment."""
    folder = given or os.environ.get(STATS_DIR)
    if not folder:
        raise ConfigError("no folder of statistics", hint=f"give one, and train with {STATS_DIR} set to it")
    return Path(folder)


def read_board(folder: str | os.PathLike[str]) -> Board:
    """Return the loaders that write their statistics to a folder. Files that make no sense are left out.

    Raises:
        StorageError: The folder is not there, or cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     read_board(folder).summary
        'no loader'
    """
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError as error:
        raise ObjectNotFoundError("no such folder", where=os.fspath(folder), hint="check the path") from error
    except OSError as error:
        what = f"the folder cannot be read: {error.strerror}"
        raise StorageError(what, where=os.fspath(folder), hint="give a folder") from error
    found = (_read(Path(folder) / name, time.time()) for name in names)
    rows = sorted((row for row in found if row is not None), key=lambda row: (row.rank, row.host, row.pid))
    ended = tuple(row for row in rows if _has_ended(row))
    return Board(tuple(row for row in rows if row not in ended), ended)


def _read(path: Path, now: float) -> Row | None:
    try:
        with open(path, "rb") as file:
            row = row_of(json.loads(file.read(_LONGEST)), now)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return row if row.age < _GONE else None


def _has_ended(row: Row) -> bool:
    """Return whether a loader is of this machine, and its process is not there."""
    is_here = row.age > _LATE and row.host == socket.gethostname()  # one of another container writes on
    return is_here and os.path.exists("/proc/self") and not os.path.exists(f"/proc/{row.pid}")


def row_of(content: Mapping[str, Any], now: float) -> Row:
    """Make a row of a file's content. Raises ValueError, KeyError or TypeError if it is none."""
    recent, whole = content["recent"], content["whole"]
    seconds, cache = float(recent["seconds"]), recent["cache"]
    cached, missed = float(cache["hit_bytes"]), float(cache["missed_bytes"])
    requests = sum(int(count) for count in recent["requests"].values())
    cause = _text(recent["verdict"]["cause"])
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
        cause=_WORDS.get(cause, cause[:12]),
        verdict=_text(recent["verdict"]["text"]),
        age=max(0.0, now - float(content["time"])),
        **_packs(whole.get("packs") or {}),
        history=tuple(min(max(0.0, float(rate)), 1e12) for rate in content.get("history", [])[-HISTORY:]),
    )


def _packs(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file has of planned packs; raises as :func:`row_of` does."""
    costs = tuple(_text(name) for name in content.get("costs", ()))
    steps = {}
    for number, (batches, own, planned) in content.get("steps", {}).items():
        if len(own) != len(costs) or len(planned) not in (0, len(costs)):
            raise ValueError("loads of other costs")
        steps[int(number)] = PackStep(
            int(batches), tuple(map(float, own)), tuple((float(most), float(mean)) for most, mean in planned)
        )
    return {"pack_costs": costs, "pack_steps": steps}


def _text(value: Any) -> str:
    return printable_line(str(value))[:500]
