"""``subset: {range: [a, b]}``: a part of a split part's samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_stream.errors import ConfigError

__all__ = ["Subset", "parse_subset"]


@dataclass(frozen=True, slots=True)
class Subset:
    """A range of samples, as shares or as numbers.

    Attributes:
        start: Share in ``[0, 1]`` (float) or first sample (int).
        stop: Share in ``[0, 1]`` (float), one past the last sample (int), or None for the end.
    """

    start: float | int
    stop: float | int | None

    def bounds(self, total: int, where: str) -> tuple[int, int]:
        """First sample, and one past the last, of ``total``.

        Raises:
            ConfigError: The range reaches beyond the samples, or is empty.
        """
        first, last = (
            int(total * bound) if isinstance(bound, float) else total if bound is None else bound
            for bound in (self.start, self.stop)
        )
        if not 0 <= first < last <= total:
            raise ConfigError(
                f"the subset from {self.start} to {self.stop} of {total} samples is empty or too long",
                where=where,
            )
        return first, last


def parse_subset(value: Any, where: str) -> Subset | None:
    """Read a subset.

    Args:
        value: ``{"range": [a, b]}`` or the pair alone; each of ``a``, ``b`` is a percentage (``"12.5%"``),
            a sample number, or, for ``b``, ``"end"``. None for all samples.
        where: What it belongs to, for messages.

    Raises:
        ConfigError: It is something else.
    """
    if value is None or isinstance(value, Subset):
        return value
    pair = value.get("range") if isinstance(value, Mapping) and set(value) == {"range"} else value
    if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
        start, stop = (_bound(bound) for bound in pair)
        kinds = {type(bound) for bound in (start, stop) if bound is not None}
        if start is not None and start != "?" and stop != "?" and len(kinds) == 1:
            return Subset(start, stop)  # type: ignore[arg-type] # "?" was excluded
    raise ConfigError(
        f"{value!r} is no subset",
        where=where,
        hint='use {"range": ["10%", "50%"]}, or [100, 200], or [100, "end"]',
    )


def _bound(bound: Any) -> float | int | str | None:
    """A share, a number, None for the end, or "?"."""
    if isinstance(bound, int) and not isinstance(bound, bool):
        return bound
    if bound == "end":
        return None
    if isinstance(bound, str) and bound.endswith("%"):
        try:
            share = float(bound[:-1]) / 100
        except ValueError:
            return "?"
        return share if 0 <= share <= 1 else "?"
    return "?"
