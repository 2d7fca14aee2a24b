"""Errors for the answers of stores, the same for every transport, and a base for remote stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from energon_stream.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    ThrottledError,
    TransientStorageError,
    UnsupportedStoreError,
)
from energon_stream.storage.url import strip_credentials

if TYPE_CHECKING:
    from energon_stream.storage.base import ByteRange

# S3 says 400 to these codes.
_MEANT = {
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"), 403),
    **dict.fromkeys(("RequestTimeout", "IncompleteBody"), 408),
}
_TOO_SHORT = "The object is shorter than its index says; prepare the dataset again."


def answer_error(status: int, code: str, message: str, *, where: str, endpoint: str) -> StorageError:
    """Return the error for an HTTP status."""
    answer = strip_credentials(
        f"HTTP {status}{' ' + code if code else ''}{': ' + message if message else ''}"
    )
    kind: type[StorageError] = StorageError
    what, hint = "the store refused the request", ""
    match _MEANT.get(code, status) if status == 400 else status:
        case 404:
            kind = ObjectNotFoundError
            what = "no such bucket" if code == "NoSuchBucket" else "no such object or bucket"
            hint = f"Check bucket, key, endpoint ({endpoint}) and region."
        case 401 | 403:
            kind, what = AccessDeniedError, "access denied"
            hint = f"Check key, secret, token, clock and the bucket's policy at {endpoint}."
        case 412:
            return object_changed(where)
        case 416:
            kind, what, hint = RangeError, "the byte range lies beyond the end of the object", _TOO_SHORT
        case 429 | 503:
            kind, what = ThrottledError, "the store is overloaded and rejects requests"
        case 405 | 501:
            kind, what = UnsupportedStoreError, "the store does not offer this request"
        case 301 | 302 | 307 | 308:
            what, hint = "the bucket is elsewhere", f"Check region and endpoint ({endpoint})."
        case meant if meant in (408, 425) or meant >= 500:
            kind, what = TransientStorageError, "the store is busy or failing"
    return kind(f"{what} ({answer})", where=where, hint=hint or None)


def object_changed(where: str) -> ObjectChangedError:
    """Return the error for an object whose content version is not the one that was opened."""
    return ObjectChangedError(
        "the object was replaced while it was in use",
        where=where,
        hint="Prepare the dataset again and start a new run.",
    )


def short_body(wanted: ByteRange, received: str, where: str) -> RangeError:
    """Return the error for an answer with fewer bytes than requested, or other ones."""
    return RangeError(
        f"requested bytes {wanted.start} to {wanted.stop}, but the store has {received}",
        where=where,
        hint=_TOO_SHORT,
    )


def not_partial(where: str) -> UnsupportedStoreError:
    """Return the error for a server that answers a range request with the whole object."""
    return UnsupportedStoreError(
        "the server ignores byte ranges and sends whole objects",
        where=where,
        hint="Use a server (or proxy) that answers Range requests with 206.",
    )


def broken(problem: str, *, where: str, endpoint: str) -> TransientStorageError:
    """Return the error for a connection that failed, broke or stalled."""
    return TransientStorageError(
        f"the connection failed: {strip_credentials(problem)}",
        where=where,
        hint=f"Check that {endpoint} is right and reachable.",
    )


def no_credentials(what: str, where: str) -> AccessDeniedError:
    """Return the error for a client that finds no credentials."""
    hint = "Set the store's environment variables, pass storage_options, or anon=True."
    return AccessDeniedError(what, where=where, hint=hint)


class RemoteStore:
    """A base for stores whose client reports errors of its own."""

    is_local = False

    def __init__(self, url: str) -> None:
        self.url = strip_credentials(url).rstrip("/")

    def close(self) -> None:
        """Do nothing: the client is shared, and idle connections end by themselves."""

    def _where(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    def _name(self, error: Exception, path: str) -> StorageError:
        """Return this library's error for one of the client."""
        raise NotImplementedError

    @contextmanager
    def _named_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            raise self._name(error, path) from error
