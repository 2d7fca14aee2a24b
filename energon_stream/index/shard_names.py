"""Names of shards: in brace patterns, paths and listings, and the split parts that tars belong to.

Megatron-Energon has the same rules.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

from energon_stream.conventions import conventions
from energon_stream.errors import ConfigError, MetadataError, ObjectNotFoundError
from energon_stream.index.braces import expand
from energon_stream.index.file_format import find_format
from energon_stream.limits import Limits
from energon_stream.logs import log_once
from energon_stream.printable import counted, strip_credentials
from energon_stream.storage import ListEntry
from energon_stream.urls import is_local, is_url, local_path, shown_url, split_query, url_scheme

_log = logging.getLogger(__name__)

SPLIT_PARTS = ("train", "val", "test")  # usual names

_HIDDEN = re.compile(r"(^|/)\.[^.]")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tar.lz4")
_DECOMPRESS = "decompress the tars, as `energon-stream repair` does: samples are read by byte range"
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # of a name that is not UTF-8
_DIGITS = re.compile(r"([0-9]+)")
_PIPE = re.compile("(?:^|/)pipe:")  # of webdataset
_SCHEME = re.compile("(?:^|/)(s3|gs|gcs|az|abfs|hf|https?):/(?!/)(.*)")  # a slash is missing


def is_inside(path: str) -> bool:
    """Return True if a path of a shard, as metadata spells it, stays below the folder of its dataset.

    Example:
        >>> is_inside("images/00.tar"), is_inside("../x/00.tar"), is_inside("/etc/00.tar")
        (True, False, False)
    """
    if path.startswith(("/", "~")) or "\0" in path or is_url(path):
        return False
    return ".." not in path or ".." not in path.split("/")


def check_tar_names(paths: Iterable[str], where: str | None = None) -> None:
    """Raise ConfigError if a dataset cannot name one of its tars."""
    for path in paths:
        if not is_inside(path) or _HALF_CHARACTER.search(path):
            raise ConfigError(
                f"a dataset cannot have a tar named {path!r}: its name begins with ~, looks like a URL (::), or "
                "is not UTF-8",
                where=where,
                hint="rename it, or leave it out with exclude=",
            )


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


def names_tars(url: str) -> bool:
    """Return True if a path ends like tars do. Compressed tars count; they are refused later."""
    return url.rstrip("}").endswith((".tar", *_COMPRESSED))


def parse_tar_paths(url: str, limits: Limits | None = None) -> tuple[str, list[str]]:
    """Return the folder of a path of tars, and their paths below it, as a shell orders them.

    The folder ends at the last slash before the first brace.

    Raises LimitError if the braces expand to too many names, and ConfigError if they are not balanced,
    include the bucket's name, or name a tar twice, or another file, or a compressed tar.

    Example:
        >>> parse_tar_paths("s3://bucket/data/train-{00..01}.tar")
        ('s3://bucket/data', ['train-00.tar', 'train-01.tar'])
    """
    shown = strip_credentials(url)
    is_web = url_scheme(url) in ("http", "https")
    url, query = split_query(url)
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
        paths = expand([pattern], shown, limits)
    except MetadataError as error:
        raise ConfigError(error.what, where=shown, hint="write braces as {000..999} or {a,b}") from error
    if is_web:  # a web address is percent-encoded, and the paths below a root are not
        folder, paths = folder + query, [unquote(path) for path in paths]
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
    return folder, paths


def only_visible(entries: Iterable[ListEntry], url: str) -> list[ListEntry]:
    """Return the entries whose path has no name that begins with a dot; warn of other files that are data."""
    found = list(entries)
    hidden = [entry.path for entry in found if _HIDDEN.search(entry.path)]
    data = sorted(path for path in hidden if names_tars(path) or find_format(path) is not None)
    if data:
        log_once(_log, "%s: %s left out, such as %s", url, counted(len(data), "hidden file"), data[0])
    left_out = set(hidden)
    return [entry for entry in found if entry.path not in left_out]


def only_tars(entries: Iterable[ListEntry], url: str) -> list[ListEntry]:
    """Return the tars of a folder's listing, sorted by path; warn of compressed ones."""
    others = only_visible(entries, url)
    tars = sorted((entry for entry in others if entry.path.endswith(".tar")), key=lambda entry: entry.path)
    compressed = sorted(entry.path for entry in others if entry.path.endswith(_COMPRESSED))
    if tars:
        if compressed:
            _log.warning(
                "%s: %d compressed tars are left out, such as %s", url, len(compressed), compressed[0]
            )
        upper = [entry.path for entry in others if entry.path.endswith((".TAR", ".Tar"))]
        if upper:
            _log.warning("%s: %d files do not end in .tar, and are left out: %s", url, len(upper), upper[0])
        return tars
    if compressed:
        raise ConfigError(
            f"all {len(compressed)} tars of the folder are compressed, such as {compressed[0]!r}",
            where=url,
            hint=_DECOMPRESS,
        )
    found = f"; it has {counted(len(others), 'other file')}, such as {others[0].path!r}" if others else ""
    hint = conversion_hint(url) if others else path_hint(url)
    is_there = not is_local(url) or Path(local_path(url)).is_dir()
    what = f"the folder has no .tar files{found}" if is_there else "no such folder"
    raise ObjectNotFoundError(what, where=url, hint=hint)


