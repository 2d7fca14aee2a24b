"""Repairs datasets: writes the whole samples of odd tars to a new one, and reports what was changed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import xxhash

from energon_stream.config.fields import parse_field_map
from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import TaskEngine
from energon_stream.errors import (
    DuplicateKeyError,
    EmptyDatasetError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
)
from energon_stream.index.dataset import DatasetMetadata, read_metadata
from energon_stream.index.info_files import META_FOLDER, STAGING
from energon_stream.prepare.publish import MetadataOptions
from energon_stream.prepare.shard_records import ShardRecords
from energon_stream.printable import counted, strip_credentials
from energon_stream.quantities import parse_size
from energon_stream.storage import Store, StoreSpec
from energon_stream.tools.curation.derive import copy_code
from energon_stream.tools.repair import DottedKeys, Duplicates
from energon_stream.tools.repair.repair_plan import RepairPlan, TarReport
from energon_stream.tools.repair.sound_samples import KINDS, RepairRules
from energon_stream.tools.repair.tar_source import examine_section, noted, open_tars
from energon_stream.write.columns import ColumnMap
from energon_stream.write.convert import CONVERSION, begin_conversion
from energon_stream.write.convert_part import ConvertJob, ConvertPart, convert_part
from energon_stream.write.finish import publish_shards
from energon_stream.write.guess import guess_dataset_yaml
from energon_stream.write.journal import WRITING
from energon_stream.write.sources.source import source_access
from energon_stream.write.tar_shard import MAX_SIZE

REPORT = f"{META_FOLDER}/repair.json"


@dataclass(frozen=True, slots=True)
class RepairReport:
    """Result of :func:`repair_dataset`, and the content of ``.nv-meta/repair.json``.

    Attributes:
        source: URL of the source.
        samples: Number of samples in the new dataset.
        dropped: Number of samples that are not in it.
        shards: Number of its shards; 0 after a dry run.
        size: Bytes of its shards.
        changes: Number of changes by kind.
        tars: A report for each tar of the source.
        dotted_keys: The rule for keys with dots that was used.
        dataset_yaml: Content of ``dataset.yaml``; None after a dry run.
        notes: What became of the metadata of the source.

    Example:
        >>> from energon_stream import repair_dataset
        >>> repair_dataset("tars", "sound", dry_run=True).samples
        64
    """

    source: str
    samples: int
    dropped: int
    shards: int
    size: int
    changes: Mapping[str, int]
    tars: tuple[TarReport, ...]
    dotted_keys: str
    dataset_yaml: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def repair_dataset(
    source: str | os.PathLike[str],
    url_or_path: str | os.PathLike[str],
    *,
    dotted_keys: DottedKeys = "auto",
    duplicates: Duplicates = "rename",
    encoding: str | None = None,
    frames: bool = False,
    max_size: int | str = MAX_SIZE,
    max_count: int | None = None,
    split_ratio: Sequence[float] | Mapping[str, float] | None = None,
    split_patterns: Sequence[str] | None = None,
    dataset_yaml: Mapping[str, Any] | None = None,
    check: bool = True,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    source_storage_options: Mapping[str, Any] | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
    engine: TaskEngine | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RepairReport:
    """Write the whole samples of tars, however odd, to a new dataset that is ready for training.

    Tars may be cut off, without an end mark, joined, compressed, damaged in places, or unsorted; they may
    have links, files of operating systems, and names that are not UTF-8. The source is only read. Samples
    keep their order, and each tar becomes one or more shards. A tar is read twice, and a compressed or remote
    one needs its size on the local disk. The same call goes on after a run that was stopped.

    Args:
        source: Folder with tars, prepared or not; or a path of tars.
        url_or_path: New or empty folder, local or any fsspec URL.
        dotted_keys: Where a name is cut in key and part: at the ``first`` dot, as readers do, or at the
            ``last`` one. ``auto`` takes the last one if names say that keys have dots, such as ``22.05.png``
            and ``22.10.png``.
        duplicates: Rule for samples with the same key: later ones get a new key (``rename``), only the
            ``first`` or ``last`` one is kept, or it is an ``error``. If only some of its parts are there
            again in a tar, the last ones count.
        encoding: Encoding of names that are not UTF-8, such as ``cp932``; None to escape their bytes as
            ``%E9``.
        frames: Whether a picture of several frames becomes a part a frame.
        max_size: Largest size of a shard, in bytes or as ``"500MB"``; a shard with one sample may be larger.
        max_count: Largest number of samples in a shard; None for no limit.
        split_ratio: Shares of the shards in train, val and test, or in split parts by name; None for the
            split of the source, or else all in ``train``.
        split_patterns: ``NAME:PATTERN`` of shards, as for :func:`finish_dataset`.
        dataset_yaml: Content of ``dataset.yaml``; None for that of the source if its parts are there, or else
            a sample type that fits all samples.
        check: Read all shards back, and compare the samples with their checksums.
        dry_run: Only report what would be changed; write nothing.
        storage_options: Options of the new dataset's file system, such as credentials.
        source_storage_options: The same for the source.
        tmp_path: Local folder for temporary files; None for the system's.
        engine: What runs the processes; None for one a CPU on this machine.
        progress: Called with the number of steps that are done, and of all: two a tar, or one in a dry run.

    Returns:
        What was changed, in all and by tar. It is in ``.nv-meta/repair.json`` as well.

    Raises:
        ConfigError: The destination lies in the source or is not empty, or arguments are wrong.
        EmptyDatasetError: No tar has a whole sample.
        DuplicateKeyError: A key is there twice, and ``duplicates`` is ``error``.
        MissingPackageError: A tar is compressed, and the package that reads it is not installed.
        ObjectChangedError: The source changed while it was read.
        StorageError: A store does not deliver, or a disk is full.

    Example:
        >>> import io, tarfile
        >>> from pathlib import Path
        >>> from energon_stream import LocalEngine, repair_dataset
        >>> Path("odd").mkdir()
        >>> with tarfile.open("odd/a.tar", "w") as tar:
        ...     for name in ("1.JPG", "2.JPG", "._1.JPG"):
        ...         tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        >>> report = repair_dataset("odd", "repaired", engine=LocalEngine(0))
        >>> report.samples, report.changes
        (2, {'lower_case': 2, 'system_file': 1})
    """
    rules = RepairRules(dotted_keys, duplicates, encoding, frames)
    max_size = parse_size(max_size, "max_size")
    MetadataOptions(split_ratio, split_patterns)  # raises before anything is read
    local = None if tmp_path is None else os.fspath(tmp_path)
    given = os.fspath(source)
    with source_access():
        tars = open_tars(given, source_storage_options, rules, local)
        sections = tars.sections()
    listed = [(section.name, section.size, section.version) for section in sections]
    document = [asdict(rules), listed, max_size, max_count]
    signature = xxhash.xxh3_128_hexdigest(json.dumps(document).encode("utf-8", "surrogateescape"))
    target = None if dry_run else StoreSpec(os.fspath(url_or_path), storage_options)
    store, known = None, set[int]()
    if target is not None:
        store = target.open()
        about = {"source": strip_credentials(given), "kind": tars.kind, "sections": len(sections)}
        if begin_conversion(store, given, about | {"signature": signature}):
            ShardRecords(store, STAGING).remove()
            return _load_report(store)
        known = noted([entry.path for entry in store.list(STAGING)])
    tars, engine = tars.decided(sections), engine or LocalEngine()
    total = len(sections) * (1 if dry_run else 2)

    def count(before: int) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, _: progress(before + done, total)

    tasks = [(number, section, number in known) for number, section in enumerate(sections)]
    metadata, notes = _metadata(tars.spec if not tars.names else None)
    plan = RepairPlan(sections, rules.duplicates, _excluded(metadata, [section.name for section in sections]))
    try:
        for examined in engine.map(
            partial(examine_section, tars, target), tasks, in_order=True, on_done=count(0)
        ):
            plan.add(examined)
        plan.finish(tars.spec.url)
    except (EmptyDatasetError, DuplicateKeyError):
        if store is not None:  # nothing is written: the folder is as it was
            ShardRecords(store, STAGING).remove()
            store.delete(CONVERSION)
        raise
    found = sum((Counter(each.changes) for each in plan.reports), Counter[str]())
    report = RepairReport(
        strip_credentials(given),
        samples=sum(each.samples for each in plan.reports),
        dropped=sum(each.dropped for each in plan.reports),
        shards=0,
        size=0,
        changes={kind: found[kind] for kind in KINDS if found[kind]},
        tars=tuple(plan.reports),
        dotted_keys=tars.rules.dotted_keys,
    )
    if target is None or store is None:
        return report
    job = ConvertJob(
        tars, ColumnMap(None), target, len(sections), max_size, max_count, signature, local, check
    )
    parts = [ConvertPart(n, (section,), (("", 0),)) for n, section in enumerate(plan.sections)]
    done = list(engine.map(partial(convert_part, job), parts, on_done=count(len(sections))))
    shapes = {shape for part in done for shape in part.shapes}
    if dataset_yaml is None and metadata is not None:
        dataset_yaml = _kept_yaml(metadata, shapes, notes)
        if dataset_yaml is not None:
            copy_code(tars.spec.open(), store, metadata)
    dataset_yaml = dataset_yaml or guess_dataset_yaml(sorted(shapes))
    return _publish(
        store,
        report,
        plan,
        metadata,
        MetadataOptions(split_ratio, split_patterns, dataset_yaml),
        notes,
        local,
    )


# --- the metadata of the source, and of the new dataset -----------------------------------------------------


def _metadata(spec: StoreSpec | None) -> tuple[DatasetMetadata | None, list[str]]:
    """Return the metadata of the source, if it is prepared, and notes."""
    try:
        return (None if spec is None else read_metadata(spec)), []
    except (NotPreparedError, ObjectNotFoundError):
        return None, []
    except MetadataError as error:
        return None, [f"the metadata of the source cannot be read: {error.what}"]


def _excluded(metadata: DatasetMetadata | None, names: Collection[str]) -> dict[str, Collection[str] | None]:
    """Return the excluded keys by tar; None for a whole tar."""
    found: dict[str, set[str] | None] = {}
    for entry in () if metadata is None else metadata.split.exclude:
        shard = next((name for name in names if entry == name or entry.startswith(f"{name}/")), None)
        if shard == entry:
            found[shard] = None
        elif shard is not None:
            keys = found.setdefault(shard, set())
            if keys is not None:
                keys.add(entry[len(shard) + 1 :])
    return {**found}


def _kept_yaml(
    metadata: DatasetMetadata, shapes: Collection[tuple[str, ...]], notes: list[str]
) -> Mapping[str, Any] | None:
    """Return the ``dataset.yaml`` of the source; None if a field comes from parts that no sample has."""
    document, parts = metadata.dataset_yaml, {part for shape in shapes for part in shape}
    if document is None:
        return None
    fields = parse_field_map(document["field_map"], metadata.url) if "field_map" in document else ()
    missing = [f.field for f in fields if not any(access.part in parts for access in f.alternatives)]
    if missing:
        notes.append(f"dataset.yaml is new: no sample has the parts for {', '.join(missing)}")
        return None
    notes.append("dataset.yaml is that of the source")
    return document


def _publish(
    store: Store,
    report: RepairReport,
    plan: RepairPlan,
    metadata: DatasetMetadata | None,
    options: MetadataOptions,
    notes: list[str],
    tmp_path: str | None,
) -> RepairReport:
    """Write the report, and then the metadata that makes the dataset visible."""
    records = ShardRecords(store, WRITING, [entry.path for entry in store.list(META_FOLDER)])
    shards, sizes = records.shards(), {entry.path: entry.meta.size for entry in store.list()}
    of_tar: dict[int, list[str]] = {}
    for shard in shards:  # data-00012-000000.tar is of the tar 12, data-000000.tar of the only one
        of_tar.setdefault(int(shard.split("-")[1]) if len(plan.sections) > 1 else 0, []).append(shard)
    split: dict[str, list[str]] | None = None
    if metadata is not None and options.split_ratio is None and options.split_patterns is None:
        places = {section.name: n for n, section in enumerate(plan.sections)}
        split = {
            name: [shard for path in paths if path in places for shard in of_tar.get(places[path], [])]
            for name, paths in metadata.split.split_parts.items()
        }
        left = len(shards) - len({shard for part in split.values() for shard in part})
        notes.append("split.yaml is that of the source")
        if left:
            notes.append(f"in no split part, as their tars were: {counted(left, 'shard')}")
    tars = tuple(replace(tar, shards=tuple(of_tar.get(n, ()))) for n, tar in enumerate(report.tars))
    size = sum(sizes[shard] for shard in shards)
    yaml = options.dataset_yaml
    report = replace(report, shards=len(shards), size=size, tars=tars, dataset_yaml=yaml, notes=tuple(notes))
    store.put(REPORT, json.dumps(asdict(report), indent=1).encode())
    publish_shards(store, shards, options, split=split, tmp_path=tmp_path)
    ShardRecords(store, STAGING).remove()
    return report


def _load_report(store: Store) -> RepairReport:
    """Return the report of a repair that is complete."""
    try:
        found = json.loads(bytes(store.get(REPORT).data))
        tars = [TarReport(**tar | {"shards": tuple(tar["shards"])}) for tar in found.pop("tars")]
        return RepairReport(**found | {"tars": tuple(tars), "notes": tuple(found["notes"])})
    except (ValueError, KeyError, TypeError) as error:
        where = f"{store.url}/{REPORT}"
        raise MetadataError("the report of the repair is damaged", where=where) from error
