"""Stores on fsspec's file systems. fsspec's conventions end here, and in ``_s3fs.py`` for S3."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from energon_stream.errors import StorageError, UnsupportedStoreError
from energon_stream.fork import PerProcess
from energon_stream.printable import strip_credentials
from energon_stream.storage._answers import RemoteStore, object_changed, short_body
from energon_stream.storage._causes import cause_in_chain
from energon_stream.storage.store import Body, ByteRange, ListEntry, ObjectMeta
from energon_stream.urls import url_scheme

T = TypeVar("T")

_ETAG_NAMES = ("ETag", "etag", "e_tag")
_TIME_NAMES = ("LastModified", "last_modified", "updated", "mtime", "created")
# By name, because botocore is slow to import and not always installed.
_CREDENTIAL_ERRORS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "TokenRetrievalError",
)
_BREAKS = ("ConnectionError", "HTTPClientError", "IncompleteReadError")  # Python's and botocore's
_NETWORK_MODULES = ("aiohttp", "urllib3", "requests", "ssl", "http", "httpx", "httpx2")
_BROKEN_BODIES = ("ClientPayloadError", "IncompleteRead", "IncompleteReadError", "ResponseStreamingError")

# These file systems write what they read to disk and do not protect their files from other threads.
_DISK_CACHES = frozenset(("simplecache", "filecache", "blockcache", "cached"))
_disk_cache_lock = PerProcess(threading.RLock)

# Kept for later stores with the same options. A file system of S3 takes 25 MB, so a process that changes
# credentials or endpoints now and then must not keep all of them.
file_systems: PerProcess[Any] = PerProcess(keep=8)


def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="energon-fsspec", daemon=True).start()
    return loop


_loop = PerProcess(_start_loop)


class _WithoutCredentials(logging.Filter):
    """Removes credentials and queries of URLs from what fsspec and its file systems log."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = strip_credentials(record.getMessage()), ()
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1]))
            record.exc_info, record.exc_text = None, strip_credentials(trace)
        return True


for _name in (
    "fsspec",
    "fsspec.asyn",
    "fsspec.caching",
    "fsspec.cached",
    "fsspec.http",
    "s3fs",
    "gcsfs",
    "adlfs",
):
    logging.getLogger(_name).addFilter(_WithoutCredentials())


