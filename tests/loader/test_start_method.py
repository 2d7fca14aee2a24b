"""How workers start: by fork where it is safe, by a fork server elsewhere, and as the user asks."""

import os
import textwrap

import children
import pytest

from energon_stream.testing.datasets import prepared_binary_dataset

PROGRAM = """
import logging, multiprocessing, os, sys
import energon_stream as es
{extra}

logging.basicConfig(level="WARNING")

@es.stateless
def keep(sample):
    return {{**es.basic_sample_keys(sample), "bin": bytes(sample["bin"])}}

class Encoder(es.DefaultTaskEncoder):
    decoder = None
    cookers = [es.Cooker(keep)]

    def batch(self, samples):
        used = [name for name in ("s3fs", "energon_stream.storage._obstore") if name in sys.modules]
        name = multiprocessing.current_process().name
        return [sample["__key__"] for sample in samples], used, name, os.environ.get("ROUND")

def batches(workers, **options):
    dataset = es.get_train_dataset(
        {url!r}, batch_size=4, shuffle_buffer_size=5, max_samples_per_sequence=5,
        worker_config=es.WorkerConfig(0, 1, workers, num_streams=2), task_encoder=Encoder(),
        storage_options={storage_options!r},
    )
    with es.get_savable_loader(dataset, **options) as loader:
        return [batch for batch, _ in zip(loader, range(12))]

def main():
    first = batches(0)
    for workers in {rounds}:
        os.environ["ROUND"] = str(workers)
        later = batches(workers{options})
        assert {{seen for *_, seen in later}} == {{str(workers)}}  # the environment of today
        assert [keys for keys, *_ in later] == [keys for keys, *_ in first]
        print(sorted({{(tuple(used), name.partition("-")[0]) for _, used, name, _ in later}}))

{main}
"""
GUARDED = 'if __name__ == "__main__":\n    main()'
OBSTORE = "('energon_stream.storage._obstore',)"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "data"
    prepared_binary_dataset(folder, samples=80, shards=2, payload_bytes=6000)
    return folder


def run(tmp_path, server, bucket, *, extra="", options="", main=GUARDED, rounds=(2,), finalize=False):
    """Run the program; one of each start method finalizes."""
    program = tmp_path / "program.py"
    text = PROGRAM.format(
        url=f"{bucket}/data",
        storage_options=server.storage_options,
        extra=extra,
        options=options,
        main=main,
        rounds=rounds,
    )
    program.write_text(text)
    return children.run(str(program), finalize=finalize)


@pytest.fixture
def bucket(s3_server, tmp_bucket, data):
    s3_server.upload_folder(data, f"{tmp_bucket}/data")
    return tmp_bucket


def test_after_a_loop_without_workers_they_read_through_obstore(tmp_path, s3_server, bucket):
    """The usual order in a notebook. Workers used to fall back to s3fs, with a warning each."""
    done = run(tmp_path, s3_server, bucket, rounds=(1, 2), finalize=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"[({OBSTORE}, 'ForkServerProcess')]"] * 2
    assert "fsspec" not in done.stderr


def test_without_a_guard_they_fork_and_a_warning_says_why(tmp_path, s3_server, bucket):
    done = run(tmp_path, s3_server, bucket, main="main()", finalize=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("'ForkProcess'") == 1
    assert 'has no `if __name__ == "__main__":`' in done.stderr


def test_what_cannot_be_pickled_forks(tmp_path, s3_server, bucket):
    done = run(
        tmp_path,
        s3_server,
        bucket,
        main="Encoder.__init__ = lambda self: setattr(self, 'f', lambda: 0)\n" + GUARDED,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("'ForkProcess'") == 1
    assert "the dataset cannot be pickled" in done.stderr


def test_the_program_s_own_method_is_used(tmp_path, s3_server, bucket):
    main = GUARDED.replace("    main()", '    multiprocessing.set_start_method("spawn")\n    main()')
    done = run(tmp_path, s3_server, bucket, main=main, finalize=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("'SpawnProcess'") == 1


def test_a_missing_guard_is_named(tmp_path, s3_server, bucket):
    done = run(tmp_path, s3_server, bucket, options=', start_method="spawn"', main="main()")
    assert done.returncode == 1
    assert "worker 0 did not start by 'spawn'" in done.stderr
    assert 'put it under `if __name__ == "__main__":`' in textwrap.dedent(done.stderr)
    assert "memory" not in done.stderr.partition("did not start by")[2]


THREADS = """
import torch
import energon_stream as es

class Encoder(es.DefaultTaskEncoder):
    decoder = None
    cookers = [es.Cooker(es.basic_sample_keys)]

    def batch(self, samples):
        return torch.ones(1 << 20).add(1).sum().item(), torch.get_num_threads()

torch.ones(1 << 20).add(1).sum()  # threads that a fork does not have
print(torch.get_num_threads())
dataset = es.get_train_dataset(
    {path!r}, batch_size=4, shuffle_buffer_size=5, max_samples_per_sequence=5,
    worker_config=es.WorkerConfig(0, 1, 2), task_encoder=Encoder(),
)
with es.get_savable_loader(dataset) as loader:
    print({{batch for batch, _ in zip(loader, range(4))}})
"""


def test_workers_compute_on_one_thread_each_after_a_fork_of_many(data):
    done = children.run(
        "-c", THREADS.format(path=str(data)), env=os.environ | {"OMP_NUM_THREADS": "3"}, check=True
    )
    assert done.stdout.splitlines() == ["3", f"{{({2.0 * (1 << 20)}, 1)}}"]
