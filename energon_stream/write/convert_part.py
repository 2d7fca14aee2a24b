"""Converts one part of a dataset: the work of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from energon_stream.errors import SampleError, SourceError
from energon_stream.index.checksums import checksum_error, digest_samples
from energon_stream.index.info_files import META_FOLDER
from energon_stream.prepare.shard_records import ShardRecord
from energon_stream.printable import counted
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.write.columns import ColumnMap
from energon_stream.write.convert_plan import row_key
from energon_stream.write.journal import WRITING, load_shard
from energon_stream.write.shard_writer import ShardWriter
from energon_stream.write.sources.source import Section, Source


@dataclass(frozen=True, slots=True)
class ConvertJob:
    """The arguments that all parts of a conversion share."""

    source: Source
    columns: ColumnMap
    target: StoreSpec
    parts: int
    max_size: int
    max_count: int | None
    signature: str
    tmp_path: str | None
    check: bool  # whether tars are read back
    split_ratio: Mapping[str, float] | Sequence[float] | None = None  # of samples, if the tars do not say


@dataclass(frozen=True, slots=True)
class ConvertPart:
    """One part of the new dataset."""

    number: int
    sections: tuple[Section, ...]
    starts: tuple[tuple[str, int], ...]  # arguments of ``row_key`` for each section
    first: int | None = None  # number of its first sample in the new dataset, if it is known


@dataclass(frozen=True, slots=True)
class PartDone:
    """Result of a part."""

    rows_read: int  # rows that were read from the source
    checked: int  # samples that were read back
    shapes: Mapping[tuple[str, ...], int]  # number of samples by the names of their parts, sorted


def convert_part(job: ConvertJob, part: ConvertPart) -> PartDone:
    """Convert a part, from where an earlier process stopped, and read its tars back."""
    rows_read, store = 0, job.target.open()
    with ShardWriter(
        job.target.url,
        max_size=job.max_size,
        max_count=job.max_count,
        part=part.number,
        parts=job.parts,
        signature=job.signature,
        publish=False,
        split_ratio=job.split_ratio,
        first=part.first,
        storage_options=job.target.storage_options,
        tmp_path=job.tmp_path,
    ) as writer:
        if not writer.is_complete:
            rows_read = _write(job, part, writer)
        shards = writer.shard_counts
        writer.close()
    records = [load_shard(store, path) for path in shards]
    return PartDone(rows_read, _check(job, part, store, records), _shapes(records))


def _write(job: ConvertJob, part: ConvertPart, writer: ShardWriter) -> int:
    """Write the rows that are not in complete tars yet; return their number."""
    skip, rows_read, needed = writer.written, 0, job.columns.needed
    for section, start in zip(part.sections, part.starts, strict=True):
        if section.rows is not None and skip >= section.rows:
            skip -= section.rows
            continue
        place = skip
        for row in job.source.rows(section, skip, needed):
            where, key = section.row_name(place), row_key(*start, place)
            sample = job.columns.sample(row, where, key, job.source.read_file)
            try:
                writer.write(sample)
            except SampleError as error:
                raise type(error)(f"{where}: {error.what}", where=error.where, hint=error.hint) from error
            place += 1
        if section.rows not in (None, place):
            raise SourceError(
                f"{section.name} has {counted(place, 'row')}, and its index says {section.rows}",
                where=job.source.spec.url,
                hint="it is damaged, or was changed",
            )
        rows_read += place - skip
        skip = 0
    return rows_read


def _check(job: ConvertJob, part: ConvertPart, store: Store, records: list[ShardRecord]) -> int:
    """Compare the samples in the store with the checksums of what was written; return their number.

    A mark keeps another run from reading the tars again.
    """
    mark = f"{WRITING}/{part.number:05d}.checked"
    if not job.check or any(entry.path == mark for entry in store.list(META_FOLDER)):
        return 0
    for record in records:
        path = record.scan.path
        found = digest_samples(store, ListEntry(path, store.head(path)), record.scan.offsets)
        if found != record.digests:
            pairs = enumerate(zip(found, record.digests, strict=False))
            wrong = next((number for number, (a, b) in pairs if a != b), len(found))
            raise checksum_error(f"{store.url}/{path}", wrong)
    store.put(mark, b"")
    return sum(len(record.digests) for record in records)


def _shapes(records: list[ShardRecord]) -> Mapping[tuple[str, ...], int]:
    shapes: Counter[tuple[str, ...]] = Counter()
    for record in records:
        names: list[list[str]] = [[] for _ in record.scan.keys]
        for number, name, _, _ in record.scan.parts:
            names[number].append(name)
        shapes.update(tuple(sorted(each)) for each in names)
    return shapes
