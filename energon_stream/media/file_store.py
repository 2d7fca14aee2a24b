"""File stores: look up data by name in a folder, a bucket or a prepared dataset.

Stores are small values. They compare by what they name, travel to other processes, and open nothing before
the first lookup. Several threads may use one.
"""

from __future__ import annotations

import io
import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Generic, Protocol, TypeVar, cast, runtime_checkable

from energon_stream.arrays import as_bytes
from energon_stream.errors import (
    FieldError,
    MissingFileError,
    ObjectNotFoundError,
    SampleError,
    UnsupportedStoreError,
)
from energon_stream.media.ranged_file import FilePlace, RangedFile, open_once
from energon_stream.printable import strip_credentials
from energon_stream.samples import CrudeSample, SourceInfo
from energon_stream.storage import StoreSpec, Transport

T_co = TypeVar("T_co", covariant=True)


class Decoder(Protocol):
    """Turns the bytes of a file into a value, by its name."""

    def decode(self, name: str, data: bytes | memoryview, /) -> Any:
        """Decode one file."""


@runtime_checkable
class FileDecoder(Decoder, Protocol):
    """A decoder that makes values of some files which read their bytes later, by range."""

    def takes_file(self, name: str, /) -> bool:
        """Return True if :meth:`decode_file` is for files of this name."""

    def decode_file(self, name: str, file: BinaryIO, /) -> Any:
        """Return the value of a file that can be moved in. Nothing need be read yet."""


class FileStore(ABC, Generic[T_co]):
    """Data by name. A cooker gets one for each auxiliary dataset (``aux:``) of its dataset.

    Example:
        >>> from energon_stream import FileStore, SourceInfo
        >>> class Squares(FileStore[int]):
        ...     def __getitem__(self, key):
        ...         return int(key) ** 2, SourceInfo("squares", key, None, (key,))
        ...     def get_path(self):
        ...         return "squares"
        >>> Squares().get("3")
        9
    """

    @abstractmethod
    def __getitem__(self, key: str) -> tuple[T_co, SourceInfo]:
        """Return the data of a name, and its source.

        Raises:
            FieldError: The store has no such name.
            SampleError: The data cannot be decoded, or the name is invalid.
            StorageError: The store did not deliver.
        """

    @abstractmethod
    def get_path(self) -> str:
        """Return the path or URL of the folder or dataset, without credentials."""

    def get(self, key: str, sample: Any = None) -> T_co:
        """Return the data of a name.

        Args:
            key: The name.
            sample: A sample or dict to whose ``__sources__`` the source is added.
        """
        data, source = self[key]
        add_source(sample, source)
        return data

    def read(self, key: str) -> tuple[Any, SourceInfo]:
        """Return the data of a name before :meth:`decode`, and its source. Cache pools keep this data."""
        return self[key]

    def decode(self, key: str, data: Any) -> Any:
        """Turn the data of :meth:`read` into the data that the store returns."""
        return data

    def open(self, key: str) -> tuple[BinaryIO, SourceInfo]:
        """Return a file that can be moved in, and its source.

        Folders and prepared datasets read such a file by range, as far as it is read. Other stores read it
        whole.

        Args:
            key: The name.
        """
        data, source = self.read(key)
        return io.BytesIO(data), source

    def get_media_metadata(self, key: str) -> Any:
        """Return the indexed size and format of an image.

        Raises:
            UnsupportedStoreError: They were not indexed, or the store has no index.
        """
        raise UnsupportedStoreError("this store has no media metadata", where=f"{self.get_path()}: {key}")


def add_source(sample: Any, source: SourceInfo) -> None:
    """Add a source to a sample or dict; do nothing for None."""
    if sample is None:
        return
    is_dict = isinstance(sample, dict)
    known = (sample.get("__sources__") if is_dict else sample.__sources__) or ()
    if source in known:
        return
    if is_dict:
        sample["__sources__"] = (*known, source)
    else:
        sample.__sources__ = (*known, source)


def unknown_name(name: str, where: str) -> FieldError:
    """Return the error for a name that an index or a folder does not have."""
    return FieldError(f"there is no {name!r}", where=where, hint="check the name that the sample refers to")


