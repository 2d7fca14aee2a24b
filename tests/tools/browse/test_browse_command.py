"""The command: what it prints, how it ends, and what it says without its packages."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
from itertools import islice

import children
import pytest
from browse_client import Client
from click.testing import CliRunner

from energon_stream import WorkerConfig, get_savable_loader, get_train_dataset
from energon_stream.cli.main import main
from energon_stream.errors import MissingPackageError
from energon_stream.tools.browse import Served, serving

RUN = "from energon_stream.cli import run; run()"


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("number", "recorded"), [(signal.SIGINT, False), (signal.SIGTERM, True)], ids=["options", "run"]
)
def test_it_prints_where_and_ends_at_a_signal(captions, tmp_path, number, recorded):
    """With the record of a run, the step is the one that the loop of that run got."""
    options, keys = [str(captions), "--batch-size", "4"], None
    if recorded:
        order = {"batch_size": 4, "shuffle_buffer_size": 8, "max_samples_per_sequence": 3}
        dataset = get_train_dataset(captions, worker_config=WorkerConfig(0, 2, 0, seed_offset=5), **order)
        with get_savable_loader(dataset, run=tmp_path / "run") as loader:
            keys = [batch.__key__ for batch in islice(loader, 3)][2]
        options = ["--run", str(tmp_path / "run")]
    command = [children.launcher(), "-c", RUN, "browse", *options, "--json", "--step", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        found = json.loads(process.stdout.readline())
        assert found["url"] == f"http://127.0.0.1:{found['port']}/{found['token']}/"
        client = Client(Served(found["port"], found["token"]))
        assert client.ask("catalog")["run"]["step"] == 2
        found_step = client.ask("step", step=2)
        assert found_step["total"] == 4
        if keys is not None:
            assert [f"{sample['shard']}/{sample['key']}" for sample in found_step["samples"]] == keys
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
    assert result.exit_code == 2
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
