"""S3 through s3fs's client, with If-Match and exact keys; the fallback if obstore cannot be used."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from energon_stream.storage._answers import short_body
from energon_stream.storage._fsspec import FsspecStore
from energon_stream.storage.base import Body, ByteRange, ListEntry, ObjectMeta

_CONNECTIONS = 64
# The descriptions that a client of S3 is made from, as botocore.client and botocore.session name them.
_SERVICE_FILES = ("service-2", "endpoint-rule-set-1")
_FILES = ("endpoints", "partitions", "sdk-default-configuration", "_retry")


class S3fsStore(FsspecStore):
    """A store on s3fs."""

    def _file_system(self, url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
        client = dict(options.get("client_kwargs") or {})
        region = os.environ.get("AWS_REGION")
        if region and not options.get("profile"):  # botocore reads AWS_DEFAULT_REGION only
            client.setdefault("region_name", region)
        # This switches botocore's retries off; _make_system() switches s3fs's own off. Its default of ten
        # connections would be the limit.
        config = {"retries": {"total_max_attempts": 1}, "max_pool_connections": _CONNECTIONS}
        config |= options.get("config_kwargs") or {}
        return super()._file_system(url, {**options, "client_kwargs": client, "config_kwargs": config})

    @staticmethod
    def _make_system(cls: Any, options: Mapping[str, Any]) -> Any:
        system = FsspecStore._make_system(cls, options)
        if system.session is None:
            system.session = botocore_session(system.kwargs)
        return system

    def get(self, path: str, *, etag: str | None = None) -> Body:
        return self._read(path, None, etag)[0]

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        body, content_range = self._read(path, f"bytes={byte_range.start}-{byte_range.stop - 1}", etag)
        if content_range is None:
            raise self._not_partial(path)
        if not content_range.startswith(f"bytes {byte_range.start}-{byte_range.stop - 1}/"):
            raise short_body(byte_range, content_range, self._where(path))
        return body

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        return self._read(path, f"bytes=-{length}", etag)[0]

    def head(self, path: str) -> ObjectMeta:
        with self._named_errors(path):
            answer = self._fs.call_s3("head_object", **self._address(path))
        return ObjectMeta(answer["ContentLength"], answer["ETag"], answer.get("LastModified"))

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        bucket, _, folder = self._path(prefix).partition("/")
        below_root = len(self._root.partition("/")[2])
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{folder}/" if folder else ""}
        while True:
            with self._named_errors(prefix):
                page = self._fs.call_s3("list_objects_v2", **request)
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):  # a console's marker of an empty folder
                    key = found["Key"][below_root:].lstrip("/")
                    yield ListEntry(key, ObjectMeta(found["Size"], found["ETag"]))
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _address(self, path: str) -> dict[str, str]:
        bucket, _, key = self._path(path).partition("/")
        return {"Bucket": bucket, "Key": key}

    def _read(self, path: str, byte_range: str | None, etag: str | None) -> tuple[Body, str | None]:
        from fsspec.asyn import sync

        request = self._address(path)
        if byte_range is not None:
            request["Range"] = byte_range
        if etag is not None:
            request["IfMatch"] = etag

        async def read() -> tuple[Any, bytes]:
            answer = await self._fs._call_s3("get_object", **request)
            async with answer["Body"] as stream:
                return answer, await stream.read()

        with self._named_errors(path):
            answer, data = sync(self._fs.loop, read)
        content_range: str | None = answer.get("ContentRange")
        total = int(content_range.rpartition("/")[2]) if content_range else len(data)
        return Body(memoryview(data), answer["ETag"], total), content_range

    def _endpoint(self) -> str:
        endpoint = getattr(self._fs, "endpoint_url", None) if hasattr(self, "_fs") else None
        return endpoint or os.environ.get("AWS_ENDPOINT_URL") or "AWS"


def load_s3fs() -> None:
    """Do the slow work before the first request to S3 that leaves neither threads nor connections behind."""
    import fsspec

    fsspec.get_filesystem_class("s3")
    loader = _loader(None)
    for name in _SERVICE_FILES:
        loader.load_service_model("s3", name, api_version=None)
    for name in _FILES:
        loader.load_data(name)


def botocore_session(arguments: Mapping[str, Any]) -> Any:
    """Make a session such as s3fs makes, except that sessions share botocore's descriptions of services.

    Each file system of s3fs has a session, and each session would read those files again.
    """
    from aiobotocore.session import AioSession

    session = AioSession(**arguments)
    # Lazily, as botocore does it: the lookup of data_path reads the user's configuration.
    session._components.lazy_register_component(
        "data_loader", lambda: _loader(session.get_config_variable("data_path"))
    )
    return session


@functools.lru_cache(maxsize=4)
def _loader(data_path: str | None) -> Any:
    """Return a reader of JSON files that keeps their content. It holds plain data, which may cross a fork."""
    from botocore.loaders import create_loader

    return create_loader(data_path)
