"""Turns in saved states.

Format: ``[stream whose turn is next, [streams that ended in this pass], elements that the rank gave out in this pass,
passes that are over, elements of a pass of the whole job where pass follows pass (else 0)]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energon_stream.pipeline.bound import share_of_stream
from energon_stream.pipeline.engine import Rotation

__all__ = ["following", "read_rotation", "rotation_at", "write_rotation"]


def write_rotation(rotation: Rotation) -> list[Any]:
    """A rank's turn as plain values."""
    return [
        rotation.next_stream,
        sorted(rotation.ended),
        rotation.consumed,
        rotation.passes,
        rotation.pass_length,
    ]


def read_rotation(saved: Any, topology: Mapping[str, int]) -> Rotation:
    """A rank's rotation, of the plain values.

    Args:
        saved: What :func:`write_rotation` returned.
        topology: Rank, world size and number of streams of then.

    Raises:
        TypeError: They are of other types.
        ValueError: They cannot be a rotation.
    """
    at, ended, given, passes, pass_length = saved
    num_streams = topology["num_streams"]
    streams = range(topology["rank"], num_streams, topology["world_size"])
    rotation = Rotation(
        tuple(streams),
        num_streams,
        int(pass_length),
        int(passes),
        int(at),
        frozenset(int(stream) for stream in ended),
        int(given),
    )
    if not rotation.ended < set(streams) or not 0 <= rotation.next_stream < num_streams:
        raise ValueError(f"a turn {saved!r} of the streams {list(streams)}")
    if min(rotation.consumed, rotation.passes, rotation.pass_length) < 0:
        raise ValueError(f"a turn {saved!r}, whose counts are negative")
    return rotation


def following(rotation: Rotation, rank: int, world_size: int) -> int:
    """The element of the job that a rank gives next: a number that is greater, by the same for all ranks of the pass, than
    that of its stream.
    """
    return (
        rotation.first_stream + (rank - rotation.first_stream) % world_size + rotation.consumed * world_size
    )


def rotation_at(like: Rotation, element: int, rank: int, world_size: int) -> Rotation:
    """The turn of a rank of another number of ranks.

    Args:
        like: The turn of any rank, in the same pass.
        element: Element of the job that is next of all of this pass, in the numbering of :func:`following`.
        rank: The rank.
        world_size: Number of ranks now.
    """
    return Rotation(
        tuple(range(rank, like.num_streams, world_size)),
        like.num_streams,
        like.pass_length,
        like.passes,
        next_stream=element % like.num_streams,
        consumed=share_of_stream(like.first_stream, element, world_size, rank),
    )
