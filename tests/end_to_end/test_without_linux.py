"""What Linux alone has is taken away: prepare, train and resume work as on a laptop with macOS."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_prepare_train_and_resume(workers):
    """A fresh interpreter, and fresh workers: names are taken away before the library is imported."""
    program = Path(__file__).with_name("without_linux.py")
    command = [sys.executable, str(program), str(workers), "--take-away"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prepared, trained and resumed" in done.stdout
    assert "the disk cache needs Linux" in done.stderr
