"""Engines: results, order, retries, lost processes, and the end."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import children
import engine_tasks
import pytest

from energon_stream.engine.cluster import RayEngine
from energon_stream.engine.processes import LocalEngine
from energon_stream.engine.tasks import Part, TaskEngine
from energon_stream.errors import (
    ConfigError,
    CorruptTarError,
    ObjectNotFoundError,
    ThrottledError,
    WorkerError,
)

HERE = Path(__file__).parent


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_each_task_is_run_once(processes):
    done = []
    results = LocalEngine(processes).map(
        engine_tasks.double, range(20), on_done=lambda *pair: done.append(pair)
    )
    assert sorted(results) == [2 * number for number in range(20)]
    assert done == [(number + 1, 20) for number in range(20)]
    assert list(LocalEngine(processes).map(engine_tasks.double, [])) == []


def test_results_come_in_the_order_of_the_tasks_if_asked(tmp_path):
    for in_order in (True, False):
        folder = tmp_path / str(in_order)
        folder.mkdir()
        task = partial(engine_tasks.after_others, folder)
        found = list(LocalEngine(2).map(task, range(12), in_order=in_order))
        assert (found == [*range(12)], sorted(found)) == (in_order, [*range(12)])


def test_a_task_whose_process_died_is_run_again(tmp_path):
    results = LocalEngine(2).map(partial(engine_tasks.die_once, tmp_path), range(8), in_order=True)
    assert list(results) == [*range(8)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "4", "7"]


def test_a_task_that_kills_its_process_each_time_is_an_error():
    with pytest.raises(WorkerError, match="exit code -9"):
        list(LocalEngine(1).map(engine_tasks.die, [1], retries=1))


def test_faults_that_may_pass_are_tried_again(tmp_path):
    assert sorted(LocalEngine(0).map(partial(engine_tasks.fail_once, tmp_path), range(4))) == [*range(4)]
    with pytest.raises(ThrottledError, match="too many requests"):
        list(LocalEngine(1).map(partial(engine_tasks.refused, tmp_path), [1], retries=2))
    assert len(list(tmp_path.glob("try-*"))) == 3


def test_a_missing_object_is_not_tried_again(tmp_path):
    with pytest.raises(ObjectNotFoundError, match="no such object"):
        list(LocalEngine(1).map(partial(engine_tasks.missing, tmp_path), [1], retries=2))
    assert len(list(tmp_path.glob("try-*"))) == 1


def test_an_error_that_would_come_again_ends_the_map(tmp_path):
    with pytest.raises(CorruptTarError, match=r"x\.tar") as caught:
        list(LocalEngine(2).map(partial(engine_tasks.damaged, tmp_path), [1]))
    assert len(list(tmp_path.glob("try-*"))) == 1
    assert "in damaged" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(("function", "text"), [("odd", "odd error"), ("unpicklable", "cannot be pickled")])
def test_what_cannot_be_pickled_is_named(function, text):
    with pytest.raises((RuntimeError, TypeError), match=text):
        list(LocalEngine(1).map(getattr(engine_tasks, function), [1]))


def _pids(folder, count):
    deadline = time.monotonic() + 300
    while len(found := list(folder.glob("pid-*"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(path.name.partition("-")[2]) for path in found]


def _is_gone(pid, seconds=300.0):
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("to", "sign"), [("group", signal.SIGINT), ("main", signal.SIGINT), ("main", signal.SIGKILL)]
)
def test_the_end_of_the_program_ends_all_processes(tmp_path, to, sign):
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]); import engine_tasks\n"
        "from functools import partial\n"
        "from energon_stream.engine.processes import LocalEngine\n"
        "list(LocalEngine(2).map(partial(engine_tasks.wait_for_ever, sys.argv[1]), range(9)))\n"
    )
    path = tmp_path / "program.py"
    path.write_text(
        "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in program.splitlines())
    )
    main = subprocess.Popen(
        [sys.executable, str(path), str(tmp_path), str(HERE)],
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    pids = _pids(tmp_path, 2)
    (os.killpg if to == "group" else os.kill)(main.pid, sign)
    _, errors = main.communicate(timeout=300)
    assert errors.rstrip().endswith("KeyboardInterrupt") == (sign == signal.SIGINT)
    assert errors.count("Traceback") == (sign == signal.SIGINT)  # the processes say nothing
    assert all(map(_is_gone, pids))


def test_an_iterator_that_is_left_ends_its_processes(tmp_path):
    results = LocalEngine(2).map(engine_tasks.double, range(100))
    next(results)
    pids = [process.pid for process in multiprocessing.active_children()]
    assert len(pids) == 2
    results.close()
    assert all(map(_is_gone, pids))


def test_a_program_without_a_guard_is_told_so(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "from energon_stream.engine.processes import LocalEngine\nlist(LocalEngine(1).map(len, ['a']))\n"
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "__name__" in done.stderr


def test_wrong_numbers_are_refused():
    with pytest.raises(ConfigError, match="processes is -1"):
        LocalEngine(-1)
    for text in ("3/3", "1", "-1/2", "a/b", "0/0"):
        with pytest.raises(ConfigError):
            Part.parse(text)


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_parts_share_all_tasks(parts):
    shares = [Part(number, parts).of(range(20)) for number in range(parts)]
    assert sorted(number for share in shares for number in share) == [*range(20)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert str(Part.parse(f"0/{parts}")) == f"0/{parts}"


def test_ray_that_is_missing_is_named_with_its_extra():
    code = """
    import sys

    sys.modules["ray"] = None
    from energon_stream import RayEngine

    list(RayEngine().map(len, ["a"]))
    """
    done = children.run("-c", textwrap.dedent(code))
    assert re.search(r"MissingPackageError: .*energon-stream\[ray\]", done.stderr), done.stderr


def test_both_are_engines():
    assert isinstance(RayEngine(), TaskEngine)
    assert isinstance(LocalEngine(), TaskEngine)
