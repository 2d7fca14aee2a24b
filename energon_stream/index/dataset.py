"""Opened datasets: the shards of one split part, and how many samples each of them has."""

from __future__ import annotations

import hashlib
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from energon_stream.arguments import DATASET_CONFIG, SPLIT_CONFIG
from energon_stream.cache.cached_store import read_again
from energon_stream.errors import (
    ConfigError,
    EmptyDatasetError,
    MetadataError,
    NotPreparedError,
    ObjectNotFoundError,
    StorageError,
)
from energon_stream.index.checksums import AllSamples, digest
from energon_stream.index.file_format import find_format
from energon_stream.index.index_files import read_offsets
from energon_stream.index.info_files import (
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SplitConfig,
    load_document,
    parse_info,
    parse_split,
)
from energon_stream.index.sample_sizes import MOST_BYTES, Sizes, decode_names, decode_sizes
from energon_stream.index.shard_marks import Marks, decode_marks, marks_bytes
from energon_stream.index.shard_names import conversion_hint, names_tars, path_hint
from energon_stream.index.sqlite_index import INDEX_SQLITE
from energon_stream.index.yaml_io import read_document
from energon_stream.printable import strip_credentials
from energon_stream.storage import Body, Store, StoreSpec, shared_fetcher
from energon_stream.urls import is_local, local_path, shown_url, split_query

if TYPE_CHECKING:
    from concurrent.futures import Future

    from energon_stream.arrays import Int64Array
    from energon_stream.index.kept_index import PlainTars
    from energon_stream.index.sample_names import Names
    from energon_stream.limits import Limits
    from energon_stream.selection import Selection

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Values = TypeVar("_Values", bound="Sizes | Names")
_MARKS_BYTES = 4096  # marks of up to a thousand shards
_FILE_BYTES = 4096  # usual size of a file of metadata; a late one is requested twice


@dataclass(frozen=True, slots=True, eq=False)
class DatasetIndex:
    """An opened dataset of any format: a numbered sequence of samples in shards. A picklable value: it holds
    no open files.
    """

    spec: StoreSpec  # location of the dataset
    split_part: str  # name of the split part
    shard_paths: tuple[str, ...]  # names of the shards, in order; relative to the root in a folder
    shard_counts: Int64Array  # ``int64 [shards]``: number of samples in each shard
    # Keys of the samples that are not to be used, by shard path, also of other split parts. They count as
    # samples.
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    selection: Selection | None = None  # samples of a view; None for all. The other attributes are of all.
    view: Mapping[str, Any] | None = None  # the view as plain values, such as a metadataset has; None for all
    # ``int64 [shards + 1]``: number of the first sample of each shard, and the total.
    shard_starts: Int64Array = field(init=False)

    def __post_init__(self) -> None:
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.shard_counts, dtype=np.int64)])
        object.__setattr__(self, "shard_starts", starts)

    @property
    def name(self) -> str:
        """Location and split part, for messages."""
        return f"{shown_url(self.spec.url)} [{self.split_part}]"

    @property
    def num_samples(self) -> int:
        """Number of samples, excluded ones included."""
        return int(self.shard_starts[-1])

    def shard_of(self, samples: Int64Array) -> Int64Array:
        """Return the shard number of each sample, ``int64``."""
        return np.searchsorted(self.shard_starts, samples, side="right") - 1

    def content(self, shards: int) -> tuple[str, str] | None:
        """Return what tells the samples of the first shards from others of equal names and counts.

        That is a kind and a hash, which stay the same when the dataset is copied or prepared again; None if
        nothing is known. Hashes of different kinds cannot be compared.
        """
        return None

    @property
    def tars(self) -> tuple[WebDatasetIndex, ...]:
        """Datasets of tars of which it is made."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class WebDatasetIndex(DatasetIndex):
    """One split part of a dataset of tars."""

    dataset_yaml: Mapping[str, Any] | None = None  # content of ``dataset.yaml``; None without the file
    # Shards of the split part that are not to be used at all; the other attributes leave them out.
    excluded_shards: tuple[str, ...] = ()
    # Position of each shard in ``.info.json``, which is its number in ``index.sqlite``; None if unknown.
    shard_ids: Int64Array | None = None
    sizes: Sizes | None = (
        None  # of each sample in tar blocks, in place of ``.tar.idx`` files; None if unknown
    )
    names: Names | None = None  # hash of each sample's name, known with the sizes at most
    marks: Marks | None = None  # of the shards; None if the index has none
    # Hash of the first bytes of the first shard, where there are no marks; None before with_starts.
    start: int | None = None
    every: AllSamples | None = None  # numbers of the samples in the whole dataset; None if unknown
    plain: PlainTars | None = None  # tars of a dataset that was not prepared; None for a prepared one
    split_config: str = SPLIT_CONFIG  # file in ``.nv-meta`` that defines the split part

    def is_excluded(self, shard: int, key: str) -> bool:
        """Return True if the sample ``key`` of shard number ``shard`` is not to be used."""
        return bool(self.excluded) and key in self.excluded.get(self.shard_paths[shard], ())

    def content(self, shards: int) -> tuple[str, str] | None:
        if self.marks is not None:
            return "marks", digest_hex(self.marks[:shards].tobytes())
        return None if self.start is None else ("start", f"{self.start:016x}")

    @property
    def tars(self) -> tuple[WebDatasetIndex, ...]:
        return (self,)

    def read_offsets(self, store: Store, shard: int, first: int, last: int) -> Int64Array:
        """Read entries of a shard's index, from the dataset or this node; see the function of this name."""
        count = int(self.shard_counts[shard])
        if self.plain is not None:
            return self.plain.read_offsets(self.plain.tars[shard], count, first, last)
        return read_offsets(store, self.shard_paths[shard], count, first, last)


