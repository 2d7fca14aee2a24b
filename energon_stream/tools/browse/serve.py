"""Runs the page on this machine."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError
from energon_stream.imports import LazyModule
from energon_stream.limits import Limits
from energon_stream.tools.browse.app import make_app
from energon_stream.tools.browse.catalog import Catalog
from energon_stream.tools.browse.memory_budget import return_large_blocks
from energon_stream.tools.browse.pages import Pages
from energon_stream.tools.browse.training import Run, StepFinder

if TYPE_CHECKING:
    import uvicorn
else:
    uvicorn = LazyModule("uvicorn", "browse")

_HOST = "127.0.0.1"
_STOP_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Served:
    """A page that is served on 127.0.0.1."""

    port: int
    token: str  # secret part of the URL

    @property
    def url(self) -> str:
        """URL of the page."""
        return f"http://{_HOST}:{self.port}/{self.token}/"


@contextmanager
def serving(
    path: str,
    *,
    port: int = 0,
    run: Run | None = None,
    storage_options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    **names: str,
) -> Iterator[Served]:
    """Serve the page of a dataset or metadataset on 127.0.0.1 until the block ends.

    Needs the extra ``browse``.

    Args:
        path: Path or URL of the dataset or metadataset.
        port: TCP port; 0 takes a free one.
        run: The training whose steps can be looked at.
        storage_options: Credentials and other options of the store.
        limits: Bounds on what data may cost. None: those of ``ENERGON_STREAM_LIMITS``.
        **names: ``split_config`` and ``dataset_config``, for other files in ``.nv-meta``.

    Raises:
        MissingPackageError: starlette or uvicorn is not installed.
        ConfigError: The port is not free.
        NotPreparedError: There is neither metadata nor a tar.
        StorageError: The store did not deliver.

    Example:
        >>> import json, urllib.request
        >>> with serving("captions") as served:
        ...     found = json.load(urllib.request.urlopen(f"{served.url}api/samples?count=1"))
        >>> found["total"], found["samples"][0]["parts"][1]["text"]
        (48, 'a red circle on black')
    """
    return_large_blocks()
    run = run or Run()
    token = secrets.token_urlsafe(24)
    config_type, server_type = uvicorn.Config, uvicorn.Server  # before the dataset is read
    catalog = Catalog(path, storage_options, **names)
    limits = limits or Limits.from_environment()
    training = {**run.options, "storage_options": storage_options, "limits": limits, **names}
    pages = Pages(catalog, StepFinder(path, training), run, limits)
    app = make_app(pages, token)
    try:
        listener = socket.create_server((_HOST, port))
    except OSError as error:
        raise ConfigError(f"port {port} cannot be used: {error}", hint="give another one") from error
    quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}
    server = server_type(config_type(app, lifespan="off", timeout_graceful_shutdown=_STOP_SECONDS, **quiet))
    thread = threading.Thread(target=server.run, args=([listener],), name="browse", daemon=True)
    thread.start()
    try:
        yield Served(listener.getsockname()[1], token)
    finally:
        server.should_exit = True
        thread.join(2 * _STOP_SECONDS)
        listener.close()
