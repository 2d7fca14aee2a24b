"""Signals to the whole process group, orphans, ends of programs, and limits of the system."""

import errno
import os
import resource
import signal
import textwrap
import time

import children
import pytest

from energon_stream import WorkerConfig, get_loader, get_savable_loader
from energon_stream.errors import WorkerError
from energon_stream.loader.resources import limit_error
from energon_stream.pipeline import BatchDataset, MapDataset
from energon_stream.pipeline.dataset import Wrapper
from energon_stream.state import loads
from energon_stream.testing.operator_suite import NumbersDataset

PROGRAM = """
import os, pathlib, signal, sys, time
from energon_stream import WorkerConfig, get_savable_loader
from energon_stream.loader import workers as worker_processes
from energon_stream.loader.observe import monitor
from energon_stream.pipeline import BatchDataset, MapDataset
from energon_stream.state import dumps
from energon_stream.testing.operator_suite import NumbersDataset

folder = pathlib.Path(sys.argv[1])
workers, method, way = int(sys.argv[2]), sys.argv[3], sys.argv[4]
monitor._GRACE_SECONDS = worker_processes._JOIN_SECONDS = 0.1

def gated(x):
    if x >= 20:  # until the test opens the gate, next() waits
        while not (folder / "gate").exists():
            time.sleep(0.01)
    return x

def main():
    numbers = NumbersDataset(100, WorkerConfig(0, 1, workers, num_streams=2))
    loader = get_savable_loader(BatchDataset(MapDataset(numbers, gated), 1, list), start_method=method)
    is_over = False

    def save():
        (folder / "state.new").write_bytes(dumps(loader.save_state_rank()))
        (folder / "state.new").rename(folder / "state")

    def on_term(number, frame):
        nonlocal is_over
        is_over = True
        if way == "save":
            save()
        if way == "exit":
            raise SystemExit(7)

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGUSR2, on_term)
    with open(folder / "seen", "w") as seen:
        try:
            for batch in loader:
                seen.write(f"{batch[0]}\\n")
                seen.flush()
                if is_over:
                    break
        finally:
            if way != "save":
                save()
    if way != "unclosed":
        loader.close()
    return loader

if __name__ == "__main__":
    os.setpgid(0, 0)
    loader = main()
"""


def wait_for(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines(path):
    return path.read_text().split() if path.exists() else []


def gated(x):
    return x


def reference(workers):
    numbers = NumbersDataset(100, WorkerConfig(0, 1, workers, num_streams=2))
    return get_savable_loader(BatchDataset(MapDataset(numbers, gated), 1, list))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("workers", "method", "way", "number"),
    [
        (2, "fork", "save", signal.SIGTERM),
        (2, "fork", "flag", signal.SIGUSR2),
        (1, "fork", "exit", signal.SIGTERM),
        (2, "fork", "unclosed", signal.SIGTERM),
        (2, "forkserver", "save", signal.SIGTERM),
    ],
)
def test_the_state_is_saved_when_the_whole_group_is_signalled(tmp_path, workers, method, way, number):
    """As Slurm and Kubernetes do. The handler saves itself, sets a flag, or raises within ``next()``."""
    (tmp_path / "program.py").write_text(PROGRAM)
    program = children.start(tmp_path / "program.py", tmp_path, workers, method, way)
    with program:
        wait_for(lambda: len(lines(tmp_path / "seen")) == 20)  # the loader waits for the next batch
        os.killpg(program.pid, number)
        if way == "save":
            wait_for((tmp_path / "state").exists)
        if way != "exit":
            (tmp_path / "gate").touch()
        assert program.wait() == (7 if way == "exit" else 0)
    seen = [int(line) for line in lines(tmp_path / "seen")]
    whole = [batch[0] for batch in reference(0)]
    # A worker that had died would have ended the loop: it went on with a batch after the signal.
    assert seen == whole[: 20 if way == "exit" else 21]
    resumed = reference(2)
    resumed.restore_state_rank(loads((tmp_path / "state").read_bytes()))
    saved_at = 21 if way in ("flag", "unclosed") else 20
    assert [batch[0] for batch in resumed] == whole[saved_at:]


