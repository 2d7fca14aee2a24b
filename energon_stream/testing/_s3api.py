"""The S3 operations of the stand-in server: a request in, a response out, no sockets.

They cover the requests that boto3, s3fs and obstore send to read, write, list and delete, with path-style
addresses. Reference: Amazon S3 API Reference (API version 2006-03-01). Signatures are not checked.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Callable, Mapping
from email.utils import formatdate
from time import gmtime, strftime
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from energon_stream.testing._http import HttpRequest, Response
from energon_stream.testing._s3objects import Objects, StoredObject, list_page, md5_etag

_CODES = {
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    409: "OperationAborted",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "TooManyRequests",
    501: "NotImplemented",
    503: "SlowDown",
}
_ECHOED = {"delimiter": "Delimiter", "start-after": "StartAfter", "marker": "Marker"}
# A folder of files cannot hold every key.
_BAD_NAME = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def _xml(name: str, content: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # Amazon's error documents are in no namespace.
    opening = name if name == "Error" else f'{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{opening}>{content}</{name}>'
    return Response(status, {"Content-Type": "application/xml", **(headers or {})}, text.encode())


def _tags(**contents: str) -> str:
    return "".join(f"<{name}>{content}</{name}>" for name, content in contents.items())


def error_response(
    status: int, path: str, code: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Return an S3 error document; ``code`` defaults to the usual one of the status."""
    code = code or _CODES.get(status, "InternalError" if status >= 500 else "InvalidRequest")
    return _xml(
        "Error", _tags(Code=code, Message=code, Resource=escape(path), RequestId="0"), status, headers
    )


def _time(modified: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(modified))


def _parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return begin and end of a range header, clipped to the object; None if no byte is in the range."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    begin = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    return (begin, end) if begin < end else None


