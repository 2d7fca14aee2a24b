"""Notes of the calls that fail in a process: which samples they had, and how many samples were read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

from energon_stream.errors import EnergonStreamError
from energon_stream.index.bad_samples import MOST_NAMED, BadSample
from energon_stream.printable import printable, strip_credentials

JOIN_MEMBER: Final = "__join_member__"
"""Attribute of an error: number of the dataset of a join whose sample could not be made."""
FAILED_SAMPLE: Final = "__failed_sample__"
"""Attribute of an error: the sample, of several that a selector of packs got, for which it was raised."""
_LONGEST_MESSAGE = 300
MOST_CAUSES: Final = 20  # they may be in a circle
_LIBRARY = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


class SampleRef(NamedTuple):
    """A sample that an element was made of."""

    path: str  # of its reader, see ``Context.path``
    leaf: int
    number: int  # in the leaf


def sources_in(key: Any, path: str = "", call: int | None = None) -> Iterator[tuple[int | None, SampleRef]]:
    """Yield the samples in a key, each with the number of the call that took it, or None."""
    if not isinstance(key, (tuple, list)):
        return
    if len(key) == 3 and key[0] == "Source":
        yield call, SampleRef(path, key[1], key[2])
        return
    is_named = len(key) > 2 and isinstance(key[0], str)
    inner = key[2] if is_named and len(key) == 3 else None
    if isinstance(inner, (tuple, list)) and inner and isinstance(inner[0], str):  # of one of several inputs
        path = f"{path}/{key[1]}"
    for part in key:
        yield from sources_in(part, path, key[1] if is_named else None)


Named: TypeAlias = "Mapping[SampleRef, str | None]"
"""Samples, each with the key of an element that was made of it alone, or None."""


class Notes(NamedTuple):
    """Counts of samples read, samples that failed, calls that failed, and emptied packs; and these calls."""

    counts: list[int]
    calls: list[tuple[str, list[BadSample]]]  # the function, and its samples
    planned: list[tuple[float, float]]  # of the last planned pack, as of ``PackedSchedule.loads``


class Failures:
    """Notes what fails in a process, until a step takes the notes. The dataset names the samples."""

    def __init__(self, dataset: Any = None) -> None:
        self._dataset = dataset
        self._kinds: set[tuple[str, str]] = set()
        self.notes: Notes = Notes([0, 0, 0, 0], [], [])
        self.packing: Any = None  # the ``PackPlan`` of the reader, if it has one

    def take(self) -> Notes:
        """Return the notes, and begin anew."""
        taken, self.notes = self.notes, Notes([0, 0, 0, 0], [], [])
        return taken

    def put(self, notes: Notes) -> None:
        """Add notes that were taken."""
        for number, count in enumerate(notes.counts):
            self.notes.counts[number] += count
        self.notes.calls.extend(notes.calls)
        self.notes.planned[:] = notes.planned or self.notes.planned

    def add(self, error: Exception, of: Sequence[Any], function: str, path: str) -> bool:
        """Note a call on items that failed.

        Return True for the first error of its kind: of this class, raised in this line.
        """
        known = error.__dict__.get  # of errors of the library, and of joins
        line, places = _line_of(error), self._named(of, path, known(JOIN_MEMBER, 0))
        part = known("part")
        try:
            text = error.what if isinstance(error, EnergonStreamError) else str(error)
        except Exception:  # of a class of the user
            text = ""
        about: dict[str, Any] = {
            "part": part if isinstance(part, str) else None,
            "error": type(error).__name__[:_LONGEST_MESSAGE],
            "message": printable(strip_credentials(text[: 10 * _LONGEST_MESSAGE]))[:_LONGEST_MESSAGE],
            "function": function,
            "line": line,
            "together": max(1, len(places)),
        }
        self.notes.counts[1] += max(1, len(places))
        self.notes.counts[2] += 1
        if len(self.notes.calls) < MOST_NAMED:
            self.notes.calls.append((function, [replace(place, **about) for place in places]))
        cls = type(error)  # which may be made in each call
        kind = f"{cls.__module__}.{cls.__qualname__}", line
        is_new = kind not in self._kinds
        self._kinds.add(kind)
        return is_new

    def drop(self, function: str, calls: int) -> None:
        """Forget the last calls of a function."""
        noted = self.notes.calls
        for place in reversed([place for place, (name, _) in enumerate(noted) if name == function][-calls:]):
            del noted[place]

    def _named(self, of: Sequence[Any], path: str, member: int) -> list[BadSample]:
        found: dict[SampleRef, str | None] = {}
        keys: dict[str, None] = {}
        for item in of:
            refs, value = {ref: None for _, ref in sources_in(item.key, path)}, item.value
            key = value.get("__key__") if isinstance(value, Mapping) else getattr(value, "__key__", None)
            key = str(key) if isinstance(key, str) else None  # without a class of the user
            if key is not None:
                keys[key] = None
            for ref in refs:
                found.setdefault(ref, key if len(refs) == 1 else None)
        places = [] if self._dataset is None else self._dataset.places(found, "", member)
        return places or [BadSample(key=key) for key in keys]


def entries(trace: TracebackType | None, *, outside: bool) -> list[TracebackType]:
    """Return the entries of a traceback; those of other code than the library's only if ``outside``."""
    found = []
    while trace is not None:
        if not (outside and trace.tb_frame.f_code.co_filename.startswith(_LIBRARY)):
            found.append(trace)
        trace = trace.tb_next
    return found


def lines_of(error: BaseException) -> str:
    """Return the files and lines outside of the library that an error passed, else where it was raised."""
    names = [_place(entry) for entry in entries(error.__traceback__, outside=True)] or [_line_of(error)]
    return " > ".join(names if len(names) < 6 else [*names[:3], "…", *names[-2:]])


def _place(entry: TracebackType) -> str:
    return f"{Path(entry.tb_frame.f_code.co_filename).name}:{entry.tb_lineno}"


def _line_of(error: BaseException) -> str:
    """Return the last file and line, of a user's code if any, that an error passed, or what caused it."""
    for _ in range(MOST_CAUSES):
        error = error.__cause__ or error
    found = entries(error.__traceback__, outside=True) or entries(error.__traceback__, outside=False)
    return _place(found[-1]) if found else ""
