"""Parquet as a dataset: a sample is a row, a shard a row group, and parts are columns.

The column chunks of a row group are read together, once, and decoded by pyarrow's own reader. The plan of
requests knows samples with bytes of their own, so each row stands for its share of the bytes of its group,
and the requests for rows of a group share one answer.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from energon_stream.arrays import Int64Array, distinct
from energon_stream.errors import ConfigError, LimitError, MetadataError
from energon_stream.imports import LazyModule
from energon_stream.index.dataset import digest_hex
from energon_stream.index.entries import Load
from energon_stream.index.file_format import FileAddress, FileFormat, OpenedFile
from energon_stream.index.objects import ShardObject, VersionGuard
from energon_stream.read.locator import Cut, Locator, RawSample
from energon_stream.read.parquet_footer import CHANGED, pages, parse_footer, read_footer, row_bytes
from energon_stream.samples import METADATA_FIELDS
from energon_stream.storage import Body, ByteRange, Fetcher, Store, shared_fetcher
from energon_stream.tables.reading import chunks_of, table_errors

if TYPE_CHECKING:
    from energon_stream.decode import FileStoreDecoder
    from energon_stream.index.files_index import FilesIndex
    from energon_stream.limits import Limits
    from energon_stream.read.part_ranges import PartSelection
    from energon_stream.read.range_stream import RangeStream
    from energon_stream.read.read_plan import Request

pa: Any = LazyModule("pyarrow", "parquet")
pq: Any = LazyModule("pyarrow.parquet", "parquet")

_GAP, _PIECE = 32 << 10, 8 << 20  # unwanted bytes that are read over; the largest request
_FIRST_ROWS, _BATCH_ROWS = 8, 512  # rows that are decoded before their bytes are counted: first, and at most
_MOST_SHARE = 1 << 20  # bytes for which a row stands: a larger row would be planned alone
KEPT_BYTES = 256 << 20  # decoded row groups that are kept for rows that are planned later
_TABLE_BYTES = 4 << 10  # what a decoded row group takes beside its values
FOOTER_BYTES = 256 << 20  # footers that are kept, as they are in memory
_FOOTER_GROWTH = 8  # a footer in memory, as a multiple of its bytes in the file
FEWEST_FOOTERS = 64  # that are kept, whatever their size: rows of several files are mixed


class ParquetFormat(FileFormat):
    """Files of rows, the columns of which are parts with Python values."""

    name = "parquet"
    suffix = ".parquet"
    dataset_class = "DefaultParquetShardListDatasetFactory"
    shared_facts = 1
    may_be_typed = True
    whole_shards = True

    def open(self, place: FileAddress, limits: Limits) -> OpenedFile:
        """Raise MetadataError if the file has no footer, and LimitError if it claims too much."""
        footer, size = read_footer(place.store, place.path, None, limits)
        with table_errors(place.url):
            metadata = parse_footer(footer, place.url)
            counts = tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
            columns = sorted(str(column) for column in metadata.schema.to_arrow_schema())
        if min(counts, default=0) < 0 or max(counts, default=0) > limits.shard_samples:
            problem = f"a row group is said to have {max(counts):,} rows"
            raise LimitError(**limits.exceeded("shard_samples", problem), where=place.url)
        facts = int(digest_hex(repr(columns).encode())[:8], 16), len(footer)
        return OpenedFile(counts, f"{size}-{digest_hex(footer)}", size, facts)

    def decoder(self, options: Mapping[str, Any], limits: Limits) -> FileStoreDecoder:
        from energon_stream.decode.sample_decoder import SampleDecoder, ValueDecoder

        return ValueDecoder(dict(options.get("decode_map") or {}), SampleDecoder(limits=limits))

    def locator(self, leaf: int, index: Any, offsets: Any, selection: Any) -> ParquetLocator:
        return ParquetLocator(leaf, index, selection)


@dataclass(frozen=True, slots=True)
class _Footer:
    """The footer of a file, and which of its columns are wanted."""

    metadata: Any  # as pyarrow has it
    columns: list[str]  # in order of their names
    chunks: list[int]  # numbers of their column chunks in a row group
    held: int  # bytes in memory
    places: dict[int, _GroupPlace] = field(default_factory=dict)  # of row groups, as they are needed

    @classmethod
    def of(cls, data: bytes, url: str, selection: PartSelection | None) -> _Footer:
        with table_errors(url):
            metadata = parse_footer(data, url)
            names = metadata.schema.to_arrow_schema().names
            paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
        columns = sorted(name for name in names if selection is None or name in selection)
        if not columns:
            hint = f"it has {', '.join(map(repr, names))}"
            raise ConfigError("none of the columns is wanted", where=url, hint=hint)
        odd = {name for name in columns if columns.count(name) > 1 or name in METADATA_FIELDS}
        if odd:
            hint = "rename it, or choose other columns by parts="
            raise MetadataError(f"the column {min(odd)!r} is there twice, or reserved", where=url, hint=hint)
        starts = tuple(f"{name}." for name in columns)
        return cls(
            metadata,
            columns,
            [n for n, path in enumerate(paths) if path in columns or path.startswith(starts)],
            _FOOTER_GROWTH * len(data),
        )


@dataclass(frozen=True, slots=True)
class _GroupPlace:
    """Byte ranges of the wanted column chunks of a row group."""

    runs: list[tuple[int, int]]  # neighbouring chunks as one
    size: int  # bytes of the runs
    shares: int  # bytes for which the rows stand together, from the first byte on
    chunks: list[tuple[int, int]]  # bytes of each chunk

    @classmethod
    def of(cls, footer: _Footer, group: int, file: OpenedFile, url: str, limits: Limits) -> _GroupPlace:
        with table_errors(url):
            chunks = chunks_of(footer.metadata, group, footer.chunks, file.size or 0)
            firsts = [
                min(page for page in (each.dictionary_page_offset, each.data_page_offset) if page)
                for each in chunks
            ]
            ranges = [(at, at + each.total_compressed_size) for at, each in zip(firsts, chunks, strict=True)]
            if any(not 0 < start < stop <= (file.size or 0) for start, stop in ranges):
                raise ValueError(f"row group {group} lies outside the file")
            if any(each.file_path for each in chunks):
                raise ValueError(f"row group {group} lies in another file")
        _check_bytes(sum(each.total_uncompressed_size for each in chunks), group, url, limits)
        runs: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if runs and start <= runs[-1][1] + _GAP:
                start, stop = runs[-1][0], max(stop, runs.pop()[1])
            runs.append((start, stop))
        rows, size = file.counts[group], sum(stop - start for start, stop in runs)
        return cls(runs, size, min(max(size, rows), rows * _MOST_SHARE), ranges)

    def spans(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the bytes of the file for which a range of shares stands."""
        begin, found = self.runs[0][0], []
        first, last = (start - begin) * self.size // self.shares, -((begin - stop) * self.size // self.shares)
        for run, end in self.runs:
            if first < end - run and last > 0:
                found.append((run + max(0, first), min(end, run + last)))
            first, last = first - (end - run), last - (end - run)
        return found


