"""Names of shards: brace patterns such as ``s_{000..007}.tar``, paths that name tars, tars in a listing."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import braceexpand

from energon_stream.errors import ConfigError, MetadataError, ObjectNotFoundError
from energon_stream.storage import ListEntry, is_local, local_path, strip_credentials

_log = logging.getLogger(__name__)

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
_DECOMPRESS = "decompress the tars: samples are read by byte range, which compression prevents"
_DIGITS = re.compile(r"([0-9]+)")
_SPECIAL = re.compile(r"[{}\\]")
# The one pattern that `prepare` writes: a range of numbers. braceexpand takes four times as long for 10^5
# names.
_RANGE = re.compile(r"([^{}\\]*)\{([0-9]+)\.\.([0-9]+)\}([^{}\\]*)")


def expand(patterns: Iterable[str], where: str) -> list[str]:
    """Expand brace patterns as a shell would, in order.

    Raises:
        MetadataError: The braces are not balanced.

    Example:
        >>> expand(["{08..10}.tar", "{a,b}.tar"], "split.yaml")
        ['08.tar', '09.tar', '10.tar', 'a.tar', 'b.tar']
    """
    names: list[str] = []
    for pattern in patterns:
        if not _SPECIAL.search(pattern):
            names.append(pattern)
        elif found := _RANGE.fullmatch(pattern):
            names.extend(_expand_range(*found.groups()))
        else:
            try:
                names.extend(braceexpand.braceexpand(pattern))
            except ValueError as error:
                raise MetadataError(f"the braces of {pattern!r} are not balanced", where=where) from error
    return names


def _expand_range(before: str, first: str, last: str, after: str) -> list[str]:
    """Return names with each number of a range. As in a shell, a leading zero pads all numbers."""
    padded = any(number.startswith("0") and number != "0" for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    start, stop = int(first), int(last)
    numbers = range(start, stop + 1) if start <= stop else range(start, stop - 1, -1)
    return [f"{before}{number:0{width}d}{after}" for number in numbers]


def collapse(names: Sequence[str]) -> list[str]:
    """Write runs of names that differ in one number, counting up by one, as one pattern each.

    Numbers of unequal width do not form a run. The patterns expand to ``names``, in the same order.

    Example:
        >>> collapse(["a_08.tar", "a_09.tar", "a_10.tar", "b.tar"])
        ['a_{08..10}.tar', 'b.tar']
    """
    patterns: list[str] = []
    run: list[list[str]] = []  # names of the current run, each split at its numbers
    varying = -1
    for name in names:
        tokens = _DIGITS.split(name)
        step = _step(run[-1], tokens) if run else -1
        if step >= 0 and varying in (-1, step):
            varying = step
        else:
            patterns.extend(_pattern(run, varying))
            run, varying = [], -1
        run.append(tokens)
    patterns.extend(_pattern(run, varying))
    return patterns


def _step(before: list[str], after: list[str]) -> int:
    """Return the position of the only difference, a number higher by one; -1 for any other difference."""
    if len(before) != len(after):
        return -1
    places = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(places) != 1 or places[0] % 2 == 0:
        return -1
    a, b = before[places[0]], after[places[0]]
    return places[0] if len(a) == len(b) and int(b) == int(a) + 1 else -1


def _pattern(run: list[list[str]], varying: int) -> list[str]:
    if not run:
        return []
    if varying < 0:
        return ["".join(run[0])]
    first, last = run[0][varying], run[-1][varying]
    return ["".join([*run[0][:varying], f"{{{first}..{last}}}", *run[0][varying + 1 :]])]


@dataclass(frozen=True, slots=True)
class TarPaths:
    """Tars below one folder."""

    root: str  # path or URL of the folder: everything before the last slash in front of the first brace
    # Paths of the tars, relative to the folder, in the order in which a shell expands the braces.
    paths: tuple[str, ...]


def names_tars(url: str) -> bool:
    """Return True if a path ends like tars do, with or without braces. Compressed tars count; they are
    refused later.
    """
    return url.rstrip("}").endswith((".tar", *_COMPRESSED))


def parse_tar_paths(url: str) -> TarPaths:
    """Parse a path of tars, with or without braces.

    Raises:
        ConfigError: The braces are not balanced, include the bucket's name, or name a tar twice; or a name is
            not that of a tar, or that of a compressed one.

    Example:
        >>> parse_tar_paths("s3://bucket/data/train-{00..01}.tar")
        TarPaths(root='s3://bucket/data', paths=('train-00.tar', 'train-01.tar'))
    """
    shown = strip_credentials(url)
    folder, slash, _ = url.partition("{")[0].rpartition("/")
    pattern = url[len(folder) + len(slash) :]
    if is_local(url):
        folder = local_path(folder or slash or ".")
    elif folder.endswith("/") or "://" not in folder:  # "s3://bucket-{a,b}/x.tar" leaves the folder "s3:/"
        raise ConfigError(
            "the tars have no common bucket",
            where=shown,
            hint="name one bucket, and use braces in the path only",
        )
    try:
        paths = expand([pattern], shown)
    except MetadataError as error:
        raise ConfigError(error.what, where=shown, hint="write braces as {000..999} or {a,b}") from error
    for path in paths:
        if path.endswith(_COMPRESSED):
            raise ConfigError(f"{path!r} is compressed", where=shown, hint=_DECOMPRESS)
        if not path.endswith(".tar"):
            raise ConfigError(f"{path!r} is not a tar", where=shown, hint="all names must end in .tar")
    twice = [path for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise ConfigError(
            f"{twice[0]!r} is named twice", where=shown, hint="to give data more weight, use a metadataset"
        )
    return TarPaths(folder, tuple(paths))


def only_tars(entries: Iterable[ListEntry], url: str) -> list[ListEntry]:
    """Return the tars of a folder's listing, sorted by path; warn of compressed ones. Raises
    ObjectNotFoundError if the folder has no tars, and ConfigError if all tars of the folder are compressed.
    """
    others = list(entries)
    tars = sorted((entry for entry in others if entry.path.endswith(".tar")), key=lambda entry: entry.path)
    compressed = sorted(entry.path for entry in others if entry.path.endswith(_COMPRESSED))
    if tars:
        if compressed:
            _log.warning(
                "%s: %d compressed tars are left out, such as %s", url, len(compressed), compressed[0]
            )
        return tars
    if compressed:
        raise ConfigError(
            f"all {len(compressed)} tars of the folder are compressed, such as {compressed[0]!r}",
            where=url,
            hint=_DECOMPRESS,
        )
    found = f"; it has {len(others)} other files, such as {others[0].path!r}" if others else ""
    raise ObjectNotFoundError(f"the folder has no .tar files{found}", where=url, hint="check the path")
