"""Paths as objects, on local files and on S3."""

import pickle
from pathlib import Path

import pytest

from energon_stream.compat.epath import EPath
from energon_stream.errors import ConfigError, ObjectNotFoundError


@pytest.fixture(params=["local", "s3"])
def folder(request, tmp_path, monkeypatch):
    if request.param == "local":
        return EPath(tmp_path)
    server = request.getfixturevalue("s3_server")
    settings = {
        "AWS_ENDPOINT_URL": server.endpoint_url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    for name, value in {**settings, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    return EPath(request.getfixturevalue("tmp_bucket")) / "folder"


def test_files(folder):
    path = folder / "below" / "a.txt"
    assert not path.is_file()
    with pytest.raises(ObjectNotFoundError):
        path.read_text()
    with pytest.raises(ObjectNotFoundError):
        path.open()
    path.write_text("one\ntwo\n")
    assert path.is_file()
    assert not path.is_dir()
    assert (folder / "below").is_dir()
    assert not (folder / "below").is_file()
    assert (path.size(), path.read_bytes()) == (8, b"one\ntwo\n")
    with path.open() as lines:
        assert list(lines) == ["one\n", "two\n"]
    with (folder / "b.bin").open("wb") as file:
        file.write(b"12")
        assert not (folder / "b.bin").is_file()  # not before it is whole
    (folder / "b.bin").move(folder / "c.bin")
    assert [entry.relative_to(folder) for entry in folder.walk()] == ["below/a.txt", "c.bin"]
    assert [entry.name for entry in folder.glob("*.bin")] == ["c.bin"]
    assert [entry.name for entry in folder.glob("**/*.*")] == ["a.txt", "c.bin"]
    assert [entry.name for entry in folder.glob("below/?.txt")] == ["a.txt"]
    (folder / "c.bin").unlink()
    assert not (folder / "c.bin").is_file()


@pytest.mark.parametrize("root", ["/data", "s3://bucket/data"])
def test_parts(root):
    path = EPath(root) / "a" / "shard.0.tar"
    assert str(path) == f"{root}/a/shard.0.tar"
    assert repr(path) == f"EPath('{root}/a/shard.0.tar')"
    assert (path.name, str(path.parent)) == ("shard.0.tar", f"{root}/a")
    assert str(path.with_suffix(".idx")) == f"{root}/a/shard.0.idx"
    assert path.relative_to(EPath(root)) == "a/shard.0.tar"
    with pytest.raises(ConfigError, match="is not below"):
        path.relative_to(EPath(f"{root}/b"))
    assert str(EPath(root) / "/else") == "/else"
    assert pickle.loads(pickle.dumps(path)) == path == EPath(path)
    assert {path, EPath(str(path))} == {path}
    assert EPath(root) < path
    assert path.is_local() == root.startswith("/")


def test_local_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert EPath("a/../b/").local_path() == tmp_path / "b"
    assert EPath(Path("c")).local_path() == tmp_path / "c"
    assert EPath("/").parent == EPath("/")
    EPath("d").mkdir()
    assert (tmp_path / "d").is_dir()
    with pytest.raises(ConfigError, match="not a local path"):
        EPath("s3://bucket/key").local_path()


def test_what_is_shown_has_no_credentials():
    assert "secret" not in repr(EPath("s3://user:secret@bucket/key"))
    with pytest.raises(ConfigError, match="must be r, rb, w or wb"):
        EPath("a").open("r+")