@dataclass(frozen=True, slots=True, init=False)
class FolderFileStore(FileStore[bytes]):
    """A folder of files, looked up by relative path; see ``SystemFileStore``. Each lookup is one request."""

    spec: StoreSpec

    def __init__(
        self,
        base_dir: str | os.PathLike[str] | StoreSpec | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        transport: Transport = "auto",
    ) -> None:
        if not isinstance(base_dir, StoreSpec):
            path = "/" if base_dir is None else os.fspath(base_dir)
            base_dir = StoreSpec(path, storage_options, transport)
        object.__setattr__(self, "spec", base_dir)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Read a file; see :class:`FileStore`."""
        path = self._path(key)
        try:
            data = as_bytes(open_once(self.spec).get(path).data)
        except ObjectNotFoundError as error:
            hint = "check the name that the sample refers to"
            raise MissingFileError(f"there is no {key!r}", where=self.get_path(), hint=hint) from error
        return data, SourceInfo(self.get_path(), key, None, (key,))

    def open(self, key: str) -> tuple[BinaryIO, SourceInfo]:
        """Return a file that is read by range; see :class:`FileStore`."""
        place, source = self.place(key)
        return cast("BinaryIO", RangedFile(place)), source

    def place(self, key: str) -> tuple[FilePlace, SourceInfo]:
        """Return the place of a file, which need not exist, and its source."""
        return FilePlace(self.spec, self._path(key)), SourceInfo(self.get_path(), key, None, (key,))

    def get_path(self) -> str:
        """Return the path or URL of the folder."""
        return strip_credentials(self.spec.url)

    def _path(self, key: str) -> str:
        path = posixpath.normpath(key)
        if self.spec.url == "/":
            path = path.lstrip("/")
        # Names come from data. They must not reach files outside the folder that the user named.
        if path.startswith(("/", "..")) or path == ".":
            raise SampleError(f"{key!r} is not a path within this folder", where=self.get_path())
        return path


@dataclass(frozen=True, slots=True)
class FileStoreWrapper(FileStore[Any]):
    """Delegates to another store, perhaps under other names."""

    inner: FileStore[Any]

    def full_name(self, key: str) -> str:
        """Return the other store's name for a name."""
        return key

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        return self.inner[self.full_name(key)]

    def get_path(self) -> str:
        return self.inner.get_path()

    def read(self, key: str) -> tuple[Any, SourceInfo]:
        return self.inner.read(self.full_name(key))

    def decode(self, key: str, data: Any) -> Any:
        return self.inner.decode(self.full_name(key), data)

    def open(self, key: str) -> tuple[BinaryIO, SourceInfo]:
        return self.inner.open(self.full_name(key))

    def get_media_metadata(self, key: str) -> Any:
        return self.inner.get_media_metadata(self.full_name(key))


@dataclass(frozen=True, slots=True)
class DecodeFileStore(FileStoreWrapper):
    """Decodes the data of another store.

    Attributes:
        inner: The other store.
        decoder: Decodes each file by its name, for example a ``SampleDecoder``.

    Example:
        >>> from energon_stream import DecodeFileStore, SampleDecoder, SystemFileStore
        >>> store = DecodeFileStore(SystemFileStore("captions"), SampleDecoder())
        >>> store.get(".nv-meta/.info.json")["energon_version"]
        '7.4.1'
    """

    decoder: Decoder

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        """Read and decode a file; see :class:`FileStore`. Video and audio are read later, by range."""
        if isinstance(self.decoder, FileDecoder) and self.decoder.takes_file(key):
            file, source = self.inner.open(key)
            return self.decoder.decode_file(key, file), source
        data, source = self.inner[key]
        return self._decoded(key, data), source

    def decode(self, key: str, data: Any) -> Any:
        """Decode the inner store's data."""
        return self._decoded(key, self.inner.decode(key, data))

    def _decoded(self, key: str, data: Any) -> Any:
        is_made = not isinstance(data, (bytes, bytearray, memoryview))  # by a store of the user's own
        return data if is_made else self.decoder.decode(key, data)


@dataclass(frozen=True, slots=True)
class PrimaryFileStore(FileStoreWrapper):
    """The dataset of a sample that is being cooked. The library makes it.

    Attributes:
        inner: The dataset as a file store.
        current_key: The sample's key. A name that begins with a dot means a part of this sample.

    Example:
        >>> from energon_stream import PrimaryFileStore, SystemFileStore
        >>> PrimaryFileStore(SystemFileStore("."), "mix").get(".yaml")[:10]
        b'__module__'
    """

    current_key: str

    def full_name(self, key: str) -> str:
        """Return the sample's key and the name, for one that begins with a dot; else the name."""
        return f"{self.current_key}{key}" if key.startswith(".") else key


@dataclass(frozen=True, slots=True)
class AuxStores:
    """File stores that cookers of one leaf may look things up in. A value that travels to other processes."""

    aux: Mapping[str, FileStore[Any]] = field(default_factory=dict)  # auxiliary stores by name
    primary: FileStore[Any] | None = None  # the leaf itself; None if it has no index of names
    problem: Exception | None = None  # error of the cooker's ``clips``, which the cooker's turn raises
    by_range: Callable[[str], bool] | None = None  # of the parts that were not read; None if all were

    def part(self, sample: CrudeSample, name: str) -> Any:
        """Return a part that was not read with the sample, such as a video; KeyError if there is none."""
        if self.by_range is None or self.primary is None or not self.by_range(name):
            raise KeyError(name)
        try:
            return PrimaryFileStore(self.primary, key_in_shard(sample)).get(f".{name}", sample)
        except FieldError as error:
            raise KeyError(name) from error


def key_in_shard(sample: CrudeSample) -> str:
    """Return a sample's key without its shard."""
    return str(sample["__key__"]).removeprefix(f"{sample['__shard__']}/")
