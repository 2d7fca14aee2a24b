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
from energon_stream.storage.url import strip_credentials, url_scheme

if TYPE_CHECKING:
    from energon_stream.storage.base import ByteRange

# S3 says 400 to these codes.
_MEANT = {
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"), 403),
    **dict.fromkeys(("RequestTimeout", "IncompleteBody"), 408),
}
_TOO_SHORT = "The object is shorter than its index says; prepare the dataset again."


def object_changed(where: str) -> ObjectChangedError:
    """Return the error for an object whose content version is not the one that was opened."""
    hint = "Prepare the dataset again and start a new run."
    return ObjectChangedError("the object was replaced while it was in use", where=where, hint=hint)


def short_body(wanted: ByteRange, received: str, where: str) -> RangeError:
    """Return the error for an answer with fewer bytes than requested, or other ones."""
    what = f"requested bytes {wanted.start} to {wanted.stop}, but the store has {received}"
    return RangeError(what, where=where, hint=_TOO_SHORT)


class RemoteStore:
    """A base for stores whose clients report errors of their own."""

    is_local = False

    def __init__(self, url: str) -> None:
        self.url = strip_credentials(url).rstrip("/")

    def close(self) -> None:
        """Do nothing: the client is shared, and idle connections end by themselves."""

    def _where(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    def _endpoint(self) -> str:
        """Return the server, for messages."""
        return f"the {url_scheme(self.url)} store"

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

    def _refused(self, path: str, status: int, code: str = "", message: str = "") -> StorageError:
        """Return the error for an HTTP status."""
        endpoint = self._endpoint()
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
                return object_changed(self._where(path))
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
        return kind(f"{what} ({answer})", where=self._where(path), hint=hint or None)

    def _not_partial(self, path: str) -> UnsupportedStoreError:
        """Return the error for a server that answers a range request with the whole object."""
        hint = "Use a server (or proxy) that answers Range requests with 206."
        what = "the server ignores byte ranges and sends whole objects"
        return UnsupportedStoreError(what, where=self._where(path), hint=hint)

    def _broken(self, path: str, problem: str) -> TransientStorageError:
        """Return the error for a connection that failed, broke or stalled."""
        what = f"the connection failed: {strip_credentials(problem)}"
        hint = f"Check that {self._endpoint()} is right and reachable."
        return TransientStorageError(what, where=self._where(path), hint=hint)

    def _no_credentials(self, path: str, what: str) -> AccessDeniedError:
        hint = "Set the store's environment variables, pass storage_options, or anon=True."
        return AccessDeniedError(what, where=self._where(path), hint=hint)
