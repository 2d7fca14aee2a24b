"""The count that all processes share: what it says while somebody writes, after that, and after somebody was killed."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from origins import BLOCK, Origin, counted

from energon_stream.cache.blocks import BlockCache
from energon_stream.cache.blocks.ledger import Busy, Ledger, Limits, root_bytes
from energon_stream.storage import run_isolated


@pytest.fixture
def ledger(tmp_path):
    found = Ledger(str(tmp_path / "usage"))
    found.recount(dict)
    return found


def take(books, folder, amount, limits=None):
    with books.locked():
        return books.take(str(folder), amount, limits or Limits())


def test_what_is_written_is_pending_no_more_once_nobody_writes(ledger, tmp_path):
    begin = ledger.usage().bytes
    with ledger.writing() as first:
        with ledger.writing() as second:
            assert take(second, tmp_path / "root", 500)
            second.is_written(500)
        assert take(first, tmp_path / "root", 70)
        assert ledger.usage() == (begin + 570, 70)
        first.is_written(70)
    assert ledger.usage() == (begin + 570, 0)
    assert root_bytes(str(tmp_path / "root")) == 570


def test_what_is_not_written_stays_pending(ledger, tmp_path):
    """As after a kill: whoever counts next finds it."""
    begin = ledger.usage().bytes
    with ledger.writing() as books:
        assert take(books, tmp_path / "root", 500)
    assert ledger.usage() == (begin + 500, 500)
    assert ledger.recount(dict)
    assert ledger.usage() == (begin, 0)


def test_what_was_refused_changes_nothing(ledger, tmp_path):
    begin = ledger.usage().bytes
    with ledger.writing() as books:
        assert take(books, tmp_path / "root", 500)
        books.is_written(500)
        assert not take(books, tmp_path / "root", 500, Limits(quota=begin + 999))
    assert ledger.usage() == (begin + 500, 0)


def test_what_is_given_back_while_others_write(ledger, tmp_path):
    folder = str(tmp_path / "root")
    begin = ledger.usage().bytes
    with ledger.writing() as books:
        assert take(books, folder, 500)
        books.is_written(500)
        with books.locked(), books.giving_back(folder, 200):
            assert ledger.usage() == (begin + 500, 200)
        assert ledger.usage() == (begin + 300, 0)
    assert ledger.usage() == (begin + 300, 0)
    assert root_bytes(folder) == 300


def test_nobody_counts_anew_while_a_thread_writes(ledger, tmp_path):
    other = Ledger(str(tmp_path / "usage"))
    with ledger.writing():
        with ledger.writing():
            pass
        assert not other.recount(dict, always=True)
        assert not ledger.recount(dict, always=True)
    assert other.recount(dict, always=True)


def test_threads_that_write_side_by_side(ledger, tmp_path):
    begin = ledger.usage().bytes

    def write(amount):
        with ledger.writing() as books:
            assert take(books, tmp_path / "root", amount)
            books.is_written(amount)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(400)))
    assert ledger.usage() == (begin + sum(range(400)), 0)


def test_who_counts_holds_off_all_threads(ledger, tmp_path, monkeypatch):
    """Each waits only as long as one does."""
    monkeypatch.setattr("energon_stream.cache.blocks.ledger.PATIENCE", 0.05)

    def write(_):
        with pytest.raises(Busy), ledger.writing():
            pass

    def measure():
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        return {}

    assert Ledger(str(tmp_path / "usage")).recount(measure, always=True)
    with ledger.writing():
        pass


def test_a_ledger_that_was_removed_is_not_written(ledger, tmp_path):
    with ledger.writing():
        pass
    os.unlink(tmp_path / "usage")
    with pytest.raises(FileNotFoundError), ledger.writing():
        pass


def test_a_ledger_that_was_removed_is_made_anew(config):
    """As where somebody empties the folder, and something else is kept in it before."""
    cache = BlockCache(config)
    Origin(BLOCK).read(cache)
    shutil.rmtree(config.directory)
    os.makedirs(os.path.join(config.directory, "v1"))
    origin = Origin(BLOCK, path="other.tar")
    origin.read(cache)
    assert not cache.missing(origin.identity, 0, BLOCK)
    assert BLOCK < counted(cache).bytes < 2 * BLOCK


def test_a_cache_that_was_removed_is_not_filled(config, caplog):
    cache = BlockCache(config)
    Origin(BLOCK).read(cache)
    shutil.rmtree(config.directory)
    Origin(BLOCK, path="other.tar").read(cache)
    assert not os.path.exists(config.directory)
    assert "is not filled" in caplog.text


def test_a_forked_child_has_a_ledger_of_its_own(config):
    cache = BlockCache(config)
    Origin(BLOCK).read(cache)

    def child():
        Origin(BLOCK, path="other.tar").read(cache)
        return counted(cache)

    with cache._directory.ledger.writing():
        assert run_isolated(child).pending == 0
    assert counted(cache).bytes > 2 * BLOCK