class FsspecStore(RemoteStore):
    """A store on any fsspec file system.

    fsspec has no conditional reads. A read with ``etag`` costs a second request, which compares the content
    versions afterwards, if the file system has them. Raises UnsupportedStoreError if there is no file system
    for the scheme, or its package is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        super().__init__(url, options)
        chain = {url_scheme(element if "://" in element else f"{element}://") for element in url.split("::")}
        self._one_at_a_time = not chain.isdisjoint(_DISK_CACHES)
        self._fs, root = self._call("", lambda: self._file_system(url, options))
        self._root = root.rstrip("/")

    def _file_system(self, url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
        """Return fsspec's file system, one per options and process, and the path of ``url`` in it."""
        import fsspec

        if "::" in url:  # each element of a chain has its own options; fsspec sorts them out
            return tuple(fsspec.core.url_to_fs(url, **options))
        try:
            cls = fsspec.get_filesystem_class(url_scheme(url))
        except (ValueError, ImportError) as error:
            raise UnsupportedStoreError(
                f"no file system for {url_scheme(url)}://: {error}",
                where=url,
                hint="Check the URL, or install the package that provides it.",
            ) from error
        options = {**cls._get_kwargs_from_urls(url), **options}
        environment = sorted(item for item in os.environ.items() if item[0].startswith("AWS_"))
        key = (cls, json.dumps(options, sort_keys=True, default=repr), tuple(environment))
        return file_systems.map(key, partial(self._make_system, cls, options)), cls._strip_protocol(url)

    @staticmethod
    def _make_system(cls: Any, options: Mapping[str, Any]) -> Any:
        from fsspec.asyn import AsyncFileSystem

        extra: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
        if issubclass(cls, AsyncFileSystem):
            extra["loop"] = _loop.get()
        system = cls(**options, **extra)
        if hasattr(system, "retries"):
            system.retries = 1  # RetryPolicy is the one layer that retries
        return system

    def get(self, path: str, *, etag: str | None = None) -> Body:
        data = self._call(path, lambda: self._fs.cat_file(self._path(path)))
        return self._body(path, data, etag, len(data))

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        data = self._cat(path, byte_range.start, byte_range.stop)
        if len(data) > len(byte_range):
            raise self._not_partial(path)
        if len(data) < len(byte_range):
            raise short_body(byte_range, f"{len(data)} of them", self._where(path))
        return self._body(path, data, etag, None)

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        size = self.head(path).size  # not every file system knows suffixes
        data = self._cat(path, max(0, size - length), size) if size else b""
        return self._body(path, data, etag, size)

    def _cat(self, path: str, start: int, end: int) -> bytes:
        # By keyword: the second positional argument is a version in s3fs.
        data: bytes = self._call(path, lambda: self._fs.cat_file(self._path(path), start=start, end=end))
        return data

    def head(self, path: str) -> ObjectMeta:
        info = self._call(path, lambda: self._fs.info(self._path(path)))
        if info["type"] != "file":
            raise self._refused(path, 404, message="it is a folder")
        if info.get("size") is None:
            raise self._bad_answer(path, "the answer has no Content-Length")
        return self._meta(info)

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        folder = self._path(prefix)
        try:
            found = self._call(prefix, lambda: self._fs.find(folder, detail=True))
        except FileNotFoundError:
            return
        for name, info in found.items():
            if name != folder:  # some file systems list a file as its own content
                yield ListEntry(name[len(self._root) :].lstrip("/"), self._meta(info))

    def put(self, path: str, data: bytes) -> None:
        target = self._path(path)

        def write() -> None:
            if not self._fs.async_impl:  # object stores have no folders, and s3fs would make a bucket
                self._fs.makedirs(self._fs._parent(target), exist_ok=True)
            self._fs.pipe_file(target, bytes(data))

        self._call(path, write)

    def put_file(self, path: str, local_path: str, *, move: bool = False) -> None:
        with open(local_path, "rb"):  # a missing local file is not a missing object
            self._call(path, lambda: self._fs.put_file(local_path, self._path(path)))

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._call(path, lambda: self._fs.rm_file(self._path(path)))

    def _path(self, path: str) -> str:
        if not path:
            return self._root
        if "://" not in self._root:
            return f"{self._root}/{path}"
        before, mark, query = self._root.partition("?")  # HTTP's file system works with whole URLs
        return f"{before}/{quote(path)}{mark}{query}"

    def _body(self, path: str, data: bytes, etag: str | None, total_size: int | None) -> Body:
        if etag is not None:
            current = self.head(path).etag
            if current is None:
                what = "this file system has no content versions to compare"
                raise self._error(UnsupportedStoreError, path, what)
            if current != etag:
                raise object_changed(self._where(path))
        return Body(memoryview(data), etag, total_size)

    def _call(self, path: str, function: Callable[[], T]) -> T:
        with _disk_cache_lock.get() if self._one_at_a_time else nullcontext():
            return super()._call(path, function)

    def _meta(self, info: Mapping[str, Any]) -> ObjectMeta:
        etag = next((info[name] for name in _ETAG_NAMES if info.get(name)), None)
        return ObjectMeta(
            info["size"], etag, _time(next((info[n] for n in _TIME_NAMES if info.get(n)), None))
        )

    def _name(self, error: Exception, path: str) -> StorageError:
        cause: BaseException | None = error
        while cause is not None:
            response = getattr(cause, "response", None)
            if isinstance(response, Mapping):  # botocore.exceptions.ClientError
                return self._answered(response, path)
            for name in ("status", "status_code", "code"):  # aiohttp, azure and huggingface_hub, gcsfs
                number = getattr(cause, name, getattr(response, name, None))
                if isinstance(number, int) and 300 <= number < 600:
                    return self._refused(path, number, message=str(cause))
            names = {base.__name__ for base in type(cause).__mro__}
            is_network = type(cause).__module__.partition(".")[0] in _NETWORK_MODULES
            if is_network or isinstance(cause, TimeoutError) or not names.isdisjoint(_BREAKS):
                problem = cause_in_chain(error) or f"{type(error).__name__} {error}".strip()
                return self._broken(path, problem, answered=not names.isdisjoint(_BROKEN_BODIES))
            cause = cause.__cause__
        if isinstance(error, FileNotFoundError):
            return self._refused(path, 404, message=str(error))
        name = type(error).__name__
        if isinstance(error, PermissionError) or name in _CREDENTIAL_ERRORS:
            return self._no_credentials(path, f"access denied: {error}")
        if name == "ResponseParserError":
            return self._bad_answer(path, "the store never sends such a reply: it is not XML")
        return self._error(StorageError, path, f"the request failed: {name}: {error}")

    def _answered(self, response: Mapping[str, Any], path: str) -> StorageError:
        """Return the error for an answer that botocore's ClientError keeps."""
        about = response.get("ResponseMetadata", {})
        answer = response.get("Error", {})
        code, message = str(answer.get("Code", "")), str(answer.get("Message", ""))
        region = about.get("HTTPHeaders", {}).get("x-amz-bucket-region") or answer.get("Region")
        code = "" if code.isdigit() else code
        return self._refused(path, int(about.get("HTTPStatusCode", 0)), code, message, region)


def _time(value: Any) -> datetime | None:
    """Return a time from what file systems report: an object, seconds, or ISO text."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if isinstance(value, (int, float)):
        value = datetime.fromtimestamp(value, tz=UTC)
    return value if isinstance(value, datetime) else None
