"""A rank's state as one entry a stream, for stores of states by key.

``torch.distributed.checkpoint`` keeps one value for each key, whichever rank writes it. Keyed by stream,
states are dealt to another number of ranks by the keys that a rank asks for.

Format, version 1: ``{"format": "energon_stream.streams", "version": 1, "streams": {"<stream>": bytes}}``.
Each entry is msgpack of a rank's state (:mod:`energon_stream.state.versions`) that has this stream only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from energon_stream.errors import StateError, StateMismatchError, StateVersionError
from energon_stream.pipeline.epochs import share_of_stream
from energon_stream.schedule import damaged, reading, shown
from energon_stream.state.digest import with_digest
from energon_stream.state.mixture_weights import WEIGHTS, read_changes
from energon_stream.state.rank import DEALT_TO, dumps, peek_streams, read_rank_state, world_sizes
from energon_stream.state.rotation import (
    RESUMED,
    next_index,
    next_of_job,
    read_rotation,
    rotation_at,
    write_rotation,
)

STREAMS_FORMAT = "energon_stream.streams"
_VERSION = 1


def split_streams(state: Mapping[str, Any]) -> dict[str, Any]:
    """Split a rank's state by stream."""
    return {
        "format": STREAMS_FORMAT,
        "version": _VERSION,
        "streams": {
            stream: dumps(with_digest({**state, "streams": {stream: saved}}))
            for stream, saved in state["streams"].items()
        },
    }


def join_streams(state_dict: Any, rank: int, world_size: int, num_streams: int) -> dict[str, Any]:
    """Join the states of a rank's streams, whichever ranks saved them, from the union of state dicts."""
    entries = _entries(state_dict)
    mine = range(rank, num_streams, world_size)
    missing = [stream for stream in mine if entries.get(stream) is None]
    if missing:
        if (saved := peek_streams_of(state_dict)) not in (0, num_streams):
            raise _other_streams(saved, num_streams)
        raise StateMismatchError(
            f"the state dict lacks the streams {missing} of rank {rank} of {world_size}",
            hint=f"load with torch.distributed.checkpoint and num_streams={num_streams}, so that it finds each "
            'stream by its key, or put the "streams" of all ranks\' state dicts into one',
        )
    states = [_entry(entries[stream], stream) for stream in mine]
    first = states[0]
    topology = {**first["topology"], "rank": rank, "world_size": world_size}
    if (saved := topology["num_streams"]) != num_streams:
        raise _other_streams(saved, num_streams)
    if any(
        state["fingerprint"] != first["fingerprint"]
        or state.get(DEALT_TO) != first.get(DEALT_TO)
        or state["topology"]["num_streams"] != num_streams
        or state["topology"]["seed_offset"] != topology["seed_offset"]
        for state in states
    ):
        raise StateMismatchError(
            "the streams' states are of different jobs", hint="put the entries of one checkpoint together"
        )
    if any(read_changes(state) != read_changes(first) for state in states):
        raise StateMismatchError(
            "the streams were saved with different weights of the mixture",
            hint="call set_weights on all ranks with the same weights and the same step",
        )
    if all(state["topology"] == topology for state in states):
        rotation = first["rotation"]
        is_one_step = all(state["rotation"] == rotation for state in states)
    else:
        rotation, is_one_step = _dealt(states, mine, rank, world_size)
        first = {**first, RESUMED: [read_rotation(rotation, topology).passes, next_of_job(first)]}
    if not is_one_step:
        raise StateMismatchError(
            "the streams stand at different steps", hint="save all ranks after the same step"
        )
    streams = {str(stream): state["streams"][str(stream)] for stream, state in zip(mine, states, strict=True)}
    return with_digest({**first, "topology": topology, "rotation": rotation, "streams": streams})


def _other_streams(saved: int, now: int) -> StateMismatchError:
    return StateMismatchError(
        f"the job had {saved} streams when it was saved, and has {now} now",
        hint=f"set num_streams={saved} to WorkerConfig: {world_sizes(saved)} ranks are possible then",
    )


