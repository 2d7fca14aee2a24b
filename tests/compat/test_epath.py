"""Paths as objects, on local files and on S3."""

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from energon_stream.compat.epath import DEFAULT_PROFILE_NAME, EPath
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


@pytest.mark.energon("EPath.glob")
def test_globs_with_sets_of_characters(folder):
    for number in range(5):
        (folder / f"s{number}.tar").write_bytes(b"x")
    (folder / "below" / "s9.tar").write_bytes(b"x")
    found = {
        pattern: [path.relative_to(folder) for path in folder.glob(pattern)]
        for pattern in ("s[0-2].tar", "s[!0-2].tar", "s[03].tar", "**/s[4-9].tar")
    }
    assert found == {
        "s[0-2].tar": ["s0.tar", "s1.tar", "s2.tar"],
        "s[!0-2].tar": ["s3.tar", "s4.tar"],
        "s[03].tar": ["s0.tar", "s3.tar"],
        "**/s[4-9].tar": ["below/s9.tar", "s4.tar"],
    }


@pytest.mark.energon("EPath.stat")
def test_the_status_of_a_file(folder):
    before = datetime.now(tz=UTC) - timedelta(hours=1)
    (folder / "a.txt").write_text("one")
    status = (folder / "a.txt").stat()
    assert (status.content_length, status.size, status.type) == (3, 3, "file")
    assert before < status.last_modified < before + timedelta(hours=2)
    assert status.key.endswith("folder/a.txt" if not folder.is_local() else f"{folder}/a.txt"[1:])


@pytest.mark.energon("EPath", "DEFAULT_PROFILE_NAME")
def test_profiles_of_the_multi_storage_client():
    path = EPath("msc://profile/a/../b/c.tar")
    assert str(path) == "msc://profile/b/c.tar"
    assert (path.profile, path.internal_path, path.display_name) == ("profile", "/b/c.tar", "c.tar")
    with pytest.raises(ConfigError, match="leads above the bucket"):
        EPath("msc://profile/../..")
    local = EPath(f"msc://{DEFAULT_PROFILE_NAME}/data/../texts")
    assert (str(local), local.is_local(), local.profile) == ("/texts", True, "__filesystem__")


@pytest.mark.energon("dss://name@version/path")
def test_datasets_of_the_node(tmp_path, monkeypatch):
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
    path = EPath("dss://captions@v1.2/a/../b.txt")
    path.write_text("text")
    assert (tmp_path / "captions" / "v1.2" / "b.txt").read_text() == "text"
    assert repr(path) == "EPath('dss://captions@v1.2/b.txt')"
    assert (str(path.parent), path.display_name) == ("dss://captions@v1.2", "captions@v1.2")
    assert (path.is_local(), path.is_file(), path.profile) == (True, True, "dss")
    assert [str(found) for found in path.parent.glob("*.txt")] == [str(path)]
    assert str(path / "../c") == "dss://captions@v1.2/c"
    assert EPath(path) == path
    with pytest.raises(ConfigError, match="needs name and version"):
        EPath("dss://captions/a")
    monkeypatch.delenv("NVDATASET_CACHE_DIR")
    with pytest.raises(ConfigError, match="NVDATASET_CACHE_DIR is not set"):
        EPath("dss://captions@v1.2")


def test_rclone_is_msc(tmp_path, monkeypatch):
    """The expected texts are 7.4.1's."""
    with pytest.warns(FutureWarning, match="write msc://"):
        path = EPath("rclone://lake/bucket/x.tar")
    assert str(path) == "msc://lake/bucket/x.tar"
    assert (str(path.parent), str(path / "y"), path.name) == (
        "msc://lake/bucket",
        "msc://lake/bucket/x.tar/y",
        "x.tar",
    )
    with pytest.warns(FutureWarning):
        assert EPath("rclone://__filesystem__" + str(tmp_path)) == EPath(tmp_path)
