"""What Linux alone has is taken away: prepare, train and resume work as on a laptop with macOS."""

import subprocess
import sys
from pathlib import Path

import children
import pytest


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_prepare_train_and_resume(workers):
    """Names are taken away before the library is imported; with fresh workers, in a fresh interpreter."""
    command = [str(Path(__file__).with_name("without_linux.py")), str(workers), "--take-away"]
    if workers:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    else:
        done = children.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prepared, trained and resumed" in done.stdout
    assert "the disk cache needs Linux" in done.stderr
