"""S3, GCS, Azure and HTTP through obstore's synchronous API (its asynchronous one aborts at exit)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from energon_stream.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    TransientStorageError,
    UnsupportedStoreError,
)
from energon_stream.fork import PerProcess, before_forks
from energon_stream.storage import _provider
from energon_stream.storage._answers import RemoteStore, short_body
from energon_stream.storage._causes import NO_ANSWER, cause_in
from energon_stream.storage._obstore_config import (
    FIRST_READ_TIMEOUT,
    READ_TIMEOUT,
    ClientConfig,
    SessionCredentials,
    resolve_config,
)
from energon_stream.storage._provider import FAILED, ProvidedCredentials
from energon_stream.storage.attempts import AnswerUnwanted, ScheduledStore
from energon_stream.storage.obstore_use import mark_obstore_used, obstore_usable, share_arenas
from energon_stream.storage.store import Body, ByteRange, ListEntry, ObjectMeta

if TYPE_CHECKING:
    from obstore import GetOptions

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_REGION = re.compile(r"<Region>([\w-]+)</Region>")
# Errors name one of these when the search for credentials found none: the metadata services, our provider.
_METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
_CREDENTIAL_SIGNS = (*_METADATA, "credential provider")
# What obstore says of answers that make no sense, and what this library says.
_BAD_ANSWERS = {
    "Content-Length Header missing": "the answer has no Content-Length",
    "Content-Range header not present": "the reply to a range request names no range",
    "Failed to parse value for CONTENT_RANGE": "the reply to a range request names no range",
    "ETag Header missing": "the answer has no ETag",
    "Got invalid list response": "the reply is not a bucket listing",
    "Received header containing non-ASCII": "the answer has a header that cannot be read",
}
_FEW = 16  # empty objects of a listing, each of which is looked at
_RENEWABLE = (SessionCredentials, ProvidedCredentials)

_clients: PerProcess[_Client] = PerProcess()


class ObstoreStore(ScheduledStore, RemoteStore):
    """A store on obstore. Equal configurations share a client.

    Raises UnsupportedStoreError if obstore cannot open the URL or honour an option, or this process was
    forked from one that had used obstore.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        super().__init__(url, options)
        self._options = options
        self._config, self._root = resolve_config(url, options)
        if not obstore_usable():
            raise UnsupportedStoreError(
                "obstore was used before this process was forked, and its runtime does not survive that",
                where=self.url,
                hint="Use transport='auto', or start the process with 'spawn'.",
            )
        share_arenas()  # obstore allocates answers in the thread that requests them
        self._client = _clients.map(self._config, partial(_Client, self._config))

    def get(self, path: str, *, etag: str | None = None) -> Body:
        return self._get(path, {}, etag)

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        body = self._get(path, {"range": (byte_range.start, byte_range.stop)}, etag)
        if body.total_size is not None and body.total_size < byte_range.stop:  # the store clips there
            raise short_body(byte_range, f"{body.total_size} bytes", self._where(path))
        return body

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        if self._config.kind != "azure":
            return self._get(path, {"range": {"suffix": length}}, etag)
        meta = self.head(path)  # Azure knows no suffixes
        start = max(0, meta.size - length)
        options: GetOptions = {"range": (start, meta.size)} if meta.size else {}
        return self._get(path, options, etag or meta.etag)

    def head(self, path: str) -> ObjectMeta:
        found = self._call(path, lambda: obstore.head(self._client.get(), self._key(path)))
        return _meta(self._with_version(found, path))

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        folder, absent = self._key(prefix), self._key(f"{prefix}/.energon-stream-absent".strip("/"))
        below_root = len(self._root) + 1 if self._root else 0

        def entries() -> list[ListEntry]:
            pages = obstore.list(self._client.get(), folder or None, chunk_size=1000)
            return [ListEntry(found["path"][below_root:], _meta(found)) for page in pages for found in page]

        is_s3 = self._config.kind == "s3"
        try:
            listed = self._call(prefix, entries)
        except StorageError as error:
            if not is_s3 or "invalid path" not in error.what:
                raise
            return self._list_keys(prefix)
        if not listed and is_s3:
            # obstore takes a page of HTML for a listing without objects. A server that answers with a page to
            # everything seems to have any object.
            try:
                self._call(prefix, lambda: obstore.head(self._client.get(), absent))
            except (ObjectNotFoundError, AccessDeniedError, UnsupportedStoreError):
                listed = self._call(prefix, entries)
            else:
                raise self._bad_answer(prefix, "the reply is not a bucket listing")
        empty = [entry.path for entry in listed if not entry.meta.size]
        if len(empty) > _FEW:
            empty = [path for path in empty if path.endswith(".tar")]
        markers = {path for path in empty if is_s3 and not self._exists(path)}
        return (entry for entry in listed if entry.path not in markers)

    def _exists(self, path: str) -> bool:
        """Return whether there is an object, and not just the marker of a folder, its key with a slash."""
        try:
            self.head(path)
        except ObjectNotFoundError:
            return False
        except AccessDeniedError:  # some may only list and read
            pass
        return True

    def _list_keys(self, prefix: str) -> Iterator[ListEntry]:
        """List through s3fs: obstore refuses keys that are no paths."""
        from energon_stream.storage._s3fs import S3fsStore

        return S3fsStore(self.url, self._options).list(prefix)

    def put(self, path: str, data: bytes) -> None:
        self._call(path, lambda: obstore.put(self._client.get(), self._key(path), data))

    def put_file(self, path: str, local_path: str, *, move: bool = False) -> None:
        with open(local_path, "rb"):  # a missing local file is not a missing object
            self._call(path, lambda: obstore.put(self._client.get(), self._key(path), Path(local_path)))

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._call(path, lambda: obstore.delete(self._client.get(), self._key(path)))

    def _get(self, path: str, options: GetOptions, etag: str | None) -> Body:
        if etag is not None:
            options["if_match"] = etag
        result = self._call(path, lambda: obstore.get(self._client.get(), self._key(path), options=options))
        if not self._listener.answered():
            del result  # this closes the connection
            raise AnswerUnwanted
        try:
            data = self._call(path, lambda: memoryview(result.bytes()))
        except TransientStorageError as error:
            error.answered = True
            raise
        meta = result.meta
        return Body(data, _etag(self._with_version(meta, path)), meta["size"])

    def _with_version(self, found: Any, path: str) -> Any:
        if self._config.kind == "s3" and found["e_tag"] is None:  # a page of a proxy, for example
            raise self._bad_answer(path, "the answer has no ETag")
        return found

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root and path else self._root or path

    def _endpoint(self) -> str:
        return self._config.endpoint

    def _provides_credentials(self) -> bool:
        config = self._config
        is_anonymous = config.settings.get("skip_signature")
        is_searched = config.kind == "s3" and config.credentials is None and not is_anonymous
        return isinstance(config.credentials, _RENEWABLE) or is_searched

    def renew_credentials(self, *, is_expired: bool) -> bool:
        return self._provides_credentials() and self._client.renew(is_expired=is_expired)

    def _name(self, error: Exception, path: str) -> StorageError:
        # The first part is meant for people; the second is a dump of Rust values that may contain secrets.
        text, _, dump = str(error).partition("\n\nDebug source")
        status = _STATUS.search(text)
        # Of a metadata service, a refusal says that it has none; the store was not asked.
        is_search = any(sign in text for sign in _METADATA)
        if status and not (is_search and status[1].startswith("4")):
            found = (pattern.search(text) for pattern in (_CODE, _MESSAGE, _REGION))
            code, message, region = (match[1] if match else "" for match in found)
            return self._refused(path, int(status[1]), code, message, region or None)
        if FAILED in text:
            return self._error(TransientStorageError, path, text[text.index(FAILED) :], answered=False)
        if any(sign in text for sign in _CREDENTIAL_SIGNS):
            named = "" if "credential provider" in text else f" ({text})"  # our own says no more
            named = f" (the machine's metadata service: HTTP {status[1]})" if status else named
            return self._no_credentials(path, f"no credentials were found{named}")
        if isinstance(error, FileNotFoundError):
            return self._refused(path, 404, message=text)
        if "non-partial" in text or "Range request not supported" in text:
            return self._not_partial(path)
        if "Wanted range starting at" in text:  # Azure answers with the whole object
            return self._refused(path, 416, message=text)
        if "Requested" in text and ", got" in text:
            return self._error(RangeError, path, f"the store sent another byte range: {text}")
        for sign, problem in _BAD_ANSWERS.items():
            if sign in text:
                return self._bad_answer(path, problem)
        if "CaUsedAsEndEntity" in dump:
            what = "the server's certificate is that of an authority (CA:TRUE), which obstore accepts for no server"
            hint = f"Pass transport='fsspec', or give {self._endpoint()} a certificate with CA:FALSE."
            return self._error(UnsupportedStoreError, path, what, hint)
        if "HTTP error" in text:
            cause = cause_in(dump) or text.rpartition(" - ")[2]
            if cause == NO_ANSWER:
                self._client.wait_longer()
            return self._broken(path, cause, answered=False)
        if "redirect" in text:
            return self._refused(path, 301, message=text.rpartition(" - ")[2], region=self._region())
        return self._error(StorageError, path, f"the request failed: {text}")

    def _region(self) -> str | None:
        """Ask the server for the bucket's region, without credentials; None if it does not say."""
        config = self._config
        if config.kind != "s3":
            return None
        place = urlsplit(config.settings.get("endpoint") or "https://s3.amazonaws.com")
        connect = HTTPSConnection if place.scheme == "https" else HTTPConnection
        try:
            with closing(connect(place.netloc, timeout=5.0)) as connection:
                connection.request("HEAD", f"{place.path}/{config.root}")
                return connection.getresponse().getheader("x-amz-bucket-region")
        except (OSError, HTTPException):
            return None


