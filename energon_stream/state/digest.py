"""The digest of a state, by which damage is told, whatever it hit.

It is a hash of all other fields: BLAKE2b of their msgpack, with the keys of dicts in order. Lists and tuples
have the same msgpack, so a state that went through JSON, YAML or msgpack keeps its digest. It protects from
accidents. It is no signature: who can write a state can write its digest too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgpack

from energon_stream.errors import StateError
from energon_stream.schedule import damaged, reading, shown

DIGEST = "digest"
_BYTES = 16
_MOST_REPEATED = 1 << 20
"""Values that a state may have in addition to eight times those that are stored in it."""


def with_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the digest of its other fields. Whatever changes a state makes it anew.

    Raises StateError if the state holds a value that is not of a built-in type.
    """
    fields = {name: value for name, value in state.items() if name != DIGEST}
    try:
        packed = msgpack.packb(_ordered(fields), use_bin_type=True, default=_wide)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise not_plain(error) from error
    return {**fields, DIGEST: hashlib.blake2b(packed, digest_size=_BYTES).digest()}


def check_digest(state: Mapping[str, Any], *, has_one: bool) -> None:
    """Check that a state is what was saved, as far as its version tells; and that it can be packed.

    Raises StateError if it is not.
    """
    with reading():
        distinct: dict[int, int] = {}
        values = _count(state, distinct)
        if values > _MOST_REPEATED + 8 * len(distinct):
            raise damaged(f"{len(distinct)} values repeat each other {values} times")
    expected = with_digest(state)[DIGEST]
    if (DIGEST in state) != has_one:
        version, has = shown(state.get("version")), "no" if has_one else "a"
        raise damaged(f"it has {has} digest, and is of format version {version}")
    if has_one and state[DIGEST] != expected:
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
        return {key: _ordered(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)) and dict in map(type, value):
        return [_ordered(part) for part in value]
    return value


def _wide(value: Any) -> str:
    """Return the digits of an integer of more than 64 bits, which an operator of a user may have."""
    if isinstance(value, int):
        return hex(value)
    raise TypeError(f"a {type(value).__name__}")


def _count(value: Any, distinct: dict[int, int]) -> int:
    """Count the values in a value, in time that follows from those in memory: a pickle may repeat them."""
    if not isinstance(value, (dict, list, tuple)):
        return 1
    if (known := distinct.get(id(value))) is None:
        distinct[id(value)] = _MOST_REPEATED  # of a value that contains itself
        inner = value.values() if isinstance(value, dict) else value
        distinct[id(value)] = known = 1 + sum(_count(part, distinct) for part in inner)
    return known
