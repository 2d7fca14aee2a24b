"""Weights that a program set for a mixture, in saved states.

Format: ``[[batch of the job, weight of each source, ...], ...]``, ascending, if some were set. A state of a
blend by weights also has ``[step, batch]``: the step at which it was saved, and the batches that the job had
made. Steps after it are counted from there, on any number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from energon_stream.schedule import WeightChange, damaged, is_count, shown

WEIGHTS, STEPS = "weights", "steps"


def write_changes(changes: Sequence[WeightChange]) -> list[list[float]]:
    """Return changes as plain values."""
    return [[change.begin, *change.weights] for change in changes]


def read_changes(state: Mapping[str, Any]) -> tuple[WeightChange, ...]:
    """Return the changes in a rank's state. Raises StateError if they are damaged."""
    saved = state.get(WEIGHTS, [])
    if not isinstance(saved, (list, tuple)):
        raise damaged(f"{shown(saved)} for the weights of the mixture")
    changes = tuple(map(_read_change, saved))
    begins = [change.begin for change in changes]
    if begins != sorted(set(begins)) or len({len(change.weights) for change in changes}) > 1:
        raise damaged(f"{len(changes)} changes of weights are not in order")
    return changes


def _read_change(saved: Any) -> WeightChange:
    if isinstance(saved, (list, tuple)) and len(saved) > 1 and is_count(saved[0]):
        begin, *weights = saved
        fits = all(type(weight) in (int, float) and 0 <= weight < math.inf for weight in weights)
        if fits and any(weights):
            return WeightChange(begin, tuple(map(float, weights)))
    raise damaged(f"{shown(saved)} for a change of weights")


def read_steps(state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the step at which a state was saved, and the batches of the job by then; (0, 0) without them."""
    saved = state.get(STEPS, (0, 0))
    if not isinstance(saved, (list, tuple)) or len(saved) != 2 or not all(map(is_count, saved)):
        raise damaged(f"{shown(saved)} for a step and the batches before it")
    return saved[0], saved[1]


def digest_of_changes(changes: Sequence[WeightChange]) -> str:
    """Return a hash, equal on ranks that have the same changes."""
    return hashlib.blake2b(json.dumps(write_changes(changes)).encode(), digest_size=8).hexdigest()
