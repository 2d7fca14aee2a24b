"""Servers that are started once for all processes of a pytest run.

A LocalStack costs ten CPU-seconds to start. The first pytest process that needs a server starts it and writes
its address to a file of the run; the others read the address. The process that started it stops it when no
other uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from energon_stream.testing.servers import ProcessServer

AnyServer = TypeVar("AnyServer", bound=ProcessServer)


@contextlib.contextmanager
def shared_server(folder: Path, name: str, make: Callable[[], AnyServer]) -> Iterator[AnyServer]:
    """A server, started here or by another process.

    Args:
        folder: A folder that all processes of the run share, and no other run.
        name: Name of the server.
        make: Creates the server without starting it.
    """
    address = folder / f"{name}.address"
    with contextlib.ExitStack() as stack:
        users = stack.enter_context((folder / f"{name}.users").open("w"))
        with _locked(folder / f"{name}.lock"):
            server = make()
            is_mine = not address.exists()
            if is_mine:
                stack.callback(server.stop)
                server.start()
                address.write_text(server.endpoint_url)
            else:
                server.endpoint_url = address.read_text()
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield server
        finally:
            if is_mine:
                with _locked(folder / f"{name}.lock"):
                    address.unlink()  # processes that come later start one of their own
                fcntl.flock(users, fcntl.LOCK_EX)  # waits for the processes that use this one


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
