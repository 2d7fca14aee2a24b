"""Objects that hold samples, and the check that they do not change while they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from energon_stream.cache.cached_store import forget
from energon_stream.errors import IndexMismatchError, ObjectChangedError, ObjectNotFoundError, RangeError
from energon_stream.storage import Body, ByteRange, Fetcher, Store


class VersionGuard:
    """Checks that all answers about an object have the same version.

    ``expected`` has versions of an earlier listing by path. They are compared with the first answer, and not
    sent, because not every store can check them.
    """

    def __init__(self, url: str, expected: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._expected = expected or {}
        self._etags: dict[str, str] = {}

    def etag(self, path: str) -> str | None:
        """Return the version of the first answer, if it carried one."""
        return self._etags.get(path)

    def observe(self, path: str, etag: str | None) -> None:
        """Raise ObjectChangedError if an answer has another version than the first or expected one."""
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
    def url(self) -> str:
        """URL of the object, without credentials."""
        return f"{self.store.url}/{self.path}"

    @property
    def etag(self) -> str | None:
        """Version of the first answer, if it carried one."""
        return self.versions.etag(self.path)

    @property
    def written(self) -> int | None:
        """When a local file last changed, whatever time it claims, in nanoseconds; None if it is gone."""
        try:
            return os.stat(os.path.join(self.store.url, self.path).rstrip("/")).st_ctime_ns
        except OSError:  # its bytes are still mapped
            return None

    def observe(self, etag: str | None) -> None:
        """Check the version of an answer; see :meth:`VersionGuard.observe`."""
        self.versions.observe(self.path, etag)

    def get_range(self, byte_range: ByteRange) -> Body:
        """Read a range. Raises ObjectChangedError if the object was replaced since the first answer."""
        body = self.store.get_range(self.path, byte_range, etag=self.etag)
        self.observe(body.etag)
        return body

    def submit(self, fetcher: Fetcher, byte_range: ByteRange, deadline: int = 0) -> Future[Body]:
        """Request a range; see :meth:`Fetcher.submit`. The caller observes the version of the answer."""
        return fetcher.submit(self.store, self.path, byte_range, etag=self.etag, deadline=deadline)

    def spans(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the bytes of the object for which a located range stands."""
        return [(start, stop)]

    def forget(self, byte_range: ByteRange) -> None:
        """Drop the blocks of the disk cache that have bytes of a range."""
        forget(self.store, self.path, byte_range)


@contextmanager
def as_errors_of_shards() -> Iterator[None]:
    """Raise errors of reading a range in the words of a dataset: IndexMismatchError if the index points
    beyond the object, ObjectNotFoundError for a shard.
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
