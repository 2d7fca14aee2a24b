"""Saved states: plain values, versioned, checked before they are used.

A rank's state holds built-in types only (dict, list, tuple, str, int, float, bool, bytes, None), no
paths, no class names, no credentials. It goes through ``torch.save``/``torch.load`` with default
arguments, or :func:`dumps`/:func:`loads` (msgpack).

Format, version 2::

    {"format": "energon_stream.rank", "version": 2,
     "fingerprint": {"data": hash, "order": hash, "weights": hash, "pipeline": hash},
     "sources": how many shards there were, see :mod:`energon_stream.state.description`,
     "topology": {"world_size": R, "rank": r, "num_streams": S, "seed_offset": n},
     "turn": whose turn it is, see :mod:`energon_stream.state.rotation`,
     "streams": {"<stream>": state of its pipeline, or None at the start}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from energon_stream.errors import StateError, StateMismatchError, StateVersionError
from energon_stream.pipeline.engine import Rotation
from energon_stream.state.description import Description
from energon_stream.state.rotation import read_rotation, write_rotation
from energon_stream.worker import WorkerConfig

__all__ = [
    "FORMAT",
    "VERSION",
    "check_format",
    "check_rank_state",
    "check_topology",
    "dumps",
    "loads",
    "make_rank_state",
    "read_rank_state",
    "world_sizes",
]

FORMAT = "energon_stream.rank"
VERSION = 2

_WHAT_DIFFERS = {
    "data": "the data (shards, sample counts or split part)",
    "order": "the order (shuffling, slices, blending)",
    "weights": "the weights of a blend",
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


def _topology(config: WorkerConfig) -> dict[str, int]:
    return {
        "world_size": config.world_size,
        "rank": config.rank,
        "num_streams": config.num_streams,
        "seed_offset": config.seed_offset,
    }


def make_rank_state(
    description: Description,
    config: WorkerConfig,
    rotation: Rotation,
    streams: Mapping[int, Any],
) -> dict[str, Any]:
    """Put a rank's state together."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": dict(description.prints),
        "sources": description.sources,
        "topology": _topology(config),
        "turn": write_rotation(rotation),
        "streams": {str(stream): state for stream, state in streams.items()},
    }


def check_format(state: Any) -> None:
    """Check that something calls itself a rank state of this version.

    Raises:
        StateError: It does not.
        StateVersionError: Of another version.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise StateError(f"a {type(state).__name__} that is not a rank state", hint=_HINT)
    if state.get("version") != VERSION:
        raise StateVersionError(
            f"the state has format version {state.get('version')}, this library reads {VERSION}",
            hint="resume with the library version that saved it",
        )


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
    check_format(state)
    try:
        topology = {name: int(state["topology"][name]) for name in _TOPOLOGY}
        rotation = write_rotation(read_rotation(state["turn"], topology))
        streams = {str(int(stream)): value for stream, value in state["streams"].items()}
        mine = range(topology["rank"], topology["num_streams"], topology["world_size"])
        if set(streams) != {str(stream) for stream in mine}:
            raise ValueError(f"streams {sorted(streams)}, not {list(mine)}")
        prints = dict(state["fingerprint"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the state is damaged: {error!r}", hint=_HINT) from error
    return {**state, "fingerprint": prints, "topology": topology, "turn": rotation, "streams": streams}


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


def _epochs(length: int) -> str:
    return f"virtual epochs of {length} batches over all ranks" if length else "no virtual epochs"


def _length_hint(length: int, config: WorkerConfig) -> str:
    if not length:
        return "leave virtual_epoch_length out"
    if length % config.world_size:
        possible = [size for size in world_sizes(config.num_streams) if length % size == 0]
        return f"that is no whole number for each of {config.world_size} ranks; possible are {possible} ranks"
    return f"pass virtual_epoch_length={length // config.world_size}: it counts the batches of each of {config.world_size} ranks"


def check_rank_state(
    state: Any,
    prints: Mapping[str, str],
    config: WorkerConfig,
    pass_length: int = 0,
) -> tuple[Rotation, dict[int, Any]]:
    """Check a rank's state against what it is to be restored into.

    Args:
        state: What ``save_state_rank`` returned, or its msgpack bytes.
        prints: The dataset's fingerprint.
        config: The job's configuration.
        pass_length: Elements of the dataset's virtual epochs, over all ranks; 0 where there are none.

    Returns:
        Whose turn it is, and the state of each stream.

    Raises:
        StateError: Not a state of this library, or a damaged one.
        StateVersionError: Of another version of the format.
        StateMismatchError: Of other data, another order or pipeline, or another topology.
    """
    read = read_rank_state(state)
    rotation = check_topology(read, config, pass_length)
    saved = read["fingerprint"]
    differing = [text for name, text in _WHAT_DIFFERS.items() if saved.get(name) != prints[name]]
    if differing:
        raise StateMismatchError(
            f"the state was saved with another dataset: {'; '.join(differing)} differ",
            hint="build the dataset with the arguments of then, or start without a state; where shards or sources were "
            'added, or weights changed, on_change="continue" can go on',
        )
    return rotation, {int(stream): value for stream, value in read["streams"].items()}


def check_topology(read: Mapping[str, Any], config: WorkerConfig, pass_length: int) -> Rotation:
    """Check that a state is one of this rank, of so many ranks and streams.

    Args:
        read: What :func:`read_rank_state` returned.
        config: The job's configuration.
        pass_length: Elements of the dataset's virtual epochs, over all ranks; 0 where there are none.

    Returns:
        Whose turn it is.

    Raises:
        StateMismatchError: It is not.
    """
    saved = read["topology"]
    mine = _topology(config)
    if saved != mine:
        changed = ", ".join(
            f"{name} {saved.get(name)} -> {mine[name]}" for name in mine if saved.get(name) != mine[name]
        )
        raise StateMismatchError(
            f"the state was saved in another topology: {changed}",
            hint=_topology_hint(saved, mine),
        )
    rotation = read_rotation(read["turn"], saved)
    if rotation.pass_length != pass_length:
        raise StateMismatchError(
            f"the state was saved with {_epochs(rotation.pass_length)}, this dataset has {_epochs(pass_length)}",
            hint=_length_hint(rotation.pass_length, config),
        )
    return rotation
