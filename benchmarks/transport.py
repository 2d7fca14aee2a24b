"""Compare transports inside our own stack: ``StoreSpec.open()`` and the ``Fetcher``, 32 range requests in
flight.

    python benchmarks/transport.py [--rounds 3] [--out docs/benchmarks]

obstore and fsspec (s3fs) over HTTP and HTTPS; obstore whose answers are copied to a buffer in chunks of
1 MiB, so that somebody could look at what has arrived; and as the floor a socket for each thread that
receives into a buffer it made (``recv_into``, HTTP only). nginx serves one file from memory on core 1, a
fresh process reads on core 0; rounds are interleaved, figures are medians. Trust the CPU seconds: MB/s
depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from string import Template

import numpy as np
import obstore.store

from energon_stream.storage import ByteRange, Fetcher, StoreSpec
from energon_stream.storage.obstore_use import share_arenas

IN_FLIGHT, WAITING = 32, 16
KIB = 1 << 10
FILE = 256 << 20
REQUESTS = {
    16 * KIB: 2048,
    64 * KIB: 2048,
    256 * KIB: 1024,
    1024 * KIB: 512,
    4096 * KIB: 128,
    16384 * KIB: 32,
}
CASES = [(kind, scheme) for kind in ("obstore", "fsspec") for scheme in ("http", "https")] + [
    ("chunks", "http"),
    ("sockets", "http"),
]
PACKAGES = ("obstore", "s3fs", "aiobotocore", "fsspec")
PATH = "bucket/object"
CLIENT_CORE, SERVER_CORE = 0, 1

CONF = Template("""\
worker_processes 1;
daemon off;
pid $folder/nginx.pid;
error_log $folder/error.log warn;
events { worker_connections 1024; }
http {
    client_body_temp_path $folder/body;
    proxy_temp_path $folder/proxy;
    fastcgi_temp_path $folder/fastcgi;
    uwsgi_temp_path $folder/uwsgi;
    scgi_temp_path $folder/scgi;
    access_log off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_requests 1000000;
    open_file_cache max=10;
    root $folder/root;
    server {
        listen 127.0.0.1:$http;
        listen 127.0.0.1:$https ssl;
        ssl_certificate $folder/server.pem;
        ssl_certificate_key $folder/server.key;
    }
}
""")

TEXT = """\
# Transport: obstore, fsspec or sockets

Made by `python benchmarks/transport.py --out docs/benchmarks`; every value is in [transport.json](transport.json). {machine}.
32 range requests in flight through `StoreSpec.open()` and the `Fetcher`, one client core, nginx on the other;
medians of {rounds} interleaved rounds. "sockets" is the floor: a keep-alive socket for each thread, `recv_into`.

## The choice

`transport="auto"` takes obstore. A small request costs a tenth of s3fs's CPU. A GB in requests of 4 MiB costs little more than half
over HTTP, and two thirds over HTTPS.

Sockets of our own would save another 0.1 CPU-ms a request and 0.2 CPU-s/GB. They would have to bring signatures, TLS, redirects,
proxies and credentials, so they are only the floor to compare with.

CPU a GB stops falling at 1 MiB and rises again at 16 MiB. Coalesced requests therefore end at some MiB.

{table}
"""


def run(*command):
    """Run a program, silent unless it fails."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def make_certificates(folder):
    """An authority of our own, and a server's certificate that it signed."""
    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    authority = (
        "-keyout",
        f"{folder}/ca.key",
        "-out",
        f"{folder}/ca.pem",
        "-subj",
        "/CN=benchmark authority",
    )
    run("openssl", "req", "-x509", *key, *authority)
    run(
        "openssl",
        "req",
        *key,
        "-keyout",
        f"{folder}/server.key",
        "-out",
        f"{folder}/csr",
        "-subj",
        "/CN=server",
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    signer = ("-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key", "-CAcreateserial", "-days", "2")
    out = ("-extfile", f"{folder}/names", "-out", f"{folder}/server.pem")
    run("openssl", "x509", "-req", "-in", f"{folder}/csr", *signer, *out)


@contextlib.contextmanager
def serve(folder):
    """One object over HTTP and HTTPS; gives the endpoint of each scheme."""
    make_certificates(folder)
    target = folder / "root" / PATH
    target.parent.mkdir(parents=True)
    block = os.urandom(1 << 20)
    target.write_bytes(block * (FILE // len(block)))
    folder.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = {"http": one.getsockname()[1], "https": two.getsockname()[1]}
    user = "user root;\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(user + CONF.substitute(folder=folder, **ports))
    command = ["nginx", "-p", str(folder), "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"]
    process = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}))
    try:
        for port in ports.values():
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
        yield {scheme: f"{scheme}://127.0.0.1:{port}" for scheme, port in ports.items()}
    finally:
        process.terminate()
        process.wait(10)


