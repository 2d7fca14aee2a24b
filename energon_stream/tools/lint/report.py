"""Reports of checks: problems, shards, datasets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from energon_stream.errors import EnergonStreamError
from energon_stream.index.bad_samples import BadSample, dataset_name
from energon_stream.pipeline.failure_notes import lines_of

_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    kind: str  # class of the error that a reader would raise, such as ``CorruptTarError``
    what: str  # the problem, in a sentence
    where: str | None  # file, and place in it
    hint: str | None  # Advice
    shard: str | None = None  # path of the shard; None for problems of the dataset
    sample: str | None = None  # key of the sample; None for problems of a shard
    index: int | None = None  # number of the sample in the shard
    part: str | None = None  # the part that is damaged or missing

    @classmethod
    def of(
        cls, error: Exception, shard: str | None = None, sample: str | None = None, index: int | None = None
    ) -> Problem:
        """Return an error as a problem."""
        kind, part = type(error).__name__, getattr(error, "part", None)
        if isinstance(error, EnergonStreamError):
            what = _ADDRESS.sub("", error.what)  # the same problem has the same text in each process
            return cls(kind, what, error.where, error.hint, shard, sample, index, part)
        where = ", ".join(filter(None, [shard and f"{shard}/{sample or ''}".strip("/"), lines_of(error)]))
        return cls(kind, f"{kind}: {error}", where, None, shard, sample, index, part)

    def __str__(self) -> str:
        return str(EnergonStreamError(self.what, where=self.where, hint=self.hint))


@dataclass(frozen=True, slots=True)
class ShardReport:
    """Report on one shard."""

    shard: str  # path of the shard
    samples: int = 0  # number of samples that are there
    made: int = 0  # number of samples that were decoded without an error
    failed: int = 0  # number of samples with an error
    refused: int = 0  # number of parts that were left out, because they are pickles that nobody trusted
    size: int = 0  # bytes that were looked at
    problems: tuple[Problem, ...] = ()  # what is wrong
    remarks: tuple[Problem, ...] = ()  # what is odd, and can be read
    keys: bytes = b""  # 64-bit hashes of all keys, if keys are to be compared with those of other shards


@dataclass(frozen=True, slots=True)
class LintReport:
    """Result of :func:`lint_dataset`."""

    dataset: str  # URL of the dataset
    shards: int  # number of shards that were checked
    bad_shards: int  # number of shards whose tar, index or checksums are wrong
    samples: int  # number of samples in the shards, as the metadata says
    made: Mapping[str, int]  # number of samples that were decoded without an error, by split part
    failed: Mapping[str, int]  # number of samples with an error, by split part
    refused: int  # number of parts that were left out, because they are pickles that nobody trusted
    size: int  # bytes that were looked at
    has_checksums: bool  # whether samples were compared with checksums
    problems: tuple[Problem, ...]  # what is wrong, shard by shard
    remarks: tuple[Problem, ...] = ()  # what is odd and can be read, shard by shard

    @property
    def is_clean(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems

    def bad_samples(self) -> list[BadSample]:
        """Return the samples that are wrong, each once, for ``write_bad_samples`` and ``exclude=``."""
        name = dataset_name(self.dataset)
        found: dict[tuple[str | None, int], BadSample] = {}
        for each in self.problems:
            if each.index is not None:
                bad = BadSample(
                    name, each.shard, each.index, each.sample, each.part, each.kind, each.what[:300], "lint"
                )
                found.setdefault((each.shard, each.index), bad)
        return list(found.values())

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self) | {"clean": self.is_clean}
