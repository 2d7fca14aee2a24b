"""Forty processes killed at random moments on one directory; ``benchmarks/cache_kill.py`` does the same with
a thousand.
"""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cache_kill.py"


def test_kills_leave_no_wrong_byte_and_nothing_to_clean(tmp_path):
    command = [sys.executable, str(SCRIPT), "--kills", "40", "--pause", "0.03", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("good\n")
    assert done.stderr == ""  # no warning: nobody waited for a lock for long, no disk failed
