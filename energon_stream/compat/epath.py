"""``EPath``: paths and URLs as objects, for data preparation scripts and dataset classes."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import os
import posixpath
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import total_ordering
from pathlib import Path
from typing import IO, Any

from energon_stream.atomic_files import replacing
from energon_stream.errors import ConfigError, ObjectNotFoundError, StorageError
from energon_stream.printable import strip_credentials
from energon_stream.storage.in_order import stream_object
from energon_stream.storage.store import Store
from energon_stream.storage.transports import StoreSpec
from energon_stream.urls import (
    DATASETS_VARIABLE,
    is_local,
    join_url,
    local_path,
    parent_url,
    plain_or_dataset,
    url_scheme,
)

DEFAULT_PROFILE_NAME = RESERVED_POSIX_PROFILE_NAME = "__filesystem__"
"""Profile of local paths, as in ``msc://__filesystem__/data``."""

NVDATASET_CACHE_DIR = os.environ.get(DATASETS_VARIABLE)
"""Folder of the datasets that ``dss://name@version`` names, when this module was imported."""

LOCAL_COPY_TMP_DIR = Path(os.environ.get("ENERGON_LOCAL_COPY_TMP_DIR") or "/tmp/energon_local_copy")
"""Folder of the copies that :func:`ensure_local_copy` makes."""


@dataclass(frozen=True, slots=True)
class FileStatus:
    """Size, time and version of a file."""

    key: str  # path within the bucket or the file system, without a leading slash
    content_length: int  # bytes
    last_modified: datetime | None  # None if the store does not tell
    type: str = "file"  # or "directory"
    etag: str | None = None  # None if the store has no versions

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.content_length


@total_ordering
class EPath:
    """A local path or a URL of a store, with the methods of Megatron-Energon's class of this name.

    It is a value: it compares, hashes and pickles by its URL. Credentials come from the environment. Remote
    files are read and written whole. They go through fsspec, which a process may use and still fork workers
    that read by obstore.

    Args:
        initial_path: Path, URL, or another ``EPath``. Local paths become absolute.

    Example:
        >>> path = EPath("s3://data/captions") / ".nv-meta" / "split.yaml"
        >>> path.name, path.is_file(), path.relative_to(EPath("s3://data"))
        ('split.yaml', True, 'captions/.nv-meta/split.yaml')
    """

    __slots__ = ("url",)

    def __init__(self, initial_path: str | os.PathLike[str]) -> None:
        text = os.fspath(initial_path)
        if url_scheme(text) == "rclone":
            warnings.warn("rclone:// means msc://: write msc://", FutureWarning, stacklevel=2)
            text = f"msc{text[len('rclone') :]}"
        if is_local(text):
            local_path(text)  # raises an error if it is none
            self.url: str = _normal(text) if url_scheme(text) == "dss" else plain_or_dataset(text)
        else:
            self.url = _normal(text)

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return strip_credentials(self.url)

    def __repr__(self) -> str:
        return f"EPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.url == other.url if isinstance(other, EPath) else NotImplemented

    def __lt__(self, other: EPath) -> bool:
        return self.url < other.url if isinstance(other, EPath) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.url)

    def __truediv__(self, other: str | os.PathLike[str]) -> EPath:
        """Return the path below this one, or the other path if that is absolute."""
        return EPath(join_url(self.url, os.fspath(other)))

    @property
    def name(self) -> str:
        """Part after the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> EPath:
        """Folder of the path."""
        return EPath(parent_url(self.url) or "/")

    @property
    def display_name(self) -> str:
        """Short name for messages: that of the file or folder, or ``name@version`` of a dataset."""
        return self.profile_path[0] if url_scheme(self.url) == "dss" else self.name

    @property
    def profile_path(self) -> tuple[str, str]:
        """First element of a URL's path, such as the bucket, and the rest; of a local path, no element."""
        first, _, rest = self.url.partition("://")[2].partition("/")
        return first, rest

    @property
    def profile(self) -> str:
        """Profile of an ``msc://`` URL; the scheme of any other, and ``__filesystem__`` for local paths."""
        scheme = url_scheme(self.url)
        if scheme == "file":
            return DEFAULT_PROFILE_NAME
        return self.profile_path[0] if scheme == "msc" else scheme

    @property
    def internal_path(self) -> str:
        """Path within the profile, beginning with a slash."""
        if url_scheme(self.url) == "file":
            return self.url
        first, rest = self.profile_path
        return f"/{rest}" if url_scheme(self.url) == "msc" else f"/{first}/{rest}".rstrip("/")

    def with_suffix(self, suffix: str) -> EPath:
        """Return the path with another suffix such as ``.idx``."""
        stem, _ = posixpath.splitext(self.name)
        return self.parent / f"{stem}{suffix}"

    def relative_to(self, other: EPath) -> str:
        """Return the path from ``other`` to this one. Raises ConfigError if it is not below ``other``."""
        folder = other.url.rstrip("/") + "/"
        if not self.url.startswith(folder):
            raise ConfigError(f"{self} is not below {other}")
        return self.url[len(folder) :]

    def is_local(self) -> bool:
        """Return True for a path of this machine."""
        return is_local(self.url)

    def local_path(self) -> Path:
        """Return a ``pathlib.Path``. Raises ConfigError if the path is remote."""
        if not self.is_local():
            raise ConfigError(f"{self} is not a local path")
        return Path(local_path(self.url))

    def _store(self) -> Store:
        return StoreSpec(self.url, transport="auto" if self.is_local() else "fsspec").open()

    def is_file(self) -> bool:
        """Return True if the file or object exists."""
        with contextlib.suppress(FileNotFoundError):
            self._store().head("")
            return True
        return False

    def is_dir(self) -> bool:
        """Return True if the folder exists; on object storage, if anything is below the path."""
        if self.is_local():
            return self.local_path().is_dir()
        return next(self._store().list(), None) is not None

    def stat(self) -> FileStatus:
        """Return size, time and version of a file, or the time of a local folder.

        Raises StorageError if it cannot be read, as all methods that read or write.
        """
        key = self.internal_path.lstrip("/")
        try:
            found = self._store().head("")
        except ObjectNotFoundError:
            if not (self.is_local() and self.is_dir()):
                raise
            changed = datetime.fromtimestamp(self.local_path().stat().st_mtime, tz=UTC)
            return FileStatus(f"{key}/", 0, changed, "directory")
        return FileStatus(key, found.size, found.last_modified, etag=found.etag)

    def size(self) -> int:
        """Return the size of a file in bytes."""
        return self.stat().content_length

    def read_bytes(self) -> bytes:
        """Read a file."""
        return bytes(self._store().get("").data)

    def read_text(self) -> str:
        """Read a file in UTF-8."""
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes) -> None:
        """Write a file, and create the folders above it."""
        self._store().put("", data)

    def write_text(self, text: str) -> None:
        """Write a file in UTF-8."""
        self.write_bytes(text.encode())

    def open(self, mode: str = "r", **_: Any) -> IO[Any]:
        """Open a file. A remote file is read when it is opened, and written when it is closed.

        The mode is ``"r"``, ``"rb"``, ``"w"`` or ``"wb"``; text is UTF-8. For another, ConfigError is raised.
        Options of reading ahead are ignored.
        """
        if mode not in ("r", "rb", "w", "wb"):
            raise ConfigError(f"the mode is {mode!r}, and must be r, rb, w or wb", where=str(self))
        if mode.startswith("w"):
            binary: IO[bytes] = _Writer(self)
        elif self.is_local():
            self.stat()  # raises the library's error if the file does not exist
            binary = self.local_path().open("rb")
        else:
            binary = io.BytesIO(self.read_bytes())
        return binary if mode.endswith("b") else io.TextIOWrapper(binary, encoding="utf-8")

    def copy(self, target: EPath) -> None:
        """Copy a file."""
        target.write_bytes(self.read_bytes())

    def move(self, target: EPath) -> None:
        """Copy a file, then remove this one."""
        self.copy(target)
        self.unlink()

    def unlink(self) -> None:
        """Remove a file, if it exists."""
        self._store().delete("")

    def mkdir(self, exist_ok: bool = True, parents: bool = False) -> None:
        """Create a local folder. Object storage has no folders, so nothing is done there."""
        if self.is_local():
            try:
                self.local_path().mkdir(exist_ok=exist_ok, parents=parents)
            except OSError as error:
                raise StorageError(
                    f"the folder cannot be created: {error.strerror}", where=str(self)
                ) from error

    def walk(self) -> Iterator[EPath]:
        """Iterate over all files below the folder, sorted."""
        return (self / entry.path for entry in self._store().list())

    def glob(self, pattern: str) -> Iterator[EPath]:
        """Iterate over the files and local folders below the folder that match.

        ``*``, ``?``, ``[0-3]`` and ``[!0-3]`` stand for characters of one name, ``**/`` for any folders.
        """
        if self.is_local():
            found = glob.iglob(pattern, root_dir=self.local_path(), recursive=True)
            return (self / path for path in sorted(found))
        expression = re.compile("".join(map(_translate, _PIECES.split(pattern))))
        return (self / e.path for e in self._store().list() if expression.fullmatch(e.path))


