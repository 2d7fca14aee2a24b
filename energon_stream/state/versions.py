"""The format of a rank's state, its versions, and the migration of earlier ones.

A rank's state, version 4::

    {"format": "energon_stream.rank", "version": 4,
     "digest": 16 bytes, see :mod:`energon_stream.state.digest`,
     "fingerprint": {"data": hash, "order": hash, "weights": hash, "pipeline": hash},
     "options": options in plain values, or None; for messages only,
     "leaves": number of shards of each leaf, see :mod:`energon_stream.state.description`,
     "topology": {"world_size": R, "rank": r, "num_streams": S, "seed_offset": n},
     "conventions": those of WorkerConfig, where they are not the library's own,
     "weights": those that a program set, if it did, see :mod:`energon_stream.state.mixture_weights`,
     "rotation": whose turn it is, see :mod:`energon_stream.state.rotation`,
     "streams": {"<stream>": {"batches": number, "node": state of the pipeline}, or None at the start}}

A node's state is described by the node's class in :mod:`energon_stream.pipeline`, a cursor in it by
:mod:`energon_stream.schedule.packed`.

To change the format, raise ``VERSION``, add a function that converts the version before to ``_MIGRATIONS``,
and save states with the last commit of the version before by ``tests/state/save_states.py``.

* Version 3 had no ``digest``.
* Version 2 called ``rotation`` ``turn`` and ``leaves`` ``sources``, had no ``options``, and packed columns
  differently (:mod:`energon_stream.schedule.packed_v2`).
* Version 1 was never released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from energon_stream.errors import StateError, StateVersionError
from energon_stream.schedule import damaged, is_count, pack_columns, reading, shown
from energon_stream.schedule.packed_v2 import unpack_columns_v2
from energon_stream.state.digest import check_digest

FORMAT = "energon_stream.rank"
VERSION = 4
MOST_LEAVES = 1 << 18
"""Datasets of a mixture that a state may name: they are unpacked in some megabytes."""
_MOST_MARKED = 64
_ALWAYS = ("fingerprint", "topology", "streams")
"""Fields of all versions."""
_WITH_DIGEST = 4
"""First version with a digest."""


def migrate(state: Any) -> dict[str, Any]:
    """Check the digest of a rank's state of any version that can be read, and convert it to the present one.

    Raises:
        StateError: Not a state of this library, or a damaged one.
        StateVersionError: A version that this library does not read.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise StateError(
            f"a {type(state).__name__} that is not a rank's state",
            hint="pass what save_state_rank() returned",
        )
    found: dict[str, Any] = dict(state)
    version = found.get("version")
    if type(version) is not int or not min(_MIGRATIONS) <= version <= VERSION:
        raise StateVersionError(
            f"the state has format version {shown(version)}; this library reads versions "
            f"{min(_MIGRATIONS)} to {VERSION}",
            hint="resume with the version of energon_stream that saved it, or install a newer one",
        )
    if missing := [name for name in _ALWAYS if name not in found]:
        raise damaged(f"it has no {', '.join(missing)}")
    check_digest(found, has_one=version >= _WITH_DIGEST)
    with reading():
        for earlier in range(version, VERSION):
            found = {**_MIGRATIONS[earlier](found), "version": earlier + 1}
    return found


def _from_2(state: dict[str, Any]) -> dict[str, Any]:
    leaves, total = [], 0
    for number, shards, marks in state.pop("sources"):
        total += number if is_count(number) else MOST_LEAVES + 1
        if total > MOST_LEAVES or not isinstance(shards, bytes):
            raise damaged(f"{shown(shards)} for the shards of {shown(number)} datasets")
        counts = unpack_columns_v2(shards, number)
        # Marks of runs of leaves are not read any more.
        leaves.append([number, pack_columns([*counts]), marks if number <= _MOST_MARKED else b""])
    return {**state, "rotation": state.pop("turn"), "leaves": leaves, "options": None}


_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {2: _from_2, 3: dict}
