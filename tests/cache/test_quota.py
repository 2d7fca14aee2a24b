"""The size bound, what makes room for what, and disks that are full, read-only or broken."""

import errno
import os
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import children
import pytest
from origins import BLOCK, Origin, block_files, counted, disk_bytes
from told import told

from energon_stream.cache import BlockCache, CacheConfig
from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.directory import CacheDirectory
from energon_stream.cache.object_identity import block_at
from energon_stream.storage import ByteRange, run_isolated

QUOTA = 2_000_000


@pytest.fixture
def small(config):
    return replace(config, max_bytes=QUOTA)


def fill(cache, count, **options):
    origins = [Origin(BLOCK, seed=number, path=f"{number:03d}.tar", **options) for number in range(count)]
    for origin in origins:
        origin.read(cache)
    return origins


def kept(cache, origins):
    """Numbers of the objects that are in the cache."""
    return [n for n, origin in enumerate(origins) if not cache.missing(origin.identity, 0, BLOCK)]


def age(config, seconds):
    """Make all blocks older."""
    for path in block_files(config):
        time = os.stat(path).st_mtime - seconds
        os.utime(path, (time, time))


def test_pinned_is_what_came_first(small):
    cache = BlockCache(small)
    origins = fill(cache, 12)
    first = kept(cache, origins)
    assert first == list(range(len(first)))
    assert 6 <= len(first) <= 7  # of 262144 bytes each
    for origin in origins:
        origin.asked.clear()
        origin.read(cache)
    assert [n for n, origin in enumerate(origins) if not origin.asked] == first == kept(cache, origins)
    assert disk_bytes(small) <= counted(cache).bytes <= QUOTA


def test_lru_keeps_what_was_read_last(small):
    cache = BlockCache(replace(small, policy="lru"))
    origins = fill(cache, 6)
    age(small, 1000)
    origins[0].read(cache)
    more = [Origin(BLOCK, seed=50 + n, path=f"more {n}") for n in range(4)]
    for origin in more:
        origin.read(cache)
        assert disk_bytes(small) <= counted(cache).bytes <= QUOTA
    assert kept(cache, more) == [0, 1, 2, 3]
    assert kept(cache, origins)[0] == 0
    assert len(kept(cache, origins)) >= 2


def test_datasets_out_of_use_make_room_the_oldest_first(small, caplog):
    def use(root, seconds):
        cache = BlockCache(small)
        origins = fill(cache, 3, root=root)
        cache.close()
        age(small, seconds)
        return origins

    older, newer = use("s3://bucket/older", 2000), use("s3://bucket/newer", 1000)
    cache = BlockCache(small)
    mine = fill(cache, 3, root="s3://bucket/mine")
    assert kept(cache, mine) == [0, 1, 2]
    assert len(kept(cache, older)) < 3
    assert kept(cache, newer) == [0, 1, 2]
    assert disk_bytes(small) <= counted(cache).bytes <= QUOTA
    assert told(caplog, "energon_stream.cache") == []


def test_datasets_that_another_process_uses_stay(small):
    cache = BlockCache(small)
    theirs = fill(cache, 7)

    def other_process():
        other = BlockCache(small)
        mine = fill(other, 3, root="s3://bucket/mine")
        return kept(other, mine), kept(other, theirs)

    everything = kept(cache, theirs)
    assert run_isolated(other_process) == ([], everything)
    cache.close()
    assert run_isolated(other_process)[0] == [0, 1, 2]


def test_a_dataset_is_in_use_before_it_is_read(small):
    """So that a job with several datasets does not begin with evicting what it reads a moment later."""
    cache = BlockCache(small)
    theirs = fill(cache, 7)
    everything = kept(cache, theirs)
    cache.close()
    cache.use("s3://key:secret@bucket/data/")
    fill(cache, 3, root="s3://bucket/mine")
    assert kept(cache, theirs) == everything


def test_what_has_no_room_at_all_does_not_keep_others_out(small):
    cache = BlockCache(replace(small, policy="lru"))
    Origin(2 * QUOTA, path="huge").read(cache)
    origins = fill(cache, 12)
    assert kept(cache, origins)[-3:] == [9, 10, 11]
    assert disk_bytes(small) <= counted(cache).bytes <= QUOTA


