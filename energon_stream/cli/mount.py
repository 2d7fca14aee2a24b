"""``energon-stream mount``: a read-only file system over a prepared dataset."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from energon_stream.cli.options import dataset_arguments, flag
from energon_stream.cli.terminal import wants_json
from energon_stream.errors import ConfigError, EnergonStreamError, MissingPackageError

if TYPE_CHECKING:
    from energon_stream.tools.file_tree import FileTree

_log = logging.getLogger(__name__)


@click.command()
@dataset_arguments
@click.argument("mountpoint", type=click.Path(file_okay=False))
@flag("-d", "--detach")
@flag("-s", "--sample-folders")
@flag("-w", "--allow-slow")
def mount(
    path: str,
    mountpoint: str,
    storage_options: dict[str, Any] | None,
    detach: bool,
    sample_folders: bool,
    allow_slow: bool,
) -> None:
    """Show the parts of a prepared dataset as read-only files below MOUNTPOINT.

    Files are named key.part. Their bytes are read when a program reads them, also from object storage. Ctrl-C
    or `fusermount3 -u MOUNTPOINT` ends the command. Needs FUSE.
    """
    from energon_stream.index.dataset import dataset_kind
    from energon_stream.storage import StoreSpec
    from energon_stream.tools.file_tree import FileTree

    if dataset_kind(path) != "webdataset":
        raise ConfigError("only a prepared folder of tars can be mounted", where=path)
    fuse = _import_fuse()
    is_mounted = _in_background() if detach else _do_nothing
    tree = FileTree(StoreSpec(path, storage_options), sample_folders=sample_folders, allow_slow=allow_slow)
    ready = json.dumps({"path": path, "mountpoint": mountpoint}) if wants_json() else "Mount is ready to go."
    os.makedirs(mountpoint, exist_ok=True)
    click.echo(f"Mounting {path} at {mountpoint}...", err=wants_json())

    class Operations(FileOperations, fuse.Operations):  # type: ignore[misc, name-defined]
        """The tree's operations, for libfuse."""

        def init(self, path: str) -> None:
            click.echo(ready)
            is_mounted()

    try:
        fuse.FUSE(Operations(tree), mountpoint, foreground=True, ro=True, fsname="energon-stream")
    except RuntimeError as error:  # libfuse has printed why
        raise ConfigError(
            "libfuse cannot mount the folder",
            where=mountpoint,
            hint="check that /dev/fuse exists, and that you may use it",
        ) from error
    click.echo("Closing energon mount.", err=wants_json())


class FileOperations:
    """A tree of files as operations of a file system, whose errors are ``OSError`` with a number.

    Example:
        >>> from energon_stream.storage import StoreSpec
        >>> from energon_stream.tools.file_tree import FileTree
        >>> files = FileOperations(FileTree(StoreSpec("captions"), sample_folders=True))
        >>> files.readdir("/00000000", 0)
        ['.', '..', 'jpg', 'txt']
        >>> files.read("/00000000/txt", 7, 0, 0)
        b'a red c'
    """

    def __init__(self, tree: FileTree) -> None:
        self._tree, self._time, self._owner = tree, time.time(), (os.getuid(), os.getgid())

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Return kind, size and rights of a file or folder."""
        with _numbered_errors():
            size = self._tree.size(path[1:])
            if size is None and not self._tree.is_folder(path[1:]):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        mode = stat.S_IFDIR | 0o555 if size is None else stat.S_IFREG | 0o444
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), self._time)
        ids = {"st_uid": self._owner[0], "st_gid": self._owner[1]}
        return {"st_mode": mode, "st_size": size or 0, "st_nlink": 2 if size is None else 1, **times, **ids}

    def readdir(self, path: str, fh: int) -> list[str]:
        """Return the names in a folder."""
        with _numbered_errors():
            return [".", "..", *self._tree.names(path[1:])]

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Return bytes of a file."""
        with _numbered_errors():
            return self._tree.read(path[1:], offset, size)


@contextmanager
def _numbered_errors() -> Iterator[None]:
    try:
        yield
    except EnergonStreamError as error:
        _log.error("%s", error)  # the message says all
        raise OSError(errno.EIO, os.strerror(errno.EIO)) from error


def _import_fuse() -> Any:
    try:
        import mfusepy
    except ImportError as error:
        raise MissingPackageError(
            "mfusepy is not installed", hint="run `pip install 'energon-stream[mount]'`"
        ) from error
    except OSError as error:
        raise MissingPackageError(
            f"libfuse is not installed: {error}", hint="apt-get install fuse3, or its like"
        ) from error
    return mfusepy


def _do_nothing() -> None: ...


def _in_background() -> Callable[[], None]:
    """Fork: the parent ends when the child is ready or has ended.

    The child gets what it calls when it is ready; its output goes nowhere from then on.
    """
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        os._exit(0 if os.read(reading, 1) else 1)
    os.close(reading)
    os.setsid()

    def ready() -> None:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.write(writing, b".")
        os.close(writing)

    return ready
