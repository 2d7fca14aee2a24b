"""Weights that a program set for a mixture, in saved states.

Format: ``[[step, weight of each source, ...], ...]``, the steps ascending. A state has them if some were set.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from energon_stream.schedule import WeightChange, damaged, is_count, shown

WEIGHTS = "weights"


def write_changes(changes: Sequence[WeightChange]) -> list[list[float]]:
    """Return changes as plain values."""
    return [[change.step, *change.weights] for change in changes]


def read_changes(state: Mapping[str, Any]) -> tuple[WeightChange, ...]:
    """Return the changes in a rank's state. Raises StateError if they are damaged."""
    saved = state.get(WEIGHTS, [])
    if not isinstance(saved, (list, tuple)):
        raise damaged(f"{shown(saved)} for the weights of the mixture")
    changes = tuple(map(_read_change, saved))
    steps = [change.step for change in changes]
    if steps != sorted(set(steps)) or len({len(change.weights) for change in changes}) > 1:
        raise damaged(f"{len(changes)} changes of weights are not in order")
    return changes


def _read_change(saved: Any) -> WeightChange:
    if isinstance(saved, (list, tuple)) and len(saved) > 1 and is_count(saved[0]):
        step, *weights = saved
        if all(type(weight) in (int, float) and 0 <= weight < math.inf for weight in weights) and any(
            weights
        ):
            return WeightChange(step, tuple(map(float, weights)))
    raise damaged(f"{shown(saved)} for a change of weights")


def digest_of_changes(changes: Sequence[WeightChange]) -> str:
    """Return a hash, equal on ranks that have the same changes."""
    return hashlib.blake2b(json.dumps(write_changes(changes)).encode(), digest_size=8).hexdigest()
