"""Cache pools: what their lazies give, what they keep, and that they leave nothing behind."""

import gc
import os
import pickle
import signal
import threading
from multiprocessing import get_context

import children
import pytest

from energon_stream import (
    CachePool,
    DecodeFileStore,
    DirectLazy,
    FileCacheLazy,
    FileStore,
    FileStoreCachePool,
    MockLazy,
    NoCachePool,
    SampleDecoder,
)
from energon_stream.errors import ConfigError, DecodeError, FieldError, StorageError
from energon_stream.samples import SourceInfo


class Counting(FileStore[bytes]):
    """``12.txt`` is ``12`` times ``x``; counts its reads, and waits while ``gate`` is closed."""

    def __init__(self):
        self.reads = []
        self.gate = threading.Event()
        self.gate.set()

    def __getitem__(self, key):
        self.gate.wait()
        self.reads.append(key)
        if key == "missing.txt":
            raise FieldError("there is no such file", where="counting")
        return b"x" * int(key.partition(".")[0]), SourceInfo("counting", key, None, (key,))

    def __reduce__(self):
        return Counting, ()

    def get_path(self):
        return "counting"


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def pool_of(tmp_path):
    pools = []

    def make(**options):
        pools.append(FileStoreCachePool(tmp_path, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    assert not list(tmp_path.iterdir())


POOLS = {
    "none": lambda make: NoCachePool(),
    "raw": lambda make: make(),
    "pickle": lambda make: make(method="pickle"),
}


@pytest.mark.parametrize("kind", POOLS)
def test_a_lazy_always_gives_the_data(kind, pool_of):
    """Facts 4.8: Megatron-Energon's gives a tuple the second time."""
    pool, inner = POOLS[kind](pool_of), Counting()
    store = DecodeFileStore(inner, decoder=SampleDecoder())
    lazy, twin, other = (pool.get_lazy(store, name) for name in ("5.txt", "5.txt", "6.txt"))
    sample = {"__sources__": ()}
    assert [lazy.get(), lazy.get(sample), twin.get(sample), pool.get(store, "5.txt", sample)] == ["xxxxx"] * 4
    assert [source.file_names for source in sample["__sources__"]] == [("5.txt",)]
    assert {lazy, twin, other} == {lazy, other}
    assert lazy != DirectLazy(inner, "5.txt")
    if kind != "none":
        other.get()
        assert sorted(inner.reads) == ["5.txt", "6.txt"]  # each once
        assert isinstance(lazy, FileCacheLazy)
    kept = pool.to_cache({"any": [1, 2]}, "name")
    assert kept.get() == kept.get() == {"any": [1, 2]}
    for one in (lazy, kept):  # on its way to another process
        assert pickle.loads(pickle.dumps(one)).get() == one.get()


def test_a_mock_calls_its_function():
    lazy = MockLazy("a.jpg", str.upper)
    assert lazy.get() == lazy.get({}) == "A.JPG"
    assert hash(lazy) == hash(MockLazy("a.jpg", str.upper))


def test_fetching_begins_before_get(pool_of, tmp_path):
    pool, store = pool_of(num_workers=2), Counting()
    store.gate.clear()
    lazies = [pool.get_lazy(store, f"{size}.bin") for size in range(5)]
    assert not store.reads
    store.gate.set()
    assert [len(lazy.get()) for lazy in lazies] == list(range(5))
    assert sorted(store.reads) == [f"{size}.bin" for size in range(5)]
    assert len(files_below(tmp_path)) == 5


@pytest.mark.parametrize("method", ["raw", "pickle"])
def test_errors_in_the_background_surface_at_get(pool_of, method):
    pool, store = pool_of(method=method), Counting()
    for reads in (1, 2):  # and whoever asks anew, tries anew
        lazy = pool.get_lazy(store, "missing.txt")
        for _ in range(2):
            with pytest.raises(FieldError, match="no such file"):
                lazy.get()
        assert len(store.reads) == reads
    damaged = pool.get_lazy(DecodeFileStore(store, decoder=SampleDecoder()), "3.json")
    with pytest.raises(DecodeError):
        damaged.get()


def test_raw_keeps_bytes_only(pool_of):
    class Parsed(Counting):
        def read(self, key):
            return {}, self[key][1]

    with pytest.raises(ConfigError, match=r"returns dict.*method='pickle'"):
        pool_of().get(Parsed(), "1.txt")


@pytest.mark.parametrize(
    "bounds", [{"max_cache_count": 3}, {"max_cache_size_gbytes": 300e-9}], ids=["count", "bytes"]
)
def test_bounds_hold_and_what_was_read_makes_room_first(pool_of, tmp_path, bounds):
    pool, store = pool_of(num_workers=1, **bounds), Counting()
    lazies = [pool.get_lazy(store, f"100.{number}") for number in range(3)]
    assert len(lazies[2].get()) == 100
    lazies += [pool.get_lazy(store, "100.3")]
    lazies[3].get()
    assert len(files_below(tmp_path)) == 3
    assert [len(lazy.get()) for lazy in lazies[:2]] == [100, 100]
    assert len(store.reads) == 4
    assert len(lazies[2].get()) == 100  # it had made room, and is read again
    assert len(store.reads) == 5
    for number in range(4, 40):
        assert len(pool.get(store, f"100.{number}")) == 100
        assert len(files_below(tmp_path)) <= 3
    if "max_cache_size_gbytes" in bounds:  # larger than all room
        assert len(pool.get(store, "1000.bin")) == 1000
        assert pool.to_cache(b"x" * 1000, "large").get() == b"x" * 1000
        assert sum(path.stat().st_size for path in files_below(tmp_path)) <= 300


def test_data_put_away_goes_with_its_lazy(pool_of, tmp_path):
    pool = pool_of(max_cache_size_gbytes=1000e-9)
    kept = [pool.to_cache(bytes([number]) * 200, "n") for number in range(9)]  # room for four
    assert len(files_below(tmp_path)) == 4
    assert [lazy.get()[0] for lazy in kept] == list(range(9))
    lazy = kept[0]
    del kept
    gc.collect()
    assert len(files_below(tmp_path)) == 1
    pool.close()
    with pytest.raises(StorageError, match="before closing the cache pool"):
        lazy.get()


def test_closing_cancels_and_the_pool_works_again(pool_of, tmp_path):
    pool, store = pool_of(num_workers=1), Counting()
    store.gate.clear()
    lazies = [pool.get_lazy(store, f"{size}.bin") for size in range(4)]
    threading.Timer(0.05, store.gate.set).start()
    pool.close()
    assert not list(tmp_path.iterdir())
    assert [len(lazy.get()) for lazy in lazies] == [0, 1, 2, 3]
    assert pool.get(store, "7.bin") == b"x" * 7
    assert len(files_below(tmp_path)) == 1


def test_a_full_or_read_only_disk_is_no_fault_of_a_sample(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="the cache pool cannot write"):
        FileStoreCachePool(tmp_path / "file").get_lazy(Counting(), "1.bin")


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"max_cache_count": 0}, {"max_cache_size_gbytes": 0}, {"method": "zip"}]
)
def test_impossible_options(options):
    with pytest.raises(ConfigError):
        FileStoreCachePool(**options)


