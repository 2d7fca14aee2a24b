"""``weight: {0: 3, 10_000: 1}``: a weight that changes at steps, at once or along a line."""

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
"""Steps, ascending from 0, with the weight from each on."""

_STAIRS = 64
"""Stairs of a ramp: weights hold for at least a batch, and a plan should stay small."""
_MOST_STEP = 1 << 48
_WRITTEN = re.compile(r"[0-9](_?[0-9]){0,20}", re.ASCII)  # keys of YAML are strings


def parse_schedule(
    value: Mapping[Any, Any], where: str, fail: Callable[[str, str], MetadataError]
) -> Schedule:
    """Return steps with the weight from each on; the first step is 0.

    ``fail`` makes an error of a problem and a hint; ``where`` is the place in the file, for its keys.

    Raises MetadataError if the steps do not ascend from 0, or a weight is wrong.
    """
    steps = list(map(_step, value))
    if -1 in steps:
        wrong = list(value)[steps.index(-1)]
        raise fail(
            f"{wrong!r:.80} is no step of a weight", "use numbers of batches, such as {0: 3, 10_000: 1}"
        )
    if not steps or steps[0] != 0:
        raise fail(f"the steps of a weight are {steps!r:.80}", "begin with step 0: {0: 3, 10_000: 1}")
    if any(step >= after for step, after in pairwise(steps)):
        raise fail(f"the steps of a weight are {steps!r:.80}", "write them in ascending order")
    found: list[tuple[int, float]] = []
    for step, entry in zip(steps, value.values(), strict=True):
        if isinstance(entry, Mapping):
            check_keys(entry, ("to", "ramp"), f"{where}.{step}")
            if entry.keys() != {"to", "ramp"} or entry["ramp"] != "linear" or not found:
                raise fail(
                    f"the weight at step {step} is {dict(entry)!r:.80}",
                    "use {to: 1, ramp: linear} at a step after 0, for a line from the step before",
                )
            entry = entry["to"]
            weight = _number(entry, step, fail)
            found += _stairs(*found[-1], step, weight)
        else:
            weight = _number(entry, step, fail)
        found.append((step, weight))
    return tuple(found)


def _step(key: Any) -> int:
    """Return the number that a key is, or writes as in ``10_000``; -1 if it is none."""
    if isinstance(key, str) and _WRITTEN.fullmatch(key):
        key = int(key)
    return key if type(key) is int and 0 <= key < _MOST_STEP else -1


def _number(value: Any, step: int, fail: Callable[[str, str], MetadataError]) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (value >= 0 and math.isfinite(value)):
        raise fail(f"the weight at step {step} is {value!r:.80}", "use a number from 0 on")
    return float(value)


def _stairs(begin: int, first: float, end: int, last: float) -> Iterator[tuple[int, float]]:
    """Yield the stairs of a line, each with the weight in its middle, so that their mean is the line's."""
    number = min(_STAIRS, end - begin)
    for stair in range(number):
        middle = (stair + 0.5) / number
        yield begin + stair * (end - begin) // number, first + (last - first) * middle


def weight_at(schedule: Schedule, step: int) -> float:
    """Return the weight that holds at a step."""
    return [weight for begin, weight in schedule if begin <= step][-1]
