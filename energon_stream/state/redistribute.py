"""Dealing the states of all ranks to another number of ranks.

Streams own the state, so their states and the index of the job's next batch are all there is to deal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from energon_stream.errors import StateError, StateMismatchError
from energon_stream.pipeline.stream_runner import Rotation
from energon_stream.state.digest import with_digest
from energon_stream.state.mixture_weights import read_changes
from energon_stream.state.rank import DEALT_TO, read_rank_state, use_sizes, world_sizes
from energon_stream.state.rotation import (
    RESUMED,
    next_index,
    read_rotation,
    rotation_at,
    write_rotation,
)


def deal_state(states: Sequence[Any], rank: int, world_size: int) -> Any:
    """Return the state with which one of ``world_size`` ranks goes on; None if no rank had begun.

    ``states`` are of all ranks, as for :func:`redistribute`, with None for a rank that had not begun.
    """
    if not isinstance(states, (list, tuple)):
        raise StateError(
            f"a {type(states).__name__} is not the states of all ranks",
            hint="pass what save_state_global() returned, or a list with the state of each rank",
        )
    if all(state is None for state in states):
        return None
    read = [read_rank_state(state) for state in states]
    own = [state for state in read if state["topology"]["rank"] == rank]
    if len(own) == 1 and len(read) == world_size == own[0]["topology"]["world_size"]:
        return own[0]  # as it was saved: this works also where a stream has ended
    return redistribute(read, world_size)[rank]


def redistribute(
    states: Sequence[Any], world_size: int, *, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Deal saved states to ``world_size`` ranks; the global order of batches goes on unchanged.

    Args:
        states: The states of all ranks, saved after the same step, in any order.
        world_size: Number of ranks to deal to; it must divide the number of streams.
        names: Names of the states in errors, such as their files; default their ranks.

    Raises:
        StateError: One is not a state.
        StateMismatchError: The states do not belong together, are not complete, or ``world_size`` does not
            divide the streams.

    Example:
        >>> from energon_stream import WorkerConfig, get_savable_loader
        >>> from energon_stream.state import redistribute
        >>> from energon_stream.testing.operator_suite import NumbersDataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=4)
        >>> loader = get_savable_loader(NumbersDataset(100, config))
        >>> states = redistribute([loader.save_state_rank()], world_size=2)
        >>> [sorted(state["streams"]) for state in states]
        [['0', '2'], ['1', '3']]
    """
    read = [read_rank_state(state) for state in states]
    if not read:
        raise StateMismatchError("no states were given", hint="pass the states of all ranks")
    called = names or [f"rank {state['topology']['rank']}" for state in read]
    first = read[0]
    saved_size, streams = first["topology"]["world_size"], first["topology"]["num_streams"]
    _check_one_job(read, called)
    if world_size < 1 or streams % world_size:
        raise StateMismatchError(
            f"{streams} streams cannot be dealt to {world_size} ranks",
            hint=use_sizes(world_sizes(streams)),
        )
    rotations = [read_rotation(state["rotation"], state["topology"]) for state in read]
    index = _next_of_all(rotations, [state["topology"]["rank"] for state in read], saved_size, called)
    pool = {stream: saved for state in read for stream, saved in state["streams"].items()}
    return [
        with_digest(
            {
                **first,
                RESUMED: [rotations[0].passes, index],
                "topology": {**first["topology"], "world_size": world_size, "rank": rank},
                "rotation": write_rotation(rotation_at(rotations[0], index, rank, world_size)),
                "streams": {str(stream): pool[str(stream)] for stream in range(rank, streams, world_size)},
            }
        )
        for rank in range(world_size)
    ]


def _check_one_job(read: Sequence[Mapping[str, Any]], called: Sequence[str]) -> None:
    first = read[0]
    for state, name in zip(read, called, strict=True):
        if {**state["topology"], "rank": 0} != {**first["topology"], "rank": 0} or (
            state["fingerprint"] != first["fingerprint"] or state.get(DEALT_TO) != first.get(DEALT_TO)
        ):
            raise StateMismatchError(
                "the states are of different jobs",
                where=f"{called[0]}, {name}",
                hint="pass the files of one checkpoint",
            )
        if read_changes(state) != read_changes(first):
            raise StateMismatchError(
                "the ranks have set different weights for the mixture",
                where=f"{called[0]}, {name}",
                hint="call set_weights on all ranks with the same weights and the same step, and restore a "
                "checkpoint from before they differed",
            )
    by_rank: dict[int, list[str]] = {}
    for state, name in zip(read, called, strict=True):
        by_rank.setdefault(state["topology"]["rank"], []).append(name)
    world_size = first["topology"]["world_size"]
    if len(read) != world_size or len(by_rank) != world_size:
        repeated = [name for names in by_rank.values() if len(names) > 1 for name in names]
        raise StateMismatchError(
            f"there are states of ranks {sorted(state['topology']['rank'] for state in read)}, "
            f"but the job had {world_size} ranks",
            where=", ".join(repeated) or None,
            hint="pass one state of every rank",
        )


def _next_of_all(
    rotations: Sequence[Rotation], ranks: Sequence[int], world_size: int, called: Sequence[str]
) -> int:
    """Return the smallest :func:`next_index` of all ranks, if they stand at one step."""
    ended = [name for rotation, name in zip(rotations, called, strict=True) if rotation.ended]
    if ended:
        raise StateMismatchError(
            "some stream had ended",
            where=", ".join(ended),
            hint="save before the end of a pass, or after it",
        )
    passes = [rotation.passes for rotation in rotations]
    if len(set(passes)) > 1:
        raise StateMismatchError(
            f"the ranks are in different passes: {min(passes)} to {max(passes)} passes are over",
            where=_extremes(passes, called),
            hint="save all ranks after the same step, and all before the end of a pass or all after it",
        )
    # Batch k belongs to rank k modulo the ranks: the next ones of all ranks must be neighbours.
    indices = [
        next_index(rotation, rank, world_size) for rotation, rank in zip(rotations, ranks, strict=True)
    ]
    begin = min(indices)
    if sorted(indices) != list(range(begin, begin + world_size)):
        raise StateMismatchError(
            f"the next batches of the ranks are {sorted(indices)}, which are not neighbours",
            where=_extremes(indices, called),
            hint="save all ranks after the same step",
        )
    return begin


def _extremes(values: Sequence[int], called: Sequence[str]) -> str:
    return f"{called[values.index(min(values))]}, {called[values.index(max(values))]}"
