"""A stand-in for Hugging Face's hub: the endpoints of repositories and buckets that HfFileSystem uses."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

_PAGE = 200
_LARGE = 4096  # bytes from which a file is "large": it is behind a redirect, and has another version
REPOSITORY, BUCKET = "datasets/user/name", "buckets/user/box"


class Hub:
    """Serves the folders of ``root`` that are named as repositories and buckets, for a ``with`` block.

    ``log`` has method, path and range of each request. If ``token`` is given, others are refused. The next
    reads of files are answered with the statuses of ``fail``.
    """

    def __init__(self, root, token=None):
        self.root, self.token, self.log, self.fail = Path(root), token, [], []
        for name in (REPOSITORY, BUCKET):
            (self.root / name).mkdir(parents=True)
        hub = self

        class Handler(_Handler):
            def __init__(self, *arguments):
                self.hub = hub
                super().__init__(*arguments)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def storage_options(self):
        return {"endpoint": self.endpoint, "token": self.token or False}

    def reads(self):
        """Paths and ranges of the GETs of files, without the redirects."""
        return [(path.rpartition("/")[2], range) for method, path, range in self.log if "/resolve/" in path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer()

    def do_GET(self):
        self._answer()

    def do_POST(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer()

    def _answer(self):
        hub, url = self.hub, urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        hub.log.append((self.command, path, self.headers.get("Range")))
        is_signed = path.startswith("/cdn/")
        if hub.token and not is_signed and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._send(401, b"", {"X-Error-Message": "Invalid credentials"})
        if is_signed:
            return self._file(hub.root / path.removeprefix("/cdn/"))
        if "/resolve/" in path:
            if hub.fail:
                return self._send(hub.fail.pop(0), b"")
            place, _, inner = path.strip("/").partition("/resolve/")
            inner = inner if place.startswith("buckets/") else inner.partition("/")[2]
            return self._resolve(hub.root / place / inner)
        parts = path.removeprefix("/api/").split("/")
        root, (action, *rest) = hub.root.joinpath(*parts[:3]), [*parts[3:], ""][: max(1, len(parts) - 3)]
        is_bucket = parts[0] == "buckets"
        if len(parts) < 3 or not root.is_dir():  # a name has an owner; old clients ask without it too
            code = "BucketNotFound" if is_bucket else "RepoNotFound"
            return self._send(404, b"", {"X-Error-Code": code, "X-Error-Message": "no such place"})
        if action == "revision" and rest != ["main"]:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if action in ("", "revision"):
            about = {"id": "/".join(parts[1:3]), "private": False, "sha": "0" * 40, "siblings": []}
            about |= {"createdAt": "2026-01-01T00:00:00.000Z", "size": 0, "totalFiles": 0}
            return self._json(about)
        if action == "tree":
            return self._tree(root, "/".join(rest if is_bucket else rest[1:]), is_bucket, query, url)
        if action == "paths-info":
            given = json.loads if is_bucket else parse_qs  # of repositories, a form
            found = [root / each for each in given(self.body.decode())["paths"]]
            return self._json([_about(root, each, is_bucket) for each in found if each.exists()])
        return self._send(404, b"")

    def _tree(self, root, inner, is_bucket, query, url):
        folder = root / inner
        deep = query.get("recursive", ["false"])[0].lower() == "true"
        found = sorted(folder.rglob("*") if deep else folder.glob("*")) if folder.is_dir() else []
        if is_bucket and folder.is_file():
            found = [folder]
        if not found and not is_bucket and inner:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        if is_bucket and deep:
            found = [each for each in found if each.is_file()]
        first = int(query.get("cursor", ["0"])[0])
        headers = {}
        if first + _PAGE < len(found):
            more = f"{self.hub.endpoint}{url.path}?recursive={deep}&cursor={first + _PAGE}"
            headers["Link"] = f'<{more}>; rel="next"'
        return self._json([_about(root, each, is_bucket) for each in found[first : first + _PAGE]], headers)

    def _resolve(self, path):
        if not path.is_file():
            return self._send(
                404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            )
        about = {"X-Repo-Commit": "0" * 40, "X-Linked-Size": str(path.stat().st_size)}
        about["X-Linked-ETag"] = f'"{_version(path)}"'
        if path.stat().st_size >= _LARGE:
            about["Location"] = (
                f"{self.hub.endpoint}/cdn/{quote(str(path.relative_to(self.hub.root)))}?signature=x"
            )
            return self._send(302, b"", about)
        return self._file(path, about)

    def _file(self, path, headers=None):
        data, wanted = path.read_bytes(), self.headers.get("Range")
        headers = {"ETag": '"of-a-server"', **(headers or {})}
        if wanted is None:
            return self._send(200, data, headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        part = data[int(first) : int(last) + 1]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return self._send(206, part, headers)

    def _json(self, value, headers=None):
        return self._send(
            200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def _send(self, status, data, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _version(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _about(root, path, is_bucket):
    about = {"path": path.relative_to(root).as_posix()}
    if path.is_dir():
        return {
            **about,
            "type": "directory",
            "oid": "1" * 40,
            "size": 0,
            "uploadedAt": "2026-01-01T00:00:00.000Z",
        }
    size, version = path.stat().st_size, _version(path)
    about |= {
        "type": "file",
        "size": size,
        "oid": version,
        "xetHash": version,
        "mtime": "2026-01-01T00:00:00.000Z",
    }
    if size >= _LARGE:
        about["lfs"] = {"oid": version, "size": size, "pointerSize": 130}
    return about
