"""The rotation of a rank's streams in saved states, and for another number of ranks.

Format: ``[stream whose turn is next, [streams that ended in this pass], elements that the rank yielded in
this pass, passes that are over, elements of a pass of the whole job with virtual epochs (else 0)]``.

A state that was dealt to other ranks also has ``[pass, index]``: the pass in which they begin, and the
:func:`next_of_job` there. In this pass, their steps are counted from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from energon_stream.pipeline.epochs import share_of_stream
from energon_stream.pipeline.stream_runner import Rotation
from energon_stream.schedule import damaged, is_count, shown

RESUMED = "resumed"


def write_rotation(rotation: Rotation) -> list[Any]:
    """Return a rank's rotation as plain values."""
    ended = sorted(rotation.ended)
    return [rotation.next_stream, ended, rotation.consumed, rotation.passes, rotation.pass_length]


def read_rotation(saved: Any, topology: Mapping[str, int]) -> Rotation:
    """Return a rank's rotation from plain values. Raises StateError if no rotation has these values."""
    if not isinstance(saved, (list, tuple)) or len(saved) != 5 or not isinstance(saved[1], (list, tuple)):
        raise damaged(f"{shown(saved)} for a rotation")
    at, ended, given, passes, pass_length = saved
    num_streams, rank, world_size = topology["num_streams"], topology["rank"], topology["world_size"]
    streams = range(rank, num_streams, world_size)
    if not all(map(is_count, (at, *ended, given, passes, pass_length))) or at >= num_streams:
        raise damaged("a rotation of other values than counters")
    gone = frozenset(ended)
    if len(gone) >= len(streams) or not all(stream in streams for stream in gone):
        raise damaged(f"{len(gone)} of {len(streams)} streams have ended")
    rotation = Rotation(tuple(streams), num_streams, pass_length, passes, at, gone, given)
    # Without an end in this pass, the number of elements tells which stream comes next.
    if not gone and replace(rotation).current() != next_index(rotation, rank, world_size) % num_streams:
        raise damaged(f"stream {at} comes next after {given} batches of the pass")
    return rotation


def check_batches(rotation: Rotation, topology: Mapping[str, int], batches: Mapping[int, int | None]) -> None:
    """Raise StateError unless streams have yielded as many batches as the rotation says; None: not begun."""
    index = next_index(rotation, topology["rank"], topology["world_size"])
    for stream, yielded in batches.items():
        of_pass = share_of_stream(rotation.first_stream, index, rotation.num_streams, stream)
        fits = yielded is not None or (not rotation.passes and stream not in rotation.ended)
        if not rotation.ended:  # their number in earlier passes is not known
            fits &= (yielded or 0) >= of_pass and (rotation.passes > 0 or (yielded or 0) == of_pass)
        if not fits:
            raise damaged(
                f"{yielded or 'no'} batches, where the rotation has {of_pass} in pass {rotation.passes}",
                f"stream {stream}",
            )


def next_index(rotation: Rotation, rank: int, world_size: int) -> int:
    """Return the job-wide index of a rank's next element, up to a constant that all ranks share in a pass."""
    return (
        rotation.first_stream + (rank - rotation.first_stream) % world_size + rotation.consumed * world_size
    )


def read_resumed(state: Mapping[str, Any]) -> tuple[int, int]:
    """Return the pass in which ranks began, and the index there; (0, 0) if a state does not say."""
    saved = state.get(RESUMED, (0, 0))
    if not isinstance(saved, (list, tuple)) or len(saved) != 2 or not all(map(is_count, saved)):
        raise damaged(f"{shown(saved)} for a pass and an index")
    return saved[0], saved[1]


def next_of_job(state: Mapping[str, Any]) -> int:
    """Return the smallest :func:`next_index` of all ranks, which stand at one step, from the state of one.

    In the steps of a pass, ranks begin with its first stream, or where they were dealt anew in it.
    """
    topology: Mapping[str, int] = state["topology"]
    (number, begin), world_size = read_resumed(state), topology["world_size"]
    rotation = read_rotation(state["rotation"], topology)
    begin = begin if number == rotation.passes else rotation.first_stream
    if rotation.ended:  # the number of elements does not tell
        return begin
    index = next_index(rotation, topology["rank"], world_size)
    return index - (index - begin) % world_size


def rotation_at(like: Rotation, index: int, rank: int, world_size: int) -> Rotation:
    """Return the rotation of a rank of another number of ranks.

    ``like`` is of any rank in the same pass, ``index`` the smallest :func:`next_index` of all ranks.
    """
    return Rotation(
        tuple(range(rank, like.num_streams, world_size)),
        like.num_streams,
        like.pass_length,
        like.passes,
        next_stream=index % like.num_streams,
        consumed=share_of_stream(like.first_stream, index, world_size, rank),
    )
