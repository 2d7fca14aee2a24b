"""Names of shards: brace patterns such as ``s_{000..007}.tar``, and paths that name tars."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import braceexpand

from energon_stream.errors import ConfigError, MetadataError
from energon_stream.storage import is_local, local_path, strip_credentials

__all__ = ["TarPaths", "collapse", "expand", "is_compressed", "names_tars", "parse_tar_paths"]

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")

_DIGITS = re.compile(r"([0-9]+)")
_SPECIAL = re.compile(r"[{}\\]")
# What `prepare` writes: a range of one number. For 10^5 names the library takes four times as long.
_RUN = re.compile(r"([^{}\\]*)\{([0-9]+)\.\.([0-9]+)\}([^{}\\]*)")


def expand(patterns: Iterable[str], where: str) -> list[str]:
    """Expand each pattern like a shell would, in order.

    Raises:
        MetadataError: Unbalanced braces; ``where`` names the file.
    """
    names: list[str] = []
    for pattern in patterns:
        if not _SPECIAL.search(pattern):
            names.append(pattern)
            continue
        run = _RUN.fullmatch(pattern)
        if run:
            names.extend(_count(*run.groups()))
            continue
        try:
            names.extend(braceexpand.braceexpand(pattern))
        except ValueError as error:
            raise MetadataError(f"the braces of {pattern!r} do not pair up", where=where) from error
    return names


def _count(before: str, first: str, last: str, after: str) -> list[str]:
    """Names with each number of a range; a zero in front of one pads all of them, as in a shell."""
    padded = any(number.startswith("0") and number != "0" for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    start, stop = int(first), int(last)
    numbers = range(start, stop + 1) if start <= stop else range(start, stop - 1, -1)
    return [f"{before}{number:0{width}d}{after}" for number in numbers]


def collapse(names: Sequence[str]) -> list[str]:
    """Write runs of neighbours that differ in one number, counting up by one, as one pattern.

    Numbers of unequal width do not make a run. The result expands to ``names``, in the same order.
    """
    patterns: list[str] = []
    run: list[list[str]] = []  # the names of the current run, cut at their numbers
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
    """Place of the one number that is higher by one, -1 if the names differ in any other way."""
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
    """Tars below one folder.

    Attributes:
        root: Path or URL of the folder: all that comes before the last slash in front of the first brace.
        paths: The tars, relative to it, in the order in which a shell expands the braces.
    """

    root: str
    paths: tuple[str, ...]


def names_tars(url: str) -> bool:
    """Whether a path ends as tars do, braces included; compressed ones count, and are refused later."""
    return url.rstrip("}").endswith((".tar", *_COMPRESSED))


def is_compressed(path: str) -> bool:
    """Whether a path ends as compressed tars do, of which no byte range can be read."""
    return path.endswith(_COMPRESSED)


def parse_tar_paths(url: str) -> TarPaths:
    """Expand a path with or without braces, ``s3://bucket/train-{000..999}.tar``.

    Raises:
        ConfigError: The braces do not pair up, reach into the bucket's name, or name a tar twice; a name is
            that of no tar, or of a compressed one.
    """
    shown = strip_credentials(url)
    folder, slash, _ = url.partition("{")[0].rpartition("/")
    pattern = url[len(folder) + len(slash) :]
    if is_local(url):
        folder = local_path(folder or slash or ".")
    elif folder.endswith("/") or "://" not in folder:  # of "s3://bucket-{a,b}/x.tar", "s3:/" is left
        raise ConfigError(
            "the tars have no common bucket", where=shown, hint="Name one bucket, with braces in the path."
        )
    try:
        paths = expand([pattern], shown)
    except MetadataError as error:
        raise ConfigError(error.what, where=shown, hint="Write braces as {000..999} or {a,b}.") from error
    for path in paths:
        if is_compressed(path):
            raise ConfigError(
                f"{path!r} is compressed, so that no part of it can be read alone",
                where=shown,
                hint="Decompress the tars; images and the like hardly become larger.",
            )
        if not path.endswith(".tar"):
            raise ConfigError(f"{path!r} is no tar", where=shown, hint="All names must end in .tar.")
    twice = [path for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise ConfigError(
            f"{twice[0]!r} is named twice", where=shown, hint="For more weight, use a metadataset."
        )
    return TarPaths(folder, tuple(paths))
