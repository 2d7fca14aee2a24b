"""Stores on Hugging Face's hub: repositories and buckets, by huggingface_hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from energon_stream.errors import ConfigError, ObjectNotFoundError
from energon_stream.printable import nearest
from energon_stream.storage._answers import object_changed, short_body
from energon_stream.storage._fsspec import FsspecStore
from energon_stream.storage.store import Body, ByteRange, ListEntry, ObjectMeta

_TIMEOUT = 20.0  # seconds without a byte
_OPTIONS: dict[str, Any] = {  # HfFileSystem takes any other name, and does nothing with it
    "endpoint": str,
    "token": (str, bool),
    "block_size": int,
    "expand_info": bool,
    "max_workers": int,
    "live_follow": bool,
}


class HfStore(FsspecStore):
    """A store on ``HfFileSystem``, which lists and writes. A read is one GET, and redirects of the hub.

    The file system itself would list the folder before it reads a file of it, and retry by rules of its own.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if name not in _OPTIONS:
                hint = nearest(name, _OPTIONS)
                raise ConfigError(f"the hub has no storage option {name!r}", where=url, hint=hint)
            if value is not None and not (isinstance(value, _OPTIONS[name]) and value != ""):
                # Not the value: it may be a token.
                what = f"the storage option {name!r} is {'empty' if value == '' else type(value).__name__}"
                raise ConfigError(what, where=url, hint="leave it out for the hub's default")
        endpoint = options.get("endpoint")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                "the storage option 'endpoint' is no http:// or https:// URL", where=url, hint="correct it"
            )
        super().__init__(url, options)

    def list(self, prefix: str = "") -> Iterator[ListEntry]:
        """Yield nothing for a missing folder. Raises ObjectNotFoundError for a missing repository."""
        is_empty = True
        for entry in super().list(prefix):
            is_empty = False
            yield entry
        if not is_empty:
            return
        try:
            self._call(prefix, lambda: self._fs.resolve_path(self._root))
        except ObjectNotFoundError as error:
            hint = "check owner, name and @revision; a private one needs a token that may read it"
            raise self._error(
                ObjectNotFoundError, prefix, "the hub has no such repository, revision or bucket", hint
            ) from error

    def get(self, path: str, *, etag: str | None = None) -> Body:
        body = self._request(path, etag)
        return Body(body.data, body.etag, len(body.data))

    def get_range(self, path: str, byte_range: ByteRange, *, etag: str | None = None) -> Body:
        if byte_range.start < 0 or not len(byte_range):  # no server has such a range
            return super().get_range(path, byte_range, etag=etag)
        body = self._request(path, etag, f"bytes={byte_range.start}-{byte_range.stop - 1}")
        if len(body.data) != len(byte_range):
            raise short_body(byte_range, f"{len(body.data)} of them", self._where(path))
        return body

    def get_suffix(self, path: str, length: int, *, etag: str | None = None) -> Body:
        size = self.head(path).size  # not every server behind the hub knows suffixes
        wanted = ByteRange(max(0, size - length), size)
        body = self.get_range(path, wanted, etag=etag) if size else self.get(path, etag=etag)
        return Body(body.data, body.etag, size)

    def head(self, path: str) -> ObjectMeta:
        response = self._send("HEAD", path, {})
        length = response.headers.get("X-Linked-Size") or response.headers.get("Content-Length")
        if length is None:
            raise self._bad_answer(path, "the answer has no Content-Length")
        return ObjectMeta(int(length), _etag(response), None)

    def _request(self, path: str, etag: str | None, byte_range: str | None = None) -> Body:
        response = self._send("GET", path, {} if byte_range is None else {"Range": byte_range})
        if byte_range is not None and response.status_code != 206:
            raise self._not_partial(path)
        found = _etag(response.history[0] if response.history else response)
        if None not in (etag, found) and etag != found:
            raise object_changed(self._where(path))
        return Body(memoryview(response.content), found, None)

    def _send(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        from huggingface_hub.utils import build_hf_headers, get_session

        def send() -> Any:
            known = build_hf_headers(token=self._fs.token)
            return get_session().request(
                method,
                self._url(self._path(path)),
                headers={**known, **headers, "Accept-Encoding": "identity"},
                follow_redirects=method == "GET",
                timeout=_TIMEOUT,
            )

        response = self._call(path, send)
        if response.status_code >= 400:
            names = "X-Error-Code", "X-Error-Message"
            code, message = (str(response.headers.get(name, "")) for name in names)
            raise self._refused(path, response.status_code, code, message)
        return response

    def _url(self, path: str) -> str:
        from huggingface_hub import hf_hub_url

        found = self._fs.resolve_path(path)
        if hasattr(found, "bucket_id"):
            return f"{self._fs.endpoint}/buckets/{found.bucket_id}/resolve/{quote(found.path)}"
        kind = {"repo_type": found.repo_type, "revision": found.revision, "endpoint": self._fs.endpoint}
        return str(hf_hub_url(found.repo_id, found.path_in_repo, **kind))

    def _meta(self, info: Mapping[str, Any]) -> ObjectMeta:
        large = info.get("lfs")
        return ObjectMeta(info["size"], info.get("blob_id") if large is None else large.sha256, None)


def _etag(response: Any) -> str | None:
    """Return the version of the file, as listings have it; behind a redirect would be that of a server."""
    found = response.headers.get("X-Linked-ETag") or response.headers.get("ETag")
    return None if found is None else str(found).removeprefix("W/").strip('"')