def in_child(pool, lazy, store, pipe):
    """Reads what the parent began, and fetches itself."""
    found = [lazy.get(), pool.get_lazy(store, "4.bin").get(), pool.to_cache("put", "away").get()]
    pipe.send(found)
    pipe.recv()  # held until the parent has looked, or for ever


@pytest.mark.every(3)
@pytest.mark.usefixtures("forked_spawn")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("killed", [False, True])
def test_children_have_folders_of_their_own_and_leave_none(tmp_path, method, killed):
    """Facts 4.8: forks with pending fetches left folders, dead pools and assertions."""
    pool, store = FileStoreCachePool(tmp_path, num_workers=1), Counting()
    stuck = Counting()  # the parent's only thread waits
    stuck.gate.clear()
    waiting = pool.get_lazy(stuck, "9.bin")
    pending = pool.get_lazy(store, "3.bin")
    context = get_context(method)
    children = []
    for _ in range(3):
        ours, theirs = context.Pipe()
        child = context.Process(target=in_child, args=(pool, pending, store, theirs))
        child.start()
        assert ours.recv() == [b"xxx", b"xxxx", "put"]
        children.append((child, ours))
    assert len({path.parent for path in files_below(tmp_path)}) == 3
    for child, pipe in children:
        if killed:
            os.kill(child.pid, signal.SIGKILL)
        else:
            pipe.send("end")
        child.join()
        assert killed or child.exitcode == 0
    stuck.gate.set()
    assert waiting.get() == b"x" * 9
    pool.close()
    if killed:  # their folders are of no use to anybody, and go with the pool
        del pool, waiting, pending
        gc.collect()
    assert not list(tmp_path.iterdir())


AT_EXIT = """
import os, sys, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, for forks of a process with threads
from multiprocessing import Process
sys.path[:0] = {path!r}
from test_pools import Counting
from energon_stream import FileStoreCachePool
pool, store = FileStoreCachePool({folder!r}), Counting()
lazies = [pool.get_lazy(store, str(n) + ".bin") for n in range(50)]
for _ in range(3):
    if os.fork() == 0:
        pool.get(store, "1.bin")
        sys.exit()
    os.wait()
    child = Process(target=pool.get, args=(store, "2.bin"))
    child.start()
    child.join()
def stay():
    pool.get(store, "3.bin")
    open(os.path.join({folder!r}, "up"), "w").close()
    time.sleep(60)
Process(target=stay, daemon=True).start()
while not os.path.exists(os.path.join({folder!r}, "up")):
    time.sleep(0.01)
os.remove(os.path.join({folder!r}, "up"))
"""


def test_nothing_is_left_at_exit(tmp_path):
    here = os.path.dirname(__file__)
    script = AT_EXIT.format(path=[here], folder=str(tmp_path))
    done = children.run("-c", script, finalize=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
    assert not list(tmp_path.iterdir())


def test_users_may_write_pools():
    class Own(CachePool):
        def get_lazy(self, store, fname):
            return MockLazy(fname, str.upper)

        def to_cache(self, data, name):
            return MockLazy(name, lambda _: data)

        def close(self): ...

    assert Own().get(Counting(), "a") == "A"
