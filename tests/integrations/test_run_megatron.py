"""``python -m energon_stream.run_megatron``: programs run as they are."""

import pytest

from energon_stream.compat.alias import ON_PATH

RUN = ("-m", "energon_stream.run_megatron")
SHOW = """
import sys
from megatron.energon import WorkerConfig
import beside
print(__name__, __file__, sys.argv, sys.path[0], __package__ or None, WorkerConfig.__module__)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "beside.py").touch()
    (tmp_path / "package" / "program.py").write_text(SHOW)
    (tmp_path / "package" / "module.py").write_text(SHOW.replace("import beside", "from . import beside"))
    return tmp_path


def test_a_file(run, run_fresh, folder):
    path = folder / "package" / "program.py"
    options = ["--steps", "3", "-m", "--shadow", "last"]  # the program's own, whatever they are called
    printed = run_fresh(*RUN, path, *options)
    argv = [str(path), *options]
    assert printed == f"__main__ {path} {argv} {path.parent} None energon_stream.worker\n"
    assert printed == run(path, *options, PYTHONPATH=ON_PATH)


def test_a_module(run, folder):
    printed = run(*RUN, "-m", "package.module", "a", "-b", cwd=folder)
    path = folder / "package" / "module.py"
    assert printed == f"__main__ {path} {[str(path), 'a', '-b']} {folder} package energon_stream.worker\n"
    assert printed == run("-m", "package.module", "a", "-b", cwd=folder, PYTHONPATH=ON_PATH)


def test_a_program_ends_as_it_wishes(run, folder):
    path = folder / "program.py"
    path.write_text("raise SystemExit(3)")
    run(*RUN, path, code=3)
    path.write_text("raise KeyError('of the program')")
    assert "KeyError: 'of the program'" in run(*RUN, path, code=1)


def test_what_cannot_be_run(run, folder):
    assert "name the program to run" in run(*RUN, code=2)
    assert "the file nothing.py does not exist" in run(*RUN, "nothing.py", code=2, cwd=folder)
    assert "No module named nothing" in run(*RUN, "-m", "nothing", code=1, cwd=folder)
    assert run(*RUN, "--path") == f"{ON_PATH}\n"


def test_beside_megatron_energon_only_if_asked(run, folder):
    (folder / "megatron" / "energon").mkdir(parents=True)
    (folder / "megatron" / "energon" / "__init__.py").touch()
    path = folder / "package" / "program.py"
    assert "Megatron-Energon is installed" in run(*RUN, path, code=2, PYTHONPATH=str(folder))
    assert "energon_stream.worker" in run(*RUN, "--shadow", path, PYTHONPATH=str(folder))


SPAWNING = """
import multiprocessing, sys
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset

class Encoder(DefaultTaskEncoder):
    def encode_sample(self, sample):
        sample.caption = multiprocessing.current_process().name
        return sample

def names(start_method):
    dataset = get_train_dataset(
        sys.argv[1], batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=None,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2), task_encoder=Encoder(),
    )
    with get_loader(dataset, start_method=start_method) as loader:
        batches = iter(loader)
        return sorted({next(batches).caption[0] for _ in range(2)})

if __name__ == "__main__":
    print([name.split("-")[0] for name in names("fork") + names("spawn")])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(str, [Encoder]))
"""


@pytest.mark.parametrize("way", ["file", "module"])
def test_workers_and_other_processes_find_the_programs_classes(run, data, tmp_path, way):
    (tmp_path / "program.py").write_text(SPAWNING)
    program = [tmp_path / "program.py"] if way == "file" else ["-m", "program"]
    printed = run(*RUN, *program, data / "coco", cwd=tmp_path)
    assert printed.splitlines()[0] == str(["ForkProcess"] * 2 + ["SpawnProcess"] * 2)
    assert "Encoder" in printed.splitlines()[1]


RANKS = """
import sys
import torch.distributed as dist
from megatron.energon import WorkerConfig, get_loader, get_train_dataset

dist.init_process_group("gloo")
config = WorkerConfig.default_worker_config(1)
dataset = get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None, worker_config=config,
    virtual_epoch_length=5,
)
keys = [key for batch in get_loader(dataset) for key in batch.__key__]
found = [None] * dist.get_world_size()
dist.all_gather_object(found, (config.rank, keys))
if config.rank == 0:
    print(found)
dist.destroy_process_group()
"""


def test_torchrun(run, data, tmp_path):
    (tmp_path / "program.py").write_text(RANKS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = run(*launch, *RUN, tmp_path / "program.py", data / "coco", OMP_NUM_THREADS="1")
    found = dict(eval(printed.splitlines()[-1]))
    assert sorted(found) == [0, 1]
    assert len({*found[0], *found[1]}) == 40
