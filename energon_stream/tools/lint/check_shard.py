"""Checks one shard: its tar, its index, and its samples. It runs in any process, and is read once."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptTarError,
    DatasetError,
    DuplicateKeyError,
    EmptyDatasetError,
    EnergonStreamError,
    IndexMismatchError,
    ObjectChangedError,
    StorageError,
    UntrustedPickleError,
)
from energon_stream.index.checksums import checksum_error, digest
from energon_stream.index.index_files import index_path, read_offsets
from energon_stream.printable import counted
from energon_stream.rng import derive_key
from energon_stream.samples import SourceInfo
from energon_stream.storage import ByteRange, ListEntry, Store, StoreSpec
from energon_stream.tar.format import sample_parts
from energon_stream.tar.remarks import merge_remarks
from energon_stream.tar.scan import LinkedParts, ShardScan, scan_shard
from energon_stream.tools.lint.report import Problem, ShardReport
from energon_stream.tools.shard_copies import local_copy

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.config.sample_factory import SampleFactory
    from energon_stream.decode import FileStoreDecoder


_NAMED = 100  # pictures in one remark


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard that is to be checked."""

    path: str  # path of the tar, relative to the dataset
    count: int | None  # number of samples that the metadata names; None for a tar that is not prepared
    # checksum of each sample as little-endian 64-bit integers; None if there are none
    checksums: bytes | None = None
    excluded: frozenset[str] = frozenset()  # keys of samples that nobody uses
    decodes: bool = True  # whether samples are decoded


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """Checks shards of one dataset. It is a value, and travels to other processes."""

    spec: StoreSpec  # the dataset
    decoder: FileStoreDecoder | None  # decodes all parts; None leaves them alone
    factory: SampleFactory | None  # makes samples of parts; None if nobody said what samples are
    share: float = 1.0  # Share of the samples that are looked at. Below 1, only these are fetched.
    seed: int = 0  # which samples these are

    def __call__(self, task: ShardTask) -> ShardReport:
        """Check a shard. Only a store that cannot be reached is an error; all else is in the report."""
        store = self.spec.open()
        if task.decodes and self.decoder is not None:
            _decode_as_workers_do()
        try:
            entry = ListEntry(task.path, store.head(task.path))
            if self.share >= 1:
                return self._check_all(store, entry, task)
            return self._check_some(store, entry, task)
        except FileNotFoundError:
            known = "" if task.count is None else ".info.json names "
            where = f"{store.url}/{task.path}"
            problem: Exception = IndexMismatchError(f"{known}a shard that does not exist", where=where)
        except (DatasetError, ConfigError, ObjectChangedError, AccessDeniedError) as error:
            problem = error
        return ShardReport(task.path, problems=(Problem.of(problem, task.path),))

    def _check_all(self, store: Store, entry: ListEntry, task: ShardTask) -> ShardReport:
        reads_payloads = task.checksums is not None or (task.decodes and self.decoder is not None)
        with local_copy(store, entry, reads_payloads) as copy:
            return self._check_scanned(store, copy.store, entry, task)

    def _check_scanned(self, store: Store, source: Store, entry: ListEntry, task: ShardTask) -> ShardReport:
        """Check a shard whose bytes ``source`` has, and whose index is in ``store``."""
        scan = scan_shard(source, entry)
        problems = [Problem.of(error, task.path) for error in _disagreements(store, scan, task)]
        samples = _Samples(self, task, store.url, LinkedParts(source))
        if source.is_local and (task.decodes or task.checksums is not None):
            data = source.get(entry.path, etag=entry.meta.etag).data
            expected = _checksums(task, len(scan.keys))
            for number, (start, stop) in enumerate(scan.bounds()):
                samples.check(number, data[start:stop], None if expected is None else expected[number])
        keys = _hashes(scan.keys) if task.count is None else b""
        odd = [*merge_remarks([(task.path, scan.remarks)]), *samples.odd_pictures()]
        where = f"{store.url}/{task.path}"
        return replace(
            samples.report(),
            samples=len(scan.keys),
            size=entry.meta.size,
            problems=(*problems, *samples.problems),
            remarks=tuple(Problem("Remark", text, where, None, task.path) for text in odd),
            keys=keys,
        )

    def _check_some(self, store: Store, entry: ListEntry, task: ShardTask) -> ShardReport:
        """Check a share of the samples, which alone are fetched."""
        if task.count is None:
            offsets: Sequence[int] | Int64Array = scan_shard(store, entry).offsets
        else:
            offsets = read_offsets(store, task.path, task.count, 0, task.count)
        count, samples = len(offsets) - 1, _Samples(self, task, store.url, LinkedParts(store))
        expected, size = _checksums(task, count), 0
        draws = np.random.Generator(np.random.Philox(key=derive_key("lint", self.seed, task.path)))
        for number in np.flatnonzero(draws.random(count) < self.share).tolist():
            start, stop = int(offsets[number]), int(offsets[number + 1])
            data = store.get_range(task.path, ByteRange(start, stop), etag=entry.meta.etag).data
            samples.check(number, data, None if expected is None else expected[number])
            size += stop - start
        return replace(samples.report(), samples=count, size=size, problems=tuple(samples.problems))


