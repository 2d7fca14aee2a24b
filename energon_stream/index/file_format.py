"""The contract of a file format: where the samples of a file are, and how they are cut out of its bytes.

JSON lines, ``.bin/.idx`` and Parquet are such formats; :func:`register_dataset_format` adds others. All else
(order, reading ahead, the cache, states) is the same for all formats.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from energon_stream.errors import ConfigError
from energon_stream.urls import split_query

if TYPE_CHECKING:
    from energon_stream.arrays import Int64Array
    from energon_stream.decode import FileStoreDecoder
    from energon_stream.limits import Limits
    from energon_stream.storage import Store, StoreSpec

_BUILT_IN = {
    ".jsonl": "energon_stream.index.jsonl_index.JsonlFormat",
    ".bin": "energon_stream.index.bin_idx.BinIdxFormat",
    ".parquet": "energon_stream.read.parquet_format.ParquetFormat",
}
_registered: dict[str, FileFormat] = {}


@dataclass(frozen=True, slots=True)
class FileAddress:
    """Places of a file and of the file that says where its samples are, which may be the same."""

    store: Store
    path: str  # in the store; empty if the store is of this file alone
    index_store: Store
    index_path: str

    @classmethod
    def of(cls, spec: StoreSpec, path: str, format: FileFormat) -> FileAddress:
        """Return the place of a file of a folder, or, with an empty path, of the file that ``spec`` names."""
        store = spec.open()
        if path:
            return cls(store, path, store, format.index_name(path))
        url, query = split_query(spec.url)
        name = format.index_name(url)
        return cls(store, "", store if name == url else replace(spec, url=f"{name}{query}").open(), "")

    @property
    def url(self) -> str:
        """URL of the file, without credentials."""
        return f"{self.store.url}/{self.path}".rstrip("/")

    @property
    def index_url(self) -> str:
        """URL of the file that says where the samples are."""
        return f"{self.index_store.url}/{self.index_path}".rstrip("/")


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """Sample counts, version and size of a file, known before samples are read.

    Example:
        >>> from energon_stream import OpenedFile
        >>> OpenedFile(counts=(100, 20), version="1024-0a1b", size=1024).num_samples
        120
    """

    counts: tuple[int, ...]  # samples of each shard: a run that a shuffle takes as one. Most files are one.
    version: str | None = None  # size and hash, such as ``1024-0a1b``, which tell it from others
    size: int | None = None  # of the file, in bytes
    facts: tuple[int, ...] = ()  # what else the format needs to know

    @property
    def num_samples(self) -> int:
        return sum(self.counts)


class FileFormat(ABC):
    """A format of files with numbered samples. Derive from it, and call :func:`register_dataset_format`.

    Example:
        >>> import numpy as np
        >>> from energon_stream import FileFormat, OpenedFile
        >>> class Letters(FileFormat):
        ...     name, suffix = "letters", ".abc"
        ...     def open(self, place, limits):
        ...         size = place.store.head(place.path).size
        ...         return OpenedFile(counts=(size,), size=size)
        ...     def places(self, store, path, file, first, last):
        ...         starts = np.arange(first, last)
        ...         return np.stack([starts, starts + 1], axis=1)
        ...     def cut(self, row, data, file):
        ...         return {"txt": data}
        >>> Letters().detect("some/file.abc")
        True
    """

    name: ClassVar[str]
    suffix: ClassVar[str]  # of the names of such files
    # Class of Megatron-Energon that reads a folder of them, for ``dataset.yaml``.
    dataset_class: ClassVar[str] = "CrudeWebdataset"
    shared_facts: ClassVar[int] = 0  # number of the first facts that all files of a folder share
    may_be_typed: ClassVar[bool] = False  # whether a field map can name its parts
    whole_shards: ClassVar[bool] = False  # whether no shard is cut by ``max_samples_per_sequence``

    @property
    def page_rows(self) -> int:
        """Samples whose places are read at a time."""
        return 2048

    def detect(self, path: str) -> bool:
        """Return whether a path or URL names a file of this format. No request is made."""
        return path.endswith(self.suffix)

    def index_name(self, name: str) -> str:
        """Return the name of the file that says where the samples of a file are, if that is a second file."""
        return name

    @abstractmethod
    def open(self, place: FileAddress, limits: Limits) -> OpenedFile:
        """Find out how many samples a file has."""

    def places(self, store: Store, path: str, file: OpenedFile, first: int, last: int) -> Int64Array:
        """Return the first byte of each of some samples, and the byte after it: ``int64 [last - first, 2]``.

        Store and path are of the file that holds these places.
        """
        raise NotImplementedError

    def cut(self, row: int, data: memoryview, file: OpenedFile) -> dict[str, Any]:
        """Return the parts of sample number ``row`` of a file: bytes, or values, by name.

        Raises IndexMismatchError if the bytes are no sample.
        """
        raise NotImplementedError

    def decoder(self, options: Mapping[str, Any], limits: Limits) -> FileStoreDecoder:
        """Return what decodes the parts, by default by their names; ``options`` are of ``dataset.yaml``."""
        from energon_stream.decode import SampleDecoder  # imports PyTorch; metadata is read without it

        return SampleDecoder(limits=limits)

    def is_of(self, place: FileAddress, file: OpenedFile, version: str) -> bool:
        """Return whether the samples that a version of a file had are still its first ones."""
        return version == file.version

    def prepare(self, place: FileAddress) -> None:  # noqa: B027 (not all formats need this)
        """Write the separate file that says where samples are, if the format has one."""

    def locator(self, leaf: int, index: Any, offsets: Any, selection: Any) -> Any:
        """Return a locator in place of the usual one, which calls :meth:`places` and :meth:`cut`."""
        return None


def register_dataset_format(format: FileFormat) -> None:
    """Read files of a format as datasets, and prepared folders of them, in this process and its workers.

    Args:
        format: The format. It is asked before those of the library, and travels to workers, so its class must
            be importable there.

    Raises:
        ConfigError: It is no format, or its name is taken.

    Example:
        >>> from energon_stream import FileFormat, register_dataset_format
        >>> class Numbers(FileFormat):  # see FileFormat for a whole one
        ...     name, suffix = "numbers", ".numbers"
        ...     open = places = cut = None
        >>> register_dataset_format(Numbers())
    """
    given: object = format
    if not isinstance(given, FileFormat):
        hint = "derive a class from FileFormat, and pass an object of it"
        raise ConfigError(f"{given!r:.80} is not a format", hint=hint)
    known = _registered.get(format.name, format)
    if type(known) is not type(format) or format.name in ("webdataset", "metadataset", "tars"):
        raise ConfigError(f"there is another format of the name {format.name!r}", hint="choose another name")
    _registered[format.name] = format


@functools.cache
def _built_in(name: str) -> FileFormat:
    made: FileFormat = resolve_name(name)()
    return made


def find_format(path: str) -> FileFormat | None:
    """Return the format of a file by its name alone; None for tars, metadatasets and folders."""
    path, _ = split_query(path)
    for known in _registered.values():
        if known.detect(path):
            return known
    return next((_built_in(name) for suffix, name in _BUILT_IN.items() if path.endswith(suffix)), None)
