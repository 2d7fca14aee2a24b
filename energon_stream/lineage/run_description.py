"""The description of a run: what determines its order, in kilobytes.

``run.json`` in the run's folder, version 3::

    {"format": "energon_stream.run", "version": 3, "digest": hash of the other fields,
     "datasets": [{"plan": as of ``describe_plan``, "path": place of the reader in the pipeline,
                   "batch_size": samples of a batch, "in_order": whether batches follow the plan,
                   "leaves": [{"url", "split_config", "split", "samples", "shards", "hash",
                               "view": {"keys": as in a metadataset, "hash"},
                               "content": kind and hash of what is known of the samples, or null}, ...],
                   "per_batch": references of a batch; 0 for batch_size, "packing": options or null}, ...],
     "segments": [{"step": first step, "dataset": number of its dataset, "world_size", "num_streams",
                   "seed_offset", "pass_length", "weights": as in saved states,
                   "dealt_to": as of ``WorkerConfig``, if it is not 1}, ...],
     "changes": []}

A segment begins with the run, and with each restore. Its ``weights`` are the ones that the program set last.
Version 2 lacks ``content``, and version 1 ``view``, ``per_batch``, ``packing`` and ``weights``, too.
``changes`` is empty; a reader refuses a file with a change that it does not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from energon_stream.arrays import Int64Array
from energon_stream.errors import EnergonStreamError, RunDamagedError, StateError
from energon_stream.index.dataset import DatasetIndex, identity
from energon_stream.schedule import (
    BlendPlan,
    ConcatPlan,
    LeafPlan,
    Lines,
    OrderSpec,
    Plan,
    RepeatPlan,
    WeightChange,
)
from energon_stream.selection import Selection
from energon_stream.state.mixture_weights import WEIGHTS, read_changes, write_changes

FORMAT = "energon_stream.run"
VERSION = 3
FILE = "run.json"
_MOST, _MOST_STREAMS, MOST_SAMPLES = 1 << 60, 1 << 20, 1 << 18


@dataclass(frozen=True, slots=True)
class LeafDescription:
    """One dataset of a run: its place, and what tells that it did not change."""

    url: str
    split_config: str  # file of the split parts
    split: str
    samples: int
    shards: int
    hash: str
    view: Mapping[str, Any] | None = None  # keys of the view, and its hash; None for all samples
    content: Sequence[str] | None = None  # as of ``DatasetIndex.content``; None if unknown

    @property
    def identity(self) -> dict[str, Any]:
        """The part that :func:`energon_stream.index.dataset.identity` makes."""
        found = {"split": self.split, "samples": self.samples, "shards": self.shards, "hash": self.hash}
        return found if self.view is None else {**found, "view": self.view["hash"]}

    def is_of(self, index: DatasetIndex) -> bool:
        """Return whether a dataset has these samples, as far as it is known."""
        if len(index.shard_paths) < self.shards or identity(index, self.shards) != self.identity:
            return False
        content = index.content(self.shards)
        is_known = content is not None and self.content is not None and content[0] == self.content[0]
        return not is_known or content == tuple(self.content or ())


@dataclass(frozen=True, slots=True)
class DataDescription:
    """The order of samples and batches."""

    plan: Mapping[str, Any]  # as of ``describe_plan``
    path: str  # place of the reader in the pipeline, a part of random keys
    batch_size: int  # samples of a batch, as far as nothing is skipped
    in_order: bool  # whether the samples of batches follow each other in the plan
    leaves: tuple[LeafDescription, ...]
    per_batch: int = 0  # references of a batch, by which weights change; 0 for ``batch_size``
    packing: Mapping[str, Any] | None = None  # options of planned packs; None if there are none

    def may_be(self, other: DataDescription) -> bool:
        """Return whether two descriptions are equal, but for content that one of them does not know."""
        one, two = (
            replace(
                each,
                leaves=tuple(
                    leaf if there.content and leaf.content else replace(leaf, content=None)
                    for leaf, there in zip(each.leaves, which.leaves, strict=False)
                ),
            )
            for each, which in ((self, other), (other, self))
        )
        return one == two and len(self.leaves) == len(other.leaves)


@dataclass(frozen=True, slots=True)
class Segment:
    """The steps from a start or restore on, up to the next segment."""

    step: int  # first step
    dataset: int  # number of the description of its data
    world_size: int
    num_streams: int
    seed_offset: int
    pass_length: int  # elements of a virtual epoch of all ranks; 0 for none
    weights: tuple[tuple[float, ...], ...] = ()  # that were set under way, as in saved states
    dealt_to: int = 1  # as of ``WorkerConfig``


@dataclass(frozen=True, slots=True)
class RunDescription:
    """The order of a run, by its data and segments."""

    datasets: tuple[DataDescription, ...] = ()
    segments: tuple[Segment, ...] = ()
    changes: tuple[Any, ...] = ()

    def with_segment(self, segment: Segment, data: DataDescription) -> RunDescription:
        """Return the description of a run that goes on from a step; what came after it is left out."""
        kept = [each for each in self.segments if each.step < segment.step]
        datasets: list[DataDescription] = []
        found: list[Segment] = []
        for each in [*kept, segment]:
            of = data if each is segment else self.datasets[each.dataset]
            if of not in datasets:
                datasets.append(of)
            found.append(replace(each, dataset=datasets.index(of)))
        return RunDescription(tuple(datasets), tuple(found), self.changes)

    def with_weights(self, weights: tuple[tuple[float, ...], ...]) -> RunDescription:
        """Return the description with other weights in its last segment."""
        *earlier, last = self.segments
        return replace(self, segments=(*earlier, replace(last, weights=weights)))

    def dumps(self) -> bytes:
        """Return the content of ``run.json``."""
        fields = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for segment in fields["segments"]:
            if segment["dealt_to"] == 1:
                del segment["dealt_to"]
        return json.dumps({**fields, "digest": _digest(fields)}, indent=1).encode()

    @classmethod
    def loads(cls, data: bytes, where: str) -> RunDescription:
        """Read the content of ``run.json``. Raises RunDamagedError, also for another version."""
        with reading_run(where):
            fields = json.loads(data)
            found, version = fields.pop("digest", None), fields.get("version")
            if fields.get("format") != FORMAT:
                raise ValueError("it is no description of a run")
            if version not in range(1, VERSION + 1) or fields["changes"]:
                hint = "read it with the version of energon_stream that wrote it, or a newer one"
                raise RunDamagedError(f"the run has format version {version!r:.20}", where=where, hint=hint)
            if found != _digest(fields):
                raise ValueError("its digest does not match its content")
            datasets = tuple(
                DataDescription(
                    **{**each, "leaves": tuple(LeafDescription(**leaf) for leaf in each["leaves"])}
                )
                for each in fields["datasets"]
            )
            for size in (each.batch_size for each in datasets):
                if type(size) is not int or not 0 < size <= MOST_SAMPLES:
                    raise ValueError(f"its batches have {size!r:.80} samples")
            if not all(leaf.url for each in datasets for leaf in each.leaves):
                raise ValueError("a dataset has no path")
            segments = tuple(
                Segment(**{**each, "weights": _checked(each.get("weights", ()))})
                for each in fields["segments"]
            )
            steps = [each.step for each in segments]
            if not segments or steps != sorted(set(steps)) or min(steps) < 0:
                raise ValueError(f"segments begin at steps {steps!r:.80}")
            for each in segments:
                numbers = each.step, each.dataset, each.world_size, each.num_streams, each.pass_length
                if any(type(number) is not int or not 0 <= number < _MOST for number in numbers):
                    raise ValueError(f"a segment has the numbers {numbers!r:.80}")
                if each.num_streams > _MOST_STREAMS:
                    raise ValueError(f"it has {each.num_streams} streams")
                if not 0 < each.world_size <= each.num_streams or each.num_streams % each.world_size:
                    raise ValueError(f"{each.num_streams} streams on {each.world_size} ranks")
                if type(each.dealt_to) is not int or each.dealt_to < 1 or each.num_streams % each.dealt_to:
                    raise ValueError(f"{each.num_streams} streams were dealt to {each.dealt_to!r:.20} ranks")
                datasets[each.dataset]
            return cls(datasets, segments)


def _checked(weights: Any) -> tuple[tuple[float, ...], ...]:
    try:
        return tuple(map(tuple, write_changes(read_changes({WEIGHTS: weights}))))
    except StateError as error:
        raise ValueError(error.what) from error


def _digest(fields: Mapping[str, Any]) -> str:
    text = json.dumps(json.loads(json.dumps(fields)), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def reading_run(where: str) -> Iterator[None]:
    """Turn errors of reading a file of a run into a RunDamagedError that says where."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or (isinstance(error, EnergonStreamError) and error.where):
            raise
        raise RunDamagedError(
            f"the file is damaged: {error!s:.200}",
            where=where,
            hint="go on from a checkpoint with this run folder, which writes it again, or use a copy",
        ) from error


def make_plan(
    described: Mapping[str, Any],
    starts: Sequence[Int64Array],
    selections: Sequence[Selection | None],
    per_batch: int = 1,
) -> Plan:
    """Return the plan of a description, the inverse of ``describe_plan``, with these of each leaf."""
    rest = starts, selections, per_batch
    if "leaf" in described:
        first, last = described["samples"]
        leaf = described["leaf"]
        return LeafPlan(leaf, starts[leaf], OrderSpec(**described["order"]), first, last, selections[leaf])
    if "repeat" in described:
        return RepeatPlan(make_plan(described["repeat"], *rest), described["repeats"])
    if "concat" in described:
        return ConcatPlan(tuple(make_plan(child, *rest) for child in described["concat"]))
    children = tuple(make_plan(child, *rest) for child in described["blend"])
    weights, later = described["weights"][: len(children)], described["weights"][len(children) :]
    changes = tuple(WeightChange(begin, tuple(each)) for begin, *each in later)
    even, foresees = described.get("draws") == "even", int(described.get("foresees", 0))
    lines = Lines.read(described.get("lines"))
    return BlendPlan(children, tuple(weights), changes, per_batch, even, foresees=foresees, lines=lines)
