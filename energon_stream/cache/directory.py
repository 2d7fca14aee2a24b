"""The folders of a cache, which ``docs/concepts/cache.md`` draws: how files appear and vanish."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from typing import Any

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.ledger import (
    COUNT_FILE,
    OBJECT_BYTES,
    ROOT_BYTES,
    CacheLimits,
    Ledger,
    LedgerTransaction,
)
from energon_stream.cache.object_identity import (
    BlockPlace,
    ObjectIdentity,
    ObjectPlace,
    block_at,
    object_place,
    root_name,
)
from energon_stream.cache.private import (
    PrivateFile,
    check_locks,
    make_cache_folder,
    make_folder,
    make_layout_folder,
    open_private,
    read_private,
    replace_private,
)
from energon_stream.cache.records import RecordTable
from energon_stream.errors import CacheDirectoryError, ConfigError

_log = logging.getLogger(__name__)

_LAYOUT = "v1"
ROOT_FILE, OBJECT_FILE, _TEMPORARY = "root.json", "object.json", ".new"
_IN_USE = (0, 1)  # bytes of root.json that processes lock while they use the dataset
_EMPTY_BLOCK_BYTES = RecordTable.decode(0, b"").disk_bytes()


class CacheDirectory:
    """The folders of a cache. Only writers need ``limits``."""

    def __init__(self, directory: str, limits: CacheLimits | None = None) -> None:
        self.directory = directory
        self._layout = os.path.join(directory, _LAYOUT)
        self._data = os.path.join(self._layout, "data")
        self._usage = os.path.join(self._layout, "usage")
        self.ledger: Ledger = Ledger(self._usage, limits or CacheLimits())

    def exists(self) -> bool:
        """Return True if anything was ever cached here."""
        return os.path.isdir(self._layout)

    def make(self) -> None:
        """Make the cache directory, and the folders in it if it can be written; make sure that both are safe.

        Raises CacheDirectoryError if another user could change the files, or locks do not work there, and
        ConfigError if the directory is not a folder, or cannot be made.
        """
        try:
            make_cache_folder(self.directory)
        except CacheDirectoryError:
            raise
        except OSError as error:
            raise ConfigError(
                f"the cache directory cannot be made: {error.strerror}",
                where=self.directory,
                hint="Name a folder on a local disk that can be written.",
            ) from error
        try:
            make_layout_folder(self._layout)
            make_folder(self._data)
            check_locks(self._usage)
        except CacheDirectoryError:
            raise
        except OSError:  # full or read-only: its bytes can be read all the same
            _log.debug("%s cannot be written", self.directory, exc_info=True)

    def prepare(self) -> None:
        """Measure the files if that is needed. Raises OSError if the directory cannot be written."""
        make_folder(self._data)
        self.recount(seconds=30.0 if self.ledger.usage() is None else 0.0)

    def recount(self, *, seconds: float = 0.0, always: bool = False) -> bool:
        """Measure the files; see :meth:`Ledger.recount`."""
        return self.ledger.recount(self._measure, seconds=seconds, always=always)

    # Names

    def place(self, identity: ObjectIdentity, block_bytes: int) -> ObjectPlace:
        """Return the place of an object's blocks."""
        return object_place(self._data, identity, block_bytes)

    def root_folder(self, url: str) -> str:
        """Return the folder of a dataset."""
        return os.path.join(self._data, root_name(url))

    def root_folders(self) -> list[str]:
        """Return the folders of all datasets."""
        return _folders(self._data)

    def object_folders(self, root_folder: str) -> list[str]:
        """Return the folders of a dataset's objects."""
        return _folders(root_folder)

    def blocks(self, object_folder: str) -> list[tuple[BlockPlace, os.stat_result]]:
        """Return the blocks of an object, and the status of their files."""
        found = []
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(object_folder)):
                place = block_at(os.path.join(object_folder, name))
                if place is not None:
                    with suppress(FileNotFoundError):
                        found.append((place, os.lstat(place.path)))
        return found

    # Files appear

    def use_root(self, url: str) -> PrivateFile | None:
        """Mark a dataset as in use while the returned file is open; None if the cache does not have it."""
        with suppress(OSError):
            file = PrivateFile(os.path.join(self.root_folder(url), ROOT_FILE), os.O_RDONLY)
            if file.try_lock(*_IN_USE, shared=True) and os.fstat(file.fd).st_nlink:
                return file
            file.close()
        return None

    def root_in_use(self, root_folder: str) -> bool:
        """Return True if a running process uses a dataset, or might."""
        try:
            with PrivateFile(os.path.join(root_folder, ROOT_FILE), os.O_RDWR) as file:
                return not file.try_lock(*_IN_USE)
        except FileNotFoundError:
            return False
        except OSError:  # it cannot be locked
            return True

    def open_block(self, owner: ObjectPlace, place: BlockPlace) -> BlockFile | None:
        """Open a block for writing, and make it if it is absent; return None if there is no room for it."""
        block = BlockFile.open(place, writable=True)
        if block is None and self._make_block(owner, place):
            block = BlockFile.open(place, writable=True)
        return block

    def _make_block(self, owner: ObjectPlace, place: BlockPlace) -> bool:
        identity = owner.identity
        with self.ledger.writing() as transaction, transaction.object_lock(owner.folder):
            if os.path.exists(place.path):
                return True
            new_object = not os.path.exists(os.path.join(owner.folder, OBJECT_FILE))
            if new_object and not self._make_root(transaction, owner):
                return False
            amount = _EMPTY_BLOCK_BYTES + new_object * OBJECT_BYTES
            if not transaction.take(owner.root_folder, amount):
                return False
            if new_object:
                self._make_folder(transaction, owner)
                about = {"path": identity.path, "etag": identity.etag, "size": identity.size}
                _describe(owner.folder, OBJECT_FILE, about)
            os.close(open_private(place.path, os.O_WRONLY | os.O_CREAT))
        return True

    def _make_folder(self, transaction: LedgerTransaction, owner: ObjectPlace) -> None:
        while not os.path.isdir(owner.folder):  # it exists if a process was killed before it wrote more
            try:
                make_folder(owner.folder)
            except FileNotFoundError:  # the dataset's folder was removed just now
                if not self._make_root(transaction, owner):
                    raise

    def _make_root(self, transaction: LedgerTransaction, owner: ObjectPlace) -> bool:
        """Make a dataset's folder if it is absent; return False if there is no room for it."""
        root_folder = owner.root_folder
        description = os.path.join(root_folder, ROOT_FILE)
        if os.path.exists(description):
            return True
        with transaction.locked():
            if not os.path.exists(description):
                if not transaction.take_locked(root_folder, ROOT_BYTES):
                    return False
                make_folder(self._data)  # somebody may have emptied the cache
                make_folder(root_folder)
                _describe(root_folder, ROOT_FILE, {"url": owner.identity.root})
        return True

    # Files vanish

    def remove_block(self, place: BlockPlace, *, alone: bool = False, file_id: int | None = None) -> int:
        """Remove a block, and with the last block the object's folder. Views of the block stay valid.

        Returns the disk space that the block took; 0 if it was not removed: because a process has it open if
        ``alone``, or because it is not the file with the number ``file_id``. Raises Busy if others keep
        locks, and OSError if the disk fails, or must not be written.
        """
        block = BlockFile.open(place, writable=True, alone=alone)
        if block is None:
            return 0
        with block, block.appending():
            if not block.refresh() or file_id not in (None, block.file_id):
                return 0
            amount = block.disk_bytes()
            with (
                self.ledger.writing() as transaction,
                transaction.object_lock(place.object_folder),
                transaction.locked(),
            ):
                with transaction.giving_back(place.root_folder, amount):
                    os.unlink(place.path)
                if not any(map(block_at, os.listdir(place.object_folder))):
                    with transaction.giving_back(place.root_folder, OBJECT_BYTES):
                        _remove_folder(place.object_folder)
        return amount

    def remove_root(self, root_folder: str) -> None:
        """Remove a dataset's folder, unless it has objects or is in use."""
        try:
            file = PrivateFile(os.path.join(root_folder, ROOT_FILE), os.O_RDWR)
        except FileNotFoundError:
            return
        with file, self.ledger.writing() as transaction, transaction.locked():
            if file.try_lock(*_IN_USE) and not self.object_folders(root_folder):
                with transaction.giving_back(None, ROOT_BYTES):
                    _remove_folder(root_folder)

    def _measure(self) -> dict[str, int]:
        """Return the bytes of each dataset, and remove folders that killed processes left empty."""
        counts = {}
        for root_folder in self.root_folders():
            count = ROOT_BYTES
            for object_folder in self.object_folders(root_folder):
                blocks = self.blocks(object_folder)
                if not blocks:
                    _remove_folder(object_folder)
                    continue
                count += OBJECT_BYTES
                for place, _ in blocks:
                    # Not BlockFile.open(): another process may be about to remove the file.
                    with (
                        suppress(FileNotFoundError),
                        BlockFile(place, PrivateFile(place.path, os.O_RDONLY)) as block,
                    ):
                        count += block.disk_bytes()
            counts[root_folder] = count
        return counts


def read_description(folder: str, name: str) -> dict[str, Any]:
    """Read the file that describes a folder; return an empty dictionary if it cannot be read."""
    try:
        found = json.loads(read_private(os.path.join(folder, name)))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _describe(folder: str, name: str, about: dict[str, Any]) -> None:
    path = os.path.join(folder, name)
    replace_private(path, json.dumps(about).encode(), path + _TEMPORARY)


def _remove_folder(folder: str) -> None:
    """Remove a folder of the cache, unless it contains files of others."""
    for name in (ROOT_FILE, OBJECT_FILE, COUNT_FILE):
        for path in (os.path.join(folder, name), os.path.join(folder, name + _TEMPORARY)):
            with suppress(FileNotFoundError):
                os.unlink(path)
    with suppress(OSError):
        os.rmdir(folder)


def _folders(folder: str) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    return []