@dataclass(slots=True)
class _Samples:
    """Checks the samples of one shard."""

    lint: ShardCheck
    task: ShardTask
    url: str
    linked: LinkedParts
    made: int = 0
    failed: int = 0
    refused: int = 0
    problems: list[Problem] = field(default_factory=list)
    decoder: FileStoreDecoder | None = None
    factory: SampleFactory | None = None
    known: dict[str, Any] = field(default_factory=dict)  # values of the parts of one sample
    # Names of the pictures and videos that have something that decoding leaves out.
    pictures: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inner, factory = self.lint.decoder, self.lint.factory
        self.decoder = None if inner is None else decoded_once(inner, self.known)
        if factory is not None:
            self.factory = replace(factory, decoder=self.decoder if factory.decoder is not None else None)

    def odd_pictures(self) -> Iterator[str]:
        """Yield what pictures and videos have that decoding leaves out, with their names."""
        for what, names in self.pictures.items():
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            what = what if len(names) > 1 else what.replace("s have", " has", 1)
            yield f"{len(names):,} {what}: {', '.join(names[:_NAMED])}{more}"

    def report(self) -> ShardReport:
        return ShardReport(self.task.path, made=self.made, failed=self.failed, refused=self.refused)

    def check(self, number: int, data: memoryview, checksum: int | None) -> None:
        """Check a sample, given its bytes with headers and padding."""
        where, key = f"{self.url}/{self.task.path}", None
        errors: list[Exception] = []
        if checksum is not None and digest(data) != checksum:
            errors.append(checksum_error(where, number))
        if self.task.decodes and self.lint.decoder is not None:
            try:
                found = sample_parts(data, 0, len(data))
            except CorruptTarError as error:
                errors.append(IndexMismatchError(f"sample {number}: {error.what}", where=where))
            else:
                key = found.key
                if key in self.task.excluded:
                    return
                parts: dict[str, bytes | memoryview] = {
                    name: data[start:stop]
                    for name, start, stop in zip(found.names, found.starts, found.stops, strict=True)
                }
                if len(parts) < len(found.names):
                    twice = [name for name, times in Counter(found.names).items() if times > 1]
                    what = f"sample {key!r:.80} has the part {twice[0]!r:.80} twice"
                    errors.append(DuplicateKeyError(what, where=where))
                parts |= self.linked.read(self.task.path, key, found.links)
                errors += self._decode(number, key, parts)
        if errors:
            self.failed += 1
            self.problems += [Problem.of(error, self.task.path, key, number) for error in errors]
        elif self.task.decodes and self.lint.decoder is not None:
            self.made += 1

    def _decode(self, number: int, key: str, parts: Mapping[str, bytes | memoryview]) -> list[Exception]:
        """Decode all parts, then make the sample; return the errors."""
        decoder, factory = self.decoder, self.factory
        if decoder is None:
            return []
        errors: list[Exception] = []
        name = f"{self.url}/{self.task.path}: sample {key}"
        self.known.clear()
        for part, data in parts.items():
            try:
                decoder.decode(part, data)
                self._look_at(f"{key}.{part}", data)
            except UntrustedPickleError:
                self.refused += 1
            except EnergonStreamError as error:
                errors.append(_named(error, name, part))
        if errors or factory is None:
            return errors
        source = SourceInfo(self.url, number, self.task.path, tuple(f"{key}.{part}" for part in parts))
        try:
            factory.build(key, parts, restore_key=(), subflavors=None, source=source)
        except (StorageError, MemoryError):
            raise
        except EnergonStreamError as error:
            errors.append(_named(error, name))
        except Exception as error:  # of the dataset's own code
            errors.append(error)
        return errors

    def _look_at(self, name: str, data: bytes | memoryview) -> None:
        from energon_stream.decode.images import IMAGE_EXTENSIONS, image_remarks  # PyTorch is imported now
        from energon_stream.media.av import AV_EXTENSIONS
        from energon_stream.media.av.container import is_rotated

        extension = name.lower().rpartition(".")[2]
        found: list[str] = []
        with suppress(Exception):  # a decoder of the user may know formats that Pillow and PyAV do not
            if extension in IMAGE_EXTENSIONS:
                found = [f"pictures have {what}" for what in image_remarks(bytes(data))]
            elif extension in AV_EXTENSIONS and is_rotated(bytes(data)):
                found = ["videos have a rotation, which is not applied to their frames"]
        for what in found:
            self.pictures.setdefault(what, []).append(name)


