"""Checks a whole dataset, or unprepared tars, shard by shard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.arrays import distinct
from energon_stream.engine.processes import LocalEngine
from energon_stream.errors import ChecksumError, ConfigError, DatasetError, DuplicateKeyError
from energon_stream.index.checksums import read_checksums
from energon_stream.index.dataset import DatasetMetadata, dataset_kind, select_split_part
from energon_stream.index.plain import read_metadata_or_tars
from energon_stream.index.shard_names import check_tars
from energon_stream.logs import renamed
from energon_stream.storage import StoreSpec
from energon_stream.tools.lint.check_shard import ShardCheck, ShardTask
from energon_stream.tools.lint.report import LintReport, Problem, ShardReport

if TYPE_CHECKING:
    from energon_stream.config.sample_factory import SampleFactory
    from energon_stream.engine.tasks import Part, TaskEngine

_PLAIN = "all tars"
"""Stands for a split part where there are none."""


@renamed(sample_rate="share")
def lint_dataset(
    url_or_path: str | os.PathLike[str],
    *,
    split_parts: Sequence[str] | None = None,
    split_config: str = SPLIT_CONFIG,
    dataset_config: str = DATASET_CONFIG,
    decode: bool = True,
    share: float = 1.0,
    seed: int = 0,
    part: Part | None = None,
    engine: TaskEngine | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_done: Callable[[int, int], None] | None = None,
    on_problem: Callable[[Problem], None] | None = None,
) -> LintReport:
    """Check a dataset: tars, indices, checksums, and all parts of all samples.

    Each shard is read once. Nothing that is wrong ends the check: all problems are in the report. Tars
    without an index are checked as well. Remarks are on what can be read and is odd: links, names in upper
    case, pictures with an EXIF orientation, which decoding leaves as they are stored.

    Args:
        url_or_path: Folder of a dataset or of tars, or tars such as ``a/{0..9}.tar``.
        split_parts: Split parts whose samples are decoded; None for all. The tars of others are compared with
            their indices.
        split_config: File of the split parts in ``.nv-meta``.
        dataset_config: File of the sample type in ``.nv-meta``.
        decode: Whether all parts are decoded, and samples made, as ``dataset.yaml`` says.
        share: Share of the samples that are looked at, 0 to 1. Below 1, only these are fetched, and
            headers of prepared tars are not compared with their indices.
        seed: Which samples a ``share`` below 1 takes.
        part: Share of the shards, for jobs side by side; None for all.
        engine: Where shards are checked; None for this process.
        storage_options: Options of the URL's file system, such as credentials.
        on_done: Called with the number of shards that are done, and of all shards.
        on_problem: Called with each problem as soon as it is found.

    Raises:
        ConfigError: An option cannot work.
        StorageError: The dataset cannot be reached.
        DatasetError: The metadata of the dataset is wrong.

    Example:
        >>> from energon_stream import lint_dataset
        >>> report = lint_dataset("captions")
        >>> report.is_clean, report.shards, report.made
        (True, 8, {'train': 48, 'val': 8, 'test': 8})
        >>> lint_dataset("tars", share=0.5).samples
        64
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share is {share}", hint="use a share above 0, and 1 at most")
    found = _find(os.fspath(url_or_path), storage_options, split_config, dataset_config, split_parts)
    tasks = found.tasks if decode else [replace(task, decodes=False) for task in found.tasks]
    tasks = tasks if part is None else part.of(tasks)
    check = ShardCheck(found.spec, None, None, share, seed)
    if decode:
        from energon_stream.decode import SampleDecoder  # imports PyTorch

        factory = _factory(found, dataset_config)
        decoder = SampleDecoder() if factory is None else factory.decoder
        check = replace(check, decoder=decoder or SampleDecoder(), factory=factory)
    problems: list[Problem] = []
    remarks: list[Problem] = []

    def note(new: Iterable[Problem]) -> None:
        for problem in new:
            problems.append(problem)
            if on_problem is not None:
                on_problem(problem)

    note(found.problems)
    reports: list[ShardReport] = []
    for report in (engine or LocalEngine(0)).map(check, tasks, in_order=True, on_done=on_done):
        note(report.problems)
        remarks += report.remarks
        reports.append(replace(report, problems=(), remarks=()))
    note(_shared_keys(reports, found.url))
    bad = {p.shard for p in problems if p.shard and (p.sample is None or p.kind == ChecksumError.__name__)}
    by_shard = {report.shard: report for report in reports}
    parts = {
        name: [by_shard[shard] for shard in shards if shard in by_shard]
        for name, shards in (found.parts if decode else {}).items()
    }
    checked = zip(tasks, reports, strict=True)
    return LintReport(
        found.url,
        len(reports),
        len(bad),
        sum(report.samples if task.count is None else task.count for task, report in checked),
        {name: sum(report.made for report in of_part) for name, of_part in parts.items()},
        {name: sum(report.failed for report in of_part) for name, of_part in parts.items()},
        sum(report.refused for report in reports),
        sum(report.size for report in reports),
        any(task.checksums is not None for task in tasks),
        tuple(problems),
        tuple(remarks),
    )


