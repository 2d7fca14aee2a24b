"""The protocol of sources: sections that can be listed, each a stream of rows.

To add a source, derive from :class:`Source`, and name the class in the table of ``detect.py``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    EnergonStreamError,
    ObjectChangedError,
    ObjectNotFoundError,
    SourceError,
)
from energon_stream.index.shard_names import is_inside
from energon_stream.media.ranged_file import open_once
from energon_stream.storage import ListEntry, Store, StoreSpec
from energon_stream.storage.in_order import ordered_map
from energon_stream.urls import is_local, is_url, local_path, parent_url

Row = Mapping[str, Any]
"""Values by column: what JSON can hold, bytes, arrays, images of Pillow, or ``{"bytes": …, "path": …}``."""

SECTION_ROWS = 500
"""Most rows of a section of a table or a folder."""
_READERS = 16
OF_SOME = ("files", "files_root", "split", "config")
"""Options that not all sources have a use for."""
SPLITS = frozenset(["train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"])
"""Names of folders and files that look like split parts."""
KEY = "__key__"
"""Column that is the sample's key, where a source has one."""


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that are read together: a shard, a chunk, a row group, a run of files or lines. Picklable."""

    name: str  # the file, for messages
    rows: int | None  # None if their number shows on reading
    size: int  # bytes of the rows, about; 0 if unknown
    version: str  # changes when the content changes; empty if unknown
    first_row: int = 0  # its number in the file
    place: Any = field(default=None, repr=False)  # what the source needs to read the section

    def row_name(self, row: int) -> str:
        """Return the name of a row of this section, for messages; rows count from 0."""
        return f"{self.name}, row {self.first_row + row}"


@contextmanager
def source_access() -> Iterator[None]:
    """Let errors of credentials name the options of the source, which are not those of the new dataset."""
    try:
        yield
    except AccessDeniedError as error:
        hint = (error.hint or "").replace("storage_options", "source_storage_options")
        raise AccessDeniedError(error.what, where=error.where, hint=hint) from error


@dataclass(frozen=True)
class Source(ABC):
    """A dataset of another format. A picklable value: it holds no open files."""

    kind: ClassVar[str]
    has_columns: ClassVar[bool] = True  # False: rows are samples as they are, without columns to map
    takes: ClassVar[tuple[str, ...]] = ("files", "files_root")  # of ``OF_SOME``
    has_paths: ClassVar[bool] = False  # whether texts in rows may be paths of files
    spec: StoreSpec  # its folder or file
    files: StoreSpec | None = None  # folder that paths in rows are relative to; None for the source's own
    split: str | None = None  # part to read, where the dataset has several
    config: str | None = None  # configuration to read, where the dataset has several
    trust: bool = False  # whether pickles may be loaded, which can run any code
    tmp_path: str | None = None  # local folder for copies of remote files; None for the system's
    shuffle: bool = False  # whether a source that can read rows in any order for nothing shuffles them

    @abstractmethod
    def sections(self) -> list[Section]:
        """List the sections, in order. Raises SourceError if the dataset is damaged or of another format."""

    @abstractmethod
    def rows(self, section: Section, first: int, columns: Collection[str] | None) -> Iterator[Row]:
        """Yield the rows of a section but the ``first``, with the columns that are needed, at least.

        Raises SourceError if it is damaged, and ObjectChangedError if it is not the version that was listed.
        """

    def hints(self) -> Mapping[str, str]:
        """Return the parts that columns should become, as far as the format says so, such as ``jpg``."""
        return {}

    def parts(self, sections: Iterable[Section]) -> set[str]:
        """Return the parts that samples have beside those of columns, as far as the listing says."""
        return set()

    def may_lack_columns(self, section: Section) -> bool:
        """Return whether a row of the section may lack columns that others have."""
        return False

    def unnamed_file(self) -> str:
        """Return a picture or recording beside a table, of which no column names files; empty without one."""
        return ""

    def read_file(self, path: str) -> bytes:
        """Read a file that a row names. Raises ConfigError if the path leaves the folder of the files."""
        folder = self.files or self._folder()
        store = open_once(folder)
        try:
            return bytes(store.get(_below(folder.url, path)).data)
        except ObjectNotFoundError:
            if "\\" not in path:
                raise
        return bytes(store.get(_below(folder.url, path.replace("\\", "/"))).data)  # written on Windows

    def _folder(self) -> StoreSpec:
        return self.spec


@dataclass(frozen=True)
class TableSource(Source):
    """Tables in one file, or in all files of a folder."""

    takes: ClassVar[tuple[str, ...]] = ("files", "files_root", "split")
    suffixes: ClassVar[tuple[str, ...]]

    def sections(self) -> list[Section]:
        store = self.spec.open()
        if self.split is not None and self._is_file():
            raise ConfigError(
                "split= is given, but a file has no splits", where=store.url, hint="leave it out"
            )
        entries = [ListEntry("", store.head(""))] if self._is_file() else self._list(store)
        found = ordered_map(partial(self._cut, store), entries, 1 if store.is_local else _READERS)
        return [section for sections in found for section in sections if section.rows]

    @abstractmethod
    def _cut(self, store: Store, entry: ListEntry) -> list[Section]:
        """Return the sections of a file."""

    def _list(self, store: Store) -> list[ListEntry]:
        found = [entry for entry in store.list() if entry.path.lower().endswith(self.suffixes)]
        if not found:
            raise SourceError(
                f"the folder has no {' or '.join(self.suffixes)} files",
                where=store.url,
                hint="check the path",
            )
        found.sort(key=lambda entry: entry.path)
        splits = {entry.path: _split_of(entry.path) for entry in found}
        names = sorted(set(splits.values()))
        if self.split is not None:
            if self.split not in names:
                known = ", ".join(filter(None, names)) or "none"
                what = f"no split {self.split!r:.80}"
                raise ConfigError(what, where=store.url, hint=f"the names of files and folders have {known}")
            return [entry for entry in found if splits[entry.path] == self.split]
        if len(names) > 1 and all(names):
            raise SourceError(
                f"the files of {', '.join(names)} would be mixed, which look like split parts",
                where=store.url,
                hint=f"convert each to a dataset of its own, by split={names[0]!r}",
            )
        return found

    def _is_file(self) -> bool:
        return self.spec.url.lower().endswith(self.suffixes)

    def _folder(self) -> StoreSpec:
        if not self._is_file():
            return self.spec
        return StoreSpec(parent_url(self.spec.url), self.spec.storage_options, self.spec.transport)


def _split_of(path: str) -> str:
    """Return the split part that a file seems to be of, by the first word of its folder or name; or nothing.

    So Hugging Face's hub has them: ``data/train-00000-of-00002.parquet``, ``test/0.parquet``, ``val.csv``.
    """
    words = [re.split(r"[^a-z]", step.lower(), maxsplit=1)[0] for step in path.split("/")]
    return next((word for word in reversed(words) if word in SPLITS), "")


def _below(folder: str, path: str) -> str:
    """Return a path relative to a folder; an absolute one must lie in it."""
    if is_local(path) and path.startswith("/") and is_local(folder):
        path = path.removeprefix(local_path(folder).rstrip("/") + "/")
    elif is_url(path):
        path = path.removeprefix(folder.rstrip("/") + "/")
    while path.startswith("./"):
        path = path[2:]
    if not path or not is_inside(path):
        raise ConfigError(
            f"the row names the file {path!r:.200}, which is not below the folder of the files",
            where=folder,
            hint="name the folder that has all files by files_root=",
        )
    return path


@contextmanager
def unchanged(spec: StoreSpec, section: Section) -> Iterator[Store]:
    """Yield the store of a section that is an object, and name the errors of its format's package.

    Raises ObjectChangedError if the object, before or after, is not the version that was listed.
    """
    store = open_once(spec)
    where = f"{store.url}/{section.name}"

    def check() -> None:
        if (store.head(section.name).etag or "") != section.version:
            raise changed(where)

    with named_source_errors(where):
        check()
        yield store
        check()


def changed(where: str) -> ObjectChangedError:
    """Return the error for a source that changed while it was read."""
    return ObjectChangedError(
        "the source changed while it was converted",
        where=where,
        hint="convert a copy that nobody writes to, to a new folder",
    )


@contextmanager
def named_source_errors(where: str) -> Iterator[None]:
    """Raise SourceError for whatever a format's package raises, and name the place of one without."""
    try:
        yield
    except SourceError as error:
        raise error if error.where else SourceError(error.what, where=where, hint=error.hint) from error
    except (EnergonStreamError, MemoryError, GeneratorExit):
        raise
    except OSError as error:
        if error.filename is None and error.errno is None:  # pyarrow's words for bad bytes
            raise SourceError(f"it cannot be read: {error}", where=where) from error
        raise
    except Exception as error:
        raise SourceError(
            f"it cannot be read: {type(error).__name__}: {error}",
            where=where,
            hint="it is damaged, or of another format than was found",
        ) from error
