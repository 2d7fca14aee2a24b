"""Short processes end as they should; ``benchmarks/short_runs.py`` does the same 200 times."""

from pathlib import Path

import children
from repetitions import is_nightly

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "short_runs.py"


def test_short_runs_end_without_aborts_and_leave_nothing():
    """Each way of ending once, half of them by day; the seed draws start methods and transports anew."""
    runs = 6 if is_nightly() else 3
    done = children.run(SCRIPT, "--runs", runs, "--jobs", 2, finalize=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{runs} runs, 0 with troubles" in done.stdout
