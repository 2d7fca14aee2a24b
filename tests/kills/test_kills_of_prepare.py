"""The short form of the script: some kills of each case, in local folders."""

import subprocess
import sys
from pathlib import Path


def test_readers_see_the_old_or_the_new_dataset_after_each_kill():
    command = [sys.executable, Path(__file__).with_name("run.py"), "--kills", "5", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True)  # it forks, so it must have no threads
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 1 kills in ") == 5