def test_what_is_mapped_stays_whatever_the_policy(small):
    cache = BlockCache(replace(small, policy="lru", block_bytes=32 << 20, max_bytes=5_000_000))
    first, second = Origin(3 << 20, path="first"), Origin(3 << 20, path="second")
    first.read(cache)
    view = first.read(cache)
    second.read(cache)
    assert cache.missing(second.identity, 0, 10)
    del view
    cache.close()  # which also forgets that there was nothing to evict
    second.read(cache)
    assert not cache.missing(second.identity, 0, 10)


def test_replaced_versions_make_room(small):
    cache = BlockCache(small)
    old = fill(cache, 6)
    age(small, 100)
    new = fill(cache, 4, etag='"2"')
    assert kept(cache, new) == [0, 1, 2, 3]
    assert not {0, 1} & set(kept(cache, old))
    assert {4, 5} <= set(kept(cache, old))  # no newer version was seen


def test_shares_bound_a_dataset_and_free_what_is_beyond(small):
    cache = BlockCache(small)
    first = fill(cache, 7, root="s3://bucket/first")
    cache.set_shares({"s3://bucket/first": 1_000_000, "s3://bucket/second": 600_000})
    cache.close()
    first[0].read(cache)
    second = fill(cache, 4, root="s3://bucket/second")
    assert len(kept(cache, second)) == 2
    assert 3 <= len(kept(cache, first)) < 6
    assert disk_bytes(small) <= counted(cache).bytes <= QUOTA


def test_sparse_reads_take_the_pages_that_they_touch(small):
    """As when only small parts of samples are wanted: a quota of 2 MB serves many blocks."""
    cache, origin = BlockCache(small), Origin(40 * BLOCK)
    starts = range(0, len(origin.data), 65536)
    for start in starts:
        origin.read(cache, start, start + 1000)
    assert disk_bytes(small) <= counted(cache).bytes <= QUOTA
    origin.asked.clear()
    for start in starts:
        origin.read(cache, start, start + 1000)
    assert origin.asked == []


def test_the_floor_is_left_free(config, caplog):
    cache = BlockCache(replace(config, min_free_bytes="1000TB"))
    fill(cache, 3)
    assert block_files(config) == []
    (warning,) = told(caplog, "energon_stream.cache")
    assert "of its disk are free" in warning


def test_without_a_bound_all_is_kept(config):
    cache = BlockCache(replace(config, max_bytes=None))
    assert len(kept(cache, fill(cache, 40))) == 40


def test_a_killed_writer_leaves_a_count_that_is_corrected(config):
    """Between counting and writing: too much is counted until nobody writes."""

    def killed():
        cache = BlockCache(config)

        def die(*arguments):
            os.kill(os.getpid(), 9)

        import energon_stream.cache.block_file as module

        module.write_all = die
        Origin(BLOCK).read(cache)

    pid = os.fork()
    if not pid:
        killed()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 9
    ledger = BlockCache(replace(config, max_bytes=None)).directory.ledger  # opening it corrects the count
    assert ledger.usage().pending == 0
    assert disk_bytes(config) <= ledger.usage().bytes < BLOCK


def test_a_block_that_is_about_to_be_removed_is_counted(cache, config, origin):
    """Who removes it gives its bytes back after the count."""
    origin.read(cache)
    before, directory = counted(cache), CacheDirectory(config.directory)
    place = block_at(block_files(config)[0])
    with BlockFile.open(place, writable=True, alone=True):
        assert directory.recount(always=True)
        assert counted(cache) == before
    gained = directory.remove_block(place, alone=True)
    assert counted(cache).bytes == before.bytes - gained
    assert directory.recount(always=True)
    assert counted(cache).bytes == before.bytes - gained