def offer_streams(state_dict: Any, num_streams: int) -> None:
    """Give a loader's state dict the keys that its rank has with another number of streams, without values.

    What is no loader's state dict stays as it is.
    """
    if state_dict.get("format") == STREAMS_FORMAT:
        stream, data = _entries(state_dict).popitem()
        topology = _entry(data, stream)["topology"]
        mine = range(topology["rank"], num_streams, topology["world_size"])
        state_dict["streams"] = {str(stream): state_dict["streams"].get(str(stream)) for stream in mine}


def peek_streams_of(state_dict: Any) -> int:
    """Return the number of streams of the job that saved a state dict, unchecked; 0 if it does not say."""
    for data in _entries(state_dict).values():
        with suppress(StateError):  # join_streams names the entry that is damaged
            if data is not None:
                return peek_streams(data)[0]
    return 0


def ranks_of_streams(state_dict: Any) -> list[dict[str, Any]]:
    """Return the states of the ranks whose streams are in a state dict, as these ranks saved them."""
    ranks: dict[int, dict[str, Any]] = {}
    for stream, data in _entries(state_dict).items():
        entry = _entry(data, stream)
        rank = ranks.setdefault(entry["topology"]["rank"], {**entry, "streams": {}})
        if any(
            entry.get(name) != rank.get(name)
            for name in ("topology", "rotation", "fingerprint", WEIGHTS, DEALT_TO)
        ):
            raise StateMismatchError(
                f"stream {stream} was saved at another step, or in another job, than others of its rank",
                hint="put the entries of one checkpoint together",
            )
        rank["streams"].update(entry["streams"])
    for number, rank in ranks.items():
        topology = rank["topology"]
        mine = range(number, topology["num_streams"], topology["world_size"])
        missing = [stream for stream in mine if str(stream) not in rank["streams"]]
        if missing:
            raise StateMismatchError(
                f"the state dict lacks the streams {missing} of rank {number} of {topology['world_size']}",
                hint="pass all entries of a checkpoint",
            )
    return [with_digest(ranks[number]) for number in sorted(ranks)]


def _entries(state_dict: Any) -> dict[int, Any]:
    if not isinstance(state_dict, Mapping) or state_dict.get("format") != STREAMS_FORMAT:
        raise StateError(
            f"a {type(state_dict).__name__} that is not a loader's state_dict()",
            hint="pass what state_dict() returned; restore_state_rank takes what save_state_rank() returned",
        )
    if state_dict.get("version") != _VERSION:
        raise StateVersionError(
            f"the state dict has format version {shown(state_dict.get('version'))}; this library reads "
            f"{_VERSION}",
            hint="resume with the version of energon_stream that saved it, or install a newer one",
        )
    with reading():
        entries = {int(stream): data for stream, data in state_dict["streams"].items()}
        if not entries or {*map(str, entries)} != {*map(str, state_dict["streams"])}:
            raise damaged("the streams of a state dict are not named by their numbers")
        return entries


def _entry(data: Any, stream: int) -> dict[str, Any]:
    """Read one stream's entry."""
    try:
        return read_rank_state(data, [stream])
    except StateError as error:
        raise type(error)(error.what, where=f"entry of stream {stream}", hint=error.hint) from error


def _dealt(
    states: Sequence[Mapping[str, Any]], streams: Sequence[int], rank: int, world_size: int
) -> tuple[list[Any], bool]:
    """Return the rotation of a rank whose streams other ranks saved, and whether these stood at one step."""
    rotations = [read_rotation(state["rotation"], state["topology"]) for state in states]
    first = rotations[0]
    if any(rotation.ended for rotation in rotations):
        saved_size = states[0]["topology"]["world_size"]
        raise StateMismatchError(
            f"some stream had ended, so the states fit {saved_size} ranks only, as they were saved",
            hint=f"use world_size {saved_size}, or save before the end of a pass, or after it",
        )
    consumed = []
    for stream, state, rotation in zip(streams, states, rotations, strict=True):
        index = next_index(rotation, state["topology"]["rank"], state["topology"]["world_size"])
        consumed.append(share_of_stream(rotation.first_stream, index, rotation.num_streams, stream))
    index = next_index(replace(first, consumed=sum(consumed)), rank, world_size)
    expected = [share_of_stream(first.first_stream, index, first.num_streams, stream) for stream in streams]
    is_one_step = consumed == expected and all(rotation.passes == first.passes for rotation in rotations)
    return write_rotation(rotation_at(first, index, rank, world_size)), is_one_step
