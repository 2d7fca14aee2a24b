"""Files and folders of a cache: private to their user, and never reached through a link.

A cache may lie in a folder that others can write. So nothing here follows a symbolic link, or uses a file of
another user, except of root. Folders get mode 0700 and files 0600, whatever the umask.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from contextlib import suppress

from energon_stream.cache.locks import LockedFile
from energon_stream.errors import CacheDirectoryError
from energon_stream.logs import log_once

_log = logging.getLogger(__name__)

# Without O_NONBLOCK, opening a named pipe would wait for its other end.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class PrivateFile(LockedFile):
    """A file of a cache, and its locks. Raises CacheDirectoryError for a link, or a file of another user."""

    @staticmethod
    def _open(path: str, flags: int) -> int:
        return open_private(path, flags)


def open_private(path: str, flags: int) -> int:
    """Open a file like ``os.open``; see :class:`PrivateFile`. A new one gets mode 0600."""
    try:
        fd = os.open(path, flags | _SAFE, _FILE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _unsafe(path, "is a symbolic link") from error
    try:
        status = os.fstat(fd)
        _check(path, status, stat.S_ISREG(status.st_mode), "is no regular file")
        if flags & os.O_CREAT and stat.S_IMODE(status.st_mode) != _FILE_MODE:
            _change_mode(fd, status, _FILE_MODE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_private(path: str) -> bytes:
    """Return the content of a file; see :class:`PrivateFile`."""
    with open(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read()


def replace_private(path: str, content: bytes, temporary: str) -> None:
    """Write a file under a temporary name, and give it its name."""
    try:
        with open(open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def make_folder(path: str) -> None:
    """Make a folder with mode 0700. Raises CacheDirectoryError for a link, a file, a folder of others."""
    try:
        os.mkdir(path, _FOLDER_MODE)
    except FileExistsError:
        status = os.lstat(path)
        _check(path, status, stat.S_ISDIR(status.st_mode), "is no folder")
    else:
        os.chmod(path, _FOLDER_MODE)


def make_cache_folder(path: str) -> None:
    """Make the folder that the user named, or check the one that is there.

    The folder may hold other files too. So a folder that exists keeps its mode, but if it is this user's,
    others may no longer write to it. Raises CacheDirectoryError if it, or a link that leads to it, belongs to
    another user.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.isdir(path):
        make_folder(path)
        return
    status = os.stat(path)
    for found in (os.lstat(path), status):
        if not _is_trusted(found):
            raise _unsafe(path, _foreign(found))
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:  # in /tmp, others cannot harm
        if status.st_uid == os.geteuid():
            _change_mode(path, status, stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
        else:
            message = (
                "others may write to the cache directory %s; name a folder in it that only you may write"
            )
            log_once(_log, message, path, key=path)


def make_layout_folder(path: str) -> None:
    """Make the folder that holds all of a cache, or take it from others who might read or write there.

    Earlier versions made folders with the umask's mode. Raises CacheDirectoryError if the folder is a link or
    another user's, or others could write, and have left links or files there.
    """
    make_folder(path)
    status = os.lstat(path)
    if not status.st_mode & _OTHERS:
        return
    _change_mode(path, status, _FOLDER_MODE)
    if status.st_mode & _OTHERS_WRITE:
        try:
            _check_tree(path)
        except CacheDirectoryError:
            _change_mode(path, status, stat.S_IMODE(status.st_mode))  # so that the next process looks again
            raise


def check_locks(path: str) -> None:
    """Raise CacheDirectoryError unless locks on a file work, by locking a byte through two descriptors."""
    byte = (1 << 61, (1 << 61) + 1)
    try:
        with PrivateFile(path, os.O_RDWR | os.O_CREAT) as first, PrivateFile(path, os.O_RDWR) as second:
            # If another process holds the byte, then locks work.
            if not first.try_lock(*byte) or not second.try_lock(*byte):
                return
            problem = "its locks have no effect"
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        problem = f"it has no locks ({error.strerror})"
    raise CacheDirectoryError(
        f"processes cannot share a cache on this file system: {problem}",
        where=path,
        hint="Name a folder on a local disk (ext4, xfs, tmpfs), or run without a cache.",
    )


def _check_tree(path: str) -> None:
    for folder, names, files in os.walk(path):
        for name in (*names, *files):
            inner = os.path.join(folder, name)
            with suppress(FileNotFoundError):
                status = os.lstat(inner)
                is_folder = stat.S_ISDIR(status.st_mode)
                alone = stat.S_ISREG(status.st_mode) and status.st_nlink < 2
                _check(inner, status, is_folder or alone, "is a link, in a folder that others could write")


def _check(path: str, status: os.stat_result, is_right: bool, problem: str) -> None:
    if not is_right:
        raise _unsafe(path, problem)
    if not _is_trusted(status):
        raise _unsafe(path, _foreign(status))


def _is_trusted(status: os.stat_result) -> bool:
    """Return True for a file of this user or of root. Root may use any."""
    return os.geteuid() == 0 or status.st_uid in (0, os.geteuid())


def _foreign(status: os.stat_result) -> str:
    return f"belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"


def _unsafe(path: str, problem: str) -> CacheDirectoryError:
    return CacheDirectoryError(
        f"the cache cannot use this, because it {problem}",
        where=path,
        hint="Remove it, or name a cache directory of your own: each user needs one.",
    )


def _change_mode(file: str | int, status: os.stat_result, mode: int) -> None:
    if status.st_uid == os.geteuid():
        with suppress(OSError):  # the disk may be read-only
            os.chmod(file, mode)
