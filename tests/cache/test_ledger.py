"""The ledger that all processes share: while processes write, afterwards, and after one was killed."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from origins import BLOCK, Origin, counted

from energon_stream.cache import BlockCache
from energon_stream.cache.ledger import CacheLimits, Ledger, root_bytes
from energon_stream.cache.locks import Busy
from energon_stream.errors import WorkerError
from energon_stream.storage import run_isolated


@pytest.fixture
def opened(tmp_path):
    """Opens the ledger, as a process does."""
    return lambda **limits: Ledger(str(tmp_path / "usage"), CacheLimits(**limits))


@pytest.fixture
def ledger(opened):
    found = opened()
    found.recount(dict)
    return found


def take(transaction, folder, amount):
    return transaction.take(str(folder), amount)


def test_bytes_are_pending_until_no_thread_writes(ledger, tmp_path):
    begin = ledger.usage().bytes
    with ledger.writing() as first:
        assert take(first, tmp_path / "root", 500)
        assert ledger.usage() == (begin + 500, 500)
        with ledger.writing():
            pass
        assert take(first, tmp_path / "root", 70)
        assert ledger.usage() == (begin + 570, 570)
    assert ledger.usage() == (begin + 570, 0)
    assert root_bytes(str(tmp_path / "root")) == 570


def test_several_writers_reserve_bytes_for_each_other(ledger, opened, tmp_path):
    folder, limited = str(tmp_path / "root"), opened(quota=1 << 20)
    begin = ledger.usage().bytes
    with limited.writing() as first:
        assert first.take(folder, 500)
        assert ledger.usage() == (begin + 500, 500)  # alone
        with limited.writing() as second:
            assert second.take(folder, 500)
            counted = ledger.usage()
            assert begin + 1000 < counted.bytes <= begin + 1000 + (1 << 20 >> 6)
            assert root_bytes(folder) == counted.bytes - begin
            assert second.take(folder, 500)
            assert ledger.usage() == counted
            assert second.take(str(tmp_path / "another"), 500)  # each dataset for itself
            assert ledger.usage().bytes > counted.bytes + 500
    assert ledger.usage() == (begin + 2000, 0)
    assert (root_bytes(folder), root_bytes(str(tmp_path / "another"))) == (1500, 500)


def test_reserved_bytes_stay_below_a_limit(ledger, opened, tmp_path):
    folder = str(tmp_path / "root")
    begin = ledger.usage().bytes
    limited = opened(quota=begin + 100_000)
    with limited.writing() as transaction, limited.writing():
        taken = 0
        while transaction.take(folder, 500):
            taken += 500
            assert ledger.usage().bytes <= begin + 100_000
    assert taken >= 98_000
    assert ledger.usage() == (begin + taken, 0)


def test_bytes_that_a_killed_process_had_reserved_are_measured_again(ledger, opened, tmp_path):
    folder = str(tmp_path / "root")
    begin = ledger.usage().bytes

    def child():
        own = opened()
        with own.writing() as transaction, own.writing():
            assert transaction.take(folder, 500)
            os._exit(1)

    with pytest.raises(WorkerError):
        run_isolated(child)
    assert ledger.usage().pending > 500
    assert ledger.recount(lambda: {folder: 300})
    assert ledger.usage() == (begin + 300, 0)


def test_reserved_bytes_of_a_removed_dataset_are_subtracted(ledger, tmp_path):
    folder = tmp_path / "root"
    begin = ledger.usage().bytes
    with ledger.writing() as transaction, ledger.writing():
        assert transaction.take(str(folder), 500)
        with transaction.locked(), transaction.giving_back(None, 500):
            shutil.rmtree(folder)
    assert ledger.usage() == (begin, 0)
    assert not folder.exists()


@pytest.mark.parametrize("writers", [1, 2])
def test_bytes_of_a_failed_write_stay_pending(ledger, tmp_path, writers):
    """As after a kill: the next recount finds out how much of them is on disk."""
    begin = ledger.usage().bytes

    def fail():
        with ledger.writing() as transaction:
            assert take(transaction, tmp_path / "root", 500)
            raise OSError("disk")

    with ExitStack() as others:
        for _ in range(writers - 1):
            others.enter_context(ledger.writing())
        with pytest.raises(OSError, match="disk"):
            fail()
    assert ledger.usage() == (begin + 500, 500)
    assert ledger.recount(dict)
    assert ledger.usage() == (begin, 0)


def test_a_refused_write_changes_nothing(ledger, opened, tmp_path):
    begin = ledger.usage().bytes
    with opened(quota=begin + 999).writing() as transaction:
        assert take(transaction, tmp_path / "root", 500)
        assert not take(transaction, tmp_path / "root", 500)
    assert ledger.usage() == (begin + 500, 0)


def test_bytes_are_subtracted_while_others_write(ledger, tmp_path):
    folder = str(tmp_path / "root")
    begin = ledger.usage().bytes
    with ledger.writing() as transaction:
        assert take(transaction, folder, 500)
        with transaction.locked(), transaction.giving_back(folder, 200):
            assert ledger.usage() == (begin + 500, 700)
        assert ledger.usage() == (begin + 300, 500)
    assert ledger.usage() == (begin + 300, 0)
    assert root_bytes(folder) == 300


def test_nobody_counts_anew_while_a_thread_writes(ledger, opened):
    other = opened()
    with ledger.writing():
        with ledger.writing():
            pass
        assert not other.recount(dict, always=True)
        assert not ledger.recount(dict, always=True)
    assert other.recount(dict, always=True)


def test_threads_that_write_side_by_side(ledger, tmp_path):
    begin = ledger.usage().bytes

    def write(amount):
        with ledger.writing() as transaction:
            assert take(transaction, tmp_path / "root", amount)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(400)))
    assert ledger.usage() == (begin + sum(range(400)), 0)


@pytest.mark.parametrize("patience", [0.05], indirect=True)
def test_who_counts_holds_off_all_threads(ledger, opened):
    """Each waits only as long as one does."""

    def write(_):
        with pytest.raises(Busy), ledger.writing():
            pass

    def measure():
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        return {}

    assert opened().recount(measure, always=True)
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

    with cache.directory.ledger.writing():
        assert run_isolated(child).pending == 0
    assert counted(cache).bytes > 2 * BLOCK
