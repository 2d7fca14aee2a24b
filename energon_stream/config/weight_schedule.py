"""``weight: {0: 3, 10_000: 1}``: a weight that changes at batches, at once or along a line."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeAlias

from energon_stream.config.document_keys import is_number
from energon_stream.errors import MetadataError
from energon_stream.index.yaml_io import check_keys
from energon_stream.schedule.lines import STAIRS, Course, Knot

Schedule: TypeAlias = tuple[tuple[int, float], ...]
"""Batches of the job, ascending from 0, with the weight from each on: a course with stairs for its lines."""

_WRITTEN = re.compile(r"[0-9](_?[0-9]){0,20}", re.ASCII)  # keys of YAML are strings


def parse_schedule(value: Mapping[Any, Any], where: str, ranks: int = 1) -> Course:
    """Parse a weight that changes. Raises MetadataError if batches do not ascend from 0, or one is wrong.

    ``{step: {…}}`` and ``{linear: {…}}``, of Megatron-Energon 8, count the batches of a rank, ``ranks`` of
    which are at the same time.
    """

    def wrong(what: str, hint: str) -> MetadataError:
        return MetadataError(what, where=where, hint=hint)

    kind = next((kind for kind in ("step", "linear") if kind in value), None)
    if kind is not None:
        check_keys(value, (kind,), where)
        value, where = value[kind], f"{where}.{kind}"
        if not isinstance(value, Mapping):
            raise wrong(f"the weights by batch are {value!r:.80}", "use {0: 3, 10_000: 1}")
    batches: list[int] = []
    for key in value:
        number = int(key) if isinstance(key, str) and _WRITTEN.fullmatch(key) else key
        if type(number) is not int or not 0 <= number < 1 << 48:
            raise wrong(
                f"{key!r:.80} is no batch from which a weight holds",
                "use numbers, such as {0: 3, 10_000: 1}",
            )
        batches.append(number)
    if kind == "linear" and batches and batches[0] > 0:
        batches, value = [0, *batches], {0: next(iter(value.values())), **value}
    if not batches or batches[0] != 0:
        raise wrong(f"the batches of a weight are {batches!r:.80}", "begin with 0: {0: 3, 10_000: 1}")
    if batches != sorted(set(batches)):
        raise wrong(f"the batches of a weight are {batches!r:.80}", "write them in ascending order")
    found: list[Knot] = []
    for batch, entry in zip(batches, value.values(), strict=True):
        if kind is not None:
            batch *= ranks
            entry = {"to": entry, "ramp": "linear"} if kind == "linear" and found else entry
        ramp = isinstance(entry, Mapping)
        if ramp:
            check_keys(entry, ("to", "ramp"), f"{where}.{batch}")
            if entry.keys() != {"to", "ramp"} or entry["ramp"] != "linear" or not found or kind == "step":
                raise wrong(
                    f"the weight at batch {batch} is {dict(entry)!r:.80}",
                    "use {to: 1, ramp: linear} at a batch after 0, for a line from the one before",
                )
        weight = entry["to"] if ramp else entry
        if not is_number(weight) or not 0 <= weight < math.inf:
            raise wrong(f"the weight at batch {batch} is {weight!r:.80}", "use a number from 0 on")
        found.append(Knot(batch, float(weight), ramp))
    return tuple(found)


def stairs(course: Course) -> Schedule:
    """Return a course with stairs for its lines, for random draws."""
    found: list[tuple[int, float]] = []
    for knot in course:
        if knot.is_ramp:
            found += _steps(*found[-1], knot.begin, knot.weight)
        found.append((knot.begin, knot.weight))
    return tuple(found)


def _steps(begin: int, first: float, end: int, last: float) -> Iterator[tuple[int, float]]:
    """Yield the steps of a ramp, each with the weight in its middle, so that their mean is the ramp's."""
    number = min(STAIRS, end - begin)  # weights hold for at least a batch, and a plan should stay small
    for step in range(number):
        middle = (step + 0.5) / number
        yield begin + step * (end - begin) // number, first + (last - first) * middle


def weight_at(schedule: Schedule, batch: int) -> float:
    """Return the weight that holds at a batch of the job."""
    return schedule[bisect_right(schedule, batch, key=itemgetter(0)) - 1][1]
