"""Training goes on in its order after the store has been away, in the main process and in a worker."""

import contextlib
import functools
import itertools
import os
import socket
import threading

import children
import pytest
import runs

from energon_stream import ReadOptions
from energon_stream.errors import EnergonStreamError
from energon_stream.storage import RetryPolicy
from energon_stream.testing.s3server import S3Control

AWAY = 1.0  # seconds


class OwnServer:
    """The stand-in server in a process, which can end and start again at its port."""

    def __init__(self, root):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.command = ["-m", "energon_stream.testing.s3server", "--until-stdin-closes"]
        self.command += ["--port", self.port, "--root", root]
        self.options = S3Control(f"http://127.0.0.1:{self.port}").storage_options

    def start(self):
        # It ends with this process, even if nobody stops it.
        (stdin, self.life), (said, stdout) = os.pipe(), os.pipe()
        self.process = children.start(*self.command, stdin=stdin, stdout=stdout)
        os.close(stdin)
        os.close(stdout)
        with open(said) as file:
            file.readline()

    def stop(self):
        self.process.kill()
        self.process.wait()
        os.close(self.life)


@pytest.fixture
def own_server(captions, tmp_path):
    root = tmp_path / "root"
    (root / "bucket").mkdir(parents=True)
    (root / "bucket" / "captions").symlink_to(captions)
    server = OwnServer(root)
    server.start()
    yield server
    server.stop()


@contextlib.contextmanager
def away(server):
    """Stop the server for a while, which may be longer than the block takes."""
    server.stop()
    back = threading.Timer(AWAY, server.start)
    back.start()
    try:
        yield
    finally:
        back.join()


@pytest.mark.every(2)
@pytest.mark.parametrize("transport", ["obstore", "fsspec"])
def test_refused_connections_are_waited_out(own_server, captions, transport):
    count = 30
    whole = runs.run(url=str(captions), workers=0, batches=count)
    small = ReadOptions(first_samples=3, max_request=4096, max_ahead=16)
    arguments = {"options": own_server.options, "transport": transport, "read_options": small}
    with runs.open_loader("s3://bucket/captions", workers=0, **arguments) as loader:
        found = [runs.digest(batch) for batch in itertools.islice(loader, 2)]
        with away(own_server):
            found += [runs.digest(batch) for batch in runs.take(loader, count - 2)]
        counted = loader.io_counters()
    assert found == whole
    assert counted.errors["TransientStorageError"] > 0


def test_workers_that_start_in_an_outage_wait_for_the_store(own_server, captions, monkeypatch):
    """The main process has had answers; the workers have not, and the store is away longer than its first
    contact may take, which is shorter here.
    """
    hasty = functools.partial(RetryPolicy, patience=0.1)
    monkeypatch.setattr("energon_stream.storage.transports.RetryPolicy", hasty)
    whole = runs.run(url=str(captions), workers=1, batches=3)
    loader = runs.open_loader("s3://bucket/captions", workers=1, options=own_server.options)
    with away(own_server), loader:
        assert [runs.digest(batch) for batch in runs.take(loader, 3)] == whole


def test_the_deadline_of_the_options_ends_the_run(own_server):
    small = ReadOptions(first_samples=3, max_request=4096, max_ahead=16, retry_deadline=0.5)
    arguments = {"options": own_server.options, "read_options": small}
    with runs.open_loader("s3://bucket/captions", workers=0, **arguments) as loader:
        runs.take(loader, 2)
        own_server.stop()
        with pytest.raises(EnergonStreamError, match="gave up after"):
            runs.take(loader, 400)
    own_server.start()
