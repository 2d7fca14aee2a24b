"""Data that is there when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from energon_stream.media.file_store import FileStore, add_source
from energon_stream.samples import SourceInfo

__all__ = ["CachedFile", "DataLazy", "DirectLazy", "FileCacheLazy", "Lazy", "MockLazy", "StoredLazy"]

T_co = TypeVar("T_co", covariant=True)


class Lazy(ABC, Generic[T_co]):
    """Data to come. Samples may hold it until the data itself is needed, on the far side of any buffer."""

    @abstractmethod
    def get(self, sample: Any = None) -> T_co:
        """The data; each call gives a value of its own.

        Args:
            sample: A sample or dict to whose ``__sources__`` the place is added.

        Raises:
            EnergonStreamError: What reading and decoding raise, in the background too.
        """


@dataclass(frozen=True, slots=True)
class DirectLazy(Lazy[T_co]):
    """Reads at each call.

    Attributes:
        store: Where.
        fname: Name of the data.
    """

    store: FileStore[T_co]
    fname: str

    def get(self, sample: Any = None) -> T_co:
        """Read now; see :class:`Lazy`."""
        return self.store.get(self.fname, sample)


class CachedFile(Protocol):
    """What a pool knows of a file that it fetches."""

    def load(self, store: FileStore[Any], fname: str) -> tuple[Any, SourceInfo]:
        """The decoded data and its source; waits for the fetch, and reads again what is kept no more."""


@dataclass(frozen=True, slots=True)
class FileCacheLazy(Lazy[T_co]):
    """Reads what a pool fetched; in another process, from the store.

    Attributes:
        store: Where the data comes from.
        fname: Name of the data.
        file: What the pool knows of it.
    """

    store: FileStore[T_co]
    fname: str
    file: CachedFile = field(compare=False, repr=False)

    def get(self, sample: Any = None) -> T_co:
        """Wait for the data; see :class:`Lazy`."""
        data, source = self.file.load(self.store, self.fname)
        add_source(sample, source)
        return data  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return DirectLazy, (self.store, self.fname)


@dataclass(frozen=True, slots=True, eq=False)
class DataLazy(Lazy[T_co]):
    """Data that is in memory.

    Attributes:
        data: The data.
        name: What it is called.
    """

    data: T_co = field(repr=False)
    name: str

    def get(self, sample: Any = None) -> T_co:
        """The data itself."""
        return self.data


@dataclass(frozen=True, eq=False)
class StoredLazy(Lazy[T_co]):
    """Data that a pool wrote to its disk; it is removed with this object.

    Attributes:
        name: What it is called.
        read: Reads it.
    """

    name: str
    read: Callable[[], T_co] = field(repr=False)

    def get(self, sample: Any = None) -> T_co:
        """Read the data."""
        return self.read()

    def __reduce__(self) -> tuple[Any, ...]:
        return DataLazy, (self.get(), self.name)


@dataclass(frozen=True, slots=True)
class MockLazy(Lazy[T_co]):
    """Calls a function; for tests, and for data that needs no pool.

    Attributes:
        fname: Name of the data.
        get_fn: Called with the name.
    """

    fname: str
    get_fn: Callable[[str], T_co]

    def get(self, sample: Any = None) -> T_co:
        """Call the function."""
        return self.get_fn(self.fname)