@dataclass(slots=True)
class _CheckedDataset:
    """A dataset whose shards are to be checked."""

    spec: StoreSpec
    url: str
    metadata: DatasetMetadata | None = None  # None for tars that are not prepared
    tasks: list[ShardTask] = field(default_factory=list)
    parts: dict[str, Sequence[str]] = field(default_factory=dict)  # shards by split part, of those decoded
    problems: list[Problem] = field(default_factory=list)


def _find(
    url: str,
    storage_options: Mapping[str, Any] | None,
    split_config: str,
    dataset_config: str,
    split_parts: Sequence[str] | None,
) -> _CheckedDataset:
    if dataset_kind(url) not in ("tars", "webdataset"):
        raise ConfigError("only folders of tars, and tars, have shards", where=url)
    spec = StoreSpec(url, storage_options)
    metadata = read_metadata_or_tars(spec, split_config=split_config, dataset_config=dataset_config)
    if isinstance(metadata, tuple):
        spec, tars = metadata
        url, paths = spec.open().url, [tar.path for tar in tars]
        if split_parts is not None:
            raise ConfigError("tars that are not prepared have no split parts", where=url)
        return _CheckedDataset(spec, url, None, [ShardTask(path, None) for path in paths], {_PLAIN: paths})
    check_tars(spec.url, metadata.shard_counts)
    store = spec.open()
    found = _CheckedDataset(spec, store.url, metadata)
    counts, excluded = metadata.shard_counts, dict[str, frozenset[str]]()
    known = {name: shards for name, shards in metadata.split.split_parts.items() if shards}
    for name in [*known] if split_parts is None else split_parts:
        try:
            index = select_split_part(found.spec, name, metadata)
        except DatasetError as error:
            found.problems.append(Problem.of(error))
            continue
        found.parts[name] = index.shard_paths
        excluded.update(index.excluded)
    decoded = {shard for shards in found.parts.values() for shard in shards}
    try:
        checksums = read_checksums(store, sum(counts.values()), metadata.info_digest)
    except DatasetError as error:
        checksums = None
        found.problems.append(Problem.of(error))
    first = 0
    for path, count in counts.items():
        own = None if checksums is None else checksums[first : first + count].tobytes()
        found.tasks.append(ShardTask(path, count, own, excluded.get(path, frozenset()), path in decoded))
        first += count
    return found


def _factory(found: _CheckedDataset, dataset_config: str) -> SampleFactory | None:
    """Return what makes samples; None if that is unknown. Note what is wrong with ``dataset.yaml``."""
    from energon_stream.config.dataset_yaml import make_sample_factory
    from energon_stream.decode import SampleDecoder

    if found.metadata is None or found.metadata.dataset_yaml is None or not found.parts:
        return None
    try:
        index = select_split_part(found.spec, next(iter(found.parts)), found.metadata)
        return make_sample_factory(index, decoder=SampleDecoder(), dataset_config=dataset_config)[0]
    except DatasetError as error:
        found.problems.append(Problem.of(error))
        return None


def _shared_keys(reports: Sequence[ShardReport], url: str) -> Iterator[Problem]:
    """Yield a problem for each tar with keys of an earlier one, of unprepared tars: an index would
    refuse them.
    """
    hashes = [np.frombuffer(report.keys, "<u8") for report in reports]
    if not sum(map(len, hashes)):
        return
    every = np.concatenate(hashes)
    shards = np.repeat(np.arange(len(hashes)), [len(own) for own in hashes])
    order = np.lexsort((shards, every))
    every, shards = every[order], shards[order]
    again = np.flatnonzero((every[1:] == every[:-1]) & (shards[1:] != shards[:-1])) + 1
    for shard in distinct(shards[again]).tolist():
        mine = again[shards[again] == shard]
        error = DuplicateKeyError(
            f"{len(mine)} sample keys are those of another tar, such as {reports[shards[mine[0] - 1]].shard}",
            where=f"{url}/{reports[shard].shard}",
            hint="run `energon-stream prepare --fix-duplicates`",
        )
        yield Problem.of(error, reports[shard].shard)
