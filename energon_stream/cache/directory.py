"""The folders of a cache: what is where, and how names appear and vanish.

::

    <directory>/v1/usage                                        the ledger
    <directory>/v1/data/<root URL>/root.json, bytes             a dataset, and the bytes counted for it
    <directory>/v1/data/<root URL>/<path>-<version>/object.json an object
    <directory>/v1/data/<root URL>/<path>-<version>/<n>.<size>  its block number n

Names in angle brackets are hashes. Another layout would be another folder beside ``v1``.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from energon_stream.cache.block_file import BlockFile
from energon_stream.cache.identity import (
    BlockPlace,
    ObjectIdentity,
    ObjectPlace,
    block_at,
    object_place,
    root_name,
)
from energon_stream.cache.ledger import (
    COUNT_FILE,
    OBJECT_BYTES,
    ROOT_BYTES,
    Books,
    Ledger,
    Limits,
)
from energon_stream.cache.locks import LockedFile
from energon_stream.cache.records import PieceTable
from energon_stream.errors import ConfigError

__all__ = ["OBJECT_FILE", "ROOT_FILE", "CacheDirectory", "read_description"]

_LAYOUT = "v1"
ROOT_FILE, OBJECT_FILE, _TEMPORARY = "root.json", "object.json", ".new"
_IN_USE = (0, 1)  # bytes of root.json that are locked
_EMPTY_BLOCK_BYTES = PieceTable.decode(0, b"").disk_bytes()


class CacheDirectory:
    """The folders of a cache.

    Args:
        directory: The cache's folder; as users name it.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._data = os.path.join(directory, _LAYOUT, "data")
        self.ledger = Ledger(os.path.join(directory, _LAYOUT, "usage"))

    def exists(self) -> bool:
        """Whether anything was ever kept there."""
        return os.path.isdir(self._data)

    def prepare(self) -> None:
        """Make the folders, and count what is there if that is needed.

        Raises:
            ConfigError: The directory is no folder, or cannot be made.
            OSError: It is there, and cannot be written.
        """
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the cache directory cannot be made: {error.strerror}",
                where=self.directory,
                hint="Name a folder on a local disk that can be written.",
            ) from error
        os.makedirs(self._data, exist_ok=True)
        if self.ledger.usage() is None:
            self.recount(seconds=30.0)
        else:
            self.recount()

    def recount(self, *, seconds: float = 0.0, always: bool = False) -> bool:
        """Count the bytes anew; see :meth:`Ledger.recount`."""
        return self.ledger.recount(self._measure, seconds=seconds, always=always)

    # Names

    def place(self, identity: ObjectIdentity, block_bytes: int) -> ObjectPlace:
        """Where an object's blocks lie."""
        return object_place(self._data, identity, block_bytes)

    def root_folder(self, url: str) -> str:
        """Folder of a dataset."""
        return os.path.join(self._data, root_name(url))

    def root_folders(self) -> list[str]:
        """Folders of all datasets."""
        return _folders(self._data)

    def object_folders(self, root_folder: str) -> list[str]:
        """Folders of a dataset's objects."""
        return _folders(root_folder)

    def blocks(self, object_folder: str) -> list[BlockPlace]:
        """Blocks of an object."""
        with suppress(FileNotFoundError):
            found = (
                block_at(os.path.join(object_folder, name)) for name in sorted(os.listdir(object_folder))
            )
            return [place for place in found if place is not None]
        return []

    # What appears

    def use_root(self, url: str) -> LockedFile | None:
        """Mark a dataset as in use, for as long as the file is open; None where there is nothing to mark."""
        with suppress(OSError):
            file = LockedFile(os.path.join(self.root_folder(url), ROOT_FILE), os.O_RDONLY)
            if file.try_lock(*_IN_USE, shared=True) and os.fstat(file.fd).st_nlink:
                return file
            file.close()
        return None

    def root_in_use(self, root_folder: str) -> bool:
        """Whether a running process uses a dataset, or might."""
        try:
            with LockedFile(os.path.join(root_folder, ROOT_FILE), os.O_RDWR) as file:
                return not file.try_lock(*_IN_USE)
        except FileNotFoundError:
            return False
        except OSError:  # it cannot be locked
            return True

    def open_block(self, owner: ObjectPlace, place: BlockPlace, limits: Limits) -> BlockFile | None:
        """Open a block for writing, made if it is absent; None if there is no room for it.

        Raises:
            Busy: Others keep locks.
            OSError: The disk is full or fails.
        """
        block = BlockFile.open(place, writable=True)
        if block is None and self._make_block(owner, place, limits):
            block = BlockFile.open(place, writable=True)
        return block

    def _make_block(self, owner: ObjectPlace, place: BlockPlace, limits: Limits) -> bool:
        """Make a block's file; False if there is no room for it."""
        root_folder, identity = owner.root_folder, owner.identity
        with self.ledger.writing() as books, books.naming(owner.folder):
            if os.path.exists(place.path):
                return True
            new_object = not os.path.exists(os.path.join(owner.folder, OBJECT_FILE))
            amount = _EMPTY_BLOCK_BYTES + new_object * OBJECT_BYTES
            if new_object and not self._make_root(books, owner, limits):
                return False
            if not books.take(root_folder, amount, limits):
                return False
            if new_object:
                self._make_folder(books, owner, limits)
                about = {"path": identity.path, "etag": identity.etag, "size": identity.size}
                _describe(owner.folder, OBJECT_FILE, about)
            os.close(os.open(place.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
            books.is_written(amount)
        return True

    def _make_folder(self, books: Books, owner: ObjectPlace, limits: Limits) -> None:
        while True:
            try:
                os.mkdir(owner.folder)
            except FileExistsError:  # somebody was killed before its description was there
                return
            except FileNotFoundError:  # the dataset's folder was removed just now
                if not self._make_root(books, owner, limits):
                    raise
            else:
                return

    def _make_root(self, books: Books, owner: ObjectPlace, limits: Limits) -> bool:
        """Make a dataset's folder, if it is not there; False if there is no room for it."""
        root_folder = owner.root_folder
        description = os.path.join(root_folder, ROOT_FILE)
        if os.path.exists(description):
            return True
        with books.locked():
            if not os.path.exists(description):
                if not books.take_locked(root_folder, ROOT_BYTES, limits):
                    return False
                os.makedirs(root_folder, exist_ok=True)
                _describe(root_folder, ROOT_FILE, {"url": owner.identity.root})
                books.is_written(ROOT_BYTES)
        return True

    # What vanishes

    def remove_block(self, block: BlockFile) -> int:
        """Remove an open block, and its object's folder with the last one; views of it stay valid.

        Returns:
            Bytes that it had taken of the disk; 0 if it was gone.

        Raises:
            Busy: Others keep locks.
            OSError: The disk fails, or must not be written.
        """
        place = block.place
        with block.appending():
            if not block.look_again():
                return 0
            amount = block.disk_bytes()
            with (
                self.ledger.writing() as books,
                books.naming(place.object_folder),
                books.locked(),
            ):
                with books.giving_back(place.root_folder, amount):
                    os.unlink(place.path)
                if not self.blocks(place.object_folder):
                    with books.giving_back(place.root_folder, OBJECT_BYTES):
                        _remove_folder(place.object_folder)
        return amount

    def remove_root(self, root_folder: str) -> bool:
        """Remove a dataset's folder; False if it has objects, or is in use."""
        try:
            file = LockedFile(os.path.join(root_folder, ROOT_FILE), os.O_RDWR)
        except FileNotFoundError:
            return False
        with file, self.ledger.writing() as books, books.locked():
            if not file.try_lock(*_IN_USE) or self.object_folders(root_folder):
                return False
            with books.giving_back(None, ROOT_BYTES):
                _remove_folder(root_folder)
        return True

    def _measure(self) -> dict[str, int]:
        """Bytes of each dataset; removes what killed processes left empty. Nobody may write meanwhile."""
        counts = {}
        for root_folder in self.root_folders():
            count = ROOT_BYTES
            for object_folder in self.object_folders(root_folder):
                places = self.blocks(object_folder)
                if not places:
                    _remove_folder(object_folder)
                    continue
                count += OBJECT_BYTES
                for place in places:
                    with suppress(FileNotFoundError), BlockFile.look_at(place) as block:
                        count += block.disk_bytes()
            counts[root_folder] = count
        return counts


def read_description(folder: str, name: str) -> dict[str, Any]:
    """What a folder's file says of it; nothing where it cannot be read."""
    try:
        found = json.loads(Path(folder, name).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _describe(folder: str, name: str, about: dict[str, Any]) -> None:
    temporary = os.path.join(folder, f"{name}{_TEMPORARY}")
    with open(temporary, "wb", buffering=0) as file:
        file.write(json.dumps(about).encode())
    os.replace(temporary, os.path.join(folder, name))


def _remove_folder(folder: str) -> None:
    """Remove a folder of ours, unless somebody put something else into it."""
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
