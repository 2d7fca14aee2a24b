"""The format of a rank's state, and the migration of states of earlier versions.

A rank's state, version 4::

    {"format": "energon_stream.rank", "version": 4,
     "digest": 16 bytes, see :mod:`energon_stream.state.digest`,
     "fingerprint": {"data": hash, "order": hash, "weights": hash, "pipeline": hash, "content": hash},
     "options": options in plain values, or None; for messages only,
     "leaves": number of shards of each leaf, see :mod:`energon_stream.state.description`,
     "identities": what tells the leaves from others, see :mod:`energon_stream.state.identity`,
     "topology": {"world_size": R, "rank": r, "num_streams": S, "seed_offset": n},
     "dealt_to": as of ``WorkerConfig``, if it is not 1; the version is 5 then, because earlier readers do not
                 know it,
     "conventions": the conventions of WorkerConfig, if they differ from the library's own,
     "weights", "steps": weights that a program set, see :mod:`energon_stream.state.mixture_weights`,
     "resumed": where a state was dealt to other ranks, and
     "rotation": whose turn it is, see :mod:`energon_stream.state.rotation`,
     "streams": {"<stream>": {"batches": number, "node": state of the pipeline,
                              "counts": samples that were read, that failed, calls that failed, and emptied
                              planned packs, if there are any}, or None at the start}}

Early states of version 4 have no ``counts``. A node's class in :mod:`energon_stream.pipeline` describes the
node's state, and :mod:`energon_stream.schedule.packed` a cursor in it.

To change the format, raise ``VERSION``, add a function that converts the version before to ``_MIGRATIONS``,
and save states with the last commit of the version before by ``tests/state/save_states.py``. No version
before 4 was released, so none can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from energon_stream.errors import StateError, StateVersionError
from energon_stream.schedule import damaged, reading, shown
from energon_stream.state.digest import check_digest

FORMAT = "energon_stream.rank"
VERSION = 4
DEALT_VERSION = 5
"""Version of states with ``dealt_to``."""
_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""By version, the function that converts a state of it to the next version."""


def _meant(state: Any) -> str:
    if type(state).__module__.startswith("megatron."):  # its own class, or the alias's
        return "Megatron-Energon's states cannot go on here: docs/migration/megatron-energon.md says what can"
    if isinstance(state, (str, PathLike)):
        return "load the file first: loader.restore_state_rank(torch.load(path))"
    return "pass what save_state_rank() returned; lists go to restore_state_global"


def migrate(state: Any) -> dict[str, Any]:
    """Check the digest of a rank's state of any version that can be read, and convert it to the present one.

    Raises StateError, or StateVersionError for a version that this library does not read.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise StateError(
            f"a {type(state).__name__} that is not a rank's state",
            hint=_meant(state),
        )
    found: dict[str, Any] = dict(state)
    version = found.get("version")
    known = (*_MIGRATIONS, VERSION, DEALT_VERSION)
    if type(version) is not int or version not in known:
        raise StateVersionError(
            f"the state has format version {shown(version)}; this library reads {', '.join(map(str, known))}",
            hint="resume with the version of energon_stream that saved it, or install a newer one",
        )
    if missing := [name for name in ("fingerprint", "topology", "streams") if name not in found]:
        raise damaged(f"it has no {', '.join(missing)}")
    check_digest(found)
    with reading():
        for earlier in range(version, VERSION):
            found = {**_MIGRATIONS[earlier](found), "version": earlier + 1}
    return found
