"""A request-counting S3 stand-in on loopback, with adjustable speed and faults.

In a test::

    with S3Server(first_byte_latency=0.05, rate=85e6) as server:
        server.put("s3://bucket/key", b"data")
        fs = fsspec.filesystem("s3", **server.storage_options)
        server.shape(share_503=0.2, seed=7)
        ...
        assert server.counters().requests["GET"] == 10

On the command line: ``python -m energon_stream.testing.s3server --port 9100 --root FOLDER --latency 0.05``.
It checks no signatures and is no server for anything but tests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from types import TracebackType
from typing import Any

from energon_stream.errors import ConfigError, StorageError
from energon_stream.testing._s3api import S3Api
from energon_stream.testing._s3control import S3Control
from energon_stream.testing._s3faults import LogEntry, Rule, ServerCounters, Shaping, Traffic
from energon_stream.testing._s3http import serve
from energon_stream.testing._s3objects import FolderObjects, MemoryObjects

__all__ = ["ServerCounters", "LogEntry", "Rule", "S3Control", "S3Server", "Shaping"]


class S3Server(S3Control):
    """A stand-in server with the life of a ``with`` block.

    Args:
        root: Folder whose subfolders are the buckets, served and written as it lies on disk; None
            keeps objects in memory.
        port: TCP port; 0 takes a free one.
        own_process: Run in a process of its own (for benchmarks: the server's time is then not the
            client's), not in a thread.
        **shaping: Fields of :class:`Shaping` to begin with.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        own_process: bool = False,
        **shaping: Any,
    ) -> None:
        super().__init__("")
        self._root, self._port, self._own_process = root, port, own_process
        self._shaping = Shaping(**shaping)
        self._stop: Callable[[], None] | None = None

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start serving; returns when requests are answered."""
        if self._stop is not None:
            raise ConfigError("the server runs already", where=self.endpoint_url)
        self.endpoint_url, self._stop = self._start_process() if self._own_process else self._start_thread()

    def stop(self) -> None:
        """Stop serving and drop what is in memory. Stopping twice is fine."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _start_thread(self) -> tuple[str, Callable[[], None]]:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
        listener = socket.create_server(("127.0.0.1", self._port), backlog=1024)
        url = _url(listener)

        async def main() -> None:
            task = asyncio.ensure_future(_serve(listener, self._root, self._shaping))
            started.set_result((asyncio.get_running_loop(), task))
            with contextlib.suppress(asyncio.CancelledError):
                await task

        thread = threading.Thread(target=asyncio.run, args=(main(),), name="s3-stand-in", daemon=True)
        thread.start()
        loop, task = started.result()

        def stop() -> None:
            loop.call_soon_threadsafe(task.cancel)
            thread.join()

        return url, stop

    def _start_process(self) -> tuple[str, Callable[[], None]]:
        command = [
            sys.executable,
            "-m",
            "energon_stream.testing.s3server",
            "--port",
            str(self._port),
            "--until-stdin-closes",
        ]
        if self._root is not None:
            command += ["--root", os.fspath(self._root)]
        # The pipe to stdin closes however this process ends, so the server never outlives it.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline().strip() if process.stdout else ""
        if not line.startswith("http://"):
            process.kill()
            raise StorageError("the stand-in server did not start", hint="its error is on stderr")

        def stop() -> None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

        S3Control(line).shape(**asdict(self._shaping))
        return line, stop


def _url(listener: socket.socket) -> str:
    return "http://{}:{}".format(*listener.getsockname())


async def _serve(listener: socket.socket, root: str | os.PathLike[str] | None, shaping: Shaping) -> None:
    objects = MemoryObjects() if root is None else FolderObjects(root)
    await serve(listener, S3Api(objects), Traffic(shaping))


def main() -> None:
    """Serve until interrupted; the first line of standard output is the endpoint's URL."""
    parser = argparse.ArgumentParser(description="S3 stand-in for tests, on 127.0.0.1")
    parser.add_argument("--port", type=int, default=9100, help="0 takes a free port")
    parser.add_argument("--root", help="folder of buckets; default: objects in memory")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds to the first byte")
    parser.add_argument("--rate", type=float, help="bytes per second and connection")
    for fault in ("503", "reset", "truncate"):
        parser.add_argument(f"--share-{fault}", type=float, default=0.0, help="share of object reads")
    parser.add_argument("--slow-tail", type=float, nargs=2, default=(0.0, 1.0), metavar=("SHARE", "FACTOR"))
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--until-stdin-closes", action="store_true", help="stop at the end of standard input")
    options = parser.parse_args()
    shaping = Shaping(
        first_byte_latency=options.latency,
        rate=options.rate,
        share_503=options.share_503,
        share_reset=options.share_reset,
        share_truncate=options.share_truncate,
        slow_tail=options.slow_tail,
        seed=options.seed,
    )
    listener = socket.create_server(("127.0.0.1", options.port), backlog=1024)

    async def run() -> None:
        task = asyncio.ensure_future(_serve(listener, options.root, shaping))
        if options.until_stdin_closes:
            asyncio.get_running_loop().add_reader(sys.stdin, task.cancel)
        sys.stdout.write(f"{_url(listener)}\n")
        sys.stdout.flush()
        await task

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(run())


if __name__ == "__main__":
    main()
