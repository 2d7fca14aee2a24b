"""The transforms of Megatron-Energon 7.4.1 and ours: one program, nearly the same colours.

``behaviours_transforms.json`` has the results of 7.4.1. Both sides need torchvision, which fits one version
of torch: ours runs here where torchvision imports (``make transforms``), else with the Python of ``make
interop``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENERGON = Path(os.environ.get("ENERGON_STREAM_INTEROP_PYTHON", ROOT / ".venv-energon" / "bin" / "python"))
PROGRAM = HERE / "behaviours_transforms.py"
EXPECTED = json.loads((HERE / "behaviours_transforms.json").read_text())
FURTHEST, FAR = 7.0, 1.0
"""Largest and mean distance of the colours of a part, from 0 to 255."""


def _imports_torchvision():
    try:
        import torchvision.transforms  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


def _results(folder, *command):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)])}
    ended = subprocess.run([*command, folder], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.rpartition("RESULT")[2])


def _colours(value):
    """The numbers in a result, and the result without them."""
    if isinstance(value, float):
        return [value], None
    if isinstance(value, list):
        found = [_colours(inner) for inner in value]
        return [number for numbers, _ in found for number in numbers], [rest for _, rest in found]
    return [], value


def _assert_near(results):
    assert list(results) == list(EXPECTED)
    for name, result in results.items():
        colours, rest = _colours(result)
        expected, same = _colours(EXPECTED[name])
        assert rest == same, name
        distance = np.abs(np.subtract(colours, expected))
        assert distance.max() <= FURTHEST, name
        assert distance.mean() <= FAR, name


def test_our_transforms(tmp_path):
    if _imports_torchvision():
        python = sys.executable
    elif ENERGON.exists():
        python = str(ENERGON)
    else:
        pytest.skip("torchvision does not import beside this PyTorch")
    _assert_near(_results(tmp_path, python, "-m", "energon_stream.run_megatron", "--shadow", PROGRAM))


@pytest.mark.skipif(not ENERGON.exists(), reason="no Python with megatron-energon")
def test_megatron_energon_itself(tmp_path):
    _assert_near(_results(tmp_path, ENERGON, PROGRAM))
