"""Beside Megatron-Core from PyPI, and under Megatron-Bridge's own data module.

``ENERGON_STREAM_MEGATRON_PYTHON`` names a Python with ``megatron-core`` and ``megatron-bridge``; the default
is ``.venv-megatron-core`` in the checkout, which ``make megatron`` makes.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON = Path(
    os.environ.get("ENERGON_STREAM_MEGATRON_PYTHON", ROOT / ".venv-megatron-core" / "bin" / "python")
)

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="no Python with megatron-core (make megatron)"),
]


@pytest.fixture
def ranks(run):
    """Run a program on several ranks of that Python."""
    run.python = str(PYTHON)

    def launch(count, *arguments):
        # Megatron-Core warns of all that is not installed.
        command = ["-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
        return run(*command, *arguments, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore").splitlines()

    return launch


def has_bridge():
    """Whether that Python has Megatron-Bridge."""
    code = "import importlib.metadata as m; m.version('megatron-bridge')"
    return subprocess.run([PYTHON, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(("first", "module"), [("core", "groups"), ("alias", "none"), ("alias", "bridge")])
def test_context_parallel_ranks_of_megatron_core_read_the_same(ranks, data, first, module):
    if module == "bridge" and not has_bridge():
        pytest.skip("no megatron-bridge (make megatron)")
    printed = ranks(4, HERE / "megatron_core_program.py", first, data / "coco", module)
    (found,) = (json.loads(line.removeprefix("RESULT")) for line in printed if line.startswith("RESULT"))
    read = {(dp, cp): keys for dp, cp, keys, _ in found}
    assert sorted(read) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for dp in range(2):
        assert read[dp, 0] == read[dp, 1]
        assert len(set(read[dp, 0])) == 20
    assert not {*read[0, 0]} & {*read[1, 0]}
    assert all(state for *_, state in found)


def test_the_training_loop_on_two_ranks(ranks, data, tmp_path):
    program, options = ROOT / "examples" / "megatron_train.py", ["--save-interval", 3, "--workers", 2]
    whole = ranks(2, program, data / "coco", tmp_path / "whole", "--iterations", 7, *options)
    ranks(2, program, data / "coco", tmp_path / "parts", "--iterations", 4, *options)
    resumed = ranks(2, program, data / "coco", tmp_path / "parts", "--iterations", 7, "--load", *options)

    def keys(lines, rank):
        own = [line.partition("loss") for line in lines if line.startswith(f"rank {rank} iteration")]
        return {head: rest.partition("keys")[2] for head, _, rest in own}

    for rank in range(2):
        expected = keys(whole, rank)
        assert len(expected) == 7
        assert len(keys(resumed, rank)) == 4
        assert keys(resumed, rank).items() <= expected.items()
