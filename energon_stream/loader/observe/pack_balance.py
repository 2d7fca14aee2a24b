"""The balance of planned packs over the ranks: planned, and measured in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class PackStep(NamedTuple):
    """Loads of planned packs in a global step, by cost."""

    batches: int  # of this rank
    own: tuple[float, ...]  # load of the samples that these batches have
    planned: tuple[tuple[float, float], ...]  # load of the slowest rank by the plan, and the mean; or nothing


@dataclass(frozen=True, slots=True)
class Balance:
    """Slowest rank's load over the mean, as the mean of global steps; 1 is even.

    Attributes:
        planned: By the plan, with all samples.
        measured: By the costs of the samples that batches had, without skipped samples. Of one rank
            alone: its own load over the planned mean.
        steps: Whole global steps that were measured, the last 64 at most.
    """

    planned: float
    measured: float
    steps: int


def balance_of(ranks: Sequence[Mapping[int, PackStep]], costs: Sequence[str]) -> dict[str, Balance]:
    """Compare the loads of ranks in the global steps that all of them have whole."""
    most = max((step.batches for steps in ranks for step in steps.values()), default=0)
    whole = [{number: step for number, step in steps.items() if step.batches == most} for steps in ranks]
    steps = [[own[number] for own in whole] for number in set.intersection(*map(set, whole))]
    found: dict[str, Balance] = {}
    for place, name in enumerate(costs):
        pairs = []
        for step in steps:
            own = [each.own[place] for each in step]
            slowest, mean = next((each.planned[place] for each in step if each.planned), (0.0, 0.0))
            if mean:
                real = sum(own) / len(own) if len(own) > 1 else mean
                pairs.append((slowest / mean, max(own) / real if real else 1.0))
        if pairs:
            planned, measured = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
            found[name] = Balance(planned, measured, len(pairs))
    return found


def in_words(balance: Mapping[str, Balance], measured: str = "measured") -> str:
    """Return a line for each cost."""
    return "".join(
        f"  {name} of packs, slowest rank ÷ mean: planned {each.planned:.3f}, {measured} {each.measured:.3f}\n"
        for name, each in balance.items()
    )
