"""Parts of :class:`energon_stream.WorkerConfig`: the group of ranks, shares of streams, assignment."""

from __future__ import annotations

import copy
import os
from dataclasses import FrozenInstanceError, replace
from math import lcm
from typing import Any, Protocol, Self

from energon_stream.arguments import check_whole
from energon_stream.errors import ConfigError, WorkerError
from energon_stream.quantities import parse_count

STREAMS_VARIABLE = "ENERGON_STREAM_NUM_STREAMS"
"""Environment variable: ``num_streams`` of configurations that name none.

With ``auto``, the next multiple of ranks times workers that 1, 2, 3, 4, 6, 8, 12 and 24 ranks divide.
"""

_ROOMY = 24
_MOST_STREAMS = 1 << 16  # of a rank: each has a state and readers


class DataParallelGroup(Protocol):
    """Anything with a rank and a size; ``torch.distributed.ProcessGroup`` is one."""

    def rank(self) -> int:
        """Rank of this process within the group."""

    def size(self) -> int:
        """Number of processes of the group."""


def share_of(stream: int, num_streams: int, dealt_to: int) -> int:
    """Return the number of the share of all samples that a stream reads; see ``WorkerConfig.dealt_to``."""
    return stream % dealt_to * (num_streams // dealt_to) + stream // dealt_to


def checked_streams(config: Any) -> tuple[int, int]:
    """Return ``num_streams`` and ``dealt_to`` of a configuration. Raises ConfigError if they cannot be."""
    world_size, streams, dealt_to = config.world_size, config.num_streams, config.dealt_to
    workers, logical = world_size * max(1, config.num_workers), config.logical_workers
    if logical is not None and streams != (logical or -1):
        streams = _logical_streams(logical, streams, world_size, workers)
    name = "num_streams"
    if streams == 0 and (text := os.environ.get(STREAMS_VARIABLE)):
        name = STREAMS_VARIABLE
        streams = lcm(_ROOMY, workers) if text == "auto" else parse_count(text, STREAMS_VARIABLE, least=1)
    if streams == 0:
        if dealt_to == 0 and config.conventions == "energon":
            dealt_to = world_size
        streams = workers
    elif streams % world_size:
        raise ConfigError(
            f"{name} {streams} is not a multiple of world_size {world_size}",
            hint="choose a multiple of every world size that you plan to use, for example 24",
        )
    if streams > max(_MOST_STREAMS * world_size, workers):
        what = f"{name} {streams:,} is more than {_MOST_STREAMS:,} for each rank"
        raise ConfigError(what, hint="24 streams, or a small multiple of all workers, are usual")
    if dealt_to and streams % dealt_to:
        what = f"num_streams {streams} is not a multiple of dealt_to {dealt_to}"
        raise ConfigError(what, hint="leave dealt_to out")
    return streams, dealt_to if 0 < dealt_to < streams else 1


def _logical_streams(logical: int, num_streams: int, world_size: int, workers: int) -> int:
    hint = "leave it out, or set num_streams alone"
    check_whole("logical_workers", logical, 1, hint)
    why = f"num_streams is {num_streams}" if num_streams else ""
    if workers % logical:
        why = f"it does not divide the {workers} workers of all ranks"
    elif logical % world_size:
        why = f"it is no multiple of world_size {world_size}, and one rank has all of a stream here"
        hint = "set num_streams to a multiple of every world size that you plan to use, such as 24"
    if why:
        raise ConfigError(f"logical_workers is {logical}, but {why}", hint=hint)
    return logical


class AssignableUntilHeld:
    """Base of a dataclass whose attributes are checked anew when they are assigned.

    They cannot be assigned with the conventions ``"own"``. ``_given`` has fields as the caller passed them,
    where others follow from them.
    """

    conventions: Any

    def __setattr__(self, name: str, value: Any) -> None:
        given: dict[str, Any] | None = vars(self).get("_given")
        if given is None:  # being made
            object.__setattr__(self, name, value)
            return
        if self.conventions == "own":
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        if "_held" in vars(self):
            raise WorkerError(
                f"{name} is assigned after a dataset was made with the configuration",
                hint="assign it before, or make another WorkerConfig",
            )
        if name not in self.__dataclass_fields__:  # type: ignore[attr-defined]
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        made = replace(self, **{**given, name: value})  # type: ignore[type-var]
        vars(self).update(vars(made))

    @property
    def names_streams(self) -> bool:
        """True if ``num_streams`` was chosen by the caller, and not by a default or the environment."""
        return bool(vars(self)["_given"]["num_streams"] or vars(self)["logical_workers"])

    def with_streams(self, num_streams: int, dealt_to: int) -> Self:
        """Return the configuration of the same process with the streams of a saved state."""
        made = copy.copy(self)
        vars(made).update(num_streams=num_streams, dealt_to=dealt_to)
        return made

    def of_source(self) -> Self:
        """Return what a dataset without inputs sees, which deals samples by the numbers of workers itself."""
        made = copy.copy(self)
        vars(made)["_of_source"] = vars(self)["conventions"] == "energon"
        return made

    def deals(self) -> bool:
        """Return True for a configuration of :meth:`of_source`, by Megatron-Energon's conventions.

        By these, streams of a worker have one number. Raises ConfigError if there are not as many as workers.
        """
        given: Any = self
        workers = given.world_size * max(1, given.num_workers)
        if not (is_of_source := bool(vars(self).get("_of_source"))) or given.num_streams == workers:
            return is_of_source
        raise ConfigError(
            f"a dataset without inputs asks for the number of its worker, but {given.num_streams} streams on "
            f"{workers} workers of all ranks would read samples several times, or not at all",
            hint=f"set num_streams={workers} or {STREAMS_VARIABLE}={workers}; a job that goes on needs as many "
            "workers of all ranks as before",
        )

    def hold(self) -> None:
        """Let no attribute be assigned any more, because a dataset uses the configuration."""
        vars(self)["_held"] = True
