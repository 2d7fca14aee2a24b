"""Errors for the answers of stores, the same for every transport."""

from __future__ import annotations

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

_DENIED_CODES = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired")  # S3 says 400 to these
_TRANSIENT = ((400, "RequestTimeout"), (400, "IncompleteBody"))


def answer_error(status: int, code: str, message: str, *, where: str, endpoint: str) -> StorageError:
    """Return the error for an HTTP status."""
    answer = strip_credentials(
        f"HTTP {status}{' ' + code if code else ''}{': ' + message if message else ''}"
    )
    if status == 404:
        what = "no such bucket" if code == "NoSuchBucket" else "no such object or bucket"
        hint = f"Check bucket, key, endpoint ({endpoint}) and region."
        return ObjectNotFoundError(f"{what} ({answer})", where=where, hint=hint)
    if status in (401, 403) or code in _DENIED_CODES:
        hint = f"Check key, secret, token, clock and the bucket's policy at {endpoint}."
        return AccessDeniedError(f"access denied ({answer})", where=where, hint=hint)
    if status == 412:
        return object_changed(where)
    if status == 416:
        return RangeError(
            f"the byte range lies beyond the end of the object ({answer})",
            where=where,
            hint="The object is shorter than its index says; prepare the dataset again.",
        )
    if status in (429, 503):
        return ThrottledError(f"the store is overloaded and rejects requests ({answer})", where=where)
    if status in (408, 425) or (status >= 500 and status != 501) or (status, code) in _TRANSIENT:
        return TransientStorageError(f"the store is busy or failing ({answer})", where=where)
    if status in (301, 302, 307, 308):
        return StorageError(
            f"the bucket is elsewhere ({answer})",
            where=where,
            hint=f"Check region and endpoint ({endpoint}).",
        )
    if status in (405, 501):
        return UnsupportedStoreError(f"the store does not offer this request ({answer})", where=where)
    return StorageError(f"the store refused the request ({answer})", where=where)


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
        hint="The object is shorter than its index says; prepare the dataset again.",
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