def conversion_hint(url: str) -> str:
    """Return what to do with files of other formats."""
    return f"`energon-stream convert {shlex.quote(url)} NEW_FOLDER` makes a dataset of pictures, texts, Parquet and more"


def check_tars(url: str, shards: Iterable[str] = ()) -> None:
    """Raise ConfigError if a path names a file of another format, or a folder has such files as shards."""
    if (other := next(filter(find_format, (url, *shards)), None)) is not None:
        raise ConfigError(
            f"this takes tars, and {shown_url(other)!r:.80} is a file of another format",
            where=url,
            hint=conversion_hint(url),
        )


def path_hint(url: str, other: str = "check the path") -> str:
    """Return what is probably wrong with a path at which nothing is; ``other`` if it looks sound."""
    if _PIPE.search(url):
        return "pass the URL itself, such as s3://bucket/data/{000..099}.tar: stores are read without a shell"
    if slip := _SCHEME.search(url):
        return f"a URL has a colon and two slashes: {slip[1]}://{slip[2]}"
    if "*" in url or "?" in url:
        return "write {000..099}.tar in place of wildcards; or pass the folder, with sample_type=CrudeSample"
    if is_local(url) and Path(local_path(url)).is_file():
        return f"`energon-stream convert {url} NEW_FOLDER` takes tables; of other files, pass the folder, unpacked"
    return other


def named_shares(ratio: Sequence[float] | Mapping[str, float]) -> dict[str, float]:
    """Return shares of train, val and test, or of split parts by name, by name."""
    names = tuple(ratio) if isinstance(ratio, Mapping) else SPLIT_PARTS
    shares = tuple(ratio.values() if isinstance(ratio, Mapping) else ratio)
    if len(shares) != len(names) or min(shares, default=-1) < 0 or not 0 < sum(shares) < float("inf"):
        raise ConfigError(
            f"the split ratio {shares} is not three shares of train, val and test",
            hint="for example 8,1,1",
        )
    return dict(zip(names, shares, strict=True))


def split_by_ratio(
    shards: Sequence[str], ratio: Sequence[float] | Mapping[str, float]
) -> dict[str, tuple[str, ...]]:
    """Divide a list of shards in proportion to shares of train, val and test, or of split parts by name.

    A split part ends at ``int(number of shards × sum of the shares so far)``, as in Megatron-Energon. The
    exception is the last split part with a share, which takes all shards that are left: rounding can lose a
    shard there. Raises ConfigError as :func:`named_shares`.

    Example:
        >>> split_by_ratio(["0.tar", "1.tar", "2.tar"], (2, 1, 0))
        {'train': ('0.tar', '1.tar'), 'val': ('2.tar',), 'test': ()}
    """
    named = named_shares(ratio)
    shares = tuple(named.values())
    last = max(place for place, share in enumerate(shares) if share > 0)
    parts: dict[str, tuple[str, ...]] = {}
    start, reached = 0, 0.0
    for place, (name, share) in enumerate(named.items()):
        reached += share / sum(shares)
        stop = len(shards) if place >= last else int(len(shards) * reached + 1e-9)
        parts[name] = tuple(shards[start:stop])
        start = stop
    return parts


def split_by_patterns(shards: Sequence[str], patterns: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Assign shards to split parts by patterns ``NAME:PATTERN``.

    A pattern is tried as a regular expression that matches from the start of the path, as in
    Megatron-Energon. If it matches no shard, it is tried as a glob or brace pattern of the whole path.

    Example:
        >>> split_by_patterns(["a/0.tar", "a/1.tar", "b/0.tar"], ["train:a/", "val:b/*.tar"])
        {'train': ('a/0.tar', 'a/1.tar'), 'val': ('b/0.tar',)}
    """
    parts: dict[str, tuple[str, ...]] = {}
    for item in patterns:
        name, colon, pattern = item.partition(":")
        if not colon or not name or not pattern:
            raise ConfigError(
                f"the split pattern {item!r} is not NAME:PATTERN", hint="for example train:train/.*"
            )
        found = _match_regex(shards, pattern) or match_names(shards, [pattern])
        if not found and conventions() == "energon":
            _log.warning("the split pattern %r matches no shard", item)
        elif not found:
            raise ConfigError(
                f"the split pattern {item!r} matches no shard",
                hint=f"use a regular expression, a glob or braces; the first shard is {shards[0]!r}",
            )
        parts[name] = tuple(dict.fromkeys([*parts.get(name, ()), *found]))
    return parts


def _match_regex(shards: Sequence[str], pattern: str) -> list[str]:
    with suppress(re.error):
        return [*filter(re.compile(pattern).match, shards)]
    return []


def match_names(shards: Sequence[str], patterns: Iterable[str]) -> list[str]:
    """Return, in order, the shards whose whole path matches a name, glob or brace pattern."""
    names = expand(patterns, "the shard pattern")
    plain = frozenset(names)
    globs = [name for name in names if any(sign in name for sign in "*?[")]
    return [name for name in shards if name in plain or any(fnmatchcase(name, glob) for glob in globs)]
