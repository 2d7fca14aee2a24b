"""Answers about a run: the samples of a step, and the steps of a sample."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepSample:
    """A sample of a step.

    Attributes:
        dataset: Path or URL of the dataset.
        split: Its split part.
        shard: Path of the tar in the dataset.
        index: Number of the sample in the shard.
        number: Number of the sample in the split part.
        key: Its key; None where it was not looked up, or the dataset has no index of keys.

    Example:
        >>> StepSample("/data/captions", "train", "data-000000.tar", 7, 7).key is None
        True
    """

    dataset: str
    split: str
    shard: str
    index: int
    number: int
    key: str | None = None


@dataclass(frozen=True, slots=True)
class RankStep:
    """The samples of a step of one rank.

    Attributes:
        step: The step, counted from the beginning of the run.
        rank: The rank.
        stream: Stream of the job that the batch came from.
        batch: Number of the batch in the stream.
        recorded: Whether the run has recorded the step. Otherwise it is planned: exact if nothing is skipped.
        samples: The samples, in their order.

    Example:
        >>> RankStep(step=3, rank=0, stream=1, batch=0, recorded=True, samples=()).as_dict()["stream"]
        1
    """

    step: int
    rank: int
    stream: int
    batch: int
    recorded: bool
    samples: tuple[StepSample, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A step in which a sample was, or will be.

    Attributes:
        step: The step, counted from the beginning of the run.
        rank: The rank.
        stream: Stream of the job.
        batch: Number of the batch in the stream.
        time: 0 where the sample comes for the first time, then 1.
        recorded: As of :class:`RankStep`.

    Example:
        >>> Occurrence(step=3, rank=0, stream=1, batch=0, time=0, recorded=True).as_dict()["step"]
        3
    """

    step: int
    rank: int
    stream: int
    batch: int
    time: int
    recorded: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, for JSON."""
        return asdict(self)
