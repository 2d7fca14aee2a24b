"""The table of transports: lazy imports, registered stores, and systems without Linux's features."""

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest

from energon_stream.errors import ConfigError, TransientStorageError, UnsupportedStoreError
from energon_stream.storage import (
    ByteRange,
    Fetcher,
    LocalStore,
    RetryPolicy,
    StorageCounters,
    StoreSpec,
    register_store,
    run_isolated,
)
from energon_stream.storage.obstore_use import share_arenas


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BLOCKED = """
    import sys
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {blocked}:
                raise ImportError(f"{{name}} is blocked")
    sys.meta_path.insert(0, Blocker())
"""


def test_s3_is_read_through_s3fs_where_obstore_has_no_wheels(s3_server, tmp_bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, "energon_stream.storage._obstore", raising=False)
    store = StoreSpec(tmp_bucket, s3_server.storage_options).open()
    store.put("a", b"bytes")
    assert bytes(store.get("a").data) == b"bytes"
    spec = StoreSpec(tmp_bucket, s3_server.storage_options, "obstore")
    with pytest.raises(UnsupportedStoreError, match=r"obstore is not installed.*transport='auto'"):
        spec.open().get("a")


def test_obstore_reads_s3_without_s3fs(s3_server, tmp_bucket):
    """s3fs and its dependencies are imported only if obstore cannot be used."""
    s3_server.put(f"{tmp_bucket}/key", b"data")
    program = (
        textwrap.dedent(
            BLOCKED.format(blocked=("s3fs", "aiobotocore", "botocore", "aiohttp", "fsspec", "torch"))
        )
        + f"""
from energon_stream.storage import ByteRange, Fetcher, StoreSpec
store = StoreSpec({tmp_bucket!r}, {s3_server.storage_options!r}).open()
fetcher = Fetcher(2)
print(bytes(fetcher.submit(store, "key", ByteRange(1, 3)).result().data), [e.path for e in store.list()])
fetcher.close()
"""
    )
    assert run(program) == "b'at' ['key']\n"


def test_importing_storage_imports_no_transport():
    program = (
        "import sys, energon_stream.storage; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    imported = eval(run(program))
    assert not {"s3fs", "aiobotocore", "botocore", "aiohttp", "fsspec", "obstore", "torch"} & set(imported)


class Flaky(LocalStore):
    """A local folder behind a scheme of its own; every other read fails."""

    is_local = False
    reads = 0

    def __init__(self, url, options):
        super().__init__(url.removeprefix("Shelf://").removeprefix("shelf://"))
        self.options = options
        if options.get("color"):
            raise UnsupportedStoreError("shelves have no color", where=url)

    def get_range(self, path, byte_range, *, etag=None):
        type(self).reads += 1
        if self.reads % 2:
            raise TransientStorageError("the shelf shakes", where=path)
        return super().get_range(path, byte_range, etag=etag)


@pytest.fixture
def shelf(tmp_path):
    (tmp_path / "key").write_bytes(b"0123456789")
    register_store("shelf", Flaky)
    return f"shelf://{tmp_path}"


def test_a_registered_store_is_retried_counted_and_fetched(shelf):
    counters = StorageCounters()
    store = StoreSpec(shelf).open(policy=RetryPolicy(base_delay=0), counters=counters)
    fetcher = Fetcher(4)
    assert bytes(fetcher.submit(store, "key", ByteRange(2, 5)).result().data) == b"234"
    fetcher.close()
    assert (counters.snapshot().requests, counters.snapshot().retries) == ({"get": 2}, 1)
    assert run_isolated(lambda: bytes(store.get("key").data)) == b"0123456789"


def test_a_registered_store_is_for_its_scheme_and_transport_auto(shelf):
    with pytest.raises(UnsupportedStoreError, match="no color"):
        StoreSpec(shelf, {"color": "red"}).open()
    for transport in ("obstore", "fsspec"):
        with pytest.raises(UnsupportedStoreError, match=f"the {transport} transport"):
            StoreSpec(shelf, None, transport).open()
    with pytest.raises(ConfigError, match="local files"):
        register_store("file", Flaky)


def install(folder, monkeypatch, target):
    """A package on the path whose entry point names a store for ``rack://``."""
    info = folder / "rack_store-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rack-store\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[energon_stream.stores]\nrack{folder.name} = {target}\n")
    code = "from energon_stream.storage import LocalStore\n"
    code += "def open_rack(url, options):\n    return LocalStore(options['root'])\n"
    (folder / "rack_store.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    return f"rack{folder.name}://shelf"


def test_an_installed_package_names_its_store(tmp_path, monkeypatch):
    url = install(tmp_path / "a", monkeypatch, "rack_store:open_rack")
    (tmp_path / "key").write_bytes(b"0123456789")
    assert "rack_store" not in sys.modules
    store = StoreSpec(url, {"root": str(tmp_path)}).open()
    assert bytes(store.get_range("key", ByteRange(2, 5)).data) == b"234"
    with pytest.raises(UnsupportedStoreError, match="the obstore transport does not know"):
        StoreSpec(url, None, "obstore").open()
    broken = install(tmp_path / "b", monkeypatch, "rack_store:nothing")
    with pytest.raises(UnsupportedStoreError, match=r"rackb:// URLs cannot be imported: rack_store:nothing"):
        StoreSpec(broken).open()


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError], ids=["macos", "musl", "windows"])
def test_a_c_library_without_arenas(error, monkeypatch, s3_server, tmp_bucket, tmp_path):
    """Only Linux has mallopt: elsewhere, memory may be less well shared, and everything is read."""
    asked = []

    def no_mallopt(name):
        asked.append(name)
        raise error

    monkeypatch.setattr(ctypes, "CDLL", no_mallopt)
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    share_arenas.cache_clear()
    s3_server.put(f"{tmp_bucket}/key", b"data")
    (tmp_path / "key").write_bytes(b"data")
    fetcher = Fetcher(2)
    for spec in (StoreSpec(tmp_bucket, s3_server.storage_options), StoreSpec(str(tmp_path))):
        store = spec.open()
        assert bytes(fetcher.submit(store, "key", ByteRange(1, 4)).result().data) == b"ata"
        assert bytes(store.get("key").data) == b"data"
    fetcher.close()
    assert asked == [None]
    share_arenas.cache_clear()
