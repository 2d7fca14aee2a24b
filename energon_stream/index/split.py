"""Assignment of shards to split parts, by the rules of Megatron-Energon."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from energon_stream.errors import ConfigError
from energon_stream.index.shard_names import expand

_SPLIT_NAMES = ("train", "val", "test")


def split_by_ratio(
    shards: Sequence[str], ratio: Sequence[float] | Mapping[str, float]
) -> dict[str, tuple[str, ...]]:
    """Divide a list of shards in proportion.

    A split part ends at ``int(number of shards × sum of the shares so far)``, as in Megatron-Energon. The
    exception is the last split part with a share, which takes all shards that are left: rounding can lose a
    shard there.

    Args:
        shards: Shard paths in order.
        ratio: Shares of train, val and test, or of split parts by name. They need not sum to one.

    Raises:
        ConfigError: A share is negative, all are zero, or a sequence has not three shares.

    Example:
        >>> split_by_ratio(["0.tar", "1.tar", "2.tar"], (2, 1, 0))
        {'train': ('0.tar', '1.tar'), 'val': ('2.tar',), 'test': ()}
    """
    names = tuple(ratio) if isinstance(ratio, Mapping) else _SPLIT_NAMES
    shares = tuple(ratio.values() if isinstance(ratio, Mapping) else ratio)
    if len(shares) != len(names) or min(shares, default=-1) < 0 or not 0 < sum(shares) < float("inf"):
        raise ConfigError(
            f"the split ratio {shares} is not three shares of train, val and test",
            hint="for example 8,1,1",
        )
    last = max(place for place, share in enumerate(shares) if share > 0)
    parts: dict[str, tuple[str, ...]] = {}
    start, reached = 0, 0.0
    for place, (name, share) in enumerate(zip(names, shares, strict=True)):
        reached += share / sum(shares)
        stop = len(shards) if place >= last else int(len(shards) * reached)
        parts[name] = tuple(shards[start:stop])
        start = stop
    return parts


def split_by_patterns(shards: Sequence[str], patterns: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Assign shards to split parts by patterns ``NAME:PATTERN``.

    A pattern is tried as a regular expression that matches from the start of the path, as in
    Megatron-Energon. If it matches no shard, it is tried as a glob or brace pattern of the whole path.

    Raises:
        ConfigError: A pattern has no name, or matches no shard.

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
        if not found:
            raise ConfigError(
                f"the split pattern {item!r} matches no shard",
                hint=f"use a regular expression, a glob or braces; the first shard is {shards[0]!r}",
            )
        parts[name] = tuple(dict.fromkeys([*parts.get(name, ()), *found]))
    return parts


def _match_regex(shards: Sequence[str], pattern: str) -> list[str]:
    try:
        expression = re.compile(pattern)
    except re.error:
        return []
    return [shard for shard in shards if expression.match(shard)]


def match_names(shards: Sequence[str], patterns: Iterable[str]) -> list[str]:
    """Return the shards whose whole path matches a name, glob or brace pattern, in the order of
    ``shards``.
    """
    names = expand(patterns, "the shard pattern")
    plain = frozenset(names)
    globs = [name for name in names if any(sign in name for sign in "*?[")]
    return [
        shard for shard in shards if shard in plain or any(fnmatchcase(shard, pattern) for pattern in globs)
    ]
