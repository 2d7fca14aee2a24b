"""Deals the states of all ranks to another number of ranks.

Streams own the state, and batch k of the job comes from stream k modulo their number. So the states of all
streams, and the place in that round, are all there is to deal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from energon_stream.errors import StateMismatchError
from energon_stream.pipeline.engine import Rotation
from energon_stream.state.rank import read_rank_state, world_sizes
from energon_stream.state.rotation import following, read_rotation, rotation_at, write_rotation

__all__ = ["deal_state", "redistribute"]


def deal_state(states: Sequence[Any], rank: int, world_size: int) -> Any:
    """The state with which one rank goes on.

    Args:
        states: The state of every rank of one moment, in any order; of any number of ranks that divides the
            streams. None for a rank that had not begun.
        rank: The rank.
        world_size: Number of ranks now.

    Returns:
        A rank's state; None where no rank had begun.

    Raises:
        StateError: Something that is not a state.
        StateMismatchError: The states do not belong together, are not all there, or cannot be dealt so.
    """
    if all(state is None for state in states):
        return None
    read = [read_rank_state(state) for state in states]
    here = [state for state in read if state["topology"]["rank"] == rank]
    if len(here) == 1 and len(read) == world_size == here[0]["topology"]["world_size"]:
        return here[0]  # as it was saved: a stream may have ended
    return redistribute(read, world_size)[rank]


def redistribute(
    states: Sequence[Any], world_size: int, *, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Deal saved states to ``world_size`` ranks; the global order of batches goes on unchanged.

    Args:
        states: The state of every rank of one moment, in any order, as ``save_state_rank`` returned them.
        world_size: Number of ranks to deal to; it must divide the number of streams.
        names: What errors call the states, such as their files; default their ranks.

    Returns:
        One state for each new rank, in order.

    Raises:
        StateError: Something that is not a state.
        StateMismatchError: The states do not belong together, are not all there, or cannot be dealt so.
    """
    read = [read_rank_state(state) for state in states]
    if not read:
        raise StateMismatchError("no states were given")
    called = names or [f"rank {state['topology']['rank']}" for state in read]
    first = read[0]
    old, streams = first["topology"]["world_size"], first["topology"]["num_streams"]
    _check_one_job(read, called)
    if world_size < 1 or streams % world_size:
        raise StateMismatchError(
            f"{streams} streams cannot be dealt to {world_size} ranks",
            hint=f"possible are {world_sizes(streams)} ranks",
        )
    rotations = [read_rotation(state["turn"], state["topology"]) for state in read]
    begin = _next_of_all(rotations, [state["topology"]["rank"] for state in read], old, called)
    pool: dict[str, Any] = {}
    for state in read:
        pool.update(state["streams"])
    return [
        {
            **first,
            "topology": {**first["topology"], "world_size": world_size, "rank": rank},
            "turn": write_rotation(rotation_at(rotations[0], begin, rank, world_size)),
            "streams": {str(stream): pool[str(stream)] for stream in range(rank, streams, world_size)},
        }
        for rank in range(world_size)
    ]


def _check_one_job(read: Sequence[Mapping[str, Any]], called: Sequence[str]) -> None:
    first = read[0]
    for state, name in zip(read, called, strict=True):
        shared = {key: value for key, value in state["topology"].items() if key != "rank"}
        if shared != {key: first["topology"][key] for key in shared} or (
            state["fingerprint"] != first["fingerprint"]
        ):
            raise StateMismatchError(
                "the states are of different jobs",
                where=f"{called[0]}, {name}",
                hint="pass the files of one checkpoint",
            )
    by_rank: dict[int, list[str]] = {}
    for state, name in zip(read, called, strict=True):
        by_rank.setdefault(state["topology"]["rank"], []).append(name)
    world_size = first["topology"]["world_size"]
    if len(read) != world_size or len(by_rank) != world_size:
        twice = [name for some in by_rank.values() if len(some) > 1 for name in some]
        raise StateMismatchError(
            f"there are states of ranks {sorted(state['topology']['rank'] for state in read)}, but the job had "
            f"{world_size} ranks",
            where=", ".join(twice) or None,
            hint="pass one state of every rank",
        )


def _next_of_all(
    rotations: Sequence[Rotation], ranks: Sequence[int], world_size: int, called: Sequence[str]
) -> int:
    """The job's element that is next of all, in the numbering of :func:`following`."""
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
            f"the ranks are in different passes, {sorted(set(passes))} passes being over",
            where=_extremes(passes, called),
            hint="save all ranks after the same step, and all before the end of a pass or all after it",
        )
    # Batch k is the rank's whose number is k modulo the ranks: what each gives next must be a step.
    following_ones = [
        following(rotation, rank, world_size) for rotation, rank in zip(rotations, ranks, strict=True)
    ]
    begin = min(following_ones)
    if sorted(following_ones) != list(range(begin, begin + world_size)):
        raise StateMismatchError(
            f"the ranks would give the batches {sorted(following_ones)} next, which are not neighbours",
            where=_extremes(following_ones, called),
            hint="save all ranks after the same step",
        )
    return begin


def _extremes(values: Sequence[int], called: Sequence[str]) -> str:
    return f"{called[values.index(min(values))]}, {called[values.index(max(values))]}"