class _Client:
    """A configuration's client in this process, replaced when credentials or its time-out do not suffice."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._handed_out: dict[str, Any] | None = None  # the latest credentials, without their time
        self._renewed_at = 0.0
        self._is_renewed = False
        self._read_timeout = FIRST_READ_TIMEOUT
        self._store: Any = None

    def get(self) -> Any:
        """Return obstore's store. The first call starts obstore in this process."""
        if self._store is None:
            mark_obstore_used()
            if self._config.kind == "s3":
                before_forks(_load_fallback)
            with self._lock:
                self._store = self._store or self._make()
        return self._store

    def renew(self, *, is_expired: bool) -> bool:
        """Take other credentials from the provider. Return whether there are others than the refused ones."""
        with self._lock:
            now = time.monotonic()
            if now - self._renewed_at < _provider.BETWEEN_RENEWALS:
                return self._is_renewed
            self._renewed_at = now
            provider, before = self._config.credentials, self._handed_out
            if not isinstance(provider, _RENEWABLE):
                self._is_renewed = is_expired  # obstore's own search begins anew
            else:
                try:
                    self._is_renewed = _lasting(provider.fresh()) != before
                except Exception:  # whatever a provider raises: the refusal is what the user must hear of
                    self._is_renewed = False
            if self._is_renewed:
                self._store = self._make()
            return self._is_renewed

    def wait_longer(self) -> None:
        """Give the server more time for its answers from now on."""
        with self._lock:
            if self._read_timeout != READ_TIMEOUT:
                self._read_timeout = READ_TIMEOUT
                self._store = self._make()

    def _provide(self) -> dict[str, Any]:
        provider = self._config.credentials
        assert provider is not None
        found = provider()
        self._handed_out = _lasting(found)
        return found

    def _make(self) -> Any:
        config = self._config
        common: Any = {
            "client_options": {
                "connect_timeout": "5s",
                "read_timeout": self._read_timeout,
                "timeout": "1h",  # for a whole request; obstore's default of 30 s would end large slow reads
                "allow_http": config.endpoint.startswith("http://"),
                **config.client_options,
            },
            # RetryPolicy is the one layer that retries; obstore's own retries would not be counted.
            "retry_config": {"max_retries": 0, "retry_timeout": timedelta(minutes=3)},
        }
        if config.kind == "http" or "xn--" in config.endpoint.lower():  # the others panic at wrong names
            try:
                web = HTTPStore.from_url(config.endpoint, **common)
            except ValueError as error:
                what = f"no client can be made: {error}"
                raise ConfigError(
                    what, where=config.endpoint, hint="Check the URL and its options."
                ) from None
            if config.kind == "http":
                return web
        if config.credentials is not None:
            common["credential_provider"] = self._provide
        store: Any = {"s3": S3Store, "gcs": GCSStore, "azure": AzureStore}[config.kind]
        return store(config.root, config=config.settings, **common)


def _lasting(credentials: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in credentials.items() if name != "expires_at"}


def _load_fallback() -> None:
    from energon_stream.storage._s3fs import load_s3fs

    load_s3fs()  # forked children will read with it


def _meta(found: Mapping[str, Any]) -> ObjectMeta:
    return ObjectMeta(found["size"], _etag(found), found.get("last_modified"))


def _etag(found: Mapping[str, Any]) -> str | None:
    etag: str | None = found["e_tag"]
    if etag is None or etag.startswith("W/"):  # If-Match never matches a weak one (RFC 9110, 13.1.1)
        return None
    return etag if etag.startswith('"') else f'"{etag}"'  # Azure's listings have no quotes
