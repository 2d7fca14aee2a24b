"""The rotation of a rank's streams in saved states, and for another number of ranks.

Format: ``[stream whose turn is next, [streams that ended in this pass], elements that the rank yielded in
this pass, passes that are over, elements of a pass of the whole job with virtual epochs (else 0)]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energon_stream.pipeline.bound import share_of_stream
from energon_stream.pipeline.engine import Rotation


def write_rotation(rotation: Rotation) -> list[Any]:
    """Return a rank's rotation as plain values."""
    return [
        rotation.next_stream,
        sorted(rotation.ended),
        rotation.consumed,
        rotation.passes,
        rotation.pass_length,
    ]


def read_rotation(saved: Any, topology: Mapping[str, int]) -> Rotation:
    """Return a rank's rotation from plain values.

    Raises TypeError if the values are of other types, and ValueError if no rotation has these values.
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
        raise ValueError(f"a rotation {saved!r} of the streams {list(streams)}")
    if min(rotation.consumed, rotation.passes, rotation.pass_length) < 0:
        raise ValueError(f"a rotation {saved!r} with negative counts")
    return rotation


def next_index(rotation: Rotation, rank: int, world_size: int) -> int:
    """Return the job-wide index of a rank's next element, up to a constant that all ranks share in a pass."""
    return (
        rotation.first_stream + (rank - rotation.first_stream) % world_size + rotation.consumed * world_size
    )


def rotation_at(like: Rotation, index: int, rank: int, world_size: int) -> Rotation:
    """Return the rotation of a rank of another number of ranks.

    ``like`` is that of any rank in the same pass, ``index`` the smallest :func:`next_index` of all ranks of
    the job.
    """
    return Rotation(
        tuple(range(rank, like.num_streams, world_size)),
        like.num_streams,
        like.pass_length,
        like.passes,
        next_stream=index % like.num_streams,
        consumed=share_of_stream(like.first_stream, index, world_size, rank),
    )
