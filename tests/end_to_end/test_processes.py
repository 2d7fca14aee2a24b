"""The main job with ``kill -9`` in the middle, and what importing costs."""

import ast
import contextlib
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import children
import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def processes_in(folder):
    """Living processes that work in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "cwd") == str(folder.resolve()):
                found.append(entry.name)
    return found


def test_the_demo_resumes_exactly_and_leaves_nothing_behind(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = os.environ | {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
    done = children.run(EXAMPLES / "demo.py", env=env, cwd=tmp_path, finalize=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("killed with SIGKILL", "resumed in a new process", "EQUAL", "samples/s", "requests", "MB"):
        assert word in done.stdout
    assert list(scratch.iterdir()) == []
    if Path("/proc").is_dir():
        assert processes_in(tmp_path) == []


@pytest.mark.slow  # tests/loader/test_layouts.py starts torchrun too, test_elastic.py has other numbers of ranks
def test_a_job_that_loses_a_rank_goes_on_with_fewer_and_with_more(monkeypatch, capsys):
    """torchrun: three ranks, one of them killed, then two, then four; P15 with real processes."""
    monkeypatch.syspath_prepend(EXAMPLES)
    demo = importlib.import_module("elastic_demo")
    forks = SimpleNamespace(
        run=subprocess.run, Popen=lambda command, env: children.start(*command[1:], env=env)
    )
    monkeypatch.setattr(demo, "subprocess", forks)  # which need not import torch
    assert demo.main() == 0
    printed = capsys.readouterr().out
    for words in ("one of 3 ranks killed", "resumed on 2 ranks", "resumed on 4 ranks", "EQUAL: all 24 steps"):
        assert words in printed


def test_cluster_files_call_the_example_with_options_that_it_has():
    known = children.run(EXAMPLES / "train_ddp.py", "--help", check=True).stdout
    job = list(yaml.safe_load_all((EXAMPLES / "kubernetes" / "train.yaml").read_text()))[1]
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    script = arguments.index("examples/train_ddp.py")
    assert arguments[0] == f"--nnodes={job['spec']['completions']}"
    used = {argument.partition("=")[0] for argument in arguments[script + 1 :]}
    batch = (EXAMPLES / "slurm" / "train.sbatch").read_text()
    spot = yaml.safe_load((EXAMPLES / "skypilot" / "train.yaml").read_text())["run"]
    lint = (EXAMPLES / "slurm" / "lint.sbatch").read_text()
    for program in (batch, spot, lint):
        subprocess.run(["bash", "-n"], input=program, text=True, check=True)
    for program in (batch, spot):
        assert used == set(re.findall(r"--[a-z-]+", program.rpartition("train_ddp.py")[2]))
    launch = ast.parse((EXAMPLES / "sagemaker" / "launch.py").read_text())
    call = next(node for node in ast.walk(launch) if isinstance(node, ast.Call) and node.keywords)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    assert used == {f"--{name}" for name in ast.literal_eval(given["hyperparameters"])}
    assert (EXAMPLES / ast.literal_eval(given["entry_point"])).is_file()
    assert used == {"--data", "--checkpoint", "--record", "--steps", "--save-every", "--workers"}
    assert all(option in known for option in used)


@pytest.mark.parametrize("arguments", ["--version", "--help"])
def test_importing_and_the_command_line_do_without_torch(arguments):
    script = f"""
import sys
import energon_stream
assert not {{"torch", "numpy", "fsspec"}} & set(sys.modules), "import energon_stream"
from energon_stream.cli.main import main
main([{arguments!r}], standalone_mode=False)
assert not {{"torch", "s3fs", "obstore"}} & set(sys.modules), "energon-stream {arguments}"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "energon-stream" in done.stdout or "prepare" in done.stdout
