"""Beside Megatron-Core from PyPI, and under Megatron-Bridge's own data module.

``ENERGON_STREAM_MEGATRON_PYTHON`` names a Python with ``megatron-core`` and ``megatron-bridge``; the default
is ``.venv-megatron-core`` in the checkout, which ``make megatron`` makes.
"""

import json
import os
import subprocess
import tarfile
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
    assert all(resumed for *_, resumed in found)


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


PREPARE = """
import importlib.metadata, importlib.util, sys
from energon_stream.integrations.megatron import install_alias

install_alias()
from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset, stateless

path = importlib.metadata.distribution("megatron-bridge").locate_file("megatron/bridge/data/energon/prepare.py")
spec = importlib.util.spec_from_file_location("prepare", path)
prepare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prepare)
prepare.prepare_webdataset(sys.argv[1], {"train": "a-.*", "val": "b-.*"}, num_workers=2)
with open(sys.argv[1] + "/.nv-meta/dataset.yaml", "w") as file:
    file.write("__module__: megatron.energon\\n__class__: CrudeWebdataset\\n")

class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(stateless(lambda sample: sample))]

for part in ("train", "val"):
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset(
        sys.argv[1], split_part=part, batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None,
        worker_config=config, repeat=False, task_encoder=Encoder(),
    )
    print(part, *sorted(sample["__key__"] for sample in get_loader(dataset)))
"""


def test_bridge_prepares_a_folder(run, tmp_path):
    if not any(PYTHON.parents[1].glob("lib/python*/site-packages/megatron/bridge/data/energon/prepare.py")):
        pytest.skip("no megatron-bridge of 0.6 or newer (make megatron, with Python 3.12)")
    keys = {"a-0": ["a0", "a1"], "a-1": ["a2"], "b-0": ["b0", "b1"]}
    for shard, names in keys.items():
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(f"{name}.txt"))
    run.python = str(PYTHON)
    printed = run("-W", "ignore", "-c", PREPARE, tmp_path).splitlines()
    assert printed == ["train a0 a1 a2", "val b0 b1"]
