"""Local files: views without copies, maps that outlive the store, atomic writes."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from energon_stream.errors import AccessDeniedError, ObjectNotFoundError
from energon_stream.storage import ByteRange, LocalStore


def test_views_share_one_map_and_outlive_it(tmp_path):
    store = LocalStore(f"file://{tmp_path}")
    store.put("a", b"0123456789")
    whole, part = store.get("a").data, store.get_range("a", ByteRange(2, 5)).data
    assert part.obj is whole.obj
    assert part.readonly
    for number in range(200):  # more files than the store remembers
        store.put(f"other/{number}", b"x")
        store.get(f"other/{number}")
    store.put("a", b"new")
    store.close()
    assert (bytes(part), store.get("a").data) == (b"234", b"new")


def test_writes_are_atomic(tmp_path):
    store = LocalStore(str(tmp_path))
    contents = [bytes([number]) * 200_000 for number in range(8)]
    store.put("a", contents[0])
    with ThreadPoolExecutor(8) as pool:
        writing = [pool.submit(store.put, "a", content) for content in contents * 5]
        while not all(future.done() for future in writing):
            assert bytes(LocalStore(str(tmp_path)).get("a").data) in contents
    assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(ObjectNotFoundError):
        store.put_file("b", str(tmp_path / "absent"))
    assert os.listdir(tmp_path) == ["a"]


def test_named_errors(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    store = LocalStore(str(tmp_path))
    for path in ("folder", "file/below"):
        with pytest.raises(ObjectNotFoundError, match=path):
            store.head(path)
        with pytest.raises(ObjectNotFoundError, match=path):
            store.get(path)
    if os.geteuid() != 0:  # root may read everything
        os.chmod(tmp_path / "file", 0)
        with pytest.raises(AccessDeniedError):
            store.get("file")
