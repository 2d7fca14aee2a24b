"""The model of a store, and the CPU time of this library: the input of a simulation."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.logs import renamed


@dataclass(frozen=True, slots=True)
class StoreModel:
    """A model of a store and of the line to it.

    Raises:
        ConfigError: A number cannot be.

    Example:
        >>> from energon_stream.tools.simulate import StoreModel
        >>> StoreModel(latency=0.05, rate_per_connection=85e6).max_in_flight
        64
    """

    latency: float = 0.05  # seconds from a request to the first byte of its answer
    jitter: float = 0.0  # seconds that are added to the latency on average, exponentially distributed
    rate_per_connection: float = 0.0  # bytes per second of one connection; 0 for no limit
    rate_total: float = 0.0  # bytes per second of all connections of a rank; 0 for no limit
    burst: int = 0  # bytes that a connection sends at once, before its rate holds
    max_in_flight: int = 64  # most requests of a process at one time
    error_share: float = 0.0  # share of the requests that are answered with a 503, 0 to less than 1
    slow_share: float = 0.0  # share of the requests whose latency is ``slow_factor`` times as long
    slow_factor: float = 20.0  # see ``slow_share``

    def __post_init__(self) -> None:
        _check(asdict(self))
        for name in ("error_share", "slow_share"):
            if getattr(self, name) >= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="Use a share below 1.")
        if self.max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {self.max_in_flight}", hint="Use 1 or more.")
        if self.slow_factor < 1:
            raise ConfigError(f"slow_factor is {self.slow_factor}", hint="Use 1 or more.")


StoreModel.__init__ = renamed(connections="max_in_flight")(StoreModel.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of a process.

    The defaults were measured with ``benchmarks/simulated.py`` on a core of a server, where nothing is
    decoded.

    Raises:
        ConfigError: A number cannot be.

    Example:
        >>> from energon_stream.tools.simulate import Costs
        >>> decoding = Costs(sample=4e-3)
    """

    opening: float = 0.022  # to open the dataset and start the client, once
    planning: float = 1.5e-6  # for each sample that is looked ahead to
    sample: float = 5.5e-6  # for each sample that is read: cutting, and what the program does with it
    request: float = 0.2e-3  # for each request
    byte: float = 0.9e-9  # for each byte received
    # whether the program and its requests share one core, rather than have one each
    is_one_core: bool = False

    def __post_init__(self) -> None:
        _check(asdict(self))


def _check(numbers: dict[str, Any]) -> None:
    for name, value in numbers.items():
        if not math.isfinite(value) or value < 0:
            raise ConfigError(f"{name} is {value}", hint="Use a number from 0 on.")
