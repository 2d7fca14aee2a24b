"""Fork safety: values per process, work done before a fork, and garbage of the parent."""

import gc
import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from energon_stream import fork
from energon_stream.cache import CacheConfig, shared_cache
from energon_stream.loader import get_loader
from energon_stream.pipeline.map import MapDataset
from energon_stream.storage import _s3fs, run_isolated, shared_fetcher
from energon_stream.testing.operator_suite import NumbersDataset
from energon_stream.testing.s3server import S3Server
from energon_stream.worker import WorkerConfig

PROGRAM = """
    import json, os, sys, threading
    from energon_stream.storage import *
    store = StoreSpec({url!r}, {options!r}).open()
    read = lambda: bytes(store.get("key").data).decode()

    def child():
        before = set(sys.modules)
        opened = []
        sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
        data = read()
        import botocore
        models = os.path.join(os.path.dirname(botocore.__file__), "data")
        return {{
            "data": data,
            "imported": sorted(name for name in set(sys.modules) - before if name.startswith(("s3fs", "aio", "boto"))),
            "models": [path for path in opened if path.startswith(models)],
        }}

    def parent():
        threads = [thread.name for thread in threading.enumerate() if "fsspec" in thread.name]
        return {{"s3fs": "s3fs" in sys.modules, "threads": threads}}

    seen = {{"isolated": run_isolated(read), "unused": parent(), "read": read(), "used": parent()}}
    seen |= {{"children": [run_isolated(child), run_isolated(child)], "after": parent()}}
    print(json.dumps(seen))
"""


def in_threads(function, count=32):
    """Call ``function`` from many threads at the same moment, and return the results."""
    barrier = threading.Barrier(count)

    def call(_):
        barrier.wait()
        return function()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(call, range(count)))


def slowly(make):
    def run(*args, **options):
        time.sleep(0.02)
        return make(*args, **options)

    return run


def test_threads_share_one_value_of_a_key():
    values = fork.PerProcess()
    made = in_threads(lambda: values.map("key", slowly(object)))
    assert len(set(map(id, made))) == 1
    assert values.map("other", object) is not made[0]


def test_threads_that_make_different_values_do_not_wait_for_each_other():
    values, together = fork.PerProcess(), threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda key: values.map(key, lambda: together.wait(300)), "ab"))


def test_a_failure_to_make_a_value_is_not_remembered():
    values = fork.PerProcess()
    with pytest.raises(ZeroDivisionError):
        values.map("key", lambda: 1 / 0)
    assert values.map("key", int) == 0


def test_children_make_values_anew_while_a_thread_of_the_parent_makes_one():
    values, can_end, is_making = fork.PerProcess(list), threading.Event(), threading.Event()

    def make():
        is_making.set()
        can_end.wait(300)

    thread = threading.Thread(target=values.map, args=("slow", make))
    thread.start()
    is_making.wait(300)
    values.get().append("the parent's")
    try:
        assert run_isolated(lambda: (values.get(), values.map("slow", list))) == ([], [])
    finally:
        can_end.set()
        thread.join()
    assert values.get() == ["the parent's"]


def test_a_child_keeps_or_frees_what_it_inherited():
    class Value:
        pass

    kept, dropped = fork.PerProcess(Value), fork.PerProcess(Value, drop_inherited=True)
    alive = weakref.ref(kept.get()), weakref.ref(dropped.get())
    assert run_isolated(lambda: [value() is None for value in alive]) == [False, True]


def test_only_the_latest_values_are_remembered():
    values = fork.PerProcess(keep=2)
    first = {key: values.map(key, object) for key in "abc"}
    assert [values.map(key, object) is first[key] for key in "bca"] == [True, True, False]


def test_a_pickled_copy_is_empty():
    values = fork.PerProcess(list)
    values.get().append(1)
    copy = pickle.loads(pickle.dumps(values))
    assert (values.get(), copy.get()) == ([1], [])


@pytest.fixture
def often_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_open_stores_share_one(tmp_path, often_switching):
    """Datasets are opened from up to 32 threads."""
    for attempt in range(5):
        config = CacheConfig(str(tmp_path / str(attempt)), 1 << 30)
        for open_it in (partial(shared_fetcher, 7 + attempt), partial(shared_cache, config)):
            assert len(set(map(id, in_threads(open_it)))) == 1


