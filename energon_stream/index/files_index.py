"""Opened datasets of files of one format: a single file, or a prepared folder of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from energon_stream.arrays import Int64Array
from energon_stream.cache.cached_store import read_again
from energon_stream.errors import EmptyDatasetError, LimitError, MetadataError, ObjectNotFoundError
from energon_stream.index.checksums import AllSamples
from energon_stream.index.dataset import DatasetIndex, WebDatasetIndex, digest_hex
from energon_stream.index.file_format import FileAddress, FileFormat, OpenedFile
from energon_stream.index.info_files import META_FOLDER, load_document
from energon_stream.index.yaml_io import read_document
from energon_stream.limits import Limits
from energon_stream.storage import StoreSpec
from energon_stream.urls import split_query

FILES_JSON = f"{META_FOLDER}/files.json"
_AGAIN = "run `energon-stream prepare` again"


@dataclass(frozen=True, slots=True, eq=False)
class FilesIndex(DatasetIndex):
    """Opened files of one format. A sample's key is its number in the dataset."""

    format: FileFormat = field(kw_only=True)
    paths: tuple[str, ...] = field(kw_only=True)  # of the files, in the folder; empty for a single file
    opened: tuple[OpenedFile, ...] = field(kw_only=True)
    limits: Limits = field(kw_only=True, default_factory=Limits.from_environment)
    every: AllSamples | None = field(kw_only=True, default=None)  # numbers in the whole folder
    dataset_yaml: Mapping[str, Any] | None = None  # content of ``dataset.yaml``
    file_starts: Int64Array = field(init=False)  # first sample of each file, and the number of all samples

    def __post_init__(self) -> None:
        DatasetIndex.__post_init__(self)
        counts = [0, *(file.num_samples for file in self.opened)]
        object.__setattr__(self, "file_starts", np.cumsum(counts, dtype=np.int64))

    def place(self, file: int) -> FileAddress:
        return FileAddress.of(self.spec, self.paths[file], self.format)

    def file_of(self, samples: Int64Array) -> Int64Array:
        """Return the number of the file of each sample."""
        return np.searchsorted(self.file_starts, samples, side="right") - 1

    @property
    def version(self) -> str | None:
        """Size and hash of a single file; None for a folder."""
        return None if self.paths[0] else self.opened[0].version

    def is_of(self, version: str) -> bool:
        """Return whether the single file has a version, or has only grown since."""
        return not self.paths[0] and self.format.is_of(self.place(0), self.opened[0], version)

    def content(self, shards: int) -> tuple[str, str] | None:
        ends = np.cumsum([len(file.counts) for file in self.opened])
        versions = [file.version for file in self.opened[: int(np.searchsorted(ends, shards)) + 1]]
        known = [version for version in versions if version is not None]
        if not known or len(known) < len(versions):
            return None
        if not self.paths[0]:
            return "end", known[0].partition("-")[2]
        return "files", digest_hex("\0".join(known).encode())


def open_file(spec: StoreSpec, format: FileFormat, limits: Limits | None = None) -> FilesIndex:
    """Open a single file. Raises what :meth:`FileFormat.open` does, and EmptyDatasetError without samples."""
    limits, place = limits or Limits.from_environment(), FileAddress.of(spec, "", format)
    try:
        opened = read_again(place.index_store, [place.index_path], lambda: format.open(place, limits))
    except ObjectNotFoundError as error:
        if error.where != place.url:
            raise
        hint = f"check the path; for a folder of this name, put a slash at its end: {place.url}/"
        raise ObjectNotFoundError("no such file", where=place.url, hint=hint) from error
    if not opened.num_samples:
        raise EmptyDatasetError("the file has no records", where=place.url, hint="check what wrote it")
    names = (split_query(spec.url)[0].rpartition("/")[2],) * len(opened.counts)
    counts = np.array(opened.counts, dtype=np.int64)
    return FilesIndex(spec, "all", names, counts, format=format, paths=("",), opened=(opened,), limits=limits)


def open_folder(found: WebDatasetIndex, format: FileFormat, limits: Limits) -> FilesIndex:
    """Open a split part of a prepared folder of files.

    The shards of the files are in ``files.json``, if this library prepared the folder.
    """
    spec, store, paths = found.spec, found.spec.open(), found.shard_paths
    where, totals = f"{store.url}/{FILES_JSON}", found.shard_counts.tolist()
    try:
        known = _decode_files(read_document(FILES_JSON, store, limits).data, where, limits)
    except ObjectNotFoundError:  # Megatron-Energon prepared it
        known = {path: OpenedFile((count,)) for path, count in zip(paths, totals, strict=True)}
        if format.whole_shards:
            with ThreadPoolExecutor(16) as pool:
                opened = pool.map(lambda path: format.open(FileAddress.of(spec, path, format), limits), paths)
                known = dict(zip(paths, opened, strict=True))
    files = [known.get(path, OpenedFile(())) for path in paths]
    for path, total, file in zip(paths, totals, files, strict=True):
        if file.num_samples != total:
            what = f"{path!r:.80} has {file.num_samples} samples, and {total} in .info.json"
            raise MetadataError(what, where=where, hint=_AGAIN)
    check_alike(format, zip(paths, files, strict=True), store.url)
    every = found.every
    if every is not None:
        offsets = [np.cumsum([0, *file.counts[:-1]]) for file in files if file.counts]
        firsts = [first for first, file in zip(every.first.tolist(), files, strict=True) if file.counts]
        every = replace(every, first=np.concatenate([*map(np.add, firsts, offsets)]))
    return FilesIndex(
        spec,
        found.split_part,
        tuple(path for path, file in zip(paths, files, strict=True) for _ in file.counts),
        np.array([count for file in files for count in file.counts], dtype=np.int64),
        dataset_yaml=found.dataset_yaml,
        format=format,
        paths=paths,
        opened=tuple(files),
        limits=limits,
        every=every,
    )


def check_alike(format: FileFormat, files: Iterable[tuple[str, OpenedFile]], where: str) -> None:
    """Raise MetadataError if files of a folder, each with its path, cannot be one dataset.

    Files without samples go with all others: the columns of a table without rows often have no types.
    """
    shared = format.shared_facts
    full = ((path, file.facts[:shared]) for path, file in files if file.num_samples)
    one, facts = next(full, ("", ()))
    other = next((path for path, own in full if own != facts), None)
    if other is not None:
        raise MetadataError(
            f"{one!r:.80} and {other!r:.80} have other columns or types",
            where=where,
            hint="give files that differ folders of their own, and mix these by a metadataset",
        )


def encode_files(files: Mapping[str, OpenedFile]) -> bytes:
    """Return the content of ``files.json``."""
    entries = {path: [file.version, file.size, file.counts, file.facts] for path, file in files.items()}
    return json.dumps({"files": entries}).encode()


def _decode_files(data: bytes | memoryview, where: str, limits: Limits) -> dict[str, OpenedFile]:
    """Return what is known of files by path. Raises MetadataError for another form."""
    found = {}
    try:
        for path, (version, size, counts, facts) in load_document(data, where, limits)["files"].items():
            numbers = [size or 0, *counts, *facts]
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError(path)
            if max(counts, default=0) > limits.shard_samples:
                problem = f"{path!r:.80} is said to have {max(counts):,} samples"
                raise LimitError(**limits.exceeded("shard_samples", problem), where=where)
            found[path] = OpenedFile(tuple(counts), version and str(version), size, tuple(facts))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, LimitError):
            raise
        raise MetadataError(
            f"the list of files has a wrong form: {error}", where=where, hint=_AGAIN
        ) from None
    return found
