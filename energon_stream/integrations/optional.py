"""Imports of optional packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from energon_stream.errors import MissingPackageError


@contextmanager
def of_extra(extra: str) -> Iterator[None]:
    """Import the packages of an extra within this block.

    Raises MissingPackageError if a package is not installed, or cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"{error.name or 'a package'} cannot be imported: {error}",
            hint=f"pip install 'energon-stream[{extra}]'",
        ) from error