@pytest.fixture(scope="module")
def seen():
    with S3Server() as server:
        server.create_bucket("bucket")
        server.put("s3://bucket/key", b"data")
        program = textwrap.dedent(PROGRAM).format(url="s3://bucket", options=server.storage_options)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_parent_imports_the_fallback_for_its_children(seen):
    assert (seen["isolated"], seen["read"]) == ("data", "data")
    assert seen["children"] == [{"data": "data", "imported": [], "models": []}] * 2
    assert seen["after"] == {"s3fs": True, "threads": []}  # no loop, so no client either


def test_without_forks_or_obstore_the_fallback_is_not_imported(seen):
    assert seen["unused"] == seen["used"] == {"s3fs": False, "threads": []}


def test_a_preparation_runs_once_and_its_failure_is_ignored():
    calls = []

    def fail():
        calls.append("fails")
        raise ImportError("not installed")

    def work():
        calls.append("works")

    for prepare in (fail, work, work):
        fork.before_forks(prepare)
    assert calls == []
    fork.prepare_fork()
    fork.prepare_fork()
    assert calls == ["fails", "works"]


def test_sessions_share_descriptions_and_nothing_else(tmp_path, monkeypatch):
    first, second = _s3fs.botocore_session({}), _s3fs.botocore_session({})
    assert first is not second
    assert first.get_component("data_loader") is second.get_component("data_loader")
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    other = _s3fs.botocore_session({}).get_component("data_loader")
    assert other is not first.get_component("data_loader")
    assert str(tmp_path) in other.search_paths


class Client:
    """An object in a cycle, so that only the collector frees it; it reports the process that does."""

    def __init__(self, tell):
        self.itself = self
        weakref.finalize(self, lambda: os.write(tell, b"%d " % os.getpid()))


class Finalizations:
    """Collects the ids of processes that finalized clients."""

    def __init__(self):
        self.reading, self.writing = os.pipe2(os.O_NONBLOCK)

    def make_garbage(self):
        Client(self.writing)

    def pids(self):
        try:
            return [int(pid) for pid in os.read(self.reading, 4096).split()]
        except BlockingIOError:
            return []


@pytest.fixture
def finalizations():
    made = Finalizations()
    yield made
    os.close(made.reading)
    os.close(made.writing)


def test_children_leave_their_parents_garbage_alone(finalizations):
    """s3fs's finalizers wait for a missing thread, and remove the parent's sockets from an epoll set."""
    gc.disable()  # or the parent might collect it before there are children
    try:
        finalizations.make_garbage()
        assert run_isolated(collect) > 0
        numbers = MapDataset(NumbersDataset(4, WorkerConfig(0, 1, 2)), collect, stateless_map_fn=True)
        with get_loader(numbers) as loader:
            assert len(list(loader)) == 4
        assert finalizations.pids() == []
    finally:
        gc.enable()
    gc.collect()
    assert finalizations.pids() == [os.getpid()]


def test_the_collector_is_enabled_after_a_fork():
    assert run_isolated(gc.isenabled)
    assert gc.isenabled()


def test_children_collect_their_own_garbage(finalizations):
    def child():
        finalizations.make_garbage()
        gc.collect()
        return os.getpid()

    child_pid = run_isolated(child)
    assert finalizations.pids() == [child_pid]


def test_only_foreign_forks_warn_about_threads(recwarn):
    """Python 3.12 and later warn if a process with threads forks. Our children take no inherited locks."""
    warnings.simplefilter("always")
    can_end = threading.Event()
    thread = threading.Thread(target=can_end.wait)
    thread.start()
    try:
        assert run_isolated(int) == 0
        assert [str(warning.message) for warning in recwarn] == []
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert len(recwarn) == (sys.version_info >= (3, 12))
    finally:
        can_end.set()
        thread.join()


def test_a_disabled_collector_stays_disabled_in_children():
    gc.disable()
    try:
        assert not run_isolated(gc.isenabled)
        assert not gc.isenabled()
    finally:
        gc.enable()


def collect(value=1):
    gc.collect()
    return value
