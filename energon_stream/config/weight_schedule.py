"""``weight: {0: 3, 10_000: 1}``: a weight that changes at batches, at once or along a line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from energon_stream.index.yaml_io import check_keys

if TYPE_CHECKING:
    from energon_stream.errors import MetadataError

Schedule: TypeAlias = tuple[tuple[int, float], ...]
"""Batches of the job, ascending from 0, with the weight from each on."""

_STAIRS = 64
"""Stairs of a ramp: weights hold for at least a batch, and a plan should stay small."""
_MOST_BATCH = 1 << 48
_WRITTEN = re.compile(r"[0-9](_?[0-9]){0,20}", re.ASCII)  # keys of YAML are strings


def parse_schedule(
    value: Mapping[Any, Any], where: str, fail: Callable[[str, str], MetadataError]
) -> Schedule:
    """Return batches with the weight from each on; the first is 0.

    ``fail`` makes an error of a problem and a hint; ``where`` is the place in the file, for its keys.

    Raises MetadataError if the batches do not ascend from 0, or a weight is wrong.
    """
    batches = list(map(_batch, value))
    if -1 in batches:
        wrong = list(value)[batches.index(-1)]
        raise fail(
            f"{wrong!r:.80} is no batch from which a weight holds", "use numbers, such as {0: 3, 10_000: 1}"
        )
    if not batches or batches[0] != 0:
        raise fail(f"the batches of a weight are {batches!r:.80}", "begin with 0: {0: 3, 10_000: 1}")
    if any(batch >= after for batch, after in pairwise(batches)):
        raise fail(f"the batches of a weight are {batches!r:.80}", "write them in ascending order")
    found: list[tuple[int, float]] = []
    for batch, entry in zip(batches, value.values(), strict=True):
        if isinstance(entry, Mapping):
            check_keys(entry, ("to", "ramp"), f"{where}.{batch}")
            if entry.keys() != {"to", "ramp"} or entry["ramp"] != "linear" or not found:
                raise fail(
                    f"the weight at batch {batch} is {dict(entry)!r:.80}",
                    "use {to: 1, ramp: linear} at a batch after 0, for a line from the one before",
                )
            entry = entry["to"]
            weight = _number(entry, batch, fail)
            found += _stairs(*found[-1], batch, weight)
        else:
            weight = _number(entry, batch, fail)
        found.append((batch, weight))
    return tuple(found)


def _batch(key: Any) -> int:
    """Return the number that a key is, or writes as in ``10_000``; -1 if it is none."""
    if isinstance(key, str) and _WRITTEN.fullmatch(key):
        key = int(key)
    return key if type(key) is int and 0 <= key < _MOST_BATCH else -1


def _number(value: Any, batch: int, fail: Callable[[str, str], MetadataError]) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (value >= 0 and math.isfinite(value)):
        raise fail(f"the weight at batch {batch} is {value!r:.80}", "use a number from 0 on")
    return float(value)


def _stairs(begin: int, first: float, end: int, last: float) -> Iterator[tuple[int, float]]:
    """Yield the stairs of a line, each with the weight in its middle, so that their mean is the line's."""
    number = min(_STAIRS, end - begin)
    for stair in range(number):
        middle = (stair + 0.5) / number
        yield begin + stair * (end - begin) // number, first + (last - first) * middle


def weight_at(schedule: Schedule, batch: int) -> float:
    """Return the weight that holds at a batch of the job."""
    return [weight for begin, weight in schedule if begin <= batch][-1]
