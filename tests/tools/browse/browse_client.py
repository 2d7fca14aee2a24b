"""Writes datasets, and asks the page by plain HTTP."""

from __future__ import annotations

import http.client
import io
import json
import tarfile
from urllib.parse import urlencode

from PIL import Image

from energon_stream.prepare.prepare import prepare_dataset
from energon_stream.testing.datasets import CRUDE_YAML

HACK = "document['title']='HACKED'"
HOSTILE_KEYS = [f"<img src=x onerror={HACK}>", "../../etc/passwd", "a\x1b]0;owned\x07\u202eb", '"><script>']
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{HACK}"><script>{HACK}</script></svg>'.encode()
HTML = f"<!doctype html><script>{HACK}</script>".encode()


class Client:
    """Asks a served page."""

    def __init__(self, served):
        self.served = served

    def get(self, path, query=None, *, token=None, method="GET", **headers):
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=60)
        token = f"/{self.served.token}/" if token is None else token
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"{token}{path}{'?' + urlencode(query) if query else ''}", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), body

    def ask(self, path, **query):
        """The JSON of an answer that must be fine."""
        status, _, body = self.get(f"api/{path}", query)
        assert status == 200, body
        return json.loads(body)


def image_bytes(size=(40, 30), form="PNG", mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, size, (200, 30, 30) if mode == "RGB" else 1).save(buffer, form)
    return buffer.getvalue()


def write_tar(path, samples):
    """Write a tar of samples, by key and part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for key, parts in samples.items():
            for part, content in parts.items():
                member = tarfile.TarInfo(f"{key}.{part}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_dataset(folder, shards):
    """Write and prepare a crude dataset; each shard is its samples by key."""
    for number, samples in enumerate(shards):
        write_tar(folder / f"data-{number:06d}.tar", samples)
    prepare_dataset(str(folder), split_ratio=(1, 0, 0), dataset_yaml=CRUDE_YAML)
    return folder
