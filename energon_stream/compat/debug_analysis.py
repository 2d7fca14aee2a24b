"""Reads debug logs, of this library and of Megatron-Energon, and pictures how samples are visited."""

from __future__ import annotations

import colorsys
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from energon_stream.errors import ConfigError, ObjectNotFoundError


class Visit(NamedTuple):
    """Samples that a rank got at one step."""

    step: int
    rank: int
    keys: tuple[str, ...]


@dataclass
class LoggedLoader:
    """One loader of each rank, with the batches that it returned."""

    number: int  # its number in the log
    mode: str  # "train" or "val"
    source: str  # what it reads
    visits: list[Visit] = field(default_factory=list)
    steps: int = 0

    def __str__(self) -> str:
        return f"{self.mode} {self.source}, {self.steps} steps"


@dataclass
class DebugLogs:
    """The content of some log files."""

    loaders: dict[int, LoggedLoader] = field(default_factory=dict)
    reads: list[tuple[str | None, Visit]] = field(default_factory=list)  # what readers yielded, with the mode
    broken: int = 0  # lines that are no JSON objects


def find_logs(paths: Iterable[Path]) -> list[Path]:
    """Return the given files, and the ``.jsonl`` files in the given folders.

    Raises ObjectNotFoundError if there are none, ConfigError if no path is given.
    """
    named = list(paths)
    found = [file for path in named for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    if not found:
        raise (ObjectNotFoundError if named else ConfigError)(
            "no log files found",
            where=", ".join(map(str, named)) or None,
            hint="name files, or folders with .jsonl files, that worker_debug_path named",
        )
    return found


def read_logs(files: Iterable[Path]) -> DebugLogs:
    """Read log files."""
    logs = DebugLogs()
    for file in files:
        reads = _Reads()
        for line in _lines(file, logs):
            kind = line.get("t")
            if not isinstance(kind, str):
                continue
            if isinstance(number := line.get("id"), int):
                _add_to_loader(logs.loaders, number, kind, line)
            else:
                reads.add(kind, line)
        logs.reads += reads.all()
    return logs


def _lines(file: Path, logs: DebugLogs) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8", errors="replace") as opened:
        for text in opened:
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if isinstance(line, dict):
                yield line
            else:
                logs.broken += 1  # the last line of a process that was killed, for example


def _add_to_loader(loaders: dict[int, LoggedLoader], number: int, kind: str, line: Mapping[str, Any]) -> None:
    loader = loaders.setdefault(number, LoggedLoader(number, "train", "?"))
    if kind.endswith(".__init__"):
        source = _source(line.get("config")) or {}
        loader.mode = "train" if source.get("training", True) else "val"
        loader.source = str(source.get("_path", "?"))
    elif kind.endswith(".yield") and "global_idx" in line:
        loader.steps = max(loader.steps, line["global_idx"] + 1)
        if keys := line.get("keys"):
            loader.visits.append(Visit(line["global_idx"], line.get("r", 0), tuple(keys)))


def _source(config: Any) -> Mapping[str, Any] | None:
    """Find the first part of a pipeline's description that says what is read, and for what."""
    if isinstance(config, Mapping):
        if "training" in config and "_path" in config:
            return config
        config = list(config.values())
    if isinstance(config, (list, tuple)):
        return next((found for inner in config if (found := _source(inner))), None)
    return None


class _Reads:
    """Collects what the readers of one file yielded. A sample belongs to the batch that follows it."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, int], list[str]] = {}
        self._next: dict[tuple[int, int], int] = {}
        self._done: list[tuple[str | None, Visit]] = []

    def add(self, kind: str, line: Mapping[str, Any]) -> None:
        """Take a line of a worker."""
        place = (line.get("r", 0), line.get("w") or 0)
        if kind == "yield_batch":
            step = line["idx"]
            keys = self._pending.pop(place, [])
            if keys:
                self._done.append((line.get("m"), Visit(step, place[0], tuple(keys))))
            self._next[place] = step + 1
        elif kind.endswith("_slices_iter.yield"):
            self._pending.setdefault(place, []).append(str(line.get("key")))

    def all(self) -> list[tuple[str | None, Visit]]:
        """Return all visits. Without any batch in the file, each sample is a step."""
        for place, keys in self._pending.items():
            rank = place[0]
            if place in self._next:
                self._done.append((None, Visit(self._next[place], rank, tuple(keys))))
            else:
                self._done += [(None, Visit(step, rank, (key,))) for step, key in enumerate(keys)]
        return self._done


@dataclass(frozen=True)
class VisitTable:
    """Visits, one entry for each sample: the step, the sample's number, and the rank.

    Samples are numbered in the order of their first visits.
    """

    steps: NDArray[np.int64]
    samples: NDArray[np.int64]
    ranks: NDArray[np.int64]

    @classmethod
    def of(cls, visits: Iterable[Visit], skip: int) -> VisitTable:
        """Number the steps and samples of visits from 0, without the first ``skip`` steps.

        Raises ConfigError if no visit is left.
        """
        numbers: dict[str, int] = {}
        rows = [
            (visit.step - skip, numbers.setdefault(key, len(numbers)), visit.rank)
            for visit in sorted(visits, key=lambda visit: visit[:2])
            if visit.step >= skip
            for key in visit.keys
        ]
        if not rows:
            raise ConfigError(
                "the logs name no samples",
                hint="log with worker_log_level=1 or more, and skip fewer steps than there are",
            )
        columns = np.array(rows, dtype=np.int64).T
        return cls(columns[0], columns[1], columns[2])

    @property
    def num_steps(self) -> int:
        """Number of steps, up to the last visit."""
        return int(self.steps.max()) + 1

    @property
    def num_samples(self) -> int:
        """Number of different samples."""
        return int(self.samples.max()) + 1

    def repeated(self) -> tuple[int, int]:
        """Count the samples with several visits, and those of several ranks."""
        several = int((np.bincount(self.samples) > 1).sum())
        pairs = np.unique(np.stack([self.samples, self.ranks]), axis=1)
        return several, int((np.bincount(pairs[0]) > 1).sum())


def heatmap(table: VisitTable, *, steps: int, samples: int, gain: float, colors: bool) -> NDArray[np.uint8]:
    """Picture visits: a column for each step and a row for each sample, in the colors of the ranks or white.

    The picture has at most ``steps`` columns and ``samples`` rows; where there are more, one stands for
    several. With a ``gain`` of 1, the most visited place has full brightness.
    """
    width, height = min(steps, table.num_steps), min(samples, table.num_samples)
    columns = table.steps * width // table.num_steps
    rows = table.samples * height // table.num_samples
    ranks = int(table.ranks.max()) + 1
    hues = [colorsys.hsv_to_rgb(rank / ranks, 1, 1) for rank in range(ranks)]
    palette = np.array(hues if colors and ranks > 1 else [(1.0, 1.0, 1.0)])
    sums = np.zeros((height, width, 3))
    np.add.at(sums, (rows, columns), palette[table.ranks if colors else np.zeros_like(table.ranks)])
    scaled = sums * (gain * 255) / np.maximum(sums.max((0, 1)), 1e-9)
    image: NDArray[np.uint8] = np.clip(scaled, 0, 255).astype(np.uint8)
    return image


def write_heatmap(path: Path, image: NDArray[np.uint8]) -> None:
    """Write a picture. Raises ConfigError if the extension of the path is of no picture."""
    try:
        Image.fromarray(image).save(path)
    except ValueError as error:
        raise ConfigError(
            f"unknown file extension {path.suffix!r}", where=str(path), hint="use .png"
        ) from error


def modes_of(text: str) -> list[str]:
    """Split ``train,val``. Raises ConfigError if another word is in it."""
    modes = [word.strip() for word in text.split(",")]
    if unknown := [mode for mode in modes if mode not in ("train", "val")]:
        raise ConfigError(f"unknown modality {unknown[0]!r}", hint="use train, val, or train,val")
    return modes