def test_a_hung_worker_ends_when_the_main_process_is_gone(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    reading, writing = os.pipe()  # the workers hold the writing end as well
    with os.fdopen(reading) as output:
        program = children.start(tmp_path / "program.py", tmp_path, 2, "fork", "save", stdout=writing)
        os.close(writing)
        wait_for(lambda: len(lines(tmp_path / "seen")) == 20)
        os.kill(program.pid, signal.SIGKILL)
        assert output.read() == ""
        assert program.wait() == -signal.SIGKILL


def test_handlers_of_the_program_do_not_run_in_workers(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal
        from energon_stream.loader import get_loader
        from energon_stream.testing.operator_suite import NumbersDataset
        from energon_stream.worker import WorkerConfig
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: print(f"{number} in {os.getpid()}", flush=True))
        loader = get_loader(NumbersDataset(10**6, WorkerConfig(0, 1, 2)))
        batches = iter(loader)
        next(batches)
        for pid in loader.worker_pids:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, number)
        for _ in range(100):
            next(batches)
        print("done")
        """
    )
    done = children.run("-c", script)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_worker_cannot_start_without_descriptors():
    script = textwrap.dedent(
        """
        import os, resource
        from energon_stream.errors import WorkerError
        from energon_stream.loader import get_loader
        from energon_stream.testing.operator_suite import NumbersDataset
        from energon_stream.worker import WorkerConfig
        loader = get_loader(NumbersDataset(100, WorkerConfig(0, 1, 4)))
        next(iter(loader))
        loader.close()
        used = len(os.listdir("/dev/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 14, used + 14))
        try:
            next(iter(loader))
        except WorkerError as error:
            print(error)
        assert loader.worker_pids == ()
        import multiprocessing
        assert not multiprocessing.active_children()
        """
    )
    done = children.run("-c", script)
    assert done.returncode == 0, done.stderr
    assert "cannot start: [Errno 24] Too many open files" in done.stdout
    assert "open files: raise the limit (`ulimit -n`), or use fewer workers" in done.stdout


def test_a_worker_cannot_start_without_processes(monkeypatch):
    def fork():
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    loader = get_loader(NumbersDataset(100, WorkerConfig(0, 1, 2)), start_method="fork")
    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(WorkerError, match=r"worker 0 cannot start: .*temporarily.*ulimit -u"):
        next(iter(loader))


@pytest.mark.parametrize("fork", [1, 3])
def test_an_interrupt_while_workers_start_leaves_nothing(fork):
    program = f"""
import gc, os, signal
from energon_stream.loader import get_loader
from energon_stream.testing.operator_suite import NumbersDataset
from energon_stream.worker import WorkerConfig
forks = []
def forked():
    forks.append(1)
    if len(forks) == {fork}:
        os.kill(os.getpid(), signal.SIGINT)
loader = get_loader(NumbersDataset(1000, WorkerConfig(0, 1, 4)), start_method="fork")
before = os.listdir("/proc/self/fd")
os.register_at_fork(after_in_parent=forked)
try:
    next(iter(loader))
except KeyboardInterrupt:
    loader.close()
gc.collect()  # the frames of the interrupt, which name the workers' pipes
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(len(forks), os.listdir("/proc/self/fd") == before)
"""
    done = children.run("-c", program)
    assert (done.stdout, done.stderr) == ("4 True\n", "")


class NoThreads(Wrapper):
    kind = "NoThreads"

    def make_node(self, context, state):
        class Node:
            def next(self):
                raise RuntimeError("can't start new thread")

            def close(self):
                pass

        return Node()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_thread_that_cannot_start_is_named(workers):
    loader = get_loader(NoThreads(NumbersDataset(100, WorkerConfig(0, 1, workers))))
    with pytest.raises(WorkerError, match=r"can't start new thread.*ulimit -u.*fewer workers"):
        next(iter(loader))


def test_other_errors_are_no_limits():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert f"its {most} open files" in str(limit_error(OSError(errno.EMFILE, "Too many open files"), "x"))
    for error in (
        OSError(errno.ENOENT, "no"),
        OSError("no"),
        RuntimeError("no"),
        ValueError(),
        WorkerError("x"),
    ):
        assert limit_error(error, "x") is None


def test_tests_and_the_programs_that_they_start_end_by_sigterm():
    """Else whatever ends them so waits for them. Importing the fork server's module would have it ignored."""
    program = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    assert children.run("-c", program, check=True).stdout == "True\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_end_of_file_in_a_function_is_no_end_of_the_worker():
    """It used to be taken for the main process's end, and the worker left without a word."""

    class Ends(NoThreads):
        def make_node(self, context, state):
            node = super().make_node(context, state)
            node.next = lambda: (_ for _ in ()).throw(EOFError("half a file"))
            return node

    with pytest.raises(EOFError, match="half a file"):
        next(iter(get_loader(Ends(NumbersDataset(100, WorkerConfig(0, 1, 1))))))


def test_a_loader_that_a_handler_closes_says_so():
    def closes(number, frame):
        loader.close()

    def waits(x):
        os.kill(os.getppid(), signal.SIGUSR2)
        signal.pause()

    before = signal.signal(signal.SIGUSR2, closes)
    try:
        loader = get_loader(MapDataset(NumbersDataset(9, WorkerConfig(0, 1, 1)), waits))
        with pytest.raises(WorkerError, match="the loader was closed while it waited"):
            next(iter(loader))
    finally:
        signal.signal(signal.SIGUSR2, before)
