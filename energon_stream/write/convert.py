"""Converts datasets of other formats, by several processes, and compares what was written."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import Part, TaskEngine
from energon_stream.errors import ConfigError
from energon_stream.index.checksums import digest, read_checksums
from energon_stream.index.dataset import read_metadata
from energon_stream.index.info_files import INFO_JSON, META_FOLDER
from energon_stream.logs import renamed
from energon_stream.prepare.publish import MetadataOptions
from energon_stream.printable import strip_credentials
from energon_stream.storage import Store, StoreSpec
from energon_stream.urls import is_local, local_path
from energon_stream.write.convert_part import ConvertJob, ConvertPart, PartDone, convert_part
from energon_stream.write.convert_plan import ConvertPlan, plan_conversion
from energon_stream.write.dealing import Dealer, parse_dealing
from energon_stream.write.finish import finish_dataset
from energon_stream.write.guess import guess_dataset_yaml
from energon_stream.write.shard_writer import parse_shard_size
from energon_stream.write.tar_shard import MAX_SIZE

CONVERSION = f"{META_FOLDER}/convert.json"  # what a dataset was converted from, or is being converted from


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """Result of :func:`convert_dataset`.

    Attributes:
        source: URL of the source.
        kind: Its format.
        sections: Number of its sections.
        rows: Number of its rows by its own metadata; None if it does not say.
        samples: Number of samples in the new dataset.
        shards: Number of its tars.
        size: Bytes of its tars.
        rows_read: Rows that this run read; the others were in tars that an earlier run had completed.
        samples_checked: Samples that were read back in this run and had their checksums.
        digest: Hash of the checksums of all samples, in hexadecimal: equal samples in equal order have the
            same.
        split: Number of samples of each split part.
        left_out: Columns that became no part.
        dataset_yaml: Content of ``dataset.yaml``.
        shapes: Number of samples by the names of their parts; empty if an earlier run had finished.

    Example:
        >>> from energon_stream import LocalEngine, convert_dataset
        >>> convert_dataset("lines.jsonl", "texts-again", engine=LocalEngine(0)).split
        {'train': 32, 'val': 0, 'test': 0}
    """

    source: str
    kind: str
    sections: int
    rows: int | None
    samples: int
    shards: int
    size: int
    rows_read: int
    samples_checked: int
    digest: str
    split: Mapping[str, int]
    left_out: tuple[str, ...]
    dataset_yaml: Mapping[str, Any] | None
    shapes: Mapping[str, int]


@renamed(share="part")
def convert_dataset(
    source: str | os.PathLike[str],
    url_or_path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    files: Collection[str] = (),
    key: str | None = None,
    files_root: str | os.PathLike[str] | None = None,
    split: str | None = None,
    config: str | None = None,
    trust: bool = False,
    max_size: int | str = MAX_SIZE,
    max_count: int | None = None,
    shuffle: bool = True,
    split_ratio: Sequence[float] | Mapping[str, float] | None = None,
    split_patterns: Sequence[str] | None = None,
    dataset_yaml: Mapping[str, Any] | None = None,
    check: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    source_storage_options: Mapping[str, Any] | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
    engine: TaskEngine | None = None,
    part: Part | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ConvertReport | None:
    """Write a dataset of another format as a new dataset: tars with their indices, and the metadata.

    There is one sample for each row of the source, in a shuffled order. Several processes read the source
    once, in sections, with flat memory; the tars have the same bytes for any number of processes. The dataset
    is visible when it is complete. If the process ends early, convert again with the same arguments: complete
    tars stay, and each process reads at most what one tar holds again.

    Args:
        source: Folder, file or URL; or ``hf://datasets/OWNER/NAME`` for a dataset on Hugging Face's hub.
        url_or_path: New or empty folder, local or any fsspec URL.
        kind: Format of the source: ``mds``, ``litdata``, ``parquet``, ``huggingface``, ``folder``, ``csv``,
            ``jsonl`` or ``json``; None to find out.
        columns: Part by column, such as ``{"image": "jpg"}``; see
            :func:`~energon_stream.write.columns.parse_columns`. None: by type and name.
        files: Columns that are paths of files.
        key: Column of the sample's key, or a template such as ``"{folder}/{name:stem}"``; None for the
            source's own keys, or the row's number.
        files_root: Folder of the files that rows name; None for the source's own.
        split: Part of the source, where it has several.
        config: Configuration of the source, where it has several.
        trust: Whether pickles in the source may be loaded, which can run any code.
        max_size: Largest size of a tar, in bytes or as ``"500MB"``; a tar with one sample may be larger.
        max_count: Largest number of samples in a tar; None for no limit.
        shuffle: Whether the order is shuffled, the same way each time: files of a folder one by one, other
            sources by their sections, such as row groups and shards. False for the order of the source.
        split_ratio: Shares of the samples in train, val and test, or in split parts by name; None for all in
            ``train``. Samples are dealt at random, the same way each time, with or without ``shuffle``.
        split_patterns: ``NAME:PATTERN`` of tars, as for :func:`finish_dataset`.
        dataset_yaml: Content of ``dataset.yaml``; None for a sample type that fits all samples, or else crude
            samples.
        check: Read all tars back, and compare the samples with their checksums.
        storage_options: Options of the new dataset's file system, such as credentials.
        source_storage_options: The same for the source.
        tmp_path: Local folder for temporary files; None for the system's.
        engine: What runs the processes; None for one a CPU on this machine.
        part: One of several shares of the work, which run as separate jobs; convert without it when all are
            done. None for all of the work.
        progress: Called with the number of parts that are done, and of all parts.
        options: ``classes``, for folders: whether the folders are classes; None to find out.

    Returns:
        Counts, sizes and checksums; None for a share of the work.

    Raises:
        ConfigError: The destination is not empty, and not this conversion with these options; a split part
            with a share would be empty; or arguments are wrong.
        MissingPackageError: The format's package is not installed.
        SourceError: The source is damaged.
        ColumnError: A value does not fit its part; names row and column.
        ObjectChangedError: The source changed while it was read.
        DuplicateKeyError: Two rows have the same key.
        ChecksumError: A tar has other bytes than were written.
        StorageError: A store does not deliver, or the disk is full.

    Example:
        >>> from energon_stream import LocalEngine, convert_dataset
        >>> from pathlib import Path
        >>> rows = "".join(f'{{"text": "line {number}"}}\\n' for number in range(10))
        >>> _ = Path("table.jsonl").write_text(rows)
        >>> report = convert_dataset("table.jsonl", "converted", engine=LocalEngine(0))
        >>> report.samples, report.dataset_yaml["field_map"]
        (10, {'text': 'txt'})
    """
    local = None if tmp_path is None else os.fspath(tmp_path)
    max_size = parse_shard_size(max_size, max_count)
    published = MetadataOptions(split_ratio, split_patterns, dataset_yaml)  # raises before anything is read
    dealing = parse_dealing(split_ratio)
    plan = plan_conversion(
        source,
        kind=kind,
        columns=columns,
        files=files,
        key=key,
        files_root=files_root,
        max_size=max_size,
        max_count=max_count,
        shuffle=shuffle,
        source_storage_options=source_storage_options,
        split=split,
        config=config,
        trust=trust,
        tmp_path=local,
        **options,
    )
    target = StoreSpec(os.fspath(url_or_path), storage_options)
    store, signature = target.open(), plan.signature()
    if dealing and plan.rows is not None:
        Dealer(dealing).check_number(plan.rows, store.url)
    done: list[PartDone] = []
    document = {
        "source": strip_credentials(plan.source.spec.url),
        "kind": plan.source.kind,
        "sections": len(plan.sections),
        "rows": plan.rows,
        "columns": None if plan.columns.parts is None else [str(part) for part in plan.columns.parts],
        "key": plan.columns.key,
        "signature": signature,
        "options": {"max_size": max_size, "max_count": max_count, "split_ratio": dealing},
    }
    if begin_conversion(store, plan.source.spec.url, document):
        _check_finished(target, published)
    else:
        job = ConvertJob(
            plan.source, plan.columns, target, plan.num_parts, max_size, max_count, signature, local, check,
            split_ratio,
        )  # fmt: skip
        rows = [section.rows for section in plan.sections]
        firsts = None if plan.rows is None else [0, *accumulate(count or 0 for count in rows)]
        tasks = [
            ConvertPart(number, plan.sections[a:b], plan.starts[a:b], None if firsts is None else firsts[a])
            for number, (a, b) in enumerate(pairwise(plan.parts))
        ]
        tasks = tasks if part is None else part.of(tasks)
        done = list((engine or LocalEngine()).map(partial(convert_part, job), tasks, on_done=progress))
        if part is not None:
            return None
        shapes = {shape for part in done for shape in part.shapes}
        dataset_yaml = guess_dataset_yaml(sorted(shapes)) if dataset_yaml is None else dataset_yaml
    finish_dataset(
        target.url,
        split_ratio=split_ratio,
        split_patterns=split_patterns,
        dataset_yaml=dataset_yaml,
        storage_options=storage_options,
        tmp_path=tmp_path,
    )
    return _report(plan, target, store, done)


def begin_conversion(store: Store, source: str, document: Mapping[str, Any]) -> bool:
    """Mark a destination as that of a conversion; return whether it is complete already.

    The document says what is converted; its ``signature`` changes with that.
    """
    existing = {entry.path for entry in store.list(META_FOLDER)}
    other = None if CONVERSION in existing else next(iter(store.list()), None)
    if other is not None:  # a job beside this one may just have begun
        existing = {entry.path for entry in store.list(META_FOLDER)}
    if CONVERSION in existing:
        known = json.loads(bytes(store.get(CONVERSION).data))
        # Earlier versions noted no options, and dealt tars.
        before = known.get("options", {"split_ratio": ""})
        for name, value in document.get("options", {}).items():
            if before.get(name, value) != value:
                raise ConfigError(
                    f"the folder has this conversion with other options: {name} was {before[name] or None}",
                    where=store.url,
                    hint="go on with those of before, or convert to a new folder",
                )
        if known.get("signature") != document["signature"]:
            raise ConfigError(
                f"the folder has another conversion, of {known.get('source')}: its source, or the options, are "
                "not the same",
                where=store.url,
                hint="go on with those of before, or convert to a new folder",
            )
        return INFO_JSON in existing
    if f"{_resolved(store.url)}/".startswith(f"{_resolved(source)}/"):
        raise ConfigError(
            "the new dataset would be in the folder of the source",
            where=store.url,
            hint="name another folder",
        )
    if other is not None:
        raise ConfigError(
            f"the folder is not empty: it has {other.path!r:.80}",
            where=store.url,
            hint="convert to a new folder, or remove this one",
        )
    store.put(CONVERSION, json.dumps(document, indent=2).encode())
    return False


def _check_finished(target: StoreSpec, options: MetadataOptions) -> None:
    """Raise ConfigError if a complete dataset has another split or sample type than the options say."""
    metadata = read_metadata(target)
    parts = metadata.split.split_parts
    if options.split_patterns is not None and options.split(metadata.shard_counts) != parts:
        other = "split_patterns"
    elif options.dataset_yaml is not None and options.dataset_yaml != metadata.dataset_yaml:
        other = "the sample type or field map"
    else:
        return
    raise ConfigError(
        f"the conversion is complete already, with other options: {other}",
        where=metadata.url,
        hint="convert to a new folder, or edit .nv-meta/split.yaml and dataset.yaml there",
    )


def _resolved(url: str) -> str:
    return os.path.realpath(local_path(url)) if is_local(url) else url.rstrip("/")


def _report(plan: ConvertPlan, target: StoreSpec, store: Store, done: Sequence[PartDone]) -> ConvertReport:
    metadata = read_metadata(target)
    counts = metadata.shard_counts
    samples = sum(counts.values())
    shapes = sum((Counter(part.shapes) for part in done), Counter[tuple[str, ...]]())
    checksums = read_checksums(store, samples, metadata.info_digest)
    return ConvertReport(
        source=strip_credentials(plan.source.spec.url),
        kind=plan.source.kind,
        sections=len(plan.sections),
        rows=plan.rows,
        samples=samples,
        shards=len(counts),
        size=sum(entry.meta.size for entry in store.list() if entry.path in counts),
        rows_read=sum(part.rows_read for part in done),
        samples_checked=sum(part.checked for part in done),
        digest="" if checksums is None else f"{digest(checksums.tobytes()):016x}",
        split={
            name: sum(counts[shard] for shard in shards)
            for name, shards in metadata.split.split_parts.items()
        },
        left_out=plan.left_out,
        dataset_yaml=metadata.dataset_yaml,
        shapes={", ".join(shape): count for shape, count in shapes.most_common()},
    )
