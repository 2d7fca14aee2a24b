"""Objects that hold samples, and the check that they do not change while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from energon_stream.errors import IndexMismatchError, ObjectChangedError, ObjectNotFoundError, RangeError

if TYPE_CHECKING:
    from energon_stream.storage.base import Store


class VersionGuard:
    """Checks that all answers about an object have the same version.

    Args:
        url: Root URL of the objects, for messages.
        expected: Versions by path, from an earlier listing. They are compared with the first answer; they are
            not sent, because not every store can check them.
    """

    def __init__(self, url: str, expected: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._expected = expected or {}
        self._etags: dict[str, str] = {}

    def etag(self, path: str) -> str | None:
        """Return the version of the first answer, if it carried one."""
        return self._etags.get(path)

    def observe(self, path: str, etag: str | None) -> None:
        """Check the version of an answer against the first or expected one.

        Raises ObjectChangedError if the versions differ.
        """
        known = etag if etag is None else self._etags.setdefault(path, self._expected.get(path, etag))
        if known != etag:
            raise ObjectChangedError(
                f"the object was replaced while it was being read (version {known}, now {etag})",
                where=f"{self._url}/{path}".rstrip("/"),
                hint="prepare the dataset again and restart from a saved state",
            )


@dataclass(frozen=True, slots=True)
class ShardObject:
    """An object that holds samples: where it is, and which version a reader has seen."""

    store: Store  # store that has the object
    path: str  # path in the store
    versions: VersionGuard  # versions seen so far

    @property
    def etag(self) -> str | None:
        """Version of the first answer, if it carried one."""
        return self.versions.etag(self.path)

    def observe(self, etag: str | None) -> None:
        """Check the version of an answer; see :meth:`VersionGuard.observe`."""
        self.versions.observe(self.path, etag)


@contextmanager
def as_errors_of_shards() -> Iterator[None]:
    """Raise errors of reading a range in the words of a dataset.

    Raises:
        IndexMismatchError: The index points beyond the object.
        ObjectNotFoundError: A shard does not exist.
    """
    try:
        yield
    except RangeError as error:
        raise IndexMismatchError(error.what, where=error.where, hint=error.hint) from error
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            "a shard of the dataset does not exist",
            where=error.where,
            hint="Restore it, or run `energon-stream prepare` again.",
        ) from error
