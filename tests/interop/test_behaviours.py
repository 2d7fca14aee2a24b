"""The public behaviour of Megatron-Energon 7.4.1, and of this library under the alias: one program, the same
results.

``behaviours.json`` has the results of 7.4.1. Where ``make interop`` has installed it, the file is checked as
well. To add a case, add it to ``behaviours.py``, run that with 7.4.1, and copy its result to the file.
"""

import json
import os
import subprocess
from pathlib import Path

import children
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENERGON = Path(os.environ.get("ENERGON_STREAM_INTEROP_PYTHON", ROOT / ".venv-energon" / "bin" / "python"))
EXPECTED = json.loads((HERE / "behaviours.json").read_text())


ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
}


def results(ended):
    """Return the result of each case of a program that ended."""
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.rpartition("RESULT")[2])


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The results under the alias."""
    program = ("-m", "energon_stream.run_megatron", HERE / "behaviours.py")
    return results(children.run(*program, tmp_path_factory.mktemp("ours"), env=ENVIRONMENT))


@pytest.mark.parametrize("case", EXPECTED)
def test_under_the_alias(ours, case):
    assert ours[case] == EXPECTED[case]


def test_all_cases_have_a_result(ours):
    assert list(ours) == list(EXPECTED)


@pytest.mark.skipif(not ENERGON.exists(), reason="no Python with megatron-energon")
def test_megatron_energon_itself(tmp_path):
    command = [ENERGON, HERE / "behaviours.py", tmp_path]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert results(ended) == EXPECTED