def _check_bytes(size: int, group: int, url: str, limits: Limits) -> None:
    if size > limits.table_bytes:
        told = limits.exceeded("table_bytes", f"row group {group} has {size:,} bytes in the chosen columns")
        told["hint"] += "; or choose fewer columns by parts=, or write smaller row groups"
        raise LimitError(**told, where=url)


class _RowGroup(Future[Body]):
    """A row group on its way, or decoded. Several requests share it, so none of them cancels it."""

    def __init__(self, answers: list[tuple[int, Future[Body]]]) -> None:
        super().__init__()
        self.answers = answers  # by first byte
        self.table: Any = None
        self.held = 0  # bytes of the table
        self.lock = threading.Lock()
        self._arrivals = itertools.count(1)
        for _, answer in answers:
            answer.add_done_callback(self._arrived)

    def cancel(self) -> bool:
        return False

    def _arrived(self, _: Future[Body]) -> None:
        if next(self._arrivals) == len(self.answers):
            failed = [error for _, each in self.answers if (error := each.exception()) is not None]
            if failed:
                self.set_exception(failed[0])
            else:
                self.set_result(Body(memoryview(b""), None, None))


class _Pieces:
    """A file of which only some ranges are there, for pyarrow."""

    closed = False

    def __init__(self, pieces: Sequence[tuple[int, memoryview]], size: int) -> None:
        self._pieces, self._size, self._at = pieces, size, 0

    def between(self, start: int, stop: int) -> memoryview:
        self._at = start
        return memoryview(self.read(stop - start))

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> None:
        self._at = offset + (0, self._at, self._size)[whence]

    def read(self, length: int) -> Any:
        """Return bytes at the position; raise OSError if they are not there."""
        stop, found, at = min(self._size, self._at + length), [], self._at
        for start, piece in self._pieces:
            if start <= at < min(stop, start + len(piece)):
                found.append(piece[at - start : stop - start])
                at += len(found[-1])
        if at < stop:
            raise OSError(f"bytes {at} to {stop} are not of the column chunks that the footer names")
        self._at = stop
        return found[0] if len(found) == 1 else b"".join(found)