def _normal(url: str) -> str:
    """Resolve ``.`` and ``..`` in a URL."""
    scheme, separator, path = url.partition("://")
    first, slash, rest = path.partition("/")
    if "::" in scheme or scheme in ("http", "https") or not slash:
        return url.rstrip("/")  # a chain, or a URL with a query
    return join_url(f"{scheme}{separator}{first}", rest.strip("/")).rstrip("/")


_PIECES = re.compile(r"(\*\*/|\*|\?|\[[^]]+\])")
_SIGNS = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}


def _translate(piece: str) -> str:
    if piece.startswith("[") and piece.endswith("]"):
        characters = piece[1:-1].replace("\\", r"\\").replace("^", r"\^")
        return f"[^{characters[1:]}]" if characters.startswith("!") else f"[{characters}]"
    return _SIGNS.get(piece) or re.escape(piece)


class _Writer(io.BytesIO):
    """A buffer that is written to a file when it is closed."""

    def __init__(self, target: EPath) -> None:
        super().__init__()
        self._target = target

    def close(self) -> None:
        if not self.closed:
            self._target.write_bytes(self.getvalue())
        super().close()


def ensure_local_copy(path: EPath) -> EPath:
    """Return a local path unchanged, and for a remote file that of a copy, which is made once.

    A file that changed is copied anew. Copies stay until somebody removes them.
    """
    if path.is_local():
        return path
    store = StoreSpec(path.url, transport="fsspec").open()
    version = hashlib.sha256(f"{path.url}\0{store.head('')}".encode()).hexdigest()[:32]
    target = LOCAL_COPY_TMP_DIR / version / path.name
    if not target.exists():
        with replacing(target) as temporary, open(temporary, "wb") as file:
            file.writelines(stream_object(store, ""))
    return EPath(target)
