"""Deals the states of all ranks to another number of ranks.

Streams own the state, and batch k of the job comes from stream k modulo their number. So the states of all
streams, and the place in that round, are all there is to deal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from energon_stream.errors import StateMismatchError
from energon_stream.state.rank import read_rank_state, world_sizes

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


def redistribute(states: Sequence[Any], world_size: int) -> list[dict[str, Any]]:
    """Deal saved states to ``world_size`` ranks; the global order of batches goes on unchanged.

    Args:
        states: The state of every rank of one moment, in any order, as ``save_state_rank`` returned them.
        world_size: Number of ranks to deal to; it must divide the number of streams.

    Returns:
        One state for each new rank, in order.

    Raises:
        StateError: Something that is not a state.
        StateMismatchError: The states do not belong together, are not all there, or cannot be dealt so.
    """
    read = [read_rank_state(state) for state in states]
    if not read:
        raise StateMismatchError("no states were given")
    first = read[0]
    old, streams = first["topology"]["world_size"], first["topology"]["num_streams"]
    for state in read:
        shared = {name: value for name, value in state["topology"].items() if name != "rank"}
        if shared != {name: first["topology"][name] for name in shared} or (
            state["fingerprint"] != first["fingerprint"]
        ):
            raise StateMismatchError(
                "the states are of different jobs", hint="pass the files of one checkpoint"
            )
    ranks = sorted(state["topology"]["rank"] for state in read)
    if ranks != list(range(old)):
        raise StateMismatchError(
            f"there are states of ranks {ranks}, but the job had {old} ranks",
            hint="pass one state of every rank",
        )
    if world_size < 1 or streams % world_size:
        raise StateMismatchError(
            f"{streams} streams cannot be dealt to {world_size} ranks",
            hint=f"possible are {world_sizes(streams)} ranks",
        )
    if any(state["turn"][1] for state in read):
        raise StateMismatchError("some stream had ended", hint="save before the end of a pass, or after it")
    # Batch k of a pass is the rank's whose number is k modulo the ranks: what each gives next must be a step.
    following = sorted(state["turn"][2] * old + state["topology"]["rank"] for state in read)
    begin = following[0]
    if following != list(range(begin, begin + old)):
        raise StateMismatchError(
            f"the ranks would give the batches {following} next, which are not neighbours",
            hint="save all ranks after the same step",
        )
    pool: dict[str, Any] = {}
    for state in read:
        pool.update(state["streams"])
    return [_rank(first, rank, world_size, streams, begin, pool) for rank in range(world_size)]


def _rank(
    like: Mapping[str, Any], rank: int, world_size: int, streams: int, begin: int, pool: Mapping[str, Any]
) -> dict[str, Any]:
    mine = range(rank, streams, world_size)
    following = begin + (rank - begin) % world_size  # the first batch from there on that is this rank's
    return {
        **like,
        "topology": {**like["topology"], "world_size": world_size, "rank": rank},
        "turn": [mine.index(following % streams), [], following // world_size],
        "streams": {str(stream): pool[str(stream)] for stream in mine},
    }
