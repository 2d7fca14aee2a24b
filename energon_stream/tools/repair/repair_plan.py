"""Compares examined tars with each other: whose key is taken, which sample goes on in the next tar."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from energon_stream.errors import DuplicateKeyError, EmptyDatasetError
from energon_stream.tools.repair import Duplicates
from energon_stream.tools.repair.sound_samples import DROPPED, Changes
from energon_stream.tools.repair.tar_source import Examined, RecordPlace
from energon_stream.write.sources.source import Section

_SHOWN = 5  # tars that an error names


@dataclass(frozen=True, slots=True)
class TarReport:
    """Report on one tar of a repair.

    Attributes:
        path: Its path, relative to the source.
        samples: Number of its samples in the new dataset.
        changes: Number of changes by kind; ``docs/guides/repair.md`` has the kinds.
        names: The first 100 names of each kind.
        shards: Paths of the new shards.

    Example:
        >>> from energon_stream import LocalEngine, repair_dataset
        >>> report = repair_dataset("tars", "sound", dry_run=True, engine=LocalEngine(0))
        >>> [(tar.path, tar.samples, tar.dropped) for tar in report.tars[:2]]
        [('data-000000.tar', 16, 0), ('data-000001.tar', 16, 0)]
    """

    path: str
    samples: int
    changes: Mapping[str, int]
    names: Mapping[str, Sequence[str]]
    shards: tuple[str, ...] = ()

    @property
    def dropped(self) -> int:
        """Number of its samples that are not in the new dataset."""
        return sum(self.changes.get(kind, 0) for kind in DROPPED)


class RepairPlan:
    """Compares the tars with each other, one after another: which keys are taken, which samples go on."""

    def __init__(
        self, sections: Sequence[Section], rule: Duplicates, excluded: Mapping[str, Collection[str] | None]
    ) -> None:
        self.sections: list[Section] = list(sections)
        self.reports: list[TarReport] = []
        self._changes: list[Changes] = []
        self._rule, self._excluded = rule, excluded
        self._counts: list[int] = []  # of whole samples
        self._keys: list[dict[str, str | None]] = [{} for _ in sections]
        self._rest: list[list[int]] = [[] for _ in sections]
        self._last: tuple[int, str, set[str]] | None = None  # tar, key and parts of the last sample so far
        self._taken: list[tuple[int, str]] = []
        # A database of SQLite without a name is in memory as far as it fits, and else in a temporary file.
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE keys (key TEXT PRIMARY KEY, tar INT) WITHOUT ROWID")

    def add(self, examined: Examined) -> None:
        """Take in the next tar."""
        number, keys = len(self._counts), examined.keys
        section, changes, other = self.sections[number], examined.changes, self._keys[number]
        excluded = self._excluded.get(section.name, ())
        self._counts.append(len(keys))
        self._changes.append(changes)
        for key in keys:
            if excluded is None or key in excluded:
                other[key] = None
                changes.add("excluded", key)
        goes_on = False
        if keys and keys[0] not in other:
            goes_on = self._goes_on(number, keys[0], set(examined.first))
        if keys and not (goes_on and len(keys) == 1):
            self._last = (number, keys[-1], set(examined.last)) if keys[-1] not in other else None
        self._insert(number, (key for key in keys if key not in other))

    def _goes_on(self, number: int, key: str, parts: set[str]) -> bool:
        """Return whether the first sample of a tar has more parts of the last one of the tar before."""
        if self._last is None or self._last[1] != key or self._last[2] & parts:
            return False
        before = self._last[0]
        self._rest[before].append(number)
        self._keys[number][key] = None
        self._changes[before].add("regrouped", key)
        self._last = (before, key, self._last[2] | parts)
        return True

    def _insert(self, number: int, keys: Iterable[str]) -> None:
        for key in keys:
            row = self._database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (key, number))
            if row.rowcount:
                continue
            loser = number
            if self._rule in ("last", "error"):
                (owner,) = self._database.execute("SELECT tar FROM keys WHERE key = ?", (key,)).fetchone()
                if self._rule == "error":
                    raise DuplicateKeyError(
                        f"the sample {key!r:.80} is in two tars: {self.sections[owner].name} and "
                        f"{self.sections[number].name}",
                        hint="take duplicates='rename', 'first' or 'last'",
                    )
                self._database.execute("UPDATE keys SET tar = ? WHERE key = ?", (number, key))
                loser = owner
            self._taken.append((loser, key))

    def finish(self, url: str) -> None:
        """Find keys for samples whose key is taken. Raises EmptyDatasetError if there are no samples."""
        with closing(self._database):
            for number, key in self._taken:
                new = self._free(key, number) if self._rule == "rename" else None
                self._keys[number][key] = new
                if new is None:
                    self._changes[number].add("duplicate_sample", key)
                else:
                    self._changes[number].add("renamed", f"{key} → {new}")
        for number, section in enumerate(self.sections):
            keys, entries = self._keys[number], [self.sections[n].place.entry for n in self._rest[number]]
            rows = self._counts[number] - sum(new is None for new in keys.values())
            place = RecordPlace(section.place.entry, keys, tuple(entries))
            self.sections[number] = replace(section, rows=rows, place=place)
            changes = self._changes[number]
            self.reports.append(TarReport(section.name, rows, changes.counts, changes.names))
        if not any(report.samples for report in self.reports):
            reasons = [f"  {each.path}: {_reason(each)}" for each in self.reports[:_SHOWN]]
            more = len(self.reports) - len(reasons)
            reasons += [f"  and {more} more"] if more else []
            raise EmptyDatasetError(
                f"none of {len(self.reports)} tars has a whole sample:\n" + "\n".join(reasons),
                where=url,
                hint="check the path; nothing was written",
            )

    def _free(self, key: str, number: int) -> str:
        new = f"{key}~{number}"
        while not self._database.execute("INSERT OR IGNORE INTO keys VALUES (?, ?)", (new, number)).rowcount:
            new += "~"
        return new


def _reason(report: TarReport) -> str:
    names = report.names.get("unreadable_tar") or [f"{n} {kind}" for kind, n in report.changes.items()]
    return ", ".join(names) or "it has no samples"
