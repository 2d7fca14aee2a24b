"""S3 through s3fs's client, with If-Match and exact keys; the fallback if obstore cannot be used."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from fsspec.asyn import sync

from energon_stream.errors import TransientStorageError
from energon_stream.fork import PerProcess
from energon_stream.storage import _provider
from energon_stream.storage._answers import short_body
from energon_stream.storage._fsspec import FsspecStore, file_systems
from energon_stream.storage._provider import OPTION, ProvidedCredentials, use_in_session
from energon_stream.storage.settings import (
    ENDPOINT_VARIABLES,
    KEY_VARIABLES,
    REGION_VARIABLES,
    certificate_bundle,
    clean_options,
    find_proxy,
    variable,
)
from energon_stream.storage.store import Body, ByteRange, ListEntry, ObjectMeta
from energon_stream.urls import url_scheme

# Options that outrank keys in the environment.
_FIXED = frozenset(("key", "secret", "profile", "anon", "aws_access_key_id", OPTION))
_FIRST_ANSWER = 9.0  # seconds that an unknown server gets for its first answer
_renewing = PerProcess(threading.Lock)


class S3fsStore(FsspecStore):
    """A store on s3fs."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._options = options
        self._has_answered = False
        self._renewed_at, self._is_renewed = 0.0, False
        super().__init__(url, options)

    def _file_system(self, url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
        options = clean_options(options)
        client = dict(options.get("client_kwargs") or {})
        region, endpoint = variable(*REGION_VARIABLES), variable(*ENDPOINT_VARIABLES)
        if region and not options.get("profile"):  # botocore reads AWS_DEFAULT_REGION only
            client["region_name"] = client.get("region_name") or region
        if not client.get("endpoint_url"):
            options["endpoint_url"] = options.get("endpoint_url") or endpoint
        keys = {name: variable(source) for name, source in KEY_VARIABLES.items()}
        given = {name for name, value in (*options.items(), *client.items()) if value}
        if given.isdisjoint(_FIXED) and keys["key"] and keys["secret"]:
            options |= keys
        config = {
            "retries": {"total_max_attempts": 1},  # no retries; _make_system() switches s3fs's own off
            "max_pool_connections": 64,  # the default of ten would be the limit
            "connect_timeout": 5,
            "read_timeout": 20,
            **(options.get("config_kwargs") or {}),
        }
        certificate_bundle(client.get("verify"))
        server = client.get("endpoint_url") or options["endpoint_url"] or ""
        if proxy := find_proxy(server):
            config.setdefault("proxies", {url_scheme(server): proxy.url} if proxy.is_used else {})
        return super()._file_system(url, {**options, "client_kwargs": client, "config_kwargs": config})

    @staticmethod
    def _make_system(cls: Any, options: Mapping[str, Any]) -> Any:
        left = dict(options)
        provider = left.pop(OPTION, None)
        system = FsspecStore._make_system(cls, left)
        if system.session is None:
            system.session = botocore_session(system.kwargs)
        if provider is not None:
            use_in_session(system.session, ProvidedCredentials(provider))
        return system

    def get(self, path: str, *, etag: str | None = None) -> Body:
        return self._read(path, None, etag)[0]

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        asked = f"{byte_range.start}-{byte_range.stop - 1}"
        body, content_range = self._read(path, f"bytes={asked}", etag)
        if content_range is None:
            raise self._not_partial(path)
        if not content_range.startswith(f"bytes {asked}/"):
            raise short_body(byte_range, content_range, self._where(path))
        return body

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        body, content_range = self._read(path, f"bytes=-{length}", etag)
        if content_range is None and len(body.data) > length:
            raise self._not_partial(path)
        return body

    def head(self, path: str) -> ObjectMeta:
        answer = self._ask(path, "head_object", **self._address(path))
        size, etag = self._checked(answer, path)
        return ObjectMeta(size, etag, answer.get("LastModified"))

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        bucket, _, folder = self._path(prefix).partition("/")
        below_root = len(self._root.partition("/")[2])
        below_root += below_root > 0  # the slash
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{folder}/" if folder else ""}
        while True:
            page = self._ask(prefix, "list_objects_v2", **request)
            if "IsTruncated" not in page and "Name" not in page:  # botocore takes any XML, HTML too
                raise self._bad_answer(prefix, "the reply is not a bucket listing")
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):  # a console's marker of an empty folder
                    meta = ObjectMeta(found["Size"], found.get("ETag"), found.get("LastModified"))
                    yield ListEntry(found["Key"][below_root:], meta)
            if not page.get("IsTruncated"):
                return
            if page["NextContinuationToken"] == request.get("ContinuationToken"):
                raise self._bad_answer(prefix, "the listing has no end: a page is followed by itself")
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _address(self, path: str) -> dict[str, str]:
        bucket, _, key = self._path(path).partition("/")
        return {"Bucket": bucket, "Key": key}

    def _ask(self, path: str, method: str, **request: Any) -> Any:
        return self._call(path, lambda: sync(self._fs.loop, self._answer, method, request))

    async def _answer(self, method: str, request: Mapping[str, Any]) -> Any:
        """Ask the store; an unknown one has less time for its answer."""
        limit = None if self._has_answered else _FIRST_ANSWER
        answer = await asyncio.wait_for(self._fs._call_s3(method, **request), limit)
        self._has_answered = True
        return answer

    def _checked(self, answer: Mapping[str, Any], path: str) -> tuple[int, str]:
        """Return length and version of an answer, which every S3 store names."""
        for name, header in (("ContentLength", "Content-Length"), ("ETag", "ETag")):
            if answer.get(name) is None:
                raise self._bad_answer(path, f"the answer has no {header}")
        return int(answer["ContentLength"]), str(answer["ETag"])

    def _read(self, path: str, byte_range: str | None, etag: str | None) -> tuple[Body, str | None]:
        request = self._address(path)
        if byte_range is not None:
            request["Range"] = byte_range
        if etag is not None:
            request["IfMatch"] = etag
        answers: list[Any] = []

        async def read() -> bytes:
            answers.append(await self._answer("get_object", request))
            async with answers[0]["Body"] as stream:
                data: bytes = await stream.read()
                return data

        try:
            data = self._call(path, lambda: sync(self._fs.loop, read))
        except TransientStorageError as error:
            error.answered = error.answered or bool(answers)
            raise
        size, version = self._checked(answers[0], path)
        content_range: str | None = answers[0].get("ContentRange")
        total_text = content_range.rpartition("/")[2] if content_range else str(size)
        if not total_text.isdecimal():
            raise self._bad_answer(path, "the reply to a range request names no range")
        return Body(memoryview(data), version, int(total_text)), content_range

    def _provides_credentials(self) -> bool:
        given = self._options
        is_fixed = given.get("key") or given.get("anon") or os.environ.get("AWS_ACCESS_KEY_ID")
        return OPTION in given or not is_fixed

    def renew_credentials(self, *, is_expired: bool) -> bool:
        if not self._provides_credentials():
            return False
        with _renewing.get():
            used = self._fs
            self._fs, _ = self._file_system(self.url, self._options)
            if self._fs is not used:  # another store, or request, had its credentials replaced
                return True
            now = time.monotonic()
            if now - self._renewed_at < _provider.BETWEEN_RENEWALS:
                return self._is_renewed  # another request, refused at the same time, has asked for others
            self._renewed_at = now
            before = _credentials(used)
            file_systems.clear()
            self._fs, _ = self._file_system(self.url, self._options)
            self._is_renewed = bool(_credentials(self._fs) != before)
            return self._is_renewed

    def _endpoint(self) -> str:
        endpoint = getattr(self._fs, "endpoint_url", None) if hasattr(self, "_fs") else None
        return endpoint or os.environ.get("AWS_ENDPOINT_URL") or "AWS"


def _credentials(system: Any) -> Any:
    async def get() -> Any:
        found = await system.session.get_credentials()
        return None if found is None else await found.get_frozen_credentials()

    try:
        return sync(system.loop, get)
    except Exception:  # whatever a provider raises: the refusal is what the user must hear of
        return None


def load_s3fs() -> None:
    """Do the slow work before the first request to S3 that leaves neither threads nor connections behind."""
    import fsspec

    fsspec.get_filesystem_class("s3")
    loader = _loader(None)
    # What a client of S3 is made from, as botocore.client and botocore.session name it.
    for name in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("s3", name, api_version=None)
    for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
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
