"""The short form of the script: some kills of each case, in local folders."""

from pathlib import Path

import children


def test_readers_see_the_old_or_the_new_dataset_after_each_kill():
    program = Path(__file__).with_name("run.py")
    done = children.run(program, "--kills", 5, "--seed", 7)  # it forks, so it must have no threads
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 1 kills in ") == 5