def digest_hex(data: bytes) -> str:
    """Return a hash of 64 bits."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def identity(index: DatasetIndex, shards: int) -> dict[str, Any]:
    """Identify the data of the first shards: split part, and hash of shard names and counts."""
    counts = np.ascontiguousarray(index.shard_counts[:shards])
    hashed = hashlib.blake2b("\0".join(index.shard_paths[:shards]).encode(), digest_size=8)
    hashed.update(counts.tobytes())
    samples = int(counts.sum())
    found = {"split": index.split_part, "samples": samples, "shards": shards, "hash": hashed.hexdigest()}
    if index.selection is not None:
        found["view"] = index.selection.digest(samples)
    return found


def dataset_kind(url: str) -> str:
    """Return the kind of dataset that a path names, without a request: ``webdataset`` (a folder), ``tars``,
    ``metadataset``, or the name of a file's format.

    Example:
        >>> [dataset_kind(path) for path in ("captions", "mix.yaml", "lines.jsonl", "tars/{0..3}.tar")]
        ['webdataset', 'metadataset', 'jsonl', 'tars']
    """
    if (found := find_format(url)) is not None:
        return found.name
    url, _ = split_query(url)
    if names_tars(url):
        return "tars"
    return "metadataset" if url.endswith((".yaml", ".yml")) else "webdataset"


@dataclass(frozen=True, slots=True)
class DatasetMetadata:
    """Content of a dataset's metadata files."""

    url: str  # root of the dataset
    shard_counts: Mapping[str, int]  # number of samples by shard path, in the order of ``.info.json``
    split: SplitConfig  # content of the split file
    split_url: str  # URL of the split file, for messages
    dataset_yaml: Mapping[str, Any] | None  # content of ``dataset.yaml``; None without the file
    sizes: Sizes | None = None  # size of each sample in tar blocks; None if unknown
    names: Names | None = None  # hash of each sample's name; None if unknown
    marks: Marks | None = None  # of all shards; None if unknown
    info_digest: int = 0  # hash of ``.info.json``


def open_webdataset(
    spec: StoreSpec,
    *,
    split_part: str,
    split_config: str = SPLIT_CONFIG,
    dataset_config: str = DATASET_CONFIG,
    limits: Limits | None = None,
) -> WebDatasetIndex:
    """Open one split part of a prepared dataset.

    In ``.nv-meta``, the file ``split_config`` has the shards of each split part, and ``dataset_config``
    the sample type; ``dataset.yaml`` may be absent. Raises ConfigError if there is no such split part,
    EmptyDatasetError if it has no samples, and the errors of :func:`read_metadata`.
    """
    metadata = read_metadata(
        spec, split_config=split_config, dataset_config=dataset_config, with_sizes=True, limits=limits
    )
    return select_split_part(spec, split_part, metadata)


