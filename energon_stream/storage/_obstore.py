"""S3, GCS, Azure and HTTP through obstore's synchronous API (its asynchronous one aborts at exit)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import obstore
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from energon_stream.errors import (
    RangeError,
    StorageError,
    TransientStorageError,
    UnsupportedStoreError,
)
from energon_stream.storage._answers import RemoteStore, short_body
from energon_stream.storage._obstore_config import ClientConfig, resolve_config
from energon_stream.storage.attempts import AnswerUnwanted, AttemptListener, ScheduledStore
from energon_stream.storage.base import Body, ByteRange, ListEntry, ObjectMeta
from energon_stream.storage.buffers import share_arenas
from energon_stream.storage.fork import PerProcess, before_forks, mark_obstore_used, obstore_usable
from energon_stream.storage.url import strip_credentials

if TYPE_CHECKING:
    from obstore import GetOptions

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
# Errors name one of these when the search for credentials found none: the metadata services, our provider.
_CREDENTIAL_SIGNS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "credential provider")

_clients: PerProcess[Any] = PerProcess()


class ObstoreStore(ScheduledStore, RemoteStore):
    """A store on obstore; see ``Store`` for the methods. Equal configurations share a client.

    Raises UnsupportedStoreError if obstore cannot open the URL or honour an option, or this process was
    forked from one that had used obstore.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        super().__init__(url)
        self._config, self._root = resolve_config(url, options)
        if not obstore_usable():
            raise UnsupportedStoreError(
                "obstore was used before this process was forked, and its runtime does not survive that",
                where=self.url,
                hint="Use transport='auto', or start the process with 'spawn'.",
            )
        share_arenas()  # obstore allocates answers in the thread that requests them
        self._own_client: Any = None

    def with_listener(self, listener: AttemptListener) -> Self:
        self._client()  # the copies share it
        return super().with_listener(listener)

    def get(self, path: str, *, etag: str | None = None) -> Body:
        return self._get(path, {}, etag)

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        body = self._get(path, {"range": (byte_range.start, byte_range.stop)}, etag)
        if len(body.data) != len(byte_range):  # the store clips at the end of the object
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
        with self._named_errors(path):
            return _meta(obstore.head(self._client(), self._key(path)))

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        folder = self._key(prefix)
        below_root = len(self._root) + 1 if self._root else 0
        with self._named_errors(prefix):
            for page in obstore.list(self._client(), folder or None, chunk_size=1000):
                for found in page:
                    yield ListEntry(found["path"][below_root:], _meta(found))

    def put(self, path: str, data: bytes) -> None:
        with self._named_errors(path):
            obstore.put(self._client(), self._key(path), data)

    def put_file(self, path: str, local_path: str) -> None:
        with open(local_path, "rb"), self._named_errors(path):  # a missing local file is not a missing object
            obstore.put(self._client(), self._key(path), Path(local_path))

    def delete(self, path: str) -> None:
        with self._named_errors(path), suppress(FileNotFoundError):
            obstore.delete(self._client(), self._key(path))

    def _get(self, path: str, options: GetOptions, etag: str | None) -> Body:
        if etag is not None:
            options["if_match"] = etag
        try:  # not _named_errors: this is the hot path
            result = obstore.get(self._client(), self._key(path), options=options)
        except Exception as error:
            raise self._name(error, path) from error
        if not self._listener.answered():
            del result  # this closes the connection
            raise AnswerUnwanted
        try:
            data = memoryview(result.bytes())
            meta = result.meta
        except Exception as error:
            raise self._name(error, path) from error
        first, last = result.range
        if len(data) != last - first:
            raise TransientStorageError("the body ended early", where=self._where(path))
        return Body(data, _etag(meta), meta["size"])

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root and path else self._root or path

    def _client(self) -> Any:
        if self._own_client is None:
            mark_obstore_used()
            if self._config.kind == "s3":
                before_forks(_load_fallback)
            self._own_client = _clients.map(self._config, partial(_make_client, self._config))
        return self._own_client

    def _endpoint(self) -> str:
        return self._config.endpoint

    def _name(self, error: Exception, path: str) -> StorageError:
        if isinstance(error, StorageError):
            return error
        # The first part is meant for people; the second is a dump of Rust values that may contain secrets.
        text = str(error).partition("\n\nDebug source")[0]
        status = _STATUS.search(text)
        if status:
            found = (pattern.search(text) for pattern in (_CODE, _MESSAGE))
            code, message = (match[1] if match else "" for match in found)
            return self._refused(path, int(status[1]), code, message)
        if any(sign in text for sign in _CREDENTIAL_SIGNS):
            return self._no_credentials(path, f"no credentials were found ({strip_credentials(text)})")
        if isinstance(error, FileNotFoundError):
            return self._refused(path, 404, message=text)
        if "non-partial" in text or "Range request not supported" in text:
            return self._not_partial(path)
        if "Wanted range starting at" in text:  # Azure answers with the whole object
            return self._refused(path, 416, message=text)
        if "Requested" in text and ", got" in text:
            return RangeError(f"the store sent another byte range: {text}", where=self._where(path))
        if "HTTP error" in text:
            timed_out = "TimedOut" in str(error)
            cause = "no answer or no progress in time" if timed_out else text.rpartition(" - ")[2]
            return self._broken(path, cause)
        if "redirect" in text:
            return self._refused(path, 301, message=text.rpartition(" - ")[2])
        return StorageError(f"the request failed: {strip_credentials(text)}", where=self._where(path))


def _load_fallback() -> None:
    """Import the package that forked children will read with."""
    from energon_stream.storage._s3fs import load_s3fs

    load_s3fs()


def _make_client(config: ClientConfig) -> Any:
    client_options: Any = dict(config.client_options)
    if "default_headers" in client_options:
        client_options["default_headers"] = dict(client_options["default_headers"])
    # RetryPolicy is the one layer that retries; obstore's own retries would not be counted.
    common: Any = {
        "client_options": client_options,
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(minutes=3)},
    }
    if config.kind == "http":
        return HTTPStore.from_url(config.root, **common)
    if config.kind == "s3":
        common["credential_provider"] = config.credentials
    store: Any = {"s3": S3Store, "gcs": GCSStore, "azure": AzureStore}[config.kind]
    return store(config.root, config=dict(config.settings), **common)


def _meta(found: Mapping[str, Any]) -> ObjectMeta:
    return ObjectMeta(found["size"], _etag(found), found.get("last_modified"))


def _etag(found: Mapping[str, Any]) -> str | None:
    etag: str | None = found["e_tag"]
    if etag is None or etag.startswith("W/"):  # If-Match never matches a weak one (RFC 9110, 13.1.1)
        return None
    return etag if etag.startswith('"') else f'"{etag}"'  # Azure's listings have no quotes
