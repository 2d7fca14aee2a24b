"""Forty processes killed at random moments on one directory; ``benchmarks/cache_kill.py`` does the same with
a thousand.
"""

from pathlib import Path

import children
from repetitions import is_nightly

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cache_kill.py"


def test_kills_leave_no_wrong_byte_and_nothing_to_clean(tmp_path):
    done = children.run(SCRIPT, "--kills", 40 if is_nightly() else 8, "--pause", 0.03, "--dir", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("good\n")
    assert done.stderr == ""  # no warning: nobody waited for a lock for long, no disk failed
