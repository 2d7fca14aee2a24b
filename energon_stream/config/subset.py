"""``subset: {range: [a, b]}``: a range of the samples of a split part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from energon_stream.errors import ConfigError
from energon_stream.printable import counted


@dataclass(frozen=True, slots=True)
class Subset:
    """A range of samples, and a share of that range. Default: all samples."""

    first: int = 0
    last: int | None = None  # one past the last sample; None for the end
    lower: float = 0.0  # share of the range before the subset, in ``[0, 1]``
    upper: float = 1.0  # share of the range up to the end of the subset

    @property
    def in_samples(self) -> bool:
        """True if the subset has sample numbers, and not only shares."""
        return (self.first, self.last) != (0, None)

    def bounds(self, total: int, where: str) -> tuple[int, int]:
        """Return the first sample, and one past the last. Shares are rounded down.

        Raises ConfigError if the range reaches beyond the ``total`` samples, or is empty.

        Example:
            >>> Subset(lower=0.1, upper=0.5).bounds(1000, "captions")
            (100, 500)
        """
        last = total if self.last is None else self.last
        length = last - self.first
        first, stop = self.first + int(length * self.lower), self.first + int(length * self.upper)
        if not 0 <= first < stop <= total:
            raise ConfigError(
                f"the subset {self} of {counted(total, 'sample')} is empty or too long", where=where
            )
        return first, stop

    def of(self, inner: Subset) -> Subset:
        """Return this subset of ``inner``. Raises ConfigError for sample numbers within a smaller subset."""
        if not self.in_samples:
            width = inner.upper - inner.lower
            # Exact at both ends, so that neighbouring shares meet.
            lower = inner.lower + self.lower * width if self.lower < 1 else inner.upper
            upper = inner.lower + self.upper * width if self.upper < 1 else inner.upper
            return replace(inner, lower=lower, upper=upper)
        if inner == Subset():
            return self
        raise ConfigError(
            f"the subset {self} has sample numbers, and applies to the subset {inner}",
            hint="use sample numbers only where the dataset is named, and percentages elsewhere",
        )

    def overlaps(self, other: Subset) -> bool:
        """Return True if both have sample numbers, and share samples."""
        ends = [float("inf") if last is None else last for last in (self.last, other.last)]
        return self.in_samples and other.in_samples and self.first < ends[1] and other.first < ends[0]

    def __str__(self) -> str:
        shares = f"{self.lower:.6g} to {self.upper:.6g}"
        if not self.in_samples:
            return shares
        numbers = f"[{self.first}, {'end' if self.last is None else self.last}]"
        return numbers if (self.lower, self.upper) == (0, 1) else f"{shares} of {numbers}"


def parse_subset(value: Any, where: str) -> Subset:
    """Parse ``{"range": [a, b]}`` or the pair alone. The bounds are percentages (``"12.5%"``) or sample
    numbers; ``b`` may be ``"end"``. None means all samples.
    """
    if value is None:
        return Subset()
    pair = value.get("range") if isinstance(value, Mapping) and set(value) == {"range"} else value
    if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
        start, stop = (_bound(bound) for bound in pair)
        if isinstance(start, float) and isinstance(stop, float) and start < stop:
            return Subset(lower=start, upper=stop)
        if isinstance(start, int) and (pair[1] == "end" or (isinstance(stop, int) and start < stop)):
            return Subset(start, stop if isinstance(stop, int) else None)
    raise ConfigError(
        f"{value!r} is not a subset",
        where=where,
        hint='use {"range": ["10%", "50%"]}, [100, 200] or [100, "end"], with the smaller bound first',
    )


def _bound(bound: Any) -> float | int | None:
    """Parse a bound: a share (float), a sample number (int), or None for anything else."""
    if isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0:
        return bound
    if isinstance(bound, str) and bound.endswith("%"):
        try:
            share = float(bound[:-1]) / 100
        except ValueError:
            return None
        return share if 0 <= share <= 1 else None
    return None
