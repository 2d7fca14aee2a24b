"""Short processes end as they should; ``benchmarks/short_runs.py`` does the same 200 times."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "short_runs.py"


def test_short_runs_end_without_aborts_and_leave_nothing():
    """Each way of ending once; which start methods and transports they get is drawn anew by the seed."""
    command = [sys.executable, str(SCRIPT), "--runs", "6", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 runs, 0 with troubles" in done.stdout