def _named(error: EnergonStreamError, name: str, part: str | None = None) -> EnergonStreamError:
    """Return an error that names a sample."""
    found = type(error)(error.what, where=name, hint=error.hint)
    found.__dict__["part"] = part or getattr(error, "part", None)
    return found


def _decode_as_workers_do() -> None:
    """Let a process of an engine decode with one thread, and keep freed memory; not one of the user."""
    if multiprocessing.parent_process() is None:
        return
    import torch

    from energon_stream.loader.resources import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()


def decoded_once(decoder: FileStoreDecoder, known: dict[str, Any]) -> FileStoreDecoder:
    """Return a decoder that decodes each part once, and remembers it in ``known`` until that is cleared."""
    from energon_stream.decode import FileStoreDecoder

    class Once(FileStoreDecoder):
        """Remembers what was decoded."""

        def decode(self, fname: str, data: bytes | memoryview) -> Any:
            """Decode a part; see :class:`FileStoreDecoder`."""
            if fname not in known:
                known[fname] = decoder.decode(fname, data)
            return known[fname]

        def refusal(self, fname: str) -> Any:
            """Return why a part is not decoded; see :class:`FileStoreDecoder`."""
            return decoder.refusal(fname)

    return Once()


def _disagreements(store: Store, scan: ShardScan, task: ShardTask) -> Iterator[DatasetError]:
    """Yield what a tar and its index, or the metadata, say differently, and what no dataset may have."""
    where = f"{store.url}/{task.path}"
    if not scan.keys and task.count is not None:
        yield EmptyDatasetError("the tar has no samples", where=where)
    for key, times in Counter(scan.keys).items() if len({*scan.keys}) < len(scan.keys) else ():
        if times > 1:
            yield DuplicateKeyError(f"{times} samples of the tar have the key {key!r:.80}", where=where)
    if task.count is None:
        return
    if len(scan.keys) != task.count:
        yield IndexMismatchError(
            f"the tar has {counted(len(scan.keys), 'sample')}, .info.json says {task.count}", where=where
        )
        return
    try:
        offsets = read_offsets(store, task.path, task.count, 0, task.count)
    except DatasetError as error:
        yield error
        return
    different = np.flatnonzero(offsets[1:] != np.array(scan.offsets[1:], dtype=np.int64))
    if len(different):
        yield IndexMismatchError(
            f"entry {int(different[0]) + 1} of the index is not where a sample of the tar begins",
            where=f"{store.url}/{index_path(task.path)}",
        )


def _checksums(task: ShardTask, count: int) -> list[int] | None:
    if task.checksums is None or len(task.checksums) != 8 * count:
        return None
    found: list[int] = np.frombuffer(task.checksums, "<u8").tolist()
    return found


def _hashes(keys: Sequence[str]) -> bytes:
    hashes = [digest(key.encode("utf-8", "surrogateescape")) for key in keys]
    return np.array(hashes, dtype="<u8").tobytes()
