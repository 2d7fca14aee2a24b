"""Files that appear when they are complete."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator

from energon_stream.living import has_ended, process_mark

TEMPORARY_SUFFIX = ".energon-tmp"
"""End of the names of files that are still written. A process that was killed leaves them."""

_DAY = 86400.0  # seconds


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a temporary name beside a path, and rename that file to the path at the end.

    Other processes see the old file or the new one. The folder is made if there is none. If the block raises,
    the temporary file is removed.

    Example:
        >>> with replacing("run/notes.txt") as temporary:
        ...     with open(temporary, "w") as file:
        ...         _ = file.write("done")
        >>> open("run/notes.txt").read()
        'done'
    """
    folder = os.path.dirname(os.fspath(path))
    os.makedirs(folder or ".", exist_ok=True)
    temporary = os.path.join(folder, f".{uuid.uuid4().hex}-{process_mark()}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def remove_temporaries(folder: str) -> None:
    """Remove the temporary files below a folder that processes left which were killed.

    Those of other machines, and of earlier versions, are removed when they are a day old.
    """
    for root, _, names in os.walk(folder):
        for name in names:
            if not (name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)):
                continue
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                ended = has_ended(name.removesuffix(TEMPORARY_SUFFIX))
                if time.time() - os.stat(path).st_mtime > _DAY if ended is None else ended:
                    os.unlink(path)


def write_whole(path: str | os.PathLike[str], content: bytes, mode: int = 0o666) -> None:
    """Write a file that appears when it is complete. The umask takes permissions away from ``mode``."""
    with replacing(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
