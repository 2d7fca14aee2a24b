"""Errors for the answers of stores, the same for every transport, and a base for remote stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from energon_stream.errors import (
    AccessDeniedError,
    BadAnswerError,
    ConfigError,
    ObjectChangedError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    ThrottledError,
    TransientStorageError,
    UnsupportedStoreError,
)
from energon_stream.printable import strip_credentials
from energon_stream.storage._causes import CERTIFICATE
from energon_stream.storage.secrets import redact, secrets_in
from energon_stream.storage.settings import find_proxy
from energon_stream.storage.store import ByteRange
from energon_stream.urls import url_scheme

T = TypeVar("T")
ErrorT = TypeVar("ErrorT", bound=StorageError)

# S3 says 400 to these codes.
_MEANT = {
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"), 403),
    **dict.fromkeys(("RequestTimeout", "IncompleteBody"), 408),
    **dict.fromkeys(("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"), 301),
}
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_PANIC = "check endpoint, region and credentials for signs that do not belong there."
_TOO_SHORT = "The object is shorter than its index says; prepare the dataset again."


def object_changed(where: str) -> ObjectChangedError:
    """Return the error for an object whose content version is not the one that was opened."""
    hint = "Prepare the dataset again and start a new run."
    return ObjectChangedError("the object was replaced while it was in use", where=where, hint=hint)


def short_body(wanted: ByteRange, received: str, where: str) -> RangeError:
    """Return the error for an answer with fewer bytes than requested, or other ones."""
    what = f"requested bytes {wanted.start} to {wanted.stop}, but the store has {received}"
    return RangeError(what, where=where, hint=_TOO_SHORT)


class ClientFailure(Exception):
    """The cause of a store's error: a client's message, without secrets and the client's traceback."""


class RemoteStore:
    """A base for stores whose clients report errors of their own."""

    is_local = False

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = strip_credentials(url).rstrip("/")
        self._secrets = secrets_in(url, options)

    def close(self) -> None:
        """Do nothing: the client is shared, and idle connections end by themselves."""

    def _where(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    def _error(
        self, kind: type[ErrorT], path: str, what: str, hint: str | None = None, **details: Any
    ) -> ErrorT:
        """Return an error about an object, with the secrets of the store removed from ``what``."""
        return kind(redact(what, self._secrets), where=self._where(path), hint=hint, **details)

    def _endpoint(self) -> str:
        return f"the {url_scheme(self.url)} store"

    def _name(self, error: Exception, path: str) -> StorageError:
        """Return this library's error for one of the client."""
        raise NotImplementedError

    def _call(self, path: str, function: Callable[[], T]) -> T:
        """Call the client; raise this library's error for one of the client, without secrets."""
        try:
            return function()
        except (StorageError, ConfigError):
            raise
        except BaseException as error:
            if isinstance(error, Exception):
                failure = self._name(error, path)
            elif (
                type(error).__name__ == "PanicException"
            ):  # a bug in obstore, or a value that nothing checked
                failure = self._error(StorageError, path, f"obstore failed: {error}", _PANIC)
            else:
                raise
            # obstore's messages end with a dump of values. S3 repeats a request whose signature is wrong.
            text = str(error).partition("\n\nDebug source")[0].partition("<Error>")[0]
            failure.__cause__ = ClientFailure(f"{type(error).__name__}: {redact(text, self._secrets)}")
        # Raised outside of the handler, or the client's error would be its context. That may contain a signed
        # URL, and so may the frames of its traceback.
        raise failure

    def _refused(
        self, path: str, status: int, code: str = "", message: str = "", region: str | None = None
    ) -> StorageError:
        """Return the error for an HTTP status. ``region`` is the bucket's, if the answer named it."""
        endpoint = self._endpoint()
        answer = f"HTTP {status}{' ' + code if code else ''}{': ' + message if message else ''}"
        kind: type[StorageError] = StorageError
        what, hint = "the store refused the request", None
        match _MEANT.get(code, status) if status == 400 else status:
            case 404:
                kind = ObjectNotFoundError
                what = "no such bucket" if code == "NoSuchBucket" else "no such object or bucket"
                hint = f"Check bucket, key, endpoint ({endpoint}) and region."
            case 401 | 403:
                return self._denied(path, answer, is_expired=code in _EXPIRED)
            case 407:
                what = "the proxy wants a login"
                hint = "Put the user and the password into HTTPS_PROXY (or HTTP_PROXY), with an @ before the host."
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
                if region:
                    what = f"the bucket is in another region, {region}"
                    hint = f"Set AWS_REGION={region}, and an endpoint of that region if you set one ({endpoint})."
            case meant if meant in (408, 425) or meant >= 500:
                kind, what = TransientStorageError, "the store is busy or failing"
        return self._error(kind, path, f"{what} ({answer})", hint)

    def _denied(self, path: str, answer: str, *, is_expired: bool) -> StorageError:
        """Return the error for refused credentials, which a provider may replace by others."""
        if self.renew_credentials(is_expired=is_expired):
            what = f"credentials were refused and replaced ({answer})"
            return self._error(TransientStorageError, path, what)
        if is_expired and self._provides_credentials():
            what = f"the credentials have expired, and no others came yet ({answer})"
            return self._error(TransientStorageError, path, what)
        hint = f"Check key, secret, token, clock and the bucket's policy at {self._endpoint()}."
        what = "access denied: the credentials have expired" if is_expired else "access denied"
        return self._error(AccessDeniedError, path, f"{what} ({answer})", hint)

    def _provides_credentials(self) -> bool:
        """Return whether credentials come from a provider, which may bring others later."""
        return False

    def renew_credentials(self, *, is_expired: bool) -> bool:
        """Take other credentials from their provider; return whether it has others than the refused ones."""
        return False

    def _bad_answer(self, path: str, problem: str) -> BadAnswerError:
        hint = f"Check that {self._endpoint()} is the store, and not a proxy, a login page or another server."
        return self._error(BadAnswerError, path, problem, hint)

    def _not_partial(self, path: str) -> BadAnswerError:
        hint = "Use a server (or proxy) that answers Range requests with 206."
        what = "the server ignores byte ranges and sends whole objects"
        return self._error(BadAnswerError, path, what, hint)

    def _broken(self, path: str, problem: str, *, answered: bool) -> TransientStorageError:
        what, endpoint = f"the connection failed: {problem}", self._endpoint()
        hint = f"Check that {endpoint} is right and reachable."
        if problem == CERTIFICATE:
            hint = f"Name the certificates of the authority of {endpoint} in AWS_CA_BUNDLE, or with verify."
        proxy = find_proxy(endpoint)
        if proxy is not None and proxy.is_used:
            what = f"the connection through the proxy {proxy.url} failed: {problem}"
            hint = f"Check the proxy, which HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names, or add {proxy.host} to NO_PROXY."
        return self._error(TransientStorageError, path, what, hint, answered=answered)

    def _no_credentials(self, path: str, what: str) -> AccessDeniedError:
        hint = (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (other stores: their variables), or pass "
            "storage_options={'key': …, 'secret': …}, or storage_options={'anon': True} for public data"
        )
        return self._error(AccessDeniedError, path, what, hint)
