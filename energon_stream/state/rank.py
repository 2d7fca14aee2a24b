"""Saved states: plain values, versioned, checked before they are used.

A rank's state holds built-in types only (dict, list, tuple, str, int, float, bool, bytes, None), no
paths, no class names, no credentials. It goes through ``torch.save``/``torch.load`` with default
arguments, JSON-like stores, or :func:`dumps`/:func:`loads` (msgpack).

Format, version 1::

    {"format": "energon_stream.rank", "version": 1,
     "fingerprint": {"data": hash, "order": hash, "pipeline": hash},
     "topology": {"world_size": R, "rank": r, "num_streams": S, "seed_offset": n},
     "turn": [place of the next stream among the rank's, [streams that ended in this pass],
              elements that the rank gave out in this pass],
     "streams": {"<stream>": state of its pipeline, or None at the start}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgpack

from energon_stream.errors import StateError, StateMismatchError, StateVersionError
from energon_stream.pipeline.engine import Turn
from energon_stream.worker import WorkerConfig

__all__ = [
    "FORMAT",
    "VERSION",
    "check_rank_state",
    "dumps",
    "fingerprint",
    "loads",
    "make_rank_state",
    "read_rank_state",
    "world_sizes",
]

FORMAT = "energon_stream.rank"
VERSION = 1

_WHAT_DIFFERS = {
    "data": "the data (shards, sample counts or split part)",
    "order": "the order (shuffling, slices, blending)",
    "pipeline": "the pipeline (batch size, operators, functions)",
}
_TOPOLOGY = ("world_size", "rank", "num_streams", "seed_offset")
_HINT = "pass what save_state_rank() returned"


def dumps(state: Any) -> bytes:
    """Pack a state with msgpack.

    Raises:
        StateError: It holds something that is not a built-in type.
    """
    try:
        packed = msgpack.packb(state, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise StateError(f"the state holds something that is not a plain value: {error}") from error
    return bytes(packed)


def loads(data: bytes) -> Any:
    """Unpack what :func:`dumps` made. Nothing is executed.

    Raises:
        StateError: The bytes are not msgpack.
    """
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise StateError(
            f"these {len(data)} bytes are not a state: {error}",
            hint="pass the bytes that state.dumps returned",
        ) from error


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def fingerprint(config: Mapping[str, Any]) -> dict[str, str]:
    """Hash a dataset's description in three parts, so that a mismatch can say what differs."""
    data: list[Any] = []
    order: list[Any] = []

    def strip(node: Any) -> Any:
        if isinstance(node, Mapping):
            if "plan" in node and "leaves" in node:
                data.append(node["leaves"])
                order.append(node["plan"])
                return {"source": len(data)}
            return {key: strip(value) for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [strip(value) for value in node]
        return node

    pipeline = strip(config)
    return {"data": _hash(data), "order": _hash(order), "pipeline": _hash(pipeline)}


def _topology(config: WorkerConfig) -> dict[str, int]:
    return {
        "world_size": config.world_size,
        "rank": config.rank,
        "num_streams": config.num_streams,
        "seed_offset": config.seed_offset,
    }


def make_rank_state(
    prints: Mapping[str, str],
    config: WorkerConfig,
    turn: Turn,
    streams: Mapping[int, Any],
) -> dict[str, Any]:
    """Put a rank's state together."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": dict(prints),
        "topology": _topology(config),
        "turn": [turn.position, sorted(turn.ended), turn.given],
        "streams": {str(stream): state for stream, state in streams.items()},
    }


def read_rank_state(state: Any) -> dict[str, Any]:
    """Check that something is a whole rank state, and give its parts their types.

    Args:
        state: What ``save_state_rank`` returned, or its msgpack bytes.

    Returns:
        The state, its parts of the types that this module's description says.

    Raises:
        StateError: Not a state of this library, or a damaged one.
        StateVersionError: Of another version of the format.
    """
    if isinstance(state, (bytes, bytearray)):
        state = loads(bytes(state))
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise StateError(f"a {type(state).__name__} that is not a rank state", hint=_HINT)
    if state.get("version") != VERSION:
        raise StateVersionError(
            f"the state has format version {state.get('version')}, this library reads {VERSION}",
            hint="resume with the library version that saved it",
        )
    try:
        topology = {name: int(state["topology"][name]) for name in _TOPOLOGY}
        position, ended, given = state["turn"]
        turn = [int(position), [int(stream) for stream in ended], int(given)]
        streams = {str(int(stream)): value for stream, value in state["streams"].items()}
        mine = range(topology["rank"], topology["num_streams"], topology["world_size"])
        if set(streams) != {str(stream) for stream in mine}:
            raise ValueError(f"streams {sorted(streams)}, not {list(mine)}")
        prints = dict(state["fingerprint"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the state is damaged: {error!r}", hint=_HINT) from error
    return {**state, "fingerprint": prints, "topology": topology, "turn": turn, "streams": streams}


def world_sizes(num_streams: int) -> list[int]:
    """Numbers of ranks to which so many streams can be dealt."""
    return [size for size in range(1, num_streams + 1) if num_streams % size == 0]


def _topology_hint(saved: Mapping[str, int], mine: Mapping[str, int]) -> str:
    if any(saved[name] != mine[name] for name in ("num_streams", "seed_offset")):
        return (
            f"pass num_streams={saved['num_streams']} and seed_offset={saved['seed_offset']} to WorkerConfig, which fix "
            f"the order; {world_sizes(saved['num_streams'])} ranks are possible then (num_workers may differ)"
        )
    return (
        "another rank's state, or one of another number of ranks: pass the states of all ranks to "
        f"restore_state_global; {world_sizes(saved['num_streams'])} ranks are possible"
    )


def check_rank_state(
    state: Any,
    prints: Mapping[str, str],
    config: WorkerConfig,
) -> tuple[Turn, dict[int, Any]]:
    """Check a rank's state against what it is to be restored into.

    Returns:
        Whose turn it is, and the state of each stream.

    Raises:
        StateError: Not a state of this library, or a damaged one.
        StateVersionError: Of another version of the format.
        StateMismatchError: Of other data, another order or pipeline, or another topology.
    """
    read = read_rank_state(state)
    saved, saved_prints = read["topology"], read["fingerprint"]
    mine = _topology(config)
    if saved != mine:
        changed = ", ".join(
            f"{name} {saved.get(name)} -> {mine[name]}" for name in mine if saved.get(name) != mine[name]
        )
        raise StateMismatchError(
            f"the state was saved in another topology: {changed}",
            hint=_topology_hint(saved, mine),
        )
    differing = [text for name, text in _WHAT_DIFFERS.items() if saved_prints.get(name) != prints[name]]
    if differing:
        raise StateMismatchError(
            f"the state was saved with another dataset: {'; '.join(differing)} differ",
            hint="build the dataset with the arguments of then, or start without a state",
        )
    position, ended, given = read["turn"]
    streams = tuple(config.streams)
    if not set(streams).issuperset(ended) or not 0 <= position < len(streams):
        raise StateError(f"the state is damaged: its turn is {read['turn']}", hint=_HINT)
    turn = Turn(streams, position, frozenset(ended), given)
    return turn, {int(stream): value for stream, value in read["streams"].items()}