class S3Api:
    """Answers S3 requests from a set of objects: ``_get_bucket`` those to GET a bucket, and so on."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._uploads: dict[str, dict[int, bytes | bytearray]] = {}
        self._upload_ids = itertools.count(1)

    def handle(self, request: HttpRequest) -> Response:
        """Answer a request; an operation that is not covered with status 501, nonsense with 400."""
        try:
            response = self._dispatch(request)
        except (ValueError, KeyError, ElementTree.ParseError, *_BAD_NAME):
            response = error_response(400, request.path)
        response.headers["x-amz-request-id"] = "0"
        return response

    def _dispatch(self, request: HttpRequest) -> Response:
        if not request.bucket:
            return self._list_buckets() if request.method == "GET" else error_response(501, request.path)
        exists = request.bucket in self.objects.buckets()
        if not exists and not (request.method == "PUT" and not request.key):
            return error_response(404, request.path, "NoSuchBucket")
        name = f"_{request.method.lower()}_{'object' if request.key else 'bucket'}"
        handler: Callable[[HttpRequest], Response] | None = getattr(self, name, None)
        return error_response(501, request.path) if handler is None else handler(request)

    # Buckets

    def _list_buckets(self) -> Response:
        buckets = [_tags(Bucket=_tags(Name=name, CreationDate=_time(0))) for name in self.objects.buckets()]
        return _xml("ListAllMyBucketsResult", _tags(Buckets="".join(buckets)))

    def _get_bucket(self, request: HttpRequest) -> Response:
        query = request.query
        if "location" in query:
            return _xml("LocationConstraint", "")
        if "versioning" in query:
            return _xml("VersioningConfiguration", "")
        second = query.get("list-type") == "2"  # version of the operation
        after = query.get("start-after", "") if second else query.get("marker", "")
        if second and "continuation-token" in query:
            after = base64.urlsafe_b64decode(query["continuation-token"]).decode()
        prefix, limit = query.get("prefix", ""), min(1000, int(query.get("max-keys", "1000")))
        names, delimiter = self.objects.keys(request.bucket), query.get("delimiter", "")
        keys, prefixes, next_after = list_page(names, prefix, delimiter, after, limit)

        def name(text: str) -> str:
            return quote(text, safe="/") if query.get("encoding-type") == "url" else escape(text)

        tags = {"Name": request.bucket, "Prefix": name(prefix), "MaxKeys": str(limit)}
        tags |= {tag: name(query[item]) for item, tag in _ECHOED.items() if item in query}
        if "encoding-type" in query:
            tags["EncodingType"] = "url"
        tags["IsTruncated"] = "false" if next_after is None else "true"
        if second:
            tags["KeyCount"] = str(len(keys) + len(prefixes))
        if next_after is not None and second:
            tags["NextContinuationToken"] = base64.urlsafe_b64encode(next_after.encode()).decode()
        elif next_after is not None:
            tags["NextMarker"] = name(next_after)
        parts = [_tags(**tags)]
        for key in keys:
            stored = self._closed(request.bucket, key)
            if stored is not None:
                parts.append(
                    f"<Contents><Key>{name(key)}</Key><LastModified>{_time(stored.modified)}</LastModified>"
                    f"<ETag>{escape(stored.etag)}</ETag><Size>{stored.size}</Size>"
                    "<StorageClass>STANDARD</StorageClass></Contents>"
                )
        parts += [f"<CommonPrefixes><Prefix>{name(item)}</Prefix></CommonPrefixes>" for item in prefixes]
        return _xml("ListBucketResult", "".join(parts))

    def _head_bucket(self, request: HttpRequest) -> Response:
        return Response()

    def _put_bucket(self, request: HttpRequest) -> Response:
        self.objects.create_bucket(request.bucket)
        return Response(headers={"Location": f"/{request.bucket}"})

    def _delete_bucket(self, request: HttpRequest) -> Response:
        if self.objects.keys(request.bucket):
            return error_response(409, request.path, "BucketNotEmpty")
        self.objects.delete_bucket(request.bucket)
        return Response(204)

    def _post_bucket(self, request: HttpRequest) -> Response:
        if "delete" not in request.query:
            return error_response(501, request.path)
        wanted = ElementTree.fromstring(bytes(request.body)).iterfind("{*}Object/{*}Key")
        keys = [item.text or "" for item in wanted]
        for key in keys:
            self.objects.delete(request.bucket, key)
        return _xml("DeleteResult", "".join(_tags(Deleted=_tags(Key=escape(key))) for key in keys))

    # Objects

    def _closed(self, bucket: str, key: str) -> StoredObject | None:
        """Return an object whose bytes are not wanted."""
        with self.objects.open(bucket, key) or contextlib.nullcontext() as stored:
            return stored

    def _get_object(self, request: HttpRequest) -> Response:
        with self.objects.open(request.bucket, request.key) or contextlib.nullcontext() as stored:
            if stored is None:
                return error_response(404, request.path)
            return _object_response(request, stored)

    _head_object = _get_object

    def _put_object(self, request: HttpRequest) -> Response:
        if "uploadId" in request.query:
            return self._put_part(request)
        current = self._closed(request.bucket, request.key)
        wanted = request.headers.get("if-match")
        if request.headers.get("if-none-match") == "*" and current is not None:
            return error_response(412, request.path)
        if wanted is not None and (current is None or wanted != current.etag):
            return error_response(404 if current is None else 412, request.path)
        source = request.headers.get("x-amz-copy-source")
        if source is None:
            stored = self.objects.put(request.bucket, request.key, request.body)
            return Response(headers={"ETag": stored.etag})
        bucket, _, key = unquote(source).lstrip("/").partition("/")
        with self.objects.open(bucket, key) or contextlib.nullcontext() as found:
            if found is None:
                return error_response(404, source)
            stored = self.objects.put(request.bucket, request.key, bytes(found.read(0, found.size)))
        stamp = _tags(LastModified=_time(stored.modified), ETag=escape(stored.etag))
        return _xml("CopyObjectResult", stamp)

    def _delete_object(self, request: HttpRequest) -> Response:
        if "uploadId" in request.query:
            self._uploads.pop(request.query["uploadId"], None)
        else:
            self.objects.delete(request.bucket, request.key)
        return Response(204)

    # Uploads in parts

    def _post_object(self, request: HttpRequest) -> Response:
        place = _tags(Bucket=request.bucket, Key=escape(request.key))
        if "uploads" in request.query:
            upload = str(next(self._upload_ids))
            self._uploads[upload] = {}
            return _xml("InitiateMultipartUploadResult", place + _tags(UploadId=upload))
        parts = self._uploads.pop(request.query.get("uploadId", ""), None)
        if parts is None:
            return error_response(404, request.path, "NoSuchUpload")
        wanted = ElementTree.fromstring(bytes(request.body)).iterfind("{*}Part/{*}PartNumber")
        data = b"".join(parts[int(number.text or "0")] for number in wanted)
        stored = self.objects.put(request.bucket, request.key, data)
        return _xml("CompleteMultipartUploadResult", place + _tags(ETag=escape(stored.etag)))

    def _put_part(self, request: HttpRequest) -> Response:
        parts = self._uploads.get(request.query["uploadId"])
        if parts is None:
            return error_response(404, request.path, "NoSuchUpload")
        parts[int(request.query["partNumber"])] = request.body
        return Response(headers={"ETag": md5_etag(request.body)})


def _object_response(request: HttpRequest, stored: StoredObject) -> Response:
    wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
    if wanted is not None and wanted.strip('"') not in ("*", stored.etag.strip('"')):
        return error_response(412, request.path)
    headers = {
        "ETag": stored.etag,
        "Last-Modified": formatdate(stored.modified, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": "binary/octet-stream",
    }
    if unwanted is not None and unwanted.strip('"') in ("*", stored.etag.strip('"')):
        return Response(304, headers)
    header, status, span = request.headers.get("range"), 200, (0, stored.size)
    if header is not None and "," not in header:
        found = _parse_range(header, stored.size)
        if found is None:
            return error_response(416, request.path, headers={"Content-Range": f"bytes */{stored.size}"})
        status, span = 206, found
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{stored.size}"
    if request.method == "HEAD":
        return Response(status, headers | {"Content-Length": str(span[1] - span[0])})
    return Response(status, headers, stored.read(*span))
