"""A rank's state as one entry a stream, for what stores states by key.

``torch.distributed.checkpoint`` keeps one value for each key, whoever writes it, and lets any rank read it. Keyed by
stream, states are dealt to another number of ranks by nothing else than which keys a rank asks for.

Format, version 1: ``{"format": "energon_stream.streams", "version": 1, "streams": {"<stream>": bytes}}``, each
entry msgpack of the state of a rank (:mod:`energon_stream.state.rank`) that has this stream only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from energon_stream.errors import StateError, StateMismatchError, StateVersionError
from energon_stream.state.rank import dumps, loads

__all__ = ["join_streams", "split_streams"]

FORMAT = "energon_stream.streams"
VERSION = 1


def split_streams(state: Mapping[str, Any]) -> dict[str, Any]:
    """A rank's state by stream."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "streams": {
            stream: dumps({**state, "streams": {stream: saved}}) for stream, saved in state["streams"].items()
        },
    }


def join_streams(state_dict: Any, rank: int, world_size: int, num_streams: int) -> dict[str, Any]:
    """The state of a rank out of those of its streams, whichever ranks had them.

    Args:
        state_dict: What :func:`split_streams` made, or the union of several ranks' entries.
        rank: The rank.
        world_size: Number of ranks now.
        num_streams: Number of streams of the job, the same as then.

    Returns:
        A rank's state.

    Raises:
        StateError: Something else, or damaged.
        StateMismatchError: Streams are missing, or stand at different steps.
    """
    if not isinstance(state_dict, Mapping) or state_dict.get("format") != FORMAT:
        raise StateError(
            f"a {type(state_dict).__name__} that no loader's state_dict() returned",
            hint="pass what state_dict() returned; restore_state_rank takes the states of save_state_rank",
        )
    if state_dict.get("version") != VERSION:
        raise StateVersionError(
            f"the state dict has format version {state_dict.get('version')}, this library reads {VERSION}",
            hint="resume with the library version that saved it",
        )
    mine = range(rank, num_streams, world_size)
    entries = state_dict.get("streams")
    found = {stream: entries.get(str(stream)) for stream in mine} if isinstance(entries, Mapping) else {}
    missing = [stream for stream in mine if found.get(stream) is None]
    if missing:
        raise StateMismatchError(
            f"the state dict lacks the streams {missing} of rank {rank} of {world_size}",
            hint="load with torch.distributed.checkpoint, which finds each stream by its key, or put the "
            '"streams" of all ranks\' state dicts into one',
        )
    states = [_entry(found[stream], stream) for stream in mine]
    first = states[0]
    topology = {**first["topology"], "rank": rank, "world_size": world_size}
    if topology["num_streams"] != num_streams or any(
        state["fingerprint"] != first["fingerprint"]
        or state["topology"]["num_streams"] != num_streams
        or state["topology"]["seed_offset"] != topology["seed_offset"]
        for state in states
    ):
        raise StateMismatchError(
            "the streams' states are of different jobs",
            hint="load one checkpoint, with the num_streams of then",
        )
    if all(state["topology"] == topology for state in states):
        turn = first["turn"]
        together = all(state["turn"] == turn for state in states)
    else:
        turn, together = _turn([_given(state, stream) for stream, state in zip(mine, states, strict=True)])
    if not together:
        raise StateMismatchError(
            "the streams stand at different steps", hint="save all ranks after the same step"
        )
    streams = {str(stream): state["streams"][str(stream)] for stream, state in zip(mine, states, strict=True)}
    return {**first, "topology": topology, "turn": turn, "streams": streams}


def _entry(data: Any, stream: int) -> dict[str, Any]:
    """One stream's entry, as far as it is used here; the rank's state is checked as a whole later."""
    state = loads(bytes(data)) if isinstance(data, (bytes, bytearray)) else data
    try:
        numbers = {name: int(value) for name, value in state["topology"].items()}
        position, ended, given = state["turn"]
        turn = [int(position), [int(number) for number in ended], int(given)]
        return {
            **state,
            "fingerprint": dict(state["fingerprint"]),
            "topology": {
                name: numbers[name] for name in ("world_size", "rank", "num_streams", "seed_offset")
            },
            "turn": turn,
            "streams": {str(stream): state["streams"][str(stream)]},
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"the entry of stream {stream} is damaged: {error!r}", hint="pass what state_dict() returned"
        ) from error


def _given(state: Mapping[str, Any], stream: int) -> int:
    """Elements that a stream gave out in this pass: the streams of a rank take turns."""
    topology, (_, ended, given) = state["topology"], state["turn"]
    if ended:
        raise StateMismatchError(
            "some stream had ended, so the states fit the ranks of then only",
            hint=f"use world_size {topology['world_size']}, or save before the end of a pass, or after it",
        )
    streams = topology["num_streams"] // topology["world_size"]
    place = (stream - topology["rank"]) // topology["world_size"]
    return int(given // streams + (place < given % streams))


def _turn(given: Sequence[int]) -> tuple[list[Any], bool]:
    """Whose turn it is, and whether streams that took turns can have given so many elements."""
    total, streams = sum(given), len(given)
    expected = [total // streams + (place < total % streams) for place in range(streams)]
    return [total % streams, [], total], list(given) == expected