class Sockets:
    """The floor: range requests on a socket for each thread; knows no errors."""

    def __init__(self, endpoint):
        host, port = endpoint.removeprefix("http://").split(":")
        self._address = host, int(port)
        self._own = threading.local()

    def get_range(self, start, stop):
        own = self._own
        if not hasattr(own, "socket"):
            own.socket, own.head = socket.create_connection(self._address), bytearray(64 * KIB)
        request = f"GET /{PATH} HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{stop - 1}\r\n\r\n"
        own.socket.sendall(request.encode())
        body = np.empty(stop - start, dtype=np.uint8)
        got = end = 0
        while not end:
            got += own.socket.recv_into(memoryview(own.head)[got:])
            end = own.head.find(b"\r\n\r\n", 0, got) + 4 if b"\r\n\r\n" in own.head[:got] else 0
        assert own.head.startswith(b"HTTP/1.1 206"), own.head[:100]
        at = got - end
        body[:at] = np.frombuffer(own.head, dtype=np.uint8)[end:got]
        view = memoryview(body)
        while at < len(body):
            at += own.socket.recv_into(view[at:])
        return body


class Chunks:
    """obstore, whose answers are seen as they arrive; knows no errors."""

    def __init__(self, endpoint):
        bucket, _, self._key = PATH.partition("/")
        config = {"endpoint": endpoint, "access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
        self._store = obstore.store.S3Store(bucket, config=config, client_options={"allow_http": True})

    def get_range(self, start, stop):
        answer = obstore.get(self._store, self._key, options={"range": (start, stop)})
        body, at = np.empty(stop - start, dtype=np.uint8), 0
        for chunk in answer.stream(min_chunk_size=KIB * KIB):
            body[at : at + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            at += len(chunk)
        return body[:at]


DIRECT = {"chunks": Chunks, "sockets": Sockets}


def measure(kind, endpoint, authority):
    """In this process: all block sizes, one after the other."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    fetcher = Fetcher(IN_FLIGHT)
    if kind in DIRECT:
        share_arenas()
        client = DIRECT[kind](endpoint)

        def submit(start, stop):
            return fetcher.call(lambda: client.get_range(start, stop))
    else:
        settings = {"region_name": "us-east-1"} | (
            {"verify": authority} if endpoint.startswith("https") else {}
        )
        options = {"key": "k", "secret": "s", "endpoint_url": endpoint, "client_kwargs": settings}
        bucket, _, key = PATH.partition("/")
        store = StoreSpec(f"s3://{bucket}", options, kind).open()

        def submit(start, stop):
            return fetcher.submit(store, key, ByteRange(start, stop))

    for future in [submit(0, KIB) for _ in range(4 * IN_FLIGHT)]:  # connections and code
        future.result()
    found = {}
    for size, requests in REQUESTS.items():
        begin, cpu = time.perf_counter(), time.process_time()
        pending, taken = [], 0
        for number in range(requests):
            start = number * size % FILE
            pending.append(submit(start, start + size))
            if len(pending) == IN_FLIGHT + WAITING:
                taken += _size(pending.pop(0).result())
        while pending:
            taken += _size(pending.pop(0).result())
        assert taken == requests * size
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        found[size] = {
            "mb_per_second": taken / 1e6 / seconds,
            "cpu_per_gb": cpu / (taken / 1e9),
            "requests_per_second": requests / seconds,
            "cpu_ms_per_request": 1000 * cpu / requests,
        }
    return found


def _size(answer):
    return len(getattr(answer, "data", answer))


def table(medians):
    """Markdown."""
    lines = [
        "| block | transport | MB/s | CPU-s/GB | requests/s | CPU-ms a request |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for size in REQUESTS:
        name = f"{size // KIB} KiB" if size < KIB * KIB else f"{size // KIB // KIB} MiB"
        for kind, scheme in CASES:
            m = medians[kind, scheme][size]
            lines.append(
                f"| {name} | {kind} {scheme} | {m['mb_per_second']:,.0f} | {m['cpu_per_gb']:.2f} "
                f"| {m['requests_per_second']:,.0f} | {m['cpu_ms_per_request']:.3f} |"
            )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for transport.json and transport.md")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    values = defaultdict(lambda: defaultdict(list))
    loads = []
    with tempfile.TemporaryDirectory(prefix="transport-") as tmp, serve(Path(tmp)) as endpoints:
        for number in range(options.rounds):
            for case in CASES[number % len(CASES) :] + CASES[: number % len(CASES)]:
                loads.append(os.getloadavg()[0])
                command = [
                    sys.executable,
                    __file__,
                    "--measure",
                    case[0],
                    endpoints[case[1]],
                    f"{tmp}/ca.pem",
                ]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
                for size, found in json.loads(done.stdout).items():
                    values[case][int(size)].append(found)
                print(f"round {number + 1}: {' '.join(case)}", file=sys.stderr, flush=True)
    medians = {
        case: {
            size: {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
            for size, rounds in sizes.items()
        }
        for case, sizes in values.items()
    }
    shown = table(medians)
    print(shown)
    if options.out:
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
        machine = (
            f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}; load while it ran: "
        )
        machine += f"{min(loads):.1f} to {max(loads):.1f}"
        rounds = {" ".join(case): sizes for case, sizes in values.items()}
        document = {"machine": machine, "in_flight": IN_FLIGHT, "rounds": rounds}
        (options.out / "transport.json").write_text(json.dumps(document, indent=1) + "\n")
        text = TEXT.format(machine=machine, rounds=options.rounds, table=shown)
        (options.out / "transport.md").write_text(text)


if __name__ == "__main__":
    main()
