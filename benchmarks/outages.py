"""Measures how soon batches flow again after an outage of the store.

``python benchmarks/outages.py`` reads a dataset without pause from a server of its own, and makes the store
fail in each of several ways. It prints the seconds from the end of the outage to the next batch, the longest
pause between two batches, and whether all samples came in their order.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import logging
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_stream import ReadOptions, WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.testing.datasets import prepared_binary_dataset
from energon_stream.testing.s3server import Rule, S3Control

SAMPLES = 6400
BATCH = 16
BEFORE = 1.0  # seconds of reading before the outage
AFTER = 3.0


class Server:
    """The stand-in server in a process, which can be stopped, frozen and started again at its port."""

    def __init__(self, root: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self._command = [sys.executable, "-m", "energon_stream.testing.s3server"]
        self._command += ["--port", str(self.port), "--root", str(root), "--latency", "0.005"]
        self._command.append("--until-stdin-closes")
        self.control = S3Control(f"http://127.0.0.1:{self.port}")
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def stop(self) -> None:
        """End the process; connections are refused from then on."""
        self._process.kill()
        self._process.wait()

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)


@contextlib.contextmanager
def ruled(server: Server, **rule: Any) -> Iterator[None]:
    """Let all requests fail by a rule."""
    server.control.add_rule(Rule(**rule))
    yield
    server.control.clear_rules()


@contextlib.contextmanager
def refused(server: Server) -> Iterator[None]:
    """Let connections be refused."""
    server.stop()
    yield
    server.start()


@contextlib.contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Let the server accept connections and answer nothing."""
    server.send(signal.SIGSTOP)
    yield
    server.send(signal.SIGCONT)


@contextlib.contextmanager
def unresolved(server: Server) -> Iterator[None]:
    """Let names of hosts be unknown, and end the connections that exist."""
    from aiohttp import TCPConnector

    original = TCPConnector._resolve_host

    async def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    TCPConnector._resolve_host = fail  # type: ignore[method-assign]
    server.stop()
    server.start()
    yield
    TCPConnector._resolve_host = original  # type: ignore[method-assign]


@dataclass(frozen=True)
class Outage:
    """A kind of outage."""

    seconds: float
    make: Callable[[Server], contextlib.AbstractContextManager[None]]
    transport: str = "obstore"
    host: str = "127.0.0.1"


OUTAGES = {
    "refused": Outage(10, refused),
    "frozen": Outage(10, frozen),
    "503": Outage(60, lambda server: ruled(server, action="status", status=503)),
    "reset": Outage(10, lambda server: ruled(server, action="reset")),
    "truncate": Outage(10, lambda server: ruled(server, action="truncate")),
    "trickle": Outage(30, lambda server: ruled(server, action="trickle", rate=200.0)),
    "html": Outage(2, lambda server: ruled(server, action="html")),
    "refused, s3fs": Outage(10, refused, "fsspec"),
    "503, s3fs": Outage(10, lambda server: ruled(server, action="status", status=503), "fsspec"),
    "name, s3fs": Outage(10, unresolved, "fsspec", "localhost"),
}


def batches(url: str, options: dict[str, Any] | None, transport: str, workers: int) -> Iterator[Any]:
    """Read a dataset without end, with little read-ahead."""
    dataset = get_train_dataset(
        url,
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=50,
        worker_config=WorkerConfig(0, 1, workers),
        storage_options=options,
        transport=transport,
        read_options=ReadOptions(max_ahead=256, max_request=64 << 10),
        cache=False,
    )
    with get_savable_loader(dataset, prefetch_factor=2) as loader:
        yield from loader


def measure(name: str, outage: Outage, seconds: float, root: Path, workers: int) -> str:
    """Read through an outage, and return a line of the table."""
    server = Server(root)
    options = server.control.storage_options
    options["endpoint_url"] = f"http://{outage.host}:{server.port}"
    times: list[float] = []
    digest, marks = hashlib.sha1(), {}

    def fail() -> None:
        time.sleep(BEFORE)
        with outage.make(server):
            marks["begin"] = time.monotonic()
            time.sleep(seconds)
        marks["end"] = time.monotonic()

    stream = batches("s3://bucket/data", options, outage.transport, workers)
    first = next(stream)
    digest.update("".join(first["__key__"]).encode())
    thread = threading.Thread(target=fail)
    thread.start()
    for batch in stream:
        times.append(time.monotonic())
        digest.update("".join(batch["__key__"]).encode())
        if "end" in marks and times[-1] > marks["end"] + AFTER:
            break
    thread.join()
    stream.close()
    server.stop()
    expected = hashlib.sha1()
    local = batches(str(root / "bucket" / "data"), None, "auto", workers)
    for _, batch in zip(range(len(times) + 1), local, strict=False):
        expected.update("".join(batch["__key__"]).encode())
    local.close()
    recovery = next(moment for moment in times if moment > marks["end"]) - marks["end"]
    pause = max(after - before for before, after in itertools.pairwise(times))
    same = "yes" if digest.digest() == expected.digest() else "NO"
    return f"| {name} | {seconds:g} | {recovery:.2f} | {pause:.1f} | {same} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(OUTAGES), choices=list(OUTAGES))
    parser.add_argument("--seconds", type=float, help="length of each outage; default: that of its kind")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.stdout.write(
        "| outage | seconds | to the next batch | longest pause | in order |\n|---|--:|--:|--:|---|\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        prepared_binary_dataset(root / "bucket" / "data", samples=SAMPLES, shards=16)
        for name in arguments.kinds:
            outage = OUTAGES[name]
            line = measure(name, outage, arguments.seconds or outage.seconds, root, arguments.workers)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