def test_an_older_count_is_not_believed(cache, config, origin):
    """As after a crash of the machine, or where the directory was copied."""
    origin.read(cache)
    right = counted(cache)
    usage = Path(config.directory, "v1", "usage")
    for content in (b"", b"rubbish" * 10, usage.read_bytes()[:-16] + bytes(16)):
        usage.write_bytes(content)
        assert counted(cache) is None
        Origin(1000, path=f"another {content}").read(cache)  # counts on the way
        assert counted(cache).bytes >= right.bytes
        assert disk_bytes(config) <= counted(cache).bytes


@pytest.fixture
def tmpfs(tmp_path):
    """A file system of one megabyte."""
    folder = tmp_path / "tmpfs"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True
    ).returncode:
        pytest.skip("mounting needs privileges; the next test does without")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_ends_caching_with_one_warning(tmpfs, caplog):
    cache = BlockCache(CacheConfig(str(tmpfs / "cache"), min_free_bytes=0, block_bytes=BLOCK))
    with open(tmpfs / "other", "wb") as file:
        file.write(bytes(300_000))
    origins = fill(cache, 8)
    for origin in origins:
        origin.asked.clear()
        origin.read(cache)
    hits = [origin for origin in origins if not origin.asked]
    assert 1 <= len(hits) < 4
    assert len(told(caplog, "energon_stream.cache")) == 1


def test_a_file_size_limit_ends_caching_with_one_warning(tmp_path):
    """An error in the middle of writing, for whoever may not mount."""
    code = f"""
        import resource, signal, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from origins import Origin
        from energon_stream.cache import BlockCache, CacheConfig

        cache = BlockCache(CacheConfig({str(tmp_path)!r}, min_free_bytes=0))
        small, large = Origin(1000, path="small"), Origin(1 << 20, path="large")
        small.read(cache)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        for origin in (large, large, small, Origin(10, path="more"), large):
            origin.read(cache)
        assert (len(small.asked), len(large.asked)) == (1, 3)
        assert cache.counters().stored_bytes == 1000
    """
    done = children.run("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is not filled: File too large") == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOLCK])
def test_any_error_in_writing_ends_caching_with_one_warning(cache, caplog, system, code):
    first = Origin(BLOCK, path="first")
    first.read(cache)

    def fail(*arguments):
        raise OSError(code, os.strerror(code))

    write = os.pwrite
    system(pwrite=fail)
    fill(cache, 3)
    system(pwrite=write)
    fill(cache, 3)
    first.read(cache)
    assert len(first.asked) == 1
    assert cache.counters().stored_bytes == BLOCK
    assert len(told(caplog, "energon_stream.cache")) == 1


def test_a_disk_that_fails_in_reading_is_a_miss_and_a_warning(cache, origin, caplog, monkeypatch, system):
    def fail(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    origin.read(cache)
    monkeypatch.setattr("energon_stream.cache.block_file.BlockFile.read", fail)
    origin.read(cache)
    origin.read(cache)
    assert len(origin.asked) == 3
    system(open=fail)
    origin.read(cache, 0, 10)
    assert cache.missing(origin.identity, 0, 10) == [ByteRange(0, 10)]
    damaged, full = told(caplog, "energon_stream.cache")
    assert "cannot be read (Input/output error)" in damaged
    assert "is not filled: Input/output error" in full


@pytest.fixture
def read_only(config, tmp_path):
    """The cache's directory, mounted where nothing can be written."""
    origin = Origin(2 * BLOCK)
    cache = BlockCache(config)
    origin.read(cache)
    cache.close()
    folder = tmp_path / "read-only"
    folder.mkdir()
    commands = [
        ["mount", "--bind", config.directory, str(folder)],
        ["mount", "-o", "remount,ro,bind", str(folder)],
    ]
    if any(subprocess.run(command, capture_output=True).returncode for command in commands):
        pytest.skip("mounting needs privileges")
    yield replace(config, directory=str(folder)), origin
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_read_only_directory_gives_hits(read_only, caplog):
    config, origin = read_only
    cache = BlockCache(config)
    origin.read(cache)
    assert len(origin.asked) == 1
    other = Origin(1000, path="other")
    other.read(cache)
    other.read(cache)
    assert len(other.asked) == 2
    (warning,) = told(caplog, "energon_stream.cache")
    assert "is not filled: Read-only file system" in warning
