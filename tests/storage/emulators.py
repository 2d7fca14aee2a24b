"""Emulators of Azure and Google Cloud, on loopback."""

import functools
import json
import os
import re
import shutil
import sys
import threading
import urllib.error
import urllib.request
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from energon_stream.testing.servers import ProcessServer

_NODE_MODULES = Path(__file__).resolve().parents[2] / ".venv-stores" / "node_modules" / ".bin"


def find_azurite():
    """Return the path of Azurite's blob service, from ``make stores`` or the PATH, or None."""
    return shutil.which("azurite-blob", path=f"{_NODE_MODULES}{os.pathsep}{os.environ.get('PATH', '')}")


class Azurite(ProcessServer):
    """Azure Blob Storage: Microsoft's emulator, which checks signatures."""

    account = "devstoreaccount1"
    # Not a secret: the key that Azurite documents for its one account.
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    @property
    def storage_options(self):
        return {
            "connection_string": f"DefaultEndpointsProtocol=http;AccountName={self.account};"
            f"AccountKey={self.key};BlobEndpoint={self.endpoint_url}/{self.account};"
        }

    def create_bucket(self, bucket):
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(self.storage_options["connection_string"]) as client:
            client.create_container(bucket)

    def _command(self, folder, port):
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
        return [find_azurite(), *where, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]

    def _answers(self):
        return _answers_http(self.endpoint_url)


class GcpEmulator(ProcessServer):
    """Google Cloud Storage: gcp-storage-emulator, which has the JSON API only and checks no credentials."""

    @property
    def storage_options(self):
        return {"token": "anon", "endpoint_url": self.endpoint_url, "project": "test"}

    def create_bucket(self, bucket):
        request = urllib.request.Request(
            f"{self.endpoint_url}/storage/v1/b?project=test",
            f'{{"name": "{bucket}"}}'.encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=10).close()

    def _command(self, folder, port):
        command = os.path.join(os.path.dirname(sys.executable), "gcp-storage-emulator")
        return [command, "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]

    def _answers(self):
        return _answers_http(self.endpoint_url)


def google_key(folder):
    """Write a key file that lets obstore work without a token server, and return the path."""
    path = folder / "key.json"
    nobody = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
    path.write_text(json.dumps(nobody))
    return str(path)


def msc_config(folder, profile, server, bucket):
    """Write a configuration of multi-storage-client for one bucket, and return the path."""
    provider = {
        "type": "s3",
        "options": {
            "base_path": bucket.removeprefix("s3://"),
            "endpoint_url": server.endpoint_url,
            "region_name": "us-east-1",
        },
    }
    keys = {"type": "S3Credentials", "options": {"access_key": "test", "secret_key": "test"}}
    path = folder / "msc.json"
    path.write_text(
        json.dumps({"profiles": {profile: {"storage_provider": provider, "credentials_provider": keys}}})
    )
    return path


def _answers_http(url):
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


class PlainHttp:
    """Serves a folder by HTTP, with byte ranges, without versions or listing.

    Args:
        root: The folder.
        ranges: Whether ranges are honoured; Python's own server ignores them.
    """

    def __init__(self, root, *, ranges=True):
        handler = functools.partial(_RangeHandler if ranges else _Handler, directory=str(root))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass


class _RangeHandler(_Handler):
    def do_GET(self):
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if match is None or not path.is_file():
            super().do_GET()
            return
        data, (first, last) = path.read_bytes(), match.groups()
        start = int(first) if first else max(0, len(data) - int(last))
        part = data[start : int(last) + 1 if first and last else None]
        self.send_response(206 if part else 416)
        self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        self.wfile.write(part)
