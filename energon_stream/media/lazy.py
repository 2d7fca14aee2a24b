"""Handles of data that is fetched in the background or when it is needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from energon_stream.media.file_store import FileStore, add_source

if TYPE_CHECKING:
    from energon_stream.samples import SourceInfo

T_co = TypeVar("T_co", covariant=True)


class Lazy(ABC, Generic[T_co]):
    """A handle of data. A sample may hold it through buffers, until the data itself is needed.

    Example:
        >>> from energon_stream import NoCachePool, SystemFileStore
        >>> lazy = NoCachePool().get_lazy(SystemFileStore("s3://data"), "mix.yaml")
        >>> lazy.get()[:10]
        b'__module__'
    """

    @abstractmethod
    def get(self, sample: Any = None) -> T_co:
        """Return the data. Each call returns a value of its own.

        Args:
            sample: A sample or dict to whose ``__sources__`` the source is added.

        Raises:
            EnergonStreamError: The data could not be read or decoded, also in the background.
        """


@dataclass(frozen=True, slots=True)
class DirectLazy(Lazy[T_co]):
    """Reads the data at each call.

    Attributes:
        store: Store that has the data.
        fname: Name of the data.

    Example:
        >>> from energon_stream import DirectLazy, SystemFileStore
        >>> DirectLazy(SystemFileStore("."), "mix.yaml").get()[:10]
        b'__module__'
    """

    store: FileStore[T_co]
    fname: str

    def get(self, sample: Any = None) -> T_co:
        """Read the data; see :class:`Lazy`."""
        return self.store.get(self.fname, sample)


class CachedFile(Protocol):
    """A file that a pool fetches."""

    def load(self, store: FileStore[Any], fname: str) -> tuple[Any, SourceInfo]:
        """Wait for the fetch; return the decoded data and its source. Read the file again if it made room."""


@dataclass(frozen=True, slots=True)
class FileCacheLazy(Lazy[T_co]):
    """Reads a file that a pool fetched. In another process it reads from the store. Pools make it.

    Attributes:
        store: Store that has the data.
        fname: Name of the data.
        file: The pool's file.

    Example:
        >>> from energon_stream import FileStoreCachePool, SystemFileStore
        >>> pool = FileStoreCachePool()
        >>> pool.get_lazy(SystemFileStore("."), "mix.yaml")
        FileCacheLazy(store=SystemFileStore(...), fname='mix.yaml')
        >>> pool.close()
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
    """Data in memory.

    Attributes:
        data: The data.
        name: Name of the data.
    """

    data: T_co = field(repr=False)
    name: str

    def get(self, sample: Any = None) -> T_co:
        """Return the data."""
        return self.data


@dataclass(frozen=True, eq=False)
class StoredLazy(Lazy[T_co]):
    """Data that a pool wrote to disk. The file is removed with this object.

    Attributes:
        name: Name of the data.
        read: Reads the data.
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

    Example:
        >>> from energon_stream import MockLazy
        >>> MockLazy("a.txt", lambda name: f"text of {name}").get()
        'text of a.txt'
    """

    fname: str
    get_fn: Callable[[str], T_co]

    def get(self, sample: Any = None) -> T_co:
        """Call the function."""
        return self.get_fn(self.fname)
