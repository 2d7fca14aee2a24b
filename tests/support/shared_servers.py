"""Servers that are started once for all processes of a pytest run.

A LocalStack costs ten CPU-seconds to start. The first pytest process that needs a server starts a holder, a
process that runs the server until the whole run has ended. The others read its address from a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from energon_stream.testing.servers import LocalStack, ProcessServer, SeaweedFS

AnyServer = TypeVar("AnyServer", bound=ProcessServer)
_POLL = 0.2


def shared_server(server: AnyServer, folder: Path, *arguments: str) -> AnyServer:
    """Point a server that was not started at the one of this run, which is started if there is none.

    Args:
        server: The server; it gets the address.
        folder: A folder that all processes of the run share, and no other run.
        arguments: Arguments of the server's class, for the process that starts it.
    """
    name = type(server).__name__
    address = folder / f"{name}.address"
    with _locked(folder / f"{name}.lock"):
        if not address.exists():
            run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            with (folder / f"{name}.log").open("wb") as log:
                holder = subprocess.Popen(
                    [sys.executable, __file__, name, str(address), str(run), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            while not address.exists():
                if holder.poll() is not None:
                    raise RuntimeError((folder / f"{name}.log").read_text())
                time.sleep(_POLL)
    server.endpoint_url = address.read_text()
    return server


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _main(name: str, address: str, run: str, *arguments: str) -> None:
    classes: dict[str, type[ProcessServer]] = {"LocalStack": LocalStack, "SeaweedFS": SeaweedFS}
    with classes[name](*arguments) as server:
        written = Path(address + ".new")
        written.write_text(server.endpoint_url)
        written.rename(address)
        while _is_running(int(run)):
            time.sleep(_POLL)


if __name__ == "__main__":
    _main(*sys.argv[1:])