def read_metadata(
    spec: StoreSpec,
    *,
    split_config: str = SPLIT_CONFIG,
    dataset_config: str = DATASET_CONFIG,
    with_sizes: bool = False,
    limits: Limits | None = None,
) -> DatasetMetadata:
    """Read the metadata files of a dataset with concurrent requests. Files of older names are a fallback.

    If the split file lists a shard that ``.info.json`` does not have, both are read once more: somebody may
    have published the dataset between the two requests. ``with_sizes`` keeps the sizes of the samples, too,
    if the dataset is remote. ``limits`` None stands for those of the environment.

    Raises ObjectNotFoundError if there is no such folder, bucket or named file, NotPreparedError without
    ``.nv-meta`` or split file, MetadataError for a wrong form or file name, and LimitError for a file that is
    too large.
    """
    for name in (split_config, dataset_config):
        if "/" in name or name in ("", ".", ".."):
            raise MetadataError(
                f"{name!r:.80} is no name of a file in {META_FOLDER}",
                where=strip_credentials(spec.url),
                hint="give a file name such as other.yaml",
            )
    store, names = spec.open(), (f"{META_FOLDER}/{split_config}", f"{META_FOLDER}/{dataset_config}")
    files = partial(_read_files, store, *names, with_sizes and not store.is_local, limits)
    read = partial(read_again, store, [INFO_JSON, INDEX_SQLITE, *names], files)
    found = read()
    listed = chain.from_iterable(found.split.split_parts.values())
    return found if all(path in found.shard_counts for path in listed) else read()


def _read_files(
    store: Store, split: str, config: str, with_sizes: bool, limits: Limits | None
) -> DatasetMetadata:
    info, wanted = INFO_JSON, split
    # The end of index.sqlite has marks of the shards, and sizes, if they are few enough.
    size = MOST_BYTES if with_sizes else _MARKS_BYTES
    request = methodcaller("get_suffix", INDEX_SQLITE, size)
    end = shared_fetcher().ask(store, request, deadline=-1, repeatable_bytes=size)
    get = partial(read_document, limits=limits)
    found = ask_all(store, get, [info, split, config])
    if info not in found or split not in found:
        older = {info: INFO_YAML, split: split.removesuffix(".yaml") + ".json"}
        found |= ask_all(store, get, [older[path] for path in (info, split) if path not in found])
        info, split = (path if path in found else older[path] for path in (info, split))
    if info not in found:
        raise _missing_info(store)
    for path, name in ((split, wanted), (config, config)):
        if path not in found and name.rpartition("/")[2] not in (SPLIT_CONFIG, DATASET_CONFIG):
            raise ObjectNotFoundError("no such file", where=f"{store.url}/{name}", hint="check its name")
    if split not in found:
        raise _not_prepared(f"{wanted} not found", store)
    counts = parse_info(found[info].data, f"{store.url}/{info}", limits)
    kept = _kept(store, end, counts, found[info].data, with_sizes)
    return DatasetMetadata(
        store.url,
        counts,
        parse_split(found[split].data, f"{store.url}/{split}", limits),
        f"{store.url}/{split}",
        load_document(found[config].data, f"{store.url}/{config}", limits) if config in found else None,
        *kept,
        digest(found[info].data),
    )


def _kept(
    store: Store, answer: Future[Body], counts: Mapping[str, int], info: memoryview, with_sizes: bool
) -> tuple[Sizes | None, Names | None, Marks | None]:
    """Return sizes and names of all samples, and marks of all shards, as far as they are kept."""
    # Stores may deny access to an object that does not exist.
    with suppress(StorageError):
        tail, samples = answer.result().data, sum(counts.values())
        if (length := marks_bytes(tail)) > len(tail):
            tail = store.get_suffix(INDEX_SQLITE, length).data
        marks = decode_marks(tail, list(counts))
        tail = tail[: len(tail) - length]
        sizes = decode_sizes(tail, samples, info) if with_sizes else None
        return sizes, None if sizes is None else decode_names(tail, samples), marks
    return None, None, None


def ask_all(store: Store, ask: Callable[[str, Store], _T], paths: Iterable[str]) -> dict[str, _T]:
    """Ask the store about each path, concurrently; leave out objects that do not exist."""
    options = {"deadline": -1, "repeatable_bytes": _FILE_BYTES}
    answers = {path: shared_fetcher().ask(store, partial(ask, path), **options) for path in paths}
    found = {}
    for path, answer in answers.items():
        with suppress(ObjectNotFoundError):
            found[path] = answer.result()
    return found


def _not_prepared(what: str, store: Store, also: str = "") -> NotPreparedError:
    hint = f"check the path, or run `energon-stream prepare {store.url}`{also}"
    paths = [entry.path for entry in islice(store.list(), 1000)]
    inner = sorted(path.removesuffix(f"/{INFO_JSON}") for path in paths if path.endswith(f"/{INFO_JSON}"))
    if inner:
        hint = f"pass a dataset in this folder, such as {store.url}/{inner[0]}"
    elif f"/{META_FOLDER}" in store.url:
        hint = f"pass the folder that has {META_FOLDER}"
    elif not paths:
        what, hint = f"{what}, nor any other file", "check the path"
    elif not any(map(names_tars, paths)):
        shown = min(paths, key=lambda path: ("/." in f"/{path}", path))
        what, hint = f"{what}, and no tars, but files such as {shown!r}", conversion_hint(store.url)
        if any(map(find_format, paths)):
            hint += f"; or `energon-stream prepare {shlex.quote(store.url)}` takes the files as they are"
    return NotPreparedError(f"{what}; this dataset is not prepared", where=store.url, hint=hint)


