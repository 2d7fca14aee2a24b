"""Saved states: plain values, versioned, checked before they are used.

A rank's state holds built-in types only (dict, list, tuple, str, int, float, bool, bytes, None), no
paths, no class names, no credentials. It goes through ``torch.save``/``torch.load`` with default
arguments, JSON-like stores, or :func:`dumps`/:func:`loads` (msgpack).

Format, version 1::

    {"format": "energon_stream.rank", "version": 1,
     "fingerprint": {"data": hash, "order": hash, "pipeline": hash},
     "topology": {"world_size": R, "rank": r, "num_streams": S, "seed_offset": n},
     "turn": [place of the next stream among the rank's, [streams that ended in this pass]],
     "streams": {"<stream>": state of its pipeline, or None at the start}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgpack

from energon_stream.errors import StateError, StateMismatchError, StateVersionError
from energon_stream.worker import WorkerConfig

__all__ = ["FORMAT", "VERSION", "check_rank_state", "dumps", "fingerprint", "loads", "make_rank_state"]

FORMAT = "energon_stream.rank"
VERSION = 1

_WHAT_DIFFERS = {
    "data": "the data (shards, sample counts or split part)",
    "order": "the order (shuffling, slices, blending)",
    "pipeline": "the pipeline (batch size, operators, functions)",
}
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
    turn: tuple[int, list[int]],
    streams: Mapping[int, Any],
) -> dict[str, Any]:
    """Put a rank's state together."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": dict(prints),
        "topology": _topology(config),
        "turn": [turn[0], list(turn[1])],
        "streams": {str(stream): state for stream, state in streams.items()},
    }


def check_rank_state(
    state: Any,
    prints: Mapping[str, str],
    config: WorkerConfig,
) -> tuple[int, list[int], dict[int, Any]]:
    """Check a rank's state against what it is to be restored into.

    Returns:
        Place of the next stream, streams that ended in this pass, and the state of each stream.

    Raises:
        StateError: Not a state of this library, or a damaged one.
        StateVersionError: Of another version of the format.
        StateMismatchError: Of other data, another order or pipeline, or another topology.
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
        saved, saved_prints = dict(state["topology"]), dict(state["fingerprint"])
        position, ended = int(state["turn"][0]), [int(stream) for stream in state["turn"][1]]
        streams = {int(stream): value for stream, value in state["streams"].items()}
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the state is damaged: {error!r}", hint=_HINT) from error
    mine = _topology(config)
    if saved != mine:
        changed = ", ".join(
            f"{name} {saved.get(name)} -> {mine[name]}" for name in mine if saved.get(name) != mine[name]
        )
        raise StateMismatchError(
            f"the state was saved in another topology: {changed}",
            hint="restore with the same rank, world size, seed and number of streams"
            " (num_workers may differ when num_streams is set)",
        )
    differing = [text for name, text in _WHAT_DIFFERS.items() if saved_prints.get(name) != prints[name]]
    if differing:
        raise StateMismatchError(
            f"the state was saved with another dataset: {'; '.join(differing)} differ",
            hint="build the dataset with the arguments of then, or start without a state",
        )
    own = set(config.streams)
    if streams.keys() != own or not own.issuperset(ended) or not 0 <= position < len(own):
        raise StateError(f"the state is damaged: streams {sorted(own)} are expected", hint=_HINT)
    return position, ended, streams