@dataclass(frozen=True, slots=True)
class _GroupObject(ShardObject):
    """A row group of a file, whose bytes are requested whole."""

    locator: ParquetLocator
    group: int

    def spans(self, start: int, stop: int) -> list[tuple[int, int]]:
        return self.locator.place(self.group).spans(start, stop)

    def submit(self, fetcher: Fetcher, byte_range: ByteRange, deadline: int = 0) -> Future[Body]:
        return self.locator.fetch(self, fetcher, deadline)


@dataclass(slots=True)
class ParquetLocator(Locator):
    """Locator of one dataset of Parquet files. Its objects are row groups; a sample's key is its number."""

    leaf: int
    index: FilesIndex
    selection: PartSelection | None = None
    store: Store = field(init=False)
    _versions: VersionGuard = field(init=False)
    _first_group: Int64Array = field(init=False)  # number of the first row group of each file
    footers: OrderedDict[int, _Footer] = field(init=False, default_factory=OrderedDict)
    _footer_bytes: int = field(init=False, default=0)
    _loading: set[int] = field(init=False, default_factory=set)
    _groups: WeakValueDictionary[int, _RowGroup] = field(init=False, default_factory=WeakValueDictionary)
    kept: OrderedDict[int, _RowGroup] = field(init=False, default_factory=OrderedDict)
    kept_bytes: int = field(init=False, default=0)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.store = self.index.spec.open()
        self._versions = VersionGuard(self.index.spec.url)
        self._first_group = np.cumsum([0, *(len(file.counts) for file in self.index.opened)])

    @property
    def index_is_local(self) -> bool:
        return self.store.is_local

    @property
    def is_sparse(self) -> bool:
        return self.index.selection is not None

    def claim_loads(self, samples: Int64Array) -> list[Load]:
        """Return loads of footers."""
        files = set(distinct(self.index.file_of(samples)).tolist()) - self._loading
        with self._lock:
            files -= self.footers.keys()
        self._loading |= files
        return [Load(self.store, partial(self._load, file)) for file in sorted(files)]

    def _load(self, file: int, store: Store) -> _Footer:
        place, opened, limits = self.index.place(file), self.index.opened[file], self.index.limits
        try:
            data, size = read_footer(store, place.path, opened, limits)
            if f"{size}-{digest_hex(data)}" != opened.version:
                raise MetadataError("the file has another footer than it had", where=place.url, hint=CHANGED)
            self._keep_footer(file, found := _Footer.of(data, place.url, self.selection))
            return found
        finally:
            self._loading.discard(file)

    def _keep_footer(self, file: int, footer: _Footer) -> None:
        """Keep a footer as the one that was used last, and let go of the oldest that are too much."""
        with self._lock:
            before = self.footers.pop(file, None)
            self._footer_bytes += footer.held - (before.held if before is not None else 0)
            self.footers[file] = footer
            while len(self.footers) > FEWEST_FOOTERS and self._footer_bytes > FOOTER_BYTES:
                self._footer_bytes -= self.footers.popitem(last=False)[1].held

    def _find(self, group: int) -> tuple[int, int, _Footer]:
        """Return the file of a row group, the group's number in it, and the footer."""
        file = int(np.searchsorted(self._first_group, group, side="right")) - 1
        footer = self.footers.get(file)
        if footer is None:
            footer = self._load(file, self.store)
        else:
            self._keep_footer(file, footer)
        return file, group - int(self._first_group[file]), footer

    def place(self, group: int) -> _GroupPlace:
        (file, own, footer), index = self._find(group), self.index
        if own not in footer.places:
            made = _GroupPlace.of(footer, own, index.opened[file], index.place(file).url, index.limits)
            footer.places[own] = made
        return footer.places[own]

    def locate(self, samples: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return row group, first byte and one past the last byte of a row's share: ``[len(samples), 1]``."""
        index = self.index
        groups = index.shard_of(samples)
        starts, stops = np.empty((2, len(samples)), dtype=np.int64)
        for group in distinct(groups).tolist():
            mine, place = groups == group, self.place(group)
            rows, begin = samples[mine] - index.shard_starts[group], place.runs[0][0]
            starts[mine] = begin + rows * place.shares // index.shard_counts[group]
            stops[mine] = begin + (rows + 1) * place.shares // index.shard_counts[group]
        return groups[:, None], starts[:, None], stops[:, None]

    def object(self, number: int) -> _GroupObject:
        file, _, _ = self._find(number)
        return _GroupObject(self.store, self.index.paths[file], self._versions, self, number)

    def fetch(self, shard: _GroupObject, fetcher: Fetcher, deadline: int) -> _RowGroup:
        """Request a row group, unless it is on its way or kept."""
        group, usual = shard.group, ShardObject(shard.store, shard.path, shard.versions)
        runs = self.place(group).runs
        with self._lock:
            found = self._groups.get(group)
            if found is None or (found.done() and found.exception() is not None):
                starts = [(at, stop) for start, stop in runs for at in range(start, stop, _PIECE)]
                ranges = [ByteRange(at, min(at + _PIECE, stop)) for at, stop in starts]
                found = _RowGroup([(each.start, usual.submit(fetcher, each, deadline)) for each in ranges])
                self._groups[group] = found
            before = self.kept.pop(group, None)
            self.kept_bytes += found.held - (before.held if before is not None else 0)
            self.kept[group] = found
            while len(self.kept) > 1 and self.kept_bytes > KEPT_BYTES:
                self.kept_bytes -= self.kept.popitem(last=False)[1].held
            return found

    def _decoded(self, group: int) -> Any:
        """Return the rows of a group as a table, once they have arrived."""
        shard = self.object(group)
        found = self.fetch(shard, shared_fetcher(), -1)
        found.result()
        with found.lock:
            if found.table is None:
                bodies = [(start, answer.result()) for start, answer in found.answers]
                for _, body in bodies:
                    shard.observe(body.etag)
                found.table = self._decode(group, [(start, body.data) for start, body in bodies])
                found.answers = []
                with self._lock:
                    found.held = int(found.table.nbytes) + _TABLE_BYTES
                    self.kept_bytes += found.held if self.kept.get(group) is found else 0
            return found.table

    def _decode(self, group: int, pieces: Sequence[tuple[int, memoryview]]) -> Any:
        """Decode the wanted columns, a few rows at a time, so that a lie of the footer costs little."""
        (number, own, footer), limits = self._find(group), self.index.limits
        url, batches, held, rows = self.index.place(number).url, [], 0, self.index.shard_counts[group]
        with table_errors(url):
            bytes_of = _Pieces(pieces, self.index.opened[number].size or 0)
            chunks = [list(pages(bytes_of.between, *chunk)) for chunk in self.place(group).chunks]
            _check_bytes(sum(page.size for found in chunks for page in found), own, url, limits)
            row = row_bytes(footer.metadata, own, footer.chunks, chunks, pa.PythonFile(bytes_of, mode="r"))
            _check_bytes(row, own, url, limits)
            most = max(1, min(_BATCH_ROWS, limits.table_bytes // max(1, 2 * row)))
            source = pa.PythonFile(bytes_of, mode="r")
            file = pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=False)
            options = {"row_groups": [own], "columns": footer.columns, "use_threads": False}
            for batch in file.iter_batches(min(_FIRST_ROWS, most), **options):
                batches.append(batch)
                held += batch.nbytes
                _check_bytes(held, own, url, limits)
                # Twice the rows, or as many of this size as the limit leaves: a few bytes may be long values.
                fitting = (limits.table_bytes - held) * batch.num_rows // max(1, 4 * batch.nbytes)
                file.reader.set_batch_size(max(1, min(2 * batch.num_rows, fitting, most)))
            table = pa.Table.from_batches(batches)
            if table.num_rows != rows:
                raise ValueError(f"row group {own} has {table.num_rows} rows, and {rows} by the footer")
            return table

    def split(self, request: Request, data: memoryview) -> Cut:
        return self._cut(request.object)

    def _cut(self, group: int) -> Cut:
        (file, _, footer), table = self._find(group), self._decoded(group)
        columns = [(name, table.column(name)) for name in footer.columns]
        path, first = self.index.paths[file] or None, int(self.index.shard_starts[group])

        def cut(sample: int, _: int) -> RawSample:
            parts = {name: column[sample - first] for name, column in columns}
            return RawSample(self.leaf, sample, str(sample), path, parts)

        return cut

    def cut_streams(self, sample: int, streams: Sequence[tuple[int, RangeStream]]) -> RawSample | None:
        return self._cut(streams[0][0])(sample, 0)