def _missing_info(store: Store) -> NotPreparedError | ObjectNotFoundError:
    """Return the error for a folder without ``.info.json``. Listing a missing bucket raises its own error."""
    if is_local(store.url) and not Path(local_path(store.url)).is_dir():
        return ObjectNotFoundError("no such folder", where=store.url, hint=path_hint(store.url))
    names = [entry.path.rpartition("/")[2] for entry in store.list(META_FOLDER)]
    if not names:
        unprepared = "; to read it unprepared, pass sample_type= (the first use builds an index)"
        return _not_prepared(f"{META_FOLDER} not found", store, unprepared)
    if "index.sqlite" in names and SPLIT_CONFIG not in names:
        return NotPreparedError(
            "this is a plain folder with media metadata; it has no samples",
            where=store.url,
            hint="use it as auxiliary data (aux:)",
        )
    return _not_prepared(f"{INFO_JSON} not found", store)


def select_split_part(spec: StoreSpec, split_part: str, metadata: DatasetMetadata) -> WebDatasetIndex:
    """Return one split part of a dataset, given its metadata; see :func:`open_webdataset`."""
    counts, split, where = metadata.shard_counts, metadata.split, metadata.split_url
    if split_part not in split.split_parts:
        raise ConfigError(
            f"no split part {split_part!r:.80}",
            where=where,
            hint=f"the dataset has {', '.join(split.split_parts) or 'none'}",
        )
    whole, by_shard = _sort_excludes(split.exclude, counts, where)
    listed = split.split_parts[split_part]
    paths = tuple(path for path in listed if path not in whole)
    for path in paths:
        if path not in counts:
            raise MetadataError(
                f"split part {split_part!r} lists shard {path!r}, which is not in {INFO_JSON}",
                where=where,
                hint="correct the name, or run `energon-stream prepare` again",
            )
    shard_counts = np.array([counts[path] for path in paths], dtype=np.int64)
    if not shard_counts.sum():
        filled = [name for name, shards in split.split_parts.items() if any(map(counts.get, shards))]
        raise EmptyDatasetError(
            f"split part {split_part!r} has no samples",
            where=where,
            hint=f"name one of {', '.join(filled) or 'another dataset'}, or give it a share: `energon-stream prepare --split-ratio`",
        )
    numbers = {path: number for number, path in enumerate(counts)}
    ids = np.array([numbers[path] for path in paths], dtype=np.int64)
    all_counts = np.fromiter(counts.values(), dtype=np.int64)
    ends = np.cumsum(all_counts)
    return WebDatasetIndex(
        spec,
        split_part,
        paths,
        shard_counts,
        excluded={shard: frozenset(keys) for shard, keys in by_shard.items()},
        dataset_yaml=metadata.dataset_yaml,
        excluded_shards=tuple(path for path in listed if path in whole),
        shard_ids=ids,
        sizes=_of_shards(metadata.sizes, ends, ids),
        names=_of_shards(metadata.names, ends, ids),
        marks=None if metadata.marks is None else metadata.marks[ids],
        every=AllSamples(int(ends[-1]), metadata.info_digest, (ends - all_counts)[ids]),
        split_config=where.rpartition("/")[2],
    )


def _of_shards(values: _Values | None, ends: Int64Array, shards: Int64Array) -> _Values | None:
    """Return the values of the samples of some shards, by number; ``ends`` has where each shard ends."""
    if values is None:
        return None
    parts = np.split(values, ends[:-1])
    return cast("_Values", np.concatenate([parts[shard] for shard in shards.tolist()]))


def _sort_excludes(
    exclude: Iterable[str], counts: Mapping[str, int], where: str
) -> tuple[set[str], dict[str, set[str]]]:
    """Return the excluded shards, and the keys of excluded samples by shard."""
    whole: set[str] = set()
    by_shard: dict[str, set[str]] = {}
    for entry in exclude:
        shard, slash, key = entry.partition(".tar/")
        if slash and f"{shard}.tar" in counts:
            by_shard.setdefault(f"{shard}.tar", set()).add(key)
        elif entry in counts:
            whole.add(entry)
        else:
            _log.warning("%s excludes %r, which is not a shard or sample of the dataset", where, entry)
    return whole, by_shard
