"""What Linux alone has is taken away: prepare, train and resume work as on a laptop with macOS."""

import subprocess
import sys
from pathlib import Path


def test_prepare_train_and_resume_with_spawned_workers():
    """A fresh interpreter: names are taken away before the library is imported."""
    program = Path(__file__).with_name("without_linux.py")
    command = [sys.executable, str(program), "--take-away"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prepared, trained and resumed" in done.stdout
    assert "the disk cache needs Linux" in done.stderr
