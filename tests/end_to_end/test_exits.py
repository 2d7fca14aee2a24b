"""Short processes end as they should; ``benchmarks/short_runs.py`` does the same 200 times."""

from pathlib import Path

import children

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "short_runs.py"


def test_short_runs_end_without_aborts_and_leave_nothing():
    """Each way of ending once; which start methods and transports they get is drawn anew by the seed."""
    done = children.run(SCRIPT, "--runs", 6, "--jobs", 2, finalize=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 runs, 0 with troubles" in done.stdout
