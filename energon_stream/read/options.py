"""How much to fetch next: pure arithmetic on bytes and counts."""

from __future__ import annotations

from dataclasses import dataclass

from energon_stream.errors import ConfigError

__all__ = ["ReadOptions"]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Limits of the look-ahead of one process.

    Attributes:
        byte_budget: Bytes that fetched and requested blocks may hold together.
        max_request: Largest coalesced request in bytes; only a larger sample is read by a larger one.
        max_gap: Unwanted bytes between two samples that are read rather than split a request.
        max_in_flight: Requests under way at once.
        first_samples: Samples that are fetched as exact ranges before anything else.
        transport: ``"auto"``, ``"fsspec"`` or ``"obstore"``.
    """

    byte_budget: int = 256 << 20
    max_request: int = 4 << 20
    max_gap: int = 32 << 10
    max_in_flight: int = 32
    first_samples: int = 32
    transport: str = "auto"

    def __post_init__(self) -> None:
        for name in ("byte_budget", "max_request", "max_in_flight", "first_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="use a positive number")
        if self.max_gap < 0:
            raise ConfigError(f"max_gap is {self.max_gap}", hint="use 0 or more bytes")

    def share(self, readers: int) -> ReadOptions:
        """The limits of one of several readers that share a process."""
        budget = max(1, self.byte_budget // max(1, readers))
        return ReadOptions(
            budget, self.max_request, self.max_gap, self.max_in_flight, self.first_samples, self.transport
        )

    @property
    def generation(self) -> int:
        """Bytes that are planned together. A quarter of the budget: a plan may take in as much again of
        what comes after it, and is made when half of the budget is free."""
        return max(1, self.byte_budget // 4)

    def generation_bytes(self, number: int) -> int:
        """Bytes of generation ``number``: slack grows, so requests may. Generation 0 is counted in samples."""
        return min(self.generation, (16 << 20) if number == 1 else self.generation)
