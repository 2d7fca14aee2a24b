"""A cache in a folder that others can reach: links, owners, modes, and file systems without locks."""

import errno
import os
import stat
from contextlib import nullcontext

import pytest
from origins import BLOCK, Origin, block_files

from energon_stream.cache import BlockCache, private
from energon_stream.cache.cached_store import Versions
from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.kept_files import KeptFiles
from energon_stream.cache.ledger import CacheLimits, Ledger
from energon_stream.cache.maintenance import verify_cache
from energon_stream.cache.object_identity import root_name
from energon_stream.errors import CacheDirectoryError, WorkerError
from energon_stream.storage import ByteRange, LocalStore, StoreSpec, run_isolated

OTHER = 12345  # a user who is neither root nor this one


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_bytes(b"precious")
    return path


@pytest.fixture
def directory(config):
    return CacheDirectory(config.directory, CacheLimits(min(1 << 30, config.quota)))


@pytest.fixture
def as_user(system):
    """Look at owners as a process of a user does that is not root."""
    uid = os.geteuid() or 1000
    system(geteuid=lambda: uid)
    return uid


def owned_by(system, owners):
    """Make files seem to belong to others: owner by path. Only root could give them away."""
    real = {name: getattr(os, name) for name in ("lstat", "stat", "fstat")}

    def seen(path, status):
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        fields = list(status)
        fields[stat.ST_UID] = owners.get(str(path), os.geteuid())
        return os.stat_result(fields, {"st_blocks": status.st_blocks, "st_mtime_ns": status.st_mtime_ns})

    for name, function in real.items():
        system(**{name: lambda path, function=function, **options: seen(path, function(path, **options))})


def modes(folder):
    found = {}
    for where, _, names in os.walk(folder):
        for path in (where, *(os.path.join(where, name) for name in names)):
            status = os.lstat(path)
            found.setdefault(stat.S_ISDIR(status.st_mode), set()).add(stat.S_IMODE(status.st_mode))
    return found


class Unlisted(LocalStore):
    """Lists nothing, though folders may not be read at this umask."""

    def list(self, prefix=""):
        return iter(())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_folders_and_files_are_private_whatever_the_umask(config, origin, tmp_path, umask):
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "key").write_bytes(b"data")
    store = Unlisted(f"file://{tmp_path}/objects")
    before = os.umask(umask)
    try:
        origin.read(BlockCache(config))
        Versions(config.directory, store, 0).of("key")
    finally:
        os.umask(before)
    assert modes(config.directory) == {True: {0o700}, False: {0o600}}
    assert len(block_files(config)) == 4


def test_a_cache_of_an_earlier_version_is_tightened_and_used(config, origin):
    origin.read(BlockCache(config))
    for where, folders, files in os.walk(config.directory):
        for name in folders:
            os.chmod(os.path.join(where, name), 0o775)
        for name in files:
            os.chmod(os.path.join(where, name), 0o664)
    os.chmod(config.directory, 0o775)
    cache = BlockCache(config)
    asked = origin.asked_bytes
    origin.read(cache)
    assert origin.asked_bytes == asked
    assert stat.S_IMODE(os.stat(config.directory).st_mode) == 0o755  # it may hold other things
    assert stat.S_IMODE(os.stat(os.path.join(config.directory, "v1")).st_mode) == 0o700


