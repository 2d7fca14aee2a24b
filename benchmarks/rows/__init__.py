"""The rows: which groups there are, what each needs; a group is a function that gives the figures of the same
runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rows import faults, images, local, memory, requests, shuffle, start, throughput

if TYPE_CHECKING:
    from bench import Bench, Measure

D40 = ("d40x8", "d40x64")


@dataclass(frozen=True, slots=True)
class Group:
    """Figures that are measured together.

    Attributes:
        measure: Runs the candidates; its docstring says what for.
        rows: Names of the rows it gives.
        datasets: Names of the datasets it reads.
        peers: Those of them that peers with formats of their own read, too.
        long: Whether ``--quick`` leaves it out.
        faults: Whether it needs a server with faults.
    """

    measure: Callable[[Bench], list[Measure]]
    rows: tuple[str, ...]
    datasets: tuple[str, ...] = D40
    peers: tuple[str, ...] = ()
    long: bool = False
    faults: bool = False


FAULTS = ("long400", "d40x64")
GROUPS = (
    Group(throughput.h50, ("P1", "P13"), peers=D40),
    Group(throughput.h200, ("P2",)),
    Group(start.first_batch, ("P3", "P4"), ("d40x8",), peers=("d40x8",)),
    Group(start.resume, ("P5",), ("d40x8",)),
    Group(requests.counts, ("P7", "P8"), peers=D40),
    Group(faults.refused, ("P10",), FAULTS, peers=("d40x64",), long=True, faults=True),
    Group(faults.slow_tail, ("P11",), FAULTS, peers=("d40x64",), long=True, faults=True),
    Group(local.undecoded, ("P12",), ("p12",), peers=("p12",)),
    Group(memory.above_import, ("P14",), ("tiny", *memory.CASES), long=True),
    Group(shuffle.spread, ("P16",), ("d40x64",), peers=("d40x64",)),
    Group(throughput.longer, ("long",), ("long50",), long=True),
    Group(throughput.h1, ("H1",), long=True),
    Group(throughput.streams, ("streams",), ("d40x8",), long=True),
    Group(throughput.sizes, ("sizes",), ("size4k", "d40x8", "size400k", "size4m"), long=True),
    Group(images.decoded, ("jpeg",), ("photos", "photos3k"), peers=("photos", "photos3k"), long=True),
    Group(throughput.huge_shard, ("1GB",), ("huge1",), long=True),
)
