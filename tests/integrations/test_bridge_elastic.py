"""Megatron-Bridge and Megatron-LM go on with other numbers of data-parallel ranks, by their own functions.

The functions are compiled from the installed files, and nothing in them is changed. The expected global
batches are those of one undisturbed run on one rank. ``test_megatron_core.py`` says which Python this needs.
"""

import json
import os
import random
import subprocess
import sys
from itertools import pairwise

import pytest
from test_megatron_core import HERE, PYTHON, has_bridge

from energon_stream.testing.datasets import prepared_text_dataset

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists() or not has_bridge(), reason="no Bridge (make megatron)"),
    pytest.mark.timeout(3600),  # torchrun starts ten processes, each of which imports for seconds
]
SIZES = (1, 2, 3, 4, 6, 8)
MIX = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: a, weight: 3}
      - {path: b, weight: 1}
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    for name, samples in (("a", 900), ("b", 300)):
        text = name + " {} has some words of its own"
        prepared_text_dataset(folder / name, shards=8, samples_per_shard=samples, text=text)
    (folder / "mix.yaml").write_text(MIX)
    return folder


def launched(states, given, ranks=None):
    """Run the program: on ranks by torchrun, or a list of launches in forks."""
    command = [PYTHON, "-W", "ignore"]
    if ranks is not None:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "energon_stream.run_megatron", "--states", states]  # the one line
    command += [HERE / "bridge_elastic_program.py", json.dumps(given)]
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": ""}
    streams = {"ENERGON_STREAM_NUM_STREAMS": ""} if ranks and given["begin"] else {}  # that of the state then
    env = {**os.environ, **quiet, **streams}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def read(folder):
    """Micro-batches by their numbers; those of lost work come twice, and must be equal."""
    found = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            number, batch = json.loads(line)
            assert found.setdefault(number, batch) == batch, (path.name, number)
    return found


def trained(mixed, folder, sizes, seed, functions, by_torchrun=True):
    """Change to each of some numbers of ranks; return what was read, and by the undisturbed run."""
    draw = random.Random(seed)
    for name in ("parts", "whole", "states"):
        (folder / name).mkdir()
    states = str(folder / "states")
    common = {"data": str(mixed / "mix.yaml"), "functions": functions, "states": states}
    launches, begin = [], 0
    for ranks in sizes:
        save = begin + draw.randint(1, 2)
        lost = draw.randint(0, 1)  # steps after the last save: the job is lost, and they are done again
        workers = draw.choice([0, 1, 2] if ranks < 4 else [0, 0, 1])
        given = {"begin": begin, "end": save + lost, "save": save, "workers": workers}
        launches.append((ranks, {**common, **given, "out": str(folder / "parts")}))
        begin = save
    undisturbed = {"begin": 0, "end": begin, "save": None, "workers": 0, "out": str(folder / "whole")}
    launches.append((1, {**common, **undisturbed}))
    if by_torchrun:
        for ranks, given in launches:
            launched(states, given, ranks)
    else:
        streams = {False: "auto", True: ""}  # as the launcher says; later ones go on with that of the state
        launched(
            states, [{**each, "world": n, "streams": streams[each["begin"] > 0]} for n, each in launches]
        )
    parts, whole = read(folder / "parts"), read(folder / "whole")
    return {number: parts[number] for number in range(24 * begin)}, whole


def check(parts, whole):
    assert parts == whole
    texts = [sample[0] for number in sorted(parts) for sample in parts[number][0]]
    assert len(set(texts)) == len(texts) > 100  # less than a pass of each dataset: none is repeated
    return len(texts)


@pytest.mark.parametrize("functions", ["bridge", "lm"])
def test_three_changes(mixed, tmp_path, functions):
    folder = PYTHON.parents[1]
    if functions == "lm" and not any(
        folder.glob("lib/python*/site-packages/megatron/training/checkpointing.py")
    ):
        pytest.skip("no megatron.training in megatron-core (from 0.19 on)")
    check(*trained(mixed, tmp_path, (2, 4, 1, 3), 1, functions))


@pytest.mark.slow
def test_twenty_changes(mixed, tmp_path, capsys):
    draw = random.Random(42)
    sizes = [4]
    while len(sizes) < 21:
        sizes.append(draw.choice([size for size in SIZES if size != sizes[-1]]))
    assert all(before != after for before, after in pairwise(sizes))
    assert {*sizes} == {*SIZES}
    parts, whole = trained(mixed, tmp_path, sizes, 42, "bridge", by_torchrun=False)
    samples = check(parts, whole)
    with capsys.disabled():
        sys.stdout.write(
            f"\nranks {sizes}: {len(parts)} micro-batches of {samples} samples, as undisturbed\n"
        )
