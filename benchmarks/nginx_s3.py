"""nginx as the read side of S3: fast enough (0.25 CPU-s/GB) that the client, not the server, is measured.

GET with Range and If-Match (412), HEAD, ListObjectsV2 without paging, errors as S3's XML. One port per
profile: a Lua sleep makes the first-byte latency, ``limit_rate`` the rate of a connection; faults follow a
fixed sequence of random numbers per port, so which request they hit depends on nothing but its number.
Signatures are not looked at. Everything lives in a temporary prefix; the access log gives exact counters
(``request_log.py``). Where nginx is absent, the slower asyncio stand-in of ``energon_stream.testing`` serves
instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

from request_log import LogReader, Request

from energon_stream.testing.s3server import S3Server

SERVER_CORE = 1
PRIORITY = -10
MODULES = Path("/usr/lib/nginx/modules")
_CHUNK = 512 << 10  # smaller ones take time of their own


@dataclass(frozen=True, slots=True)
class Profile:
    """Latency, rate and faults of the storage.

    Attributes:
        name: As the rows call it.
        latency: Seconds to the first byte.
        rate: Bytes per second of one connection; 0 for no limit.
        refused: Share of all requests that are answered with a 503.
        slow: Share of the GETs of objects whose first byte comes ``SLOWER`` times later.
    """

    name: str
    latency: float
    rate: int = 85_000_000
    refused: float = 0.0
    slow: float = 0.0

    @property
    def chunk(self) -> int:
        """Bytes that are sent at a time: nginx sleeps after each but the last, so that a response of a few is
        too fast.
        """
        return min(_CHUNK, self.rate // 160) or _CHUNK


SLOWER = 20
PROFILES = {
    p.name: p
    for p in (
        Profile("H0", 0.0, 0),
        Profile("H1", 0.001),
        Profile("H50", 0.05),
        Profile("L10", 0.05, 10_000_000),  # with many connections a line that is slower than this machine
        Profile("H200", 0.2),
        Profile("F20", 0.05, refused=0.2),
        Profile("T2", 0.05, slow=0.02),
    )
}

SERVER_BLOCK = """\
    server {{
        listen 127.0.0.1:{port};
        limit_rate {rate};
        sendfile_max_chunk {chunk};
        error_page 403 404 @missing;
        error_page 405 @read_only;
        error_page 412 @changed;
        error_page 416 @range;
        location @missing {{ content_by_lua_block {{ s3_error(404, "NoSuchKey", "The specified key does not exist.") }} }}
        location @read_only {{ content_by_lua_block {{ s3_error(405, "MethodNotAllowed", "This server only reads.") }} }}
        location @changed {{ content_by_lua_block {{ s3_error(412, "PreconditionFailed", "If-Match does not hold.") }} }}
        location @range {{ content_by_lua_block {{ s3_error(416, "InvalidRange", "Beyond the object's end.") }} }}
        location ~ "^/(?<bucket>[^/]+)/?$" {{
            access_by_lua_block {{ answer_late("{name}", {latency}, {refused}, 0) }}
            content_by_lua_block {{ list_objects(ngx.var.bucket) }}
        }}
        location / {{
            access_by_lua_block {{ answer_late("{name}", {latency}, {refused}, {slow}) }}
            try_files $uri @missing;  # a folder is no object
        }}
    }}
"""


def available() -> bool:
    """True when nginx and its Lua module are installed."""
    return shutil.which("nginx") is not None and (MODULES / "ngx_http_lua_module.so").exists()


def pin(core: int) -> None:
    """Keep this process on one core, so that client and server do not steal from each other."""
    if (os.cpu_count() or 1) > core:
        os.sched_setaffinity(0, {core})


def _free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(n)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


def _manifest(root: Path) -> str:
    rows = []
    for path in sorted(root.glob("*/**/*"), key=lambda p: p.relative_to(root).as_posix().encode()):
        if path.is_file():
            stat = path.stat()
            bucket, key = path.relative_to(root).as_posix().split("/", 1)
            etag = f'"{int(stat.st_mtime):x}-{stat.st_size:x}"'  # nginx's own formula
            date = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
            rows.append(f"{bucket}\t{key}\t{stat.st_size}\t{etag}\t{date}\n")
    return "".join(rows)


@dataclass(frozen=True, slots=True)
class Server:
    """A running stand-in: its kind, endpoint per profile, and what it answered since the last call."""

    kind: str
    endpoints: dict[str, str]
    take: Callable[[], list[Request]]


@contextlib.contextmanager
def serve(root: Path) -> Iterator[Server]:
    """Serve the buckets (folders) below ``root``, every profile on a port of its own, until the block
    ends.
    """
    with _serve_nginx(root) if available() else _serve_stand_in(root) as server:
        yield server


@contextlib.contextmanager
def _serve_stand_in(root: Path) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        servers = {
            p.name: stack.enter_context(
                S3Server(root, own_process=True, first_byte_latency=p.latency, rate=p.rate or None)
            )
            for p in PROFILES.values()
            if not p.refused and not p.slow
        }

        def take() -> list[Request]:
            found = []
            offset = time.time() - time.monotonic()
            for name, server in servers.items():
                for e in server.log():
                    # Its log has no start times: the shaping tells how long the answer took at least.
                    rate = PROFILES[name].rate
                    taken = PROFILES[name].latency + (e.bytes / rate if rate else 0)
                    end = e.time + offset
                    found.append(Request(end - taken, end, e.method, e.status, e.bytes, e.key))
                server.reset_counters()
            return sorted(found, key=lambda r: r.start)

        yield Server("the asyncio stand-in", {n: s.endpoint_url for n, s in servers.items()}, take)


@contextlib.contextmanager
def _serve_nginx(root: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="bench-nginx-") as tmp:
        prefix = Path(tmp)
        prefix.chmod(0o755)
        (prefix / "manifest.tsv").write_text(_manifest(root))
        ports = dict(zip(PROFILES, _free_ports(len(PROFILES)), strict=True))
        blocks = [
            SERVER_BLOCK.format(port=ports[p.name], chunk=p.chunk, **asdict(p)) for p in PROFILES.values()
        ]
        template = Template((Path(__file__).parent / "nginx_s3.conf.in").read_text())
        names = {
            "prefix": tmp,
            "modules": MODULES,
            "root": root.resolve(),
            "servers": "".join(blocks),
            "slower": SLOWER,
        }
        conf = template.substitute(names)
        if os.geteuid() == 0:
            # The folder of buckets may be private to root. A server elsewhere would not wait for threads of
            # its clients, and late timers make the line slower than its profile says.
            conf = f"user root;\nworker_priority {PRIORITY};\n{conf}"
        (prefix / "nginx.conf").write_text(conf)
        command = ["nginx", "-p", tmp, "-c", f"{tmp}/nginx.conf", "-e", f"{tmp}/error.log"]
        process = subprocess.Popen(command, preexec_fn=lambda: pin(SERVER_CORE))
        try:
            _wait(process, list(ports.values()), prefix / "error.log")
            endpoints = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
            yield Server("nginx", endpoints, LogReader(prefix / "access.log").take)
        finally:
            process.terminate()
            process.wait(10)


def _wait(process: subprocess.Popen[bytes], ports: list[int], log: Path) -> None:
    deadline = time.monotonic() + 10
    for port in ports:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nginx did not start: {log.read_text()}")
            time.sleep(0.02)
