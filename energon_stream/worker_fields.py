"""Parts of :class:`energon_stream.WorkerConfig`: the group of ranks, shares of streams, assignment."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any, Protocol

from energon_stream.errors import ConfigError, WorkerError


class DataParallelGroup(Protocol):
    """Anything with a rank and a size; ``torch.distributed.ProcessGroup`` is one."""

    def rank(self) -> int:
        """Rank of this process within the group."""

    def size(self) -> int:
        """Number of processes of the group."""


def share_of(stream: int, num_streams: int, dealt_to: int) -> int:
    """Return the number of the share of all samples that a stream reads; see ``WorkerConfig.dealt_to``."""
    return stream % dealt_to * (num_streams // dealt_to) + stream // dealt_to


def checked_dealing(dealt_to: int, num_streams: int) -> int:
    """Return ``dealt_to``, where 0 means 1. Raises ConfigError if it does not divide the streams."""
    if dealt_to and num_streams % dealt_to:
        raise ConfigError(
            f"num_streams {num_streams} is not a multiple of dealt_to {dealt_to}", hint="leave dealt_to out"
        )
    return dealt_to if 0 < dealt_to < num_streams else 1


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
        made = replace(self, **{**given, name: value})  # type: ignore[type-var]
        vars(self).update(vars(made))

    def hold(self) -> None:
        """Let no attribute be assigned any more, because a dataset uses the configuration."""
        vars(self)["_held"] = True
