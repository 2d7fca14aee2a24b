"""What type checkers infer for a user: both check a program whose every ``assert_type`` must hold.

Both complain of an ``ignore`` comment without an error, so they must find the errors that the program marks.
mypy shares the cache of ``make lint``, which has checked the library.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="the extra lint has the type checkers")

REPOSITORY = Path(__file__).parents[2]
PROGRAM = "tests/type_checkers/training_program.py"
STRICT = ["mypy", "--strict"]
PYRIGHT = ["pyright", "--pythonpath", sys.executable]


@pytest.mark.parametrize(
    "checker", [pytest.param(STRICT, marks=pytest.mark.slow), PYRIGHT], ids=["mypy", "pyright"]
)
def test_batches_have_their_type(checker):
    checked = subprocess.run(
        [sys.executable, "-m", *checker, PROGRAM], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
