"""Makes sound samples of the members of an odd tar: names, keys, links, duplicates. It reads no bytes."""

from __future__ import annotations

import codecs
import posixpath
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, groupby
from typing import NamedTuple, get_args

from energon_stream.errors import ConfigError, DuplicateKeyError
from energon_stream.tar.format import is_system_file, is_windows_file, split_name
from energon_stream.tools.repair import DottedKeys, Duplicates
from energon_stream.tools.repair.odd_tar import OddMember, OddTar, is_too_large

KINDS = {
    "unpacked": "tars were compressed",
    "damaged_compression": "tars have damaged compressed data; what comes before it was read",
    "no_end_mark": "tars have no end mark",
    "joined": "tars were joined to others",
    "trailing_data": "tars have other data after their end",
    "damaged": "places of tars are damaged, and were passed over",
    "cut_off_member": "members were cut off",
    "link": "links became copies of their targets",
    "sparse": "files with holes were filled with zeros",
    "decoded_name": "names were decoded",
    "escaped_name": "names were escaped",
    "lower_case": "parts got a name in lower case",
    "dotted_key": "keys had dots",
    "regrouped": "samples had parts in several places",
    "duplicate_part": "parts were there twice; the last one counts, or the first with that rule",
    "renamed": "samples got another key, because theirs was taken",
    "frames": "pictures became a part a frame",
    "system_file": "files of operating systems were left out",
    "no_part": "members that are no parts were left out: hidden, without extension, or of metadata",
    "special": "devices, pipes and labels were left out",
    "dangling_link": "links lead to no member",
    "unreadable_tar": "tars cannot be read",
    "cut_off": "samples were dropped: a part is cut off",
    "incomplete": "samples were dropped: they lost a part",
    "too_large": "samples were dropped: a file with holes is larger than the limit part_bytes",
    "duplicate_sample": "samples were dropped: they are there twice",
    "excluded": "samples were dropped: split.yaml excludes them",
}  # fmt: skip
"""What may be reported, in words that follow a number."""
DROPPED = ("cut_off", "incomplete", "too_large", "duplicate_sample", "excluded")
MOST_NAMES = 100  # of each kind, in the report of a tar

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
_MOST_OLDER = 64  # copies of a sample that some parts may replace parts of


@dataclass(frozen=True, slots=True)
class RepairRules:
    """The choices that odd tars leave open; see :func:`repair_dataset`."""

    dotted_keys: DottedKeys = "auto"
    duplicates: Duplicates = "rename"
    encoding: str | None = None
    frames: bool = False

    def __post_init__(self) -> None:
        for name, known in (("dotted_keys", DottedKeys), ("duplicates", Duplicates)):
            if getattr(self, name) not in get_args(known):
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r:.80}", hint=f"use {', '.join(get_args(known))}"
                )
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError as error:
            raise ConfigError(f"{error}", hint="use a name such as latin-1, cp932 or gbk") from error