@pytest.mark.parametrize("name", ["v1", "v1/data", "v1/usage"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_refused_when_the_cache_is_opened(config, victim, tmp_path, name, dangling):
    path = os.path.join(config.directory, name)
    os.makedirs(os.path.dirname(path))
    target = victim if name == "v1/usage" else tmp_path / "elsewhere"
    if name != "v1/usage" and not dangling:
        target.mkdir()
    if dangling:
        victim.rename(tmp_path / "gone")
    os.symlink(target, path)
    with pytest.raises(CacheDirectoryError, match=r"symbolic link|no folder.*Remove it"):
        BlockCache(config)
    assert dangling or victim.read_bytes() == b"precious"
    assert not (dangling and target.exists())
    assert not (tmp_path / "elsewhere").is_dir() or not list((tmp_path / "elsewhere").iterdir())


def replace_by_link(path, target):
    os.unlink(path)
    os.symlink(target, path)


@pytest.mark.parametrize("kind", ["block", "root.json", "object.json", "bytes", "usage"])
def test_a_link_in_a_cache_in_use_never_reaches_its_victim(config, origin, victim, kind):
    """Reads are answered all the same, and right."""
    cache = BlockCache(config)
    origin.read(cache, 0, BLOCK)
    (block,) = block_files(config)
    folder = os.path.dirname(block)
    places = {
        "block": block,
        "root.json": os.path.join(os.path.dirname(folder), "root.json"),
        "object.json": os.path.join(folder, "object.json"),
        "bytes": os.path.join(os.path.dirname(folder), "bytes"),
        "usage": os.path.join(config.directory, "v1", "usage"),
    }
    if kind != "usage":
        cache.close()
    replace_by_link(places[kind], victim)
    origin.read(cache)
    Origin(BLOCK, path="other.tar").read(cache)
    if kind != "usage":
        origin.read(BlockCache(config))
        with pytest.raises(CacheDirectoryError) if kind in ("block", "bytes") else nullcontext():
            verify_cache(cache.directory)  # `energon-stream cache verify` names the link
    assert victim.read_bytes() == b"precious"
    assert stat.S_IMODE(victim.stat().st_mode) & 0o044


@pytest.mark.parametrize("name", ["root.json.new", "object.json.new"])
def test_a_link_in_place_of_a_temporary_file_is_not_written_through(config, origin, victim, name, system):
    cache = BlockCache(config)
    make = os.mkdir

    def plant(path, *mode, **options):
        make(path, *mode, **options)
        if not os.path.lexists(os.path.join(path, name)):
            os.symlink(victim, os.path.join(path, name))

    system(mkdir=plant)
    origin.read(cache)
    assert victim.read_bytes() == b"precious"


def test_a_link_in_place_of_the_list_of_versions_is_not_followed(config, victim, tmp_path):
    store = StoreSpec(f"file://{tmp_path}/objects").open()
    store.put("key", b"data")
    versions = Versions(config.directory, store, 0)
    BlockCache(config)
    path = KeptFiles(config.directory, "versions").path(root_name(store.url))
    os.makedirs(os.path.dirname(path))
    os.symlink(victim, path)
    versions.of("key")
    assert victim.read_bytes() == b"precious"


def test_a_pipe_in_place_of_a_file_does_not_hang(config):
    os.makedirs(os.path.join(config.directory, "v1"))
    os.mkfifo(os.path.join(config.directory, "v1", "usage"))
    with pytest.raises(CacheDirectoryError, match="no regular file"):
        BlockCache(config)


def test_what_others_left_in_a_folder_that_they_could_write_is_found(config, victim):
    BlockCache(config)
    layout = os.path.join(config.directory, "v1")
    os.symlink(victim, os.path.join(layout, "data", "0"))
    os.chmod(layout, 0o777)
    for _ in range(2):  # also by the next process
        with pytest.raises(CacheDirectoryError, match="others could write"):
            BlockCache(config)
    os.unlink(os.path.join(layout, "data", "0"))
    os.link(victim, os.path.join(layout, "data", "0"))
    with pytest.raises(CacheDirectoryError, match="others could write"):
        BlockCache(config)
    os.unlink(os.path.join(layout, "data", "0"))
    BlockCache(config)
    assert stat.S_IMODE(os.stat(layout).st_mode) == 0o700


@pytest.mark.parametrize("name", ["", "v1", "v1/data", "v1/usage"])
def test_what_belongs_to_another_user_is_refused(config, as_user, system, name):
    owner = {}
    owned_by(system, owner)
    BlockCache(config)
    owner[os.path.join(config.directory, name).rstrip("/")] = OTHER
    with pytest.raises(CacheDirectoryError, match=rf"user {OTHER}.*user {as_user}.*each user needs one"):
        BlockCache(config)
    owner[os.path.join(config.directory, name).rstrip("/")] = 0
    BlockCache(config)


def test_a_link_of_another_user_to_the_cache_is_refused(config, as_user, system, tmp_path):
    owner = {}
    owned_by(system, owner)
    (tmp_path / "disk").mkdir()
    os.symlink(tmp_path / "disk", config.directory)
    BlockCache(config)  # one's own link to a larger disk is usual
    owner[config.directory] = OTHER
    with pytest.raises(CacheDirectoryError, match=f"user {OTHER}"):
        BlockCache(config)


def test_a_block_of_another_user_is_neither_read_nor_written(config, origin, as_user, system, caplog):
    owner = {}
    owned_by(system, owner)
    origin.read(BlockCache(config))
    owner.update(dict.fromkeys(block_files(config), OTHER))
    before = [os.stat(path).st_size for path in block_files(config)]
    asked = origin.asked_bytes
    origin.read(BlockCache(config))
    assert origin.asked_bytes == asked + len(origin.data)
    assert [os.stat(path).st_size for path in block_files(config)] == before
    assert "is not filled" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_real_owners_in_a_real_process(config, tmp_path):
    """A folder of user 1234, and a process of user 1235."""
    outer = tmp_path
    while outer.stat().st_mode & 0o055 != 0o055:
        outer.chmod(outer.stat().st_mode | 0o055)
        outer = outer.parent
    os.makedirs(config.directory)
    os.chmod(config.directory, 0o777)
    os.chown(config.directory, 1234, 1234)

    def child():
        os.setgid(1235)
        os.setuid(1235)
        with pytest.raises(CacheDirectoryError, match=r"user 1234.*user 1235"):
            BlockCache(config)

    run_isolated(child)
    os.chown(config.directory, 1235, 1235)
    os.chmod(config.directory, 0o777)
    with pytest.raises(WorkerError, match="DID NOT RAISE"):
        run_isolated(child)
    assert stat.S_IMODE(os.stat(config.directory).st_mode) == 0o755


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused(config, system, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    system(fcntl=refuse)
    with pytest.raises(CacheDirectoryError, match=r"no locks.*Name a folder on a local disk"):
        BlockCache(config)


def test_a_file_system_whose_locks_exclude_nobody_is_refused(config, system):
    """As some network and user-space file systems: every lock succeeds."""
    system(fcntl=lambda *_: 0)
    with pytest.raises(CacheDirectoryError, match="have no effect"):
        BlockCache(config)


def test_the_check_of_locks_passes_while_another_process_makes_it(config):
    BlockCache(config)
    path = os.path.join(config.directory, "v1", "usage")
    with private.PrivateFile(path, os.O_RDWR) as file:
        assert file.try_lock(1 << 61, (1 << 61) + 1)
        private.check_locks(path)


def test_a_cache_that_can_only_be_read_needs_no_check(config, origin, system):
    origin.read(BlockCache(config))
    real = os.open

    def read_only(path, flags, *mode, **options):
        if str(path).startswith(config.directory) and flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *mode, **options)

    system(open=read_only)
    asked = origin.asked_bytes
    origin.read(BlockCache(config))
    assert origin.asked_bytes == asked


def test_the_errors_survive_pickling(config):
    import pickle

    error = CacheDirectoryError("what", where="where", hint="hint")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.where, type(copy)) == (str(error), "where", CacheDirectoryError)
    assert isinstance(error, (OSError, ValueError))


def test_a_new_ledger_needs_no_magic_of_the_old(tmp_path):
    """A ledger of an earlier version counts as absent, and the files are measured anew."""
    import struct

    old = struct.Struct("<8sqq16s").pack(b"ESCACHE1", 10**6, 0, bytes(16))
    (tmp_path / "usage").write_bytes(old)
    ledger = Ledger(str(tmp_path / "usage"), CacheLimits())
    assert ledger.usage() is None
    assert ledger.recount(dict)
    assert ledger.usage().bytes < 10**6


def test_bytes_go_through_a_real_store(config, s3_server, tmp_bucket):
    from energon_stream.cache import CacheLayer

    s3_server.put(f"{tmp_bucket}/key", b"0123456789")
    store = StoreSpec(tmp_bucket, s3_server.storage_options, through=CacheLayer(config)).open()
    assert bytes(store.get_range("key", ByteRange(2, 5)).data) == b"234"
    assert modes(config.directory) == {True: {0o700}, False: {0o600}}
