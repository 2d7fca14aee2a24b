"""File stores: data by name, wherever it lies.

Stores are small values: they compare by what they name, travel to other processes, and open nothing before
the first lookup. All of them may be used by several threads.
"""

from __future__ import annotations

import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from energon_stream.errors import FieldError, ObjectNotFoundError, SampleError, UnsupportedStoreError
from energon_stream.samples import SourceInfo
from energon_stream.storage import Store, StoreSpec, Transport, strip_credentials
from energon_stream.storage.buffers import as_bytes
from energon_stream.storage.fork import PerProcess

__all__ = [
    "DecodeFileStore",
    "Decoder",
    "FileStore",
    "PrimaryFileStore",
    "SystemFileStore",
    "add_source",
    "missing_file",
    "open_once",
]

T_co = TypeVar("T_co", covariant=True)

_STORES: PerProcess[Store] = PerProcess()


def open_once(spec: StoreSpec) -> Store:
    """The store of a specification, opened at the first call in this process."""
    return _STORES.map(spec, spec.open)


class Decoder(Protocol):
    """Turns the bytes of a file into a value, by its name."""

    def decode(self, name: str, data: bytes | memoryview, /) -> Any:
        """Decode one file."""


class FileStore(ABC, Generic[T_co]):
    """Data by name; cookers get one for each auxiliary source of their dataset."""

    @abstractmethod
    def __getitem__(self, key: str) -> tuple[T_co, SourceInfo]:
        """The data of a name, and where it was read.

        Raises:
            FieldError: There is no such name.
            SampleError: The data cannot be decoded, or the name is none.
            StorageError: The store did not deliver.
        """

    @abstractmethod
    def get_path(self) -> str:
        """Path or URL of what is looked up in, without credentials."""

    def get(self, key: str, sample: Any = None) -> T_co:
        """The data of a name.

        Args:
            key: The name.
            sample: A sample or dict to whose ``__sources__`` the place is added.
        """
        data, source = self[key]
        add_source(sample, source)
        return data

    def read(self, key: str) -> tuple[Any, SourceInfo]:
        """The data of a name before :meth:`decode`; what cache pools keep."""
        return self[key]

    def decode(self, key: str, data: Any) -> Any:
        """What :meth:`read` gave, to what the store gives."""
        return data

    def get_media_metadata(self, key: str) -> Any:
        """Size and kind of an image, if they were indexed.

        Raises:
            UnsupportedStoreError: They were not, or the store has no index.
        """
        raise UnsupportedStoreError("this store has no media metadata", where=f"{self.get_path()}: {key}")


def add_source(sample: Any, source: SourceInfo) -> None:
    """Note in a sample, if there is one, where some of its data was read."""
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


def missing_file(key: str, store: FileStore[Any]) -> FieldError:
    """The error for a name that a store does not have."""
    return FieldError(
        f"there is no {key!r}", where=store.get_path(), hint="check the name that the sample refers to"
    )


@dataclass(frozen=True, slots=True, init=False)
class SystemFileStore(FileStore[bytes]):
    """A folder of files, by their relative paths; one request for each file.

    Args:
        base_dir: Path or URL of the folder.
        storage_options: Credentials and the like, for URLs.
        transport: ``"auto"``, ``"obstore"`` or ``"fsspec"``.
    """

    spec: StoreSpec

    def __init__(
        self,
        base_dir: str | os.PathLike[str] | StoreSpec,
        *,
        storage_options: Mapping[str, Any] | None = None,
        transport: Transport = "auto",
    ) -> None:
        if not isinstance(base_dir, StoreSpec):
            base_dir = StoreSpec(os.fspath(base_dir), storage_options, transport)
        object.__setattr__(self, "spec", base_dir)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        """Read a file; see :class:`FileStore`."""
        path = posixpath.normpath(key)
        # Names come from data, which must not reach what the user did not name.
        if path.startswith(("/", "..")) or path == ".":
            raise SampleError(f"{key!r} is no file in this folder", where=self.get_path())
        try:
            data = as_bytes(open_once(self.spec).get(path).data)
        except ObjectNotFoundError as error:
            raise missing_file(key, self) from error
        return data, SourceInfo(self.get_path(), key, None, (key,))

    def get_path(self) -> str:
        """Path or URL of the folder."""
        return strip_credentials(self.spec.url)


@dataclass(frozen=True, slots=True)
class DecodeFileStore(FileStore[Any]):
    """Decodes what another store gives.

    Attributes:
        inner: The other store.
        decoder: How; for example a ``SampleDecoder``.
    """

    inner: FileStore[Any]
    decoder: Decoder

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        """Read and decode; see :class:`FileStore`."""
        data, source = self.inner[key]
        return self.decoder.decode(key, data), source

    def get_path(self) -> str:
        """That of the inner store."""
        return self.inner.get_path()

    def read(self, key: str) -> tuple[Any, SourceInfo]:
        """Data that is not decoded."""
        return self.inner.read(key)

    def decode(self, key: str, data: Any) -> Any:
        """Decode the inner store's data."""
        return self.decoder.decode(key, self.inner.decode(key, data))

    def get_media_metadata(self, key: str) -> Any:
        """That of the inner store."""
        return self.inner.get_media_metadata(key)


@dataclass(frozen=True, slots=True)
class PrimaryFileStore(FileStore[Any]):
    """A sample's own dataset.

    Attributes:
        inner: The dataset as a file store.
        current_key: The sample's key. A name that begins with a dot is one of the sample's own parts.
    """

    inner: FileStore[Any]
    current_key: str

    def _full(self, key: str) -> str:
        return f"{self.current_key}{key}" if key.startswith(".") else key

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        """Read a part of this or of another sample; see :class:`FileStore`."""
        return self.inner[self._full(key)]

    def get_path(self) -> str:
        """That of the dataset."""
        return self.inner.get_path()

    def read(self, key: str) -> tuple[Any, SourceInfo]:
        """Data that is not decoded."""
        return self.inner.read(self._full(key))

    def decode(self, key: str, data: Any) -> Any:
        """As the dataset does."""
        return self.inner.decode(self._full(key), data)

    def get_media_metadata(self, key: str) -> Any:
        """That of the dataset."""
        return self.inner.get_media_metadata(self._full(key))