@dataclass(slots=True)
class Changes:
    """Exact counts of changes by kind, and the first names of each."""

    counts: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, name: str) -> None:
        """Count a change of a kind."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        names = self.names.setdefault(kind, [])
        if len(names) < MOST_NAMES:
            names.append(_escape(name))


class FoundSample(NamedTuple):
    """A whole sample."""

    key: str
    parts: dict[str, OddMember]


class _Part(NamedTuple):
    """A member that is a part, or was one."""

    number: int  # of the member
    key: str
    name: str
    member: OddMember | None  # None if it is lost
    problem: str = ""  # a kind of ``DROPPED``: it is there, but not whole


_Copy = dict[str, _Part]  # a sample, of several with one key


def find_samples(
    tar: OddTar, rules: RepairRules, changes: Changes, digest: Callable[[OddMember], int]
) -> list[FoundSample]:
    """Return the whole samples of a tar, in the order of their first parts, with keys that are unique in it.

    ``rules.dotted_keys`` has been decided. ``digest`` returns a hash of a member's bytes. Raises
    DuplicateKeyError if a key is there twice and the rules do not allow it.
    """
    for kind, text in tar.oddities:
        changes.add(kind, text)
    blocks: dict[str, list[list[_Part]]] = {}
    for key, block in groupby(_parts(tar, rules, changes), key=lambda part: part.key):
        blocks.setdefault(key, []).append(list(block))
    copies = [
        copy for of_key in blocks.values() for copy in _copies(of_key, rules.duplicates, changes, digest)
    ]
    copies.sort(key=lambda copy: min(part.number for part in copy.values()))
    samples, keys, times = list[FoundSample](), set(blocks), Counter[str]()
    for copy in _whole(copies, tar, changes):
        key = new = _key(copy)
        if times[key]:
            while new in keys:
                new = f"{key}~{times[key]}"
                times[key] += 1
            keys.add(new)
            changes.add("renamed", f"{key} → {new}")
        else:
            times[key] = 1
        samples.append(FoundSample(new, _lowered(key, copy, changes)))
    return samples


def _key(copy: _Copy) -> str:
    return next(iter(copy.values())).key


# --- names --------------------------------------------------------------------------------------------------


def has_dotted_keys(names: Iterable[str]) -> bool:
    """Return whether the keys of some members seem to have dots, as in ``22.05.png`` and ``22.10.png``.

    That is so if the first pieces after the dot are numbers that do not count from 0 or 1 within a sample, or
    if all extensions are of one sample each, and samples by the last dot have the same parts.
    """
    pieces, keys, shapes = (defaultdict[str, set[str]](set) for _ in range(3))
    for name in names:
        found = split_name(name)
        if found is not None and "." in found[1] and not _is_system(name):
            (key, part), (key_to_last, _, last) = found, name.rpartition(".")
            pieces[key].add(part.partition(".")[0])
            keys[part].add(key)
            shapes[key_to_last].add(last.lower())
    numbers = [
        sorted(map(int, found))
        for found in pieces.values()
        if all(piece.isascii() and piece.isdecimal() and len(piece) < 20 for piece in found)
    ]
    uncounted = sum(found[0] > 1 or found[-1] - found[0] != len(found) - 1 for found in numbers)
    is_once = all(len(found) == 1 for found in keys.values())
    is_regular = len(shapes) > 2 and len({frozenset(shape) for shape in shapes.values()}) == 1
    return uncounted > len(numbers) / 2 or (is_once and is_regular)


def _parts(tar: OddTar, rules: RepairRules, changes: Changes) -> Iterator[_Part]:
    """Yield the members that are parts, in order, with names that can be written."""
    find_target = _LinkTargets(tar.members).target
    keys: set[str] = set()
    for number, member in enumerate(tar.members):
        name = _decoded(member.name, rules.encoding, changes)
        below = name.lstrip("/")
        found = split_name(below)
        if found is not None and rules.dotted_keys == "last":
            found = (below[: below.rindex(".")], below[below.rindex(".") + 1 :])
        if _is_system(name):
            changes.add("system_file", name)
        elif member.kind == "special":
            changes.add("special", name)
        elif found is None or not found[1] or posixpath.basename(name).startswith("."):
            changes.add("no_part", name)
        else:
            key, part = _escaped_key(found[0]), _escape(found[1])
            part = f"%5f{part[1:]}" if part.startswith("__") else part
            if "." in posixpath.basename(found[0]):
                if key not in keys:
                    changes.add("dotted_key", key)
                    keys.add(key)
            elif (key, part) != found or below != name:
                changes.add("escaped_name", name)
            target = find_target(number)
            if target is None:
                changes.add("dangling_link", name)
                yield _Part(number, key, part, None)
                continue
            if target != number:
                changes.add("link", name)
            whole = tar.members[target]
            if whole.sparse is not None:
                changes.add("sparse", name)
            problem = "cut_off" if target in tar.cut else "too_large" if is_too_large(whole) else ""
            yield _Part(number, key, part, whole, problem)


def _is_system(name: str) -> bool:
    return is_system_file(name) is not None or is_windows_file(name) is not None


def _decoded(name: str, encoding: str | None, changes: Changes) -> str:
    if encoding is None or not _SURROGATE.search(name):
        return name
    try:
        decoded = name.encode("utf-8", "surrogateescape").decode(encoding)
    except UnicodeDecodeError:
        return name
    changes.add("decoded_name", decoded)
    return decoded


def _escaped_key(key: str) -> str:
    """Return a key that can be written: below a folder, without a dot in its last component."""
    *folders, last = key.split("/")
    if "." not in last and ".." not in folders and not _UNWRITABLE.search(key):
        return key
    folders = ["%2e%2e" if folder == ".." else _escape(folder, "%") for folder in folders]
    return "/".join([*folders, _escape(last, "%.")])


def _escape(text: str, more: str = "") -> str:
    """Return a text with %XX for bytes that are not UTF-8, zeros, and some other characters."""

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))

    return re.sub(f"[\0\ud800-\udfff{re.escape(more)}]", escaped, text)


def _lowered(key: str, copy: _Copy, changes: Changes) -> dict[str, OddMember]:
    """Return the members of a sample by part, in lower case. If two are equal then, one gets a number."""
    parts: dict[str, OddMember] = {}
    for name in sorted(copy, key=lambda name: name != name.lower()):
        member, low = copy[name].member, name.lower()
        if member is not None:
            new = next(new for n in count(1) if (new := low if n == 1 else f"{n}.{low}") not in parts)
            parts[new] = member
            if new != name:
                changes.add("lower_case", f"{key}.{name}")
    return parts


# --- links --------------------------------------------------------------------------------------------------


class _LinkTargets:
    """Finds the files that links lead to."""

    def __init__(self, members: Sequence[OddMember]) -> None:
        self._members, self._numbers = members, dict[str, list[int]]()
        self._known: dict[int, int | None] = {}  # files, and what links lead to
        if any(member.kind in ("symlink", "hardlink") for member in members):
            for number, member in enumerate(members):
                self._numbers.setdefault(_normal(member.name), []).append(number)

    def target(self, number: int) -> int | None:
        """Return the number of the file that a member is, or leads to; None if there is none."""
        way: list[int] = []
        following: int | None = number
        while following is not None and following not in self._known:
            is_file = self._members[following].kind == "file"
            self._known[following] = following if is_file else None  # None ends a circle
            way.append(following)
            following = following if is_file else self._next(following)
        found = None if following is None else self._known[following]
        self._known.update(dict.fromkeys(way, found))
        return found

    def _next(self, number: int) -> int | None:
        member = self._members[number]
        if member.kind == "symlink":  # the last member of a name counts
            name = posixpath.join(posixpath.dirname(member.name), member.link)
            places = reversed(self._numbers.get(_normal(name), []))
            return next((place for place in places if place != number), None)
        if member.kind == "hardlink":  # the last one before the link, or else the first one behind it
            named = self._numbers.get(_normal(member.link), [])
            at = bisect_left(named, number)
            return named[at - 1] if at else next((place for place in named if place != number), None)
        return None


def _normal(name: str) -> str:
    return posixpath.normpath(name).lstrip("/")


# --- samples with one key, and what is whole ----------------------------------------------------------------


def _copies(
    blocks: list[list[_Part]], rule: Duplicates, changes: Changes, digest: Callable[[OddMember], int]
) -> list[_Copy]:
    """Return the samples that have a key, given its blocks of adjacent parts.

    Blocks with other parts are joined to one sample. Some parts again replace those of before, as ``tar -r``
    means them. A sample whose parts are all there again is a second one, unless its bytes are the same.
    """
    copies: list[_Copy] = []
    by_shape: dict[frozenset[str], list[int]] = {}  # heaps of numbers of copies
    regrouped: set[int] = set()
    for unit in _units(blocks):
        names = frozenset(unit)
        homes = [(numbers[0], shape) for shape, numbers in by_shape.items() if numbers and not shape & names]
        if homes:
            home, shape = min(homes, key=lambda each: each[0])
            heappop(by_shape[shape])
            heappush(by_shape.setdefault(shape | names, []), home)
            copies[home].update(unit)
            regrouped.add(home)
            continue
        if copies and rule == "error":
            raise DuplicateKeyError(
                f"the sample {_key(unit)!r:.80} has the parts {', '.join(unit):.80} twice",
                hint="take duplicates='rename', 'first' or 'last'",
            )
        older = next((copy for copy in copies[-1:-_MOST_OLDER:-1] if names < copy.keys()), None)
        if older is None:
            heappush(by_shape.setdefault(names, []), len(copies))
            copies.append(unit)
            continue
        for name in unit:
            changes.add("duplicate_part", f"{_key(unit)}.{name}")
        older.update(unit if rule != "first" else {})
    for number in regrouped:
        changes.add("regrouped", _key(copies[number]))
    kept = {"first": copies[:1], "last": copies[-1:]}.get(rule) or _unequal(copies, digest)
    for _ in range(len(copies) - len(kept)):
        changes.add("duplicate_sample", _key(copies[0]))
    return kept


def _units(blocks: list[list[_Part]]) -> Iterator[_Copy]:
    """Yield the parts of each block by name; a part that it has twice begins a second unit."""
    for block in blocks:
        units, times = list[_Copy](), Counter[str]()
        for part in block:
            if times[part.name] == len(units):
                units.append({})
            units[times[part.name]][part.name] = part
            times[part.name] += 1
        yield from units


def _unequal(copies: list[_Copy], digest: Callable[[OddMember], int]) -> list[_Copy]:
    """Return the copies that differ in bytes from all copies before them."""
    if len(copies) < 2:
        return copies
    found: dict[frozenset[tuple[str, int]], _Copy] = {}
    for number, copy in enumerate(copies):
        is_there = all(part.member is not None and not part.problem for part in copy.values())
        marks = ((name, digest(part.member) if part.member else 0) for name, part in copy.items())
        found.setdefault(frozenset(marks) if is_there else frozenset([("", number)]), copy)
    return [*found.values()]


def _whole(copies: list[_Copy], tar: OddTar, changes: Changes) -> list[_Copy]:
    """Return the samples that are whole.

    A sample that may have lost a part (by a link to nowhere, by damage, at a cut) is whole if others have the
    same parts, or if none has all of its parts and more.
    """
    problems = [next((part.problem for part in copy.values() if part.problem), "") for copy in copies]
    shapes = [frozenset(n.lower() for n, part in copy.items() if part.member is not None) for copy in copies]
    gaps = [
        any(part.member is None or part.number in tar.beside_gaps for part in copy.values())
        for copy in copies
    ]
    found = zip(shapes, gaps, problems, strict=True)
    sound = {shape for shape, has_gap, problem in found if not has_gap and not problem}
    for number, shape in enumerate(shapes):
        if not problems[number] and gaps[number] and shape not in sound:
            is_part = not shape or any(shape < other for other in sound)
            problems[number] = "incomplete" if is_part else ""
    for copy, problem in zip(copies, problems, strict=True):
        if problem:
            changes.add(problem, _key(copy))
    return [copy for copy, problem in zip(copies, problems, strict=True) if not problem]
