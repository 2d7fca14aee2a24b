"""The command: what it prints, how it ends, and what it says without its packages."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys

import pytest
from browse_client import Client
from click.testing import CliRunner

from energon_stream.cli.main import main
from energon_stream.errors import MissingPackageError
from energon_stream.tools.browse import Served, serving

RUN = "from energon_stream.cli import run; run()"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_where_and_ends_at_a_signal(captions, number):
    command = [
        sys.executable,
        "-c",
        RUN,
        "browse",
        str(captions),
        "--json",
        "--step",
        "2",
        "--batch-size",
        "4",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        found = json.loads(process.stdout.readline())
        assert found["url"] == f"http://127.0.0.1:{found['port']}/{found['token']}/"
        client = Client(Served(found["port"], found["token"]))
        assert client.ask("catalog")["run"]["step"] == 2
        assert client.ask("step", step=2)["total"] == 4
        process.send_signal(number)
        assert process.wait(60) == 0
        assert "Stopped." in process.stderr.read()
    with (
        pytest.raises(OSError),
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", found["port"])) as late,
    ):
        late.request("GET", "/")


def test_steps_need_a_batch_size(captions):
    result = CliRunner().invoke(main, ["browse", str(captions), "--step", "2"])
    assert result.exit_code == 1
    assert "--batch-size" in result.output


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_missing_packages_are_named(captions, monkeypatch, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with monkeypatch.context() as patch:
        from energon_stream.tools.browse import app
        from energon_stream.tools.browse import serve as server

        for module in (app.applications, app.responses, app.routing, server.uvicorn):
            for attribute in [name for name in vars(module) if not name.startswith("_")]:
                patch.delattr(module, attribute)
        with (
            pytest.raises(MissingPackageError, match=r"pip install 'energon-stream\[browse\]'"),
            serving(str(captions)),
        ):
            pass
