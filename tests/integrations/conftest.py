"""The alias, small datasets, and programs in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import children
import pytest

from energon_stream.integrations.megatron import install_alias, uninstall_alias
from energon_stream.testing.datasets import prepared_captioning_dataset

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def alias():
    """``megatron.energon``, for the length of a test."""
    install_alias()
    yield
    uninstall_alias()


@pytest.fixture(scope="module")
def _alias_ends():
    yield
    uninstall_alias()


@pytest.fixture
def lasting_alias(_alias_ends):
    """``megatron.energon``, which stays for further tests of a module: a fresh one costs 20 ms."""
    install_alias()


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Prepared datasets ``coco`` and ``coyo`` (50 of each, in 10 shards, split 8,1,1), and a mixture of
    them.
    """
    folder = tmp_path_factory.mktemp("data")
    for name in ("coco", "coyo"):
        prepared_captioning_dataset(folder / name, shards=10, samples_per_shard=5, name=name + "-{:03d}.tar")
    page = ROOT / "examples" / "pages" / "coyo-coco-dataset.yaml"
    (folder / page.name).write_bytes(page.read_bytes())
    return folder


class Run:
    """Runs Python programs and returns what they print.

    Attributes:
        python: The interpreter; None forks a process that has imported torch, the library and ``preload``.
        preload: Modules that the programs need and that take seconds to import.
    """

    def __init__(self):
        self.python, self.preload = None, ()

    def __call__(self, *arguments, code=0, cwd=None, **environment):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
        if self.python is None:
            done = children.run(*arguments, cwd=cwd, env=env, preload=self.preload)
        else:
            command = [str(self.python), *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr


@pytest.fixture
def run():
    """Run a program in a process of its own."""
    return Run()


@pytest.fixture
def run_fresh():
    """Run a program in a fresh interpreter."""
    fresh = Run()
    fresh.python = sys.executable
    return fresh
