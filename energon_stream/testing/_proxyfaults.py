"""Faults that the proxy adds: values, without any input or output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from energon_stream.errors import ConfigError

FaultKind = Literal[
    "500",
    "503",
    "416",
    "html",
    "no-answer",
    "reset",
    "truncate",
    "stall",
    "trickle",
    "late",
    "no-length",
    "wrong-etag",
    "drop",
    "refuse",
    "freeze",
]
"""Kinds of faults; see :class:`Fault`."""

OUTAGES = ("refuse", "freeze")
"""Kinds that begin an outage for all connections."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and how often it happens.

    ================  ==================================================================================
    ``500``, ``503``  an S3 error instead of the answer
    ``416``           ``InvalidRange``, though the range is good
    ``html``          a web page with status 200, as a misconfigured gateway sends it
    ``no-answer``     the connection is reset before the answer
    ``reset``         the connection is reset (RST) within the body
    ``truncate``      the connection is closed (FIN) within the body
    ``stall``         the body stops for ``seconds``
    ``trickle``       the body takes ``seconds`` longer, in small pieces
    ``late``          the first byte comes ``seconds`` later
    ``no-length``     the answer has no ``Content-Length``; its end is the end of the connection
    ``wrong-etag``    the answer has another ETag
    ``drop``          a new connection is reset at once
    ``refuse``        an outage of ``seconds``: connections are reset, new ones refused
    ``freeze``        an outage of ``seconds``: nothing is received or sent
    ================  ==================================================================================

    Attributes:
        kind: One of these.
        share: Share of the requests that have the fault (of the connections for ``drop``), from 0 to 1. An
            outage begins at so many of the requests.
        seconds: Length of the fault, where it has one.
        pattern: Shell pattern of the requested path (``bucket/key``).
        method: HTTP method of the requests; None for all.
        times: Number of times that the fault happens; None for no limit.

    Raises:
        ConfigError: The kind is unknown, or a number is out of range.

    Example:
        >>> from energon_stream.testing.proxy import Fault
        >>> Fault("stall", share=0.01, seconds=2.0)
        Fault(kind='stall', share=0.01, seconds=2.0, pattern='*', method='GET', times=None)
    """

    kind: FaultKind
    share: float = 1.0
    seconds: float = 1.0
    pattern: str = "*"
    method: str | None = "GET"
    times: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise ConfigError(
                f"unknown fault {self.kind!r}", hint=f"use one of {', '.join(get_args(FaultKind))}"
            )
        if not 0 <= self.share <= 1 or self.seconds < 0:
            raise ConfigError(f"{self} is impossible", hint="use a share from 0 to 1, and 0 or more seconds")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse ``KIND=SHARE`` or ``KIND=SHARE,SECONDS``.

        Raises:
            ConfigError: The text has another form.
        """
        kind, _, numbers = text.partition("=")
        try:
            return cls(kind, *(float(number) for number in numbers.split(",")))  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{text!r} is not a fault", hint="write KIND=SHARE or KIND=SHARE,SECONDS"
            ) from error


def all_faults(share: float, *, seconds: float = 1.0) -> list[Fault]:
    """Return all kinds of faults, each with the same share.

    Args:
        share: Share of the requests that have each fault. Outages begin at a twentieth of it.
        seconds: Length of the faults that have one.
    """
    faults = [Fault(kind, share, seconds) for kind in get_args(FaultKind)]
    return [replace(fault, share=share / 20) if fault.kind in OUTAGES else fault for fault in faults]
