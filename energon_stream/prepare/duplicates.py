"""Makes sample keys unique: the members of each tar move into a folder that is named after the tar.

Megatron-Energon's ``--fix-duplicates`` gives the same names. It patches headers in place, which fails for
long names and other forms of headers. Here each tar is written anew and replaced as a whole. A run that was
interrupted goes on where it ended.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from energon_stream.errors import CorruptTarError, DuplicateKeyError
from energon_stream.media.seekable import StoreFile
from energon_stream.storage.in_order import ordered_map

if TYPE_CHECKING:
    from energon_stream.arrays import UInt64Array
    from energon_stream.prepare.shard_records import ShardRecord
    from energon_stream.storage import ListEntry, Store

_NAMES = frozenset({"path", "linkpath", "size"})  # records of a PAX header that the new header has anew
_READ = 8 << 20  # bytes of a tar that are read at a time


def separate_tars(
    store: Store,
    entries: Sequence[ListEntry],
    scan: Callable[[ListEntry], ShardRecord],
    workers: int,
    folder: str,
    before: Callable[[], object],
) -> bool:
    """Rename the members of all tars if samples of two tars have the same key: ``x.jpg`` of ``a.tar`` becomes
    ``a.tar/x.jpg``.

    ``before`` is called before the first tar is changed. New tars are written in a local ``folder``. Returns
    True if tars were changed.

    Raises:
        CorruptTarError: A tar is damaged, or has a sparse file.
        DuplicateKeyError: A tar has the same key twice. No tar was changed.
    """
    scans = list(
        ordered_map(lambda entry: _hashed_keys(store, entry, scan(entry).scan.keys), entries, workers)
    )
    hashes = np.concatenate([keys for keys, _ in scans])
    if len(np.unique(hashes)) == len(hashes):
        return False
    before()
    old = [entry for entry, (_, is_named) in zip(entries, scans, strict=True) if not is_named]
    for _ in ordered_map(lambda entry: _rename_members(store, entry, folder), old, workers):
        pass
    return True


def _hashed_keys(store: Store, entry: ListEntry, keys: list[str]) -> tuple[UInt64Array, bool]:
    """Return hashes of a tar's keys, and whether its members are in the folder of its name already."""
    for key, count in Counter(keys).most_common(1):
        if count > 1:
            raise DuplicateKeyError(
                f"the sample key {key!r} appears {count} times in one tar",
                where=f"{store.url}/{entry.path}",
                hint="only tars can be told apart; `energon-stream repair` puts the parts of a sample together. "
                "No tar was changed",
            )
    is_named = all(key.startswith(f"{entry.path}/") for key in keys)
    hashes = (xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape")) for key in keys)
    return np.fromiter(hashes, dtype=np.uint64, count=len(keys)), is_named


def _rename_members(store: Store, entry: ListEntry, folder: str) -> None:
    """Replace a tar by one whose members are in a folder with the tar's path as its name."""
    where = f"{store.url}/{entry.path}"
    old = StoreFile(store, entry.path, entry.meta.size, entry.meta.etag)
    descriptor, path = tempfile.mkstemp(suffix=".tar", dir=folder)
    try:
        with (
            os.fdopen(descriptor, "wb") as new,
            tarfile.open(fileobj=old, mode="r|", bufsize=_READ) as source,
            tarfile.open(fileobj=new, mode="w|", format=tarfile.PAX_FORMAT) as target,
        ):
            for member in source:
                if member.issparse():
                    raise CorruptTarError(
                        f"{member.name!r} is a sparse file, which cannot be renamed", where=where
                    )
                member.pax_headers = {k: v for k, v in member.pax_headers.items() if k not in _NAMES}
                member.name = f"{entry.path}/{member.name}"
                if member.islnk():
                    member.linkname = f"{entry.path}/{member.linkname}"
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
        store.put_file(entry.path, path)
    finally:
        os.unlink(path)
