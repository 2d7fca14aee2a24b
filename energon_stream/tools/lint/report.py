"""Reports of checks: problems, shards, datasets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from energon_stream.errors import EnergonStreamError

_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: Class of the error that a reader would raise, such as ``CorruptTarError``.
        what: The problem, in a sentence.
        where: File, and place in it.
        hint: Advice.
        shard: Path of the shard; None for problems of the dataset.
        sample: Key of the sample; None for problems of a shard.
    """

    kind: str
    what: str
    where: str | None
    hint: str | None
    shard: str | None = None
    sample: str | None = None

    @classmethod
    def of(cls, error: Exception, shard: str | None = None, sample: str | None = None) -> Problem:
        """Return an error as a problem."""
        kind = type(error).__name__
        if isinstance(error, EnergonStreamError):
            what = _ADDRESS.sub("", error.what)  # the same problem has the same text in each process
            return cls(kind, what, error.where, error.hint, shard, sample)
        return cls(kind, str(error) or kind, None, None, shard, sample)

    def __str__(self) -> str:
        return str(EnergonStreamError(self.what, where=self.where, hint=self.hint))


@dataclass(frozen=True, slots=True)
class ShardReport:
    """Report on one shard.

    Attributes:
        shard: Path of the shard.
        samples: Number of samples that are there.
        made: Number of samples that were decoded without an error.
        failed: Number of samples with an error.
        refused: Number of parts that were left out, because they are pickles that nobody trusted.
        size: Bytes that were looked at.
        problems: What is wrong.
        keys: 64-bit hashes of all keys, if keys are to be compared with those of other shards.
    """

    shard: str
    samples: int = 0
    made: int = 0
    failed: int = 0
    refused: int = 0
    size: int = 0
    problems: tuple[Problem, ...] = ()
    keys: bytes = b""


@dataclass(frozen=True, slots=True)
class LintReport:
    """Result of :func:`lint_dataset`.

    Attributes:
        dataset: URL of the dataset.
        shards: Number of shards that were checked.
        bad_shards: Number of shards whose tar, index or checksums are wrong.
        samples: Number of samples in the shards, as the metadata says.
        made: Number of samples that were decoded without an error, by split part.
        failed: Number of samples with an error, by split part.
        refused: Number of parts that were left out, because they are pickles that nobody trusted.
        size: Bytes that were looked at.
        has_checksums: Whether samples were compared with checksums.
        problems: What is wrong, shard by shard.
    """

    dataset: str
    shards: int
    bad_shards: int
    samples: int
    made: Mapping[str, int]
    failed: Mapping[str, int]
    refused: int
    size: int
    has_checksums: bool
    problems: tuple[Problem, ...]

    @property
    def is_clean(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self) | {"clean": self.is_clean}
