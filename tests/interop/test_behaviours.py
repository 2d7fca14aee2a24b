"""The public behaviour of Megatron-Energon 7.4.1, and of this library under the alias: one program, the same
results.

``behaviours.json`` and its siblings have the results of 7.4.1: ``_more`` of the rest of the API, ``_clients``
of what programs that reach into the loader rely on, ``_own`` of datasets that programs write themselves, and
``_av`` of video and audio. Where ``make interop`` has installed it, the file is checked as well. To add a
case, add it to ``behaviours_more.py``, run it with 7.4.1, and copy its result to the file.
"""

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path

import children
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENERGON = Path(os.environ.get("ENERGON_STREAM_INTEROP_PYTHON", ROOT / ".venv-energon" / "bin" / "python"))
PROGRAMS = ("behaviours", "behaviours_more", "behaviours_clients", "behaviours_av", "behaviours_own")
EXPECTED = {program: json.loads((HERE / f"{program}.json").read_text()) for program in PROGRAMS}
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
}


def results(ended):
    """Return the result of each case of a program that ended."""
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.rpartition("RESULT")[2])


@functools.cache
def under_the_alias(program):
    """Return the results of a program under the alias."""
    with tempfile.TemporaryDirectory() as folder:
        run = ("-m", "energon_stream.run_megatron", HERE / f"{program}.py", folder)
        return results(children.run(*run, env=ENVIRONMENT))


@pytest.mark.parametrize(
    "case", [(program, name) for program in PROGRAMS for name in EXPECTED[program]], ids="-".join
)
def test_under_the_alias(case):
    program, name = case
    assert under_the_alias(program)[name] == EXPECTED[program][name]


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_cases_have_a_result(program):
    assert list(under_the_alias(program)) == list(EXPECTED[program])


@pytest.mark.skipif(not ENERGON.exists(), reason="no Python with megatron-energon")
@pytest.mark.parametrize("program", PROGRAMS)
def test_megatron_energon_itself(tmp_path, program):
    command = [ENERGON, HERE / f"{program}.py", tmp_path]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert results(ended) == EXPECTED[program]
