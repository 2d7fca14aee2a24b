"""The digest of a state, by which damage is told, whatever it hit.

It is BLAKE2b of the msgpack of all other fields, with the keys of dicts in order. Lists and tuples have the
same msgpack, so a state that went through JSON, YAML or msgpack keeps its digest. It is no signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgpack

from energon_stream.errors import StateError
from energon_stream.schedule import damaged, reading

DIGEST = "digest"
_BYTES = 16
_NESTED = (dict, list, tuple)
_SINGLE = {int, float, bool, type(None)}
_MOST_REPEATED = 1 << 20
"""Size up to which values may repeat each other; a larger state may have eight times what is stored."""


def with_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the digest of its other fields; StateError if one is not of a built-in type."""
    fields = {name: value for name, value in state.items() if name != DIGEST}
    try:
        packed = msgpack.packb(_ordered(fields), use_bin_type=True, default=_wide)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise not_plain(error) from error
    return {**fields, DIGEST: hashlib.blake2b(packed, digest_size=_BYTES).digest()}


def check_digest(state: Mapping[str, Any]) -> None:
    """Raise StateError unless a state is what was saved and can be packed."""
    with reading():
        stored, written = _sizes(state)
        if written > _MOST_REPEATED + 8 * stored:
            raise damaged(f"its values repeat each other, {written} times in all")
    expected = with_digest(state)[DIGEST]
    if DIGEST not in state:
        raise damaged("it has no digest")
    if state[DIGEST] != expected:
        raise damaged("its digest does not match its content: some part of it was changed, lost or mixed up")


def not_plain(error: Exception) -> StateError:
    """Return the error for a state with a value that is not of a built-in type."""
    return StateError(
        f"the state holds a value that is not of a built-in type: {error!s:.200}",
        hint="return dicts, lists, strings, numbers, bytes and None from the node's state()",
    )


def _ordered(value: Any) -> Any:
    """Sort the keys of dicts in dicts and in lists of dicts, which formats may reorder."""
    if isinstance(value, dict):
        try:
            items = sorted(value.items())
        except TypeError:  # keys of several types
            items = sorted(value.items(), key=lambda item: str(item[0]))
        # A call for each value would take most of the time.
        return {key: _ordered(part) if isinstance(part, _NESTED) else part for key, part in items}
    if isinstance(value, _NESTED) and dict in map(type, value):
        return [_ordered(part) for part in value]
    return value


def _wide(value: Any) -> str:
    """Return the digits of an integer of more than 64 bits, which an operator of a user may have."""
    if isinstance(value, int):
        return hex(value)
    raise TypeError(f"a {type(value).__name__}")


def _sizes(state: Any) -> tuple[int, int]:
    """Return the size of a state in memory and when it is written, which a pickle that repeats values hides.

    Units are values or eight bytes. Each value is visited once.
    """
    sizes: dict[int, int] = {}
    stored = 0

    def written(value: Any) -> int:
        nonlocal stored
        if not isinstance(value, (dict, list, tuple, str, bytes)):
            return 1
        size = sizes.get(id(value))
        if size is None:
            sizes[id(value)] = _MOST_REPEATED  # of a value that contains itself
            size = own = 1 + len(value) // 8 if isinstance(value, (str, bytes)) else 1
            if isinstance(value, (dict, list, tuple)):
                parts = [*value, *value.values()] if isinstance(value, dict) else value
                longer = [part for part in parts if type(part) not in _SINGLE]  # a call for each takes long
                size += len(parts) - len(longer) + sum(map(written, longer))
            sizes[id(value)] = size
            stored += own
        return size

    total = written(state)
    return stored, total
